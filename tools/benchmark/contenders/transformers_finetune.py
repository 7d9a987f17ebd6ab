"""transformers on PyTorch: the same rows, padded to the longest of a batch.

Batches are drawn at random, which is its default; or with "grouped", rows of
like length, as its `Trainer` makes them by `group_by_length`: it sorts 50
batches at a time, here all there are.
"""

import json
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from peer_trainer import batch_of
from worker import serve

NAMES = {
    "token_ids": "input_ids",
    "segment_ids": "token_type_ids",
    "labels": "labels",
    "start": "start_positions",
    "end": "end_positions",
}


def prepare(settings):
    import torch
    import transformers

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


serve(prepare)
