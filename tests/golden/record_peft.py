"""Records PEFT adapters in peft/, and their logits in peft.json.

    python -m tests.golden.record_peft

Needs the extra `peers`.
"""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

from tests.golden.record import TOY, TOY_ROWS

HERE = Path(__file__).parent
SMALL = {"hidden_size": 8, "intermediate_size": 12, "num_labels": 3}
ADAPTERS = {
    "plain": {
        "target_modules": ["query", "value"],
        "alpha_pattern": {"layer.1.attention.self.query": 3},
        "lora_dropout": 0.25,
    },
    "rslora": {
        "target_modules": ["key", "intermediate.dense"],
        "rank_pattern": {"intermediate.dense": 3},
        "use_rslora": True,
    },
}


def record(name):
    """Write peft/NAME/ and return the logits with the adapter."""
    base = BertForSequenceClassification.from_pretrained(HERE / "peft" / "base")
    torch.manual_seed(len(name))
    settings = {"r": 2, "lora_alpha": 5, "task_type": "SEQ_CLS"}
    config = LoraConfig(**settings, **ADAPTERS[name])
    model = get_peft_model(base, config).eval()
    config.base_model_name_or_path = "base"  # no path of this machine
    for weight in model.parameters():  # LoRA's B is initialized to 0
        if weight.requires_grad:
            weight.data += 0.3 * torch.randn_like(weight)
    model.save_pretrained(HERE / "peft" / name)
    ids, segments, mask = (torch.tensor(rows) for rows in TOY_ROWS.values())
    with torch.no_grad():
        outputs = model(
            input_ids=ids, token_type_ids=segments, attention_mask=mask
        )
    return outputs.logits.double().numpy().round(7).tolist()


if __name__ == "__main__":
    torch.manual_seed(3)
    base = BertForSequenceClassification(BertConfig(**{**TOY, **SMALL}))
    base.save_pretrained(HERE / "peft" / "base")
    logits = {name: record(name) for name in ADAPTERS}
    lines = json.dumps({"rows": TOY_ROWS, "logits": logits})
    (HERE / "peft.json").write_text(lines + "\n", encoding="utf-8")
