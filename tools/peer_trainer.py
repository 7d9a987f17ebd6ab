"""Fine-tunes with transformers' Trainer, for tools/results_table.py.

    python tools/peer_trainer.py FOLDER

In: FOLDER with settings.json, train.json and dev.json: rows of ids, so that
both sides see the same. Out: outputs-N.npz, the dev outputs after epoch N, of
tokens those of all rows one after the other.

What is not Trainer's default is the run's hyper-parameters, 10 % warm-up,
epsilon 1e-6, weight decay 0.01 (Trainer leaves biases and layer norms out of
it, and clips gradients to 1), and batches of rows of like length.

Needs torch, transformers and accelerate, and nothing of this package.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

IGNORED = -100
LONG, PARTS = 200, 4  # tokens; of 16, 32 and 48 rows


def padded(lists, value=0):
    width = max(map(len, lists))
    return torch.tensor([row + [value] * (width - len(row)) for row in lists])


def texts_of(rows):
    """The texts of a batch, padded to the longest; choices fold into it."""
    columns = {
        name: [row[name] for row in rows]
        for name in ("input_ids", "token_type_ids")
    }
    choices = isinstance(rows[0]["input_ids"][0], list)
    if choices:
        columns = {name: sum(lists, []) for name, lists in columns.items()}
    columns["attention_mask"] = [[1] * len(x) for x in columns["input_ids"]]
    batch = {name: padded(lists) for name, lists in columns.items()}
    if choices:  # (B K, T) to (B, K, T)
        batch = {
            name: x.view(len(rows), -1, x.shape[1]) for name, x in batch.items()
        }
    return batch


def batch_of(rows):
    batch = texts_of(rows)
    for name in ("labels", "start_positions", "end_positions"):
        values = [row[name] for row in rows if name in row]
        if values and isinstance(values[0], list):
            batch[name] = padded(values, IGNORED)
        elif values:
            batch[name] = torch.tensor(values)
    return batch


def outputs_of(model, rows) -> dict:
    """The outputs of all rows in their order, without padding."""
    model.eval()
    order = sorted(range(len(rows)), key=lambda i: _length(rows[i]))
    found = {}
    with torch.no_grad():
        for begin in range(0, len(rows), 64):
            chosen = order[begin : begin + 64]
            outputs = model(**texts_of([rows[i] for i in chosen]))
            for name, values in outputs.items():
                own = found.setdefault(name.removesuffix("_logits"), {})
                own.update(zip(chosen, values.numpy(), strict=True))
    model.train()
    return {name: _in_order(rows, own) for name, own in found.items()}


def _length(row):
    ids = row["input_ids"]
    return max(map(len, ids)) if isinstance(ids[0], list) else len(ids)


def _in_order(rows, own):
    per_token = "start_positions" in rows[0] or isinstance(
        rows[0].get("labels"), list
    )
    if not per_token:
        return np.stack([own[i] for i in range(len(rows))])
    return np.concatenate([own[i][: _length(r)] for i, r in enumerate(rows)])


class Scores(transformers.TrainerCallback):
    """Writes the dev outputs after each epoch."""

    def __init__(self, folder, rows):
        self.folder, self.rows = folder, rows

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        path = self.folder / f"outputs-{round(state.epoch)}.npz"
        np.savez(path, **outputs_of(model, self.rows))


def main(folder):
    folder = Path(folder)
    settings, train, dev = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("settings", "train", "dev")
    )
    transformers.set_seed(settings["seed"])
    cls = getattr(transformers, f"AutoModelFor{settings['model']}")
    heads = {"SequenceClassification", "TokenClassification"}
    own = (
        {"num_labels": settings["labels"]} if settings["model"] in heads else {}
    )
    model = cls.from_pretrained(settings["init"], **own)
    # A batch of long rows wants gigabytes; the mean over it is that of parts.
    parts = PARTS if max(map(_length, train)) > LONG else 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch_size"] // parts,
        gradient_accumulation_steps=parts,
        learning_rate=settings["learning_rate"],
        warmup_steps=0.1,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        seed=settings["seed"],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    transformers.Trainer(
        model,
        arguments,
        batch_of,
        train,
        callbacks=[Scores(folder, dev)],
    ).train()


if __name__ == "__main__":
    main(sys.argv[1])
