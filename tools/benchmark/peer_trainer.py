"""Fine-tunes with transformers' Trainer, for tools/benchmark/results_table.py.

    python tools/benchmark/peer_trainer.py FOLDER

In: FOLDER with settings.json; train.json and dev.json, rows of ids; and
order.json, for each row of each batch in turn its number and the width it is
padded to, on which the loss of spans depends: its softmax runs over padding
too.
Out: outputs-N.npz, the dev outputs after epoch N, of tokens those of all rows
one after the other.

Both sides have the same batches, schedule and optimizer, so that what differs
is what is drawn: dropout and the head's first weights. Clipping to 1 is
Trainer's own.

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


def padded(lists, value=0, width=None):
    width = width or max(map(len, lists))
    return torch.tensor([row + [value] * (width - len(row)) for row in lists])


def texts_of(rows):
    """The texts of a batch, padded to its width or the longest; choices fold
    into it."""
    width = rows[0].get("width")
    columns = {
        name: [row[name] for row in rows]
        for name in ("input_ids", "token_type_ids")
    }
    choices = isinstance(rows[0]["input_ids"][0], list)
    if choices:
        columns = {name: sum(lists, []) for name, lists in columns.items()}
    columns["attention_mask"] = [[1] * len(x) for x in columns["input_ids"]]
    batch = {name: padded(x, width=width) for name, x in columns.items()}
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
            batch[name] = padded(values, IGNORED, rows[0].get("width"))
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
    """Writes the dev outputs after each epoch and at the end."""

    def __init__(self, folder, rows, steps_per_epoch):
        self.folder, self.rows, self.every = folder, rows, steps_per_epoch

    def on_step_end(self, args, state, control, model=None, **kwargs):
        epoch, rest = divmod(state.global_step, self.every)
        if rest == 0 or state.global_step == state.max_steps:
            path = self.folder / f"outputs-{epoch + (rest > 0)}.npz"
            np.savez(path, **outputs_of(model, self.rows))


def optimizer_of(model, settings):
    """Adam with decay of all but biases and norms, and BERT's schedule.

    Trainer's own falls on a line from the end of the warm-up; BERT's on one
    from step 0, a tenth lower.
    """
    steps, peak = settings["steps"], settings["learning_rate"]
    warmup = int(0.1 * steps)
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1]},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=peak,
        eps=1e-6,
        weight_decay=0.01,
    )

    def share(step):
        return step / warmup if step < warmup else 1 - step / steps

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def model_of(settings):
    cls = getattr(transformers, f"AutoModelFor{settings['model']}")
    heads = {"SequenceClassification", "TokenClassification"}
    own = (
        {"num_labels": settings["labels"]} if settings["model"] in heads else {}
    )
    model = cls.from_pretrained(settings["init"], **own)
    # PyTorch leaves the vector of [PAD] as it is, BERT's code does not.
    model.get_input_embeddings().padding_idx = None
    # Else Trainer takes the losses of a batch's parts for parts of a sum.
    model.accepts_loss_kwargs = False
    return model


def train(folder):
    """The `Trainer` of the folder's run, done."""
    settings, rows, dev, order = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("settings", "train", "dev", "order")
    )
    transformers.set_seed(settings["seed"])
    model = model_of(settings)
    # A batch of long rows wants gigabytes; the mean over it is that of parts.
    parts = PARTS if max(map(_length, rows)) > LONG else 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["batch_size"] // parts,
        gradient_accumulation_steps=parts,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        seed=settings["seed"],
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        batch_of,
        [{**rows[number], "width": width} for number, width in order],
        callbacks=[Scores(folder, dev, settings["steps_per_epoch"])],
        optimizers=optimizer_of(model, settings),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer


if __name__ == "__main__":
    train(Path(sys.argv[1]))
