"""Fine-tunes with transformers and PyTorch, for tools/results_table.py.

    python tools/peer_trainer.py FOLDER

In: FOLDER with settings.json, train.json and dev.json (rows of ids, so that
both sides see the same). Out: outputs.npy, the dev outputs after each epoch.
What `transformers.Trainer` does by default with linear decay, spelled out:
AdamW with bias correction, weight decay but on biases and layer norms, 10 %
warm-up, gradients clipped to 1, batches padded to their longest row.

Needs torch and transformers, and nothing of this package.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    get_linear_schedule_with_warmup,
)


def batch_of(rows, indices):
    """The rows at the indices, padded to the longest of them."""
    chosen = [rows["token_ids"][i] for i in indices]
    width = max(map(len, chosen))

    def padded(lists):
        return torch.tensor([row + [0] * (width - len(row)) for row in lists])

    return {
        "input_ids": padded(chosen),
        "attention_mask": padded([[1] * len(row) for row in chosen]),
        "token_type_ids": padded([rows["segment_ids"][i] for i in indices]),
    }


def optimizer_of(model, settings, steps):
    groups = {True: [], False: []}
    for name, weight in model.named_parameters():
        groups["bias" not in name and "LayerNorm" not in name].append(weight)
    optimizer = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": 0.01},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=settings["learning_rate"],
        eps=1e-6,
    )
    return optimizer, get_linear_schedule_with_warmup(
        optimizer, int(0.1 * steps), steps
    )


def predict(model, rows):
    model.eval()
    count = len(rows["labels"])
    with torch.no_grad():
        parts = [
            model(**batch_of(rows, range(i, min(i + 64, count)))).logits
            for i in range(0, count, 64)
        ]
    model.train()
    return torch.cat(parts).numpy()


def main(folder):
    folder = Path(folder)
    settings = json.loads((folder / "settings.json").read_text())
    train = json.loads((folder / "train.json").read_text())
    dev = json.loads((folder / "dev.json").read_text())
    torch.manual_seed(settings["seed"])
    model = AutoModelForSequenceClassification.from_pretrained(
        settings["init"], num_labels=settings["classes"]
    )
    model.train()
    size, count = settings["batch_size"], len(train["labels"])
    an_epoch = math.ceil(count / size)
    steps = max(1, round(settings["epochs"] * an_epoch))
    optimizer, schedule = optimizer_of(model, settings, steps)
    labels = torch.tensor(train["labels"])
    outputs, step = [], 0
    while step < steps:
        order = torch.randperm(count).tolist()
        for begin in range(0, count, size):
            chosen = order[begin : begin + size]
            loss = model(**batch_of(train, chosen), labels=labels[chosen]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step == steps:
                break
        outputs.append(predict(model, dev))
    np.save(folder / "outputs.npy", np.stack(outputs))


if __name__ == "__main__":
    main(sys.argv[1])
