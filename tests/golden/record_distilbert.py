"""Records outputs of transformers in distilbert.json and distilbert/.

    python -m tests.golden.record_distilbert

Needs the extra `peers`.
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import DistilBertConfig

from tests.golden.record import TOY_ROWS

HERE = Path(__file__).parent
HEADS = {
    "encoder": ("Model", {}),
    "pretraining": ("ForMaskedLM", {}),
    "classes": ("ForSequenceClassification", {"num_labels": 3}),
    "tags": ("ForTokenClassification", {"num_labels": 4}),
    "spans": ("ForQuestionAnswering", {}),
    "choices": ("ForMultipleChoice", {}),
}
SIZES = {
    "vocab_size": 40,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 20,
    "initializer_range": 0.3,
}


def record(name):
    """Write the model to distilbert/NAME/ and return its outputs."""
    kind, settings = HEADS[name]
    torch.manual_seed(len(name))
    model = getattr(transformers, f"DistilBert{kind}")(
        DistilBertConfig(**SIZES, **settings)
    ).eval()
    for weight in model.parameters():  # so no bias or norm is constant
        weight.data += 0.1 * torch.randn_like(weight)
    model.save_pretrained(HERE / "distilbert" / name)
    ids, _, mask = (torch.tensor(rows) for rows in TOY_ROWS.values())
    if name == "choices":  # (B, K, T) of one example
        ids, mask = ids[None], mask[None]
    with torch.no_grad():
        outputs = model(input_ids=ids, attention_mask=mask)
    return [x.double().numpy().round(7).tolist() for x in outputs.values()]


if __name__ == "__main__":
    recorded = {name: record(name) for name in HEADS}
    lines = json.dumps({"rows": TOY_ROWS, "outputs": recorded})
    (HERE / "distilbert.json").write_text(lines + "\n", encoding="utf-8")
