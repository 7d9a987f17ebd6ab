"""transformers on PyTorch as a contender."""

import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from examples import SIZES, VOCABULARY, pretraining_batch
from worker import peak_megabytes

# Our name of a column of rows -> the name that its models take.
NAMES = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "labels": "labels",
    "start": "start_positions",
    "end": "end_positions",
}


def step(settings):
    """One step of BertForPreTraining, eager or compiled.

    It has no gather: vocabulary logits are computed at every position.
    """
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

    def train():
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

    return train, settings["batch"]


def finetune(settings):
    """Steps on the same rows, padded to the longest of a batch.

    Batches are drawn at random, which is its default; or with "grouped", rows
    of like length, as its `Trainer` makes them by `group_by_length`: it sorts
    50 batches at a time, here all there are.
    """
    import torch
    import transformers
    from peer_trainer import batch_of

    rows = _rows(settings["file"])
    span = "start_positions" in rows[0]
    kind = "QuestionAnswering" if span else "SequenceClassification"
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        settings["init"]
    )
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5, fused=True)
    batches = list(_batches(rows, settings))

    def run():
        for chosen in batches:
            optimizer.zero_grad()
            model(**batch_of(chosen)).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run, len(batches) * settings["batch"]


def classify(settings):
    """Texts to the first one's probabilities, by its pipeline."""
    from transformers import pipeline

    folder = settings["folder"]
    pipe = pipeline("text-classification", model=folder, device="cpu")
    numbers = pipe.model.config.label2id

    def run(texts):
        rows = pipe(texts, batch_size=len(texts), top_k=None, truncation=True)
        first = sorted(rows[0], key=lambda entry: numbers[entry["label"]])
        return [entry["score"] for entry in first]

    return run, 1


def load(settings):
    """A model from a Hugging Face folder, and one short row."""
    import torch
    from transformers import BertModel

    torch.zeros(3) + 1  # starts the runtime
    before = peak_megabytes()

    def run():
        model = BertModel.from_pretrained(settings["base"])
        with torch.no_grad():
            model(torch.tensor([[1, 2]]))

    return run, 1, {"megabytes_before": round(before)}


def _rows(path):
    """A dict a row, by the names that transformers' models take."""
    with open(path, encoding="utf-8") as file:
        columns = json.load(file)
    names = [NAMES[name] for name in columns]
    return [
        dict(zip(names, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]


def _batches(rows, settings):
    size = settings["batch"]
    rows = random.Random(0).sample(rows, len(rows))
    if settings.get("grouped"):
        rows.sort(key=lambda row: -len(row["input_ids"]))
    for begin in range(0, settings["steps"] * size, size):
        yield rows[begin : begin + size]
