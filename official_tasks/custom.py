"""The user's own classes: rows of a CSV, TSV or JSONL file, no code needed."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np

from bert_keras.errors import InputError
from official_tasks import metrics
from official_tasks.table import read_rows
from official_tasks.task import Example, Task

HELD_OUT_SHARE = 0.1  # of each class, where no dev file is given


class CustomTask(Task):
    """Classification of the rows of `train`, scored on those of `dev`.

    Labels are the distinct values of the label column, sorted. Without
    `dev` a tenth of each class, drawn by `seed`, is held out.

    Attributes:
        advice: list of str, what in the data deserves a look.
    """

    name = "custom"
    metric = "accuracy"

    def __init__(
        self,
        train,
        dev=None,
        text="text",
        text_pair=None,
        label="label",
        seed=0,
    ):
        self.columns = [text, label, *([text_pair] if text_pair else [])]
        self.advice: list[str] = []
        rows = self._rows(train)
        self.labels = sorted({row[1] for row in rows})
        if len(self.labels) < 2:
            raise InputError(
                f"{train}: expected at least 2 classes in column {label!r}, "
                f"got {len(self.labels)}"
            )
        examples = self._examples(train, rows)
        if dev:
            held = self._examples(dev, self._rows(dev))
        else:
            examples, held = self._hold_out(train, examples, seed)
        self.splits = {"train": examples, "dev": held}
        self._advise(train)

    def read(self, split):
        return self.splits[split]

    def build(self, encoder):
        from bert_keras import BertClassifier

        return BertClassifier(encoder, labels=self.labels)

    def loss(self):
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def score(self, examples, outputs):
        confusion = metrics.confusion_matrix(
            [example.label for example in examples],
            np.argmax(outputs, axis=-1),
            len(self.labels),
        )
        classes = metrics.per_class(confusion)
        return {
            "accuracy": metrics.accuracy(confusion),
            "macro_f1": metrics.macro_f1(confusion),
            "majority_baseline": metrics.majority_baseline(
                [example.label for example in examples]
            ),
            "classes": {
                label: {key: float(classes[key][row]) for key in classes}
                for row, label in enumerate(self.labels)
            },
            "confusion": confusion.tolist(),
        }

    def write(self, examples, outputs, folder):
        shifted = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=-1, keepdims=True)
        path = Path(folder) / "predictions.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            pair = ["text_pair"] if len(self.columns) == 3 else []
            writer.writerow(["text", *pair, "label", "predicted", "score"])
            for example, row in zip(examples, probabilities, strict=True):
                writer.writerow(
                    [
                        example.text,
                        *([example.text_pair] if pair else []),
                        self.labels[example.label],
                        self.labels[row.argmax()],
                        f"{row.max():.4f}",
                    ]
                )

    def _rows(self, path):
        rows = []
        for number, (text, label, *pair) in read_rows(path, self.columns):
            if not text.strip():
                self.advice.append(f"{path}, line {number}: the text is empty")
            rows.append((text, label, pair[0] if pair else None))
        if not rows:
            raise InputError(f"{path}: expected at least one row, got none")
        return rows

    def _examples(self, path, rows):
        index = {label: i for i, label in enumerate(self.labels)}
        unknown = sorted({label for _, label, _ in rows} - index.keys())
        if unknown:
            raise InputError(
                f"{path}: expected the labels of the training file "
                f"({', '.join(self.labels[:20])}), got {unknown[0]!r}"
            )
        return [Example(text, pair, index[label]) for text, label, pair in rows]

    def _hold_out(self, path, examples, seed):
        generator = np.random.default_rng(seed)
        held: set[int] = set()
        for label, name in enumerate(self.labels):
            rows = [i for i, row in enumerate(examples) if row.label == label]
            if len(rows) < 2:
                raise InputError(
                    f"{path}: the class {name!r} has one row, expected at "
                    "least 2 to hold one out: add rows or give --dev"
                )
            count = max(1, round(HELD_OUT_SHARE * len(rows)))
            held.update(generator.permutation(rows)[:count].tolist())
        return (
            [row for i, row in enumerate(examples) if i not in held],
            [row for i, row in enumerate(examples) if i in held],
        )

    def _advise(self, path):
        train = [(row.text, row.text_pair) for row in self.splits["train"]]
        again = len(train) - len(set(train))
        if again:
            self.advice.append(f"{path}: {again} rows repeat an earlier text")
        both = {(r.text, r.text_pair) for r in self.splits["dev"]} & set(train)
        if both:
            self.advice.append(
                f"{len(both)} texts stand in train and in dev, which flatters "
                f"the score: the first is {min(both)[0][:60]!r}"
            )
        counts = Counter(row.label for row in self.splits["train"])
        rare = min(self.labels, key=lambda n: counts[self.labels.index(n)])
        share = counts[self.labels.index(rare)] / len(train)
        if share * len(self.labels) < 0.2:
            self.advice.append(
                f"the class {rare!r} has {share:.1%} of the rows: look at "
                "macro_f1 rather than accuracy, and sample it more often"
            )
