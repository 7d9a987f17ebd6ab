"""transformers on PyTorch: BertForPreTraining, eager or compiled.

It has no gather: vocabulary logits are computed at every position.
"""

from examples import SIZES, VOCABULARY, pretraining_batch
from worker import serve


def prepare(settings):
    import torch
    from transformers import BertConfig, BertForPreTraining

    layers, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    model = BertForPreTraining(
        BertConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=rate,
            attention_probs_dropout_prob=rate,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    forward = torch.compile(model) if settings.get("jit") else model
    batch = pretraining_batch(
        settings["batch"], settings["length"], settings["predictions"]
    )
    batch = {k: torch.from_numpy(v).long() for k, v in batch.items()}
    labels = torch.full_like(batch["input_ids"], -100)
    labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
    half = settings["dtype"] == "mixed_bfloat16"

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = forward(
                input_ids=batch["input_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["input_mask"],
                labels=labels,
                next_sentence_label=batch["next_sentence_labels"],
            )
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step, settings["batch"]


serve(prepare)
