"""The user's own data: rows of a CSV, TSV or JSONL file, no code needed."""

import csv
from pathlib import Path

import numpy as np

from bert_keras.errors import InputError
from official_tasks import custom_advice, metrics
from official_tasks.custom_rows import (
    DROP_UNLABELLED,
    FILES,
    TO_SCORE,
    checked_seed,
    has_text,
    left_out,
    told_place,
)
from official_tasks.table import dialect, read_rows
from official_tasks.task import Example, Option
from official_tasks.text_task import TextTask

HELD_OUT_SHARE = 0.1  # of each class, where no dev file is given
PROBLEMS = ("single", "multi", "regression")
METRICS = {"single": "accuracy", "multi": "micro_f1", "regression": "pearson"}


class CustomTask(TextTask):
    """Classes, several labels, or a number for the rows of `train`.

    Labels are the distinct values of the label column, sorted; without
    `train` they come from the model. Without `dev` a tenth of the texts (of
    each class), drawn by `split_seed`, is held out.

    Args:
        train, dev, test: files; `test` needs no column of labels.
        text, text_pair, label: their columns.
        problem: "single" (one class a text), "multi" (any number of labels)
            or "regression".
        label_separator: what stands between the labels of a text, "multi".
        split_seed: of what is held out.
        separator: what stands between the columns of CSV, None: a comma.
        encoding: of the files.
        drop_unlabelled: whether rows without a label are left out, which are
            refused otherwise; of "multi" they have none of the labels.
    """

    name = "custom"
    to_score = TO_SCORE
    options = {
        **FILES,
        "text": Option("text", "Column of the text."),
        "text_pair": Option(None, "Column of the second text."),
        "label": Option("label", "Column of the label."),
        "problem": Option(
            "single",
            f"One of {', '.join(PROBLEMS)}, spans, tags, choices; the last "
            "three have columns of their own.",
        ),
        "label_separator": Option(",", "Between the labels of a text."),
        **DROP_UNLABELLED,
    }

    def __init__(
        self,
        train=None,
        dev=None,
        test=None,
        text="text",
        text_pair=None,
        label="label",
        problem="single",
        label_separator=",",
        split_seed=0,
        separator=None,
        encoding=None,
        drop_unlabelled=False,
    ):
        if problem not in PROBLEMS:
            raise InputError(
                f"problem is {problem!r}: expected one of {', '.join(PROBLEMS)}"
            )
        if problem == "multi" and not label_separator:
            raise InputError("--label_separator: expected text, got none")
        if problem == "multi" and drop_unlabelled:
            raise InputError(
                "--drop_unlabelled does nothing with --problem=multi: a row "
                "without a label has none of them. Leave it out."
            )
        self.dialect = dialect(separator, encoding)
        self.drop_unlabelled = drop_unlabelled
        self.problem, self.separator = problem, label_separator
        self.metric = METRICS[problem]
        self.standardises = problem == "regression"
        self.columns = [text, *([text_pair] if text_pair else [])]
        self.pair = len(self.columns) == 2
        self.label_column = label
        self.advice: list[str] = []
        self.files = {"train": train, "dev": dev, "test": test}
        self.splits: dict[str, list[Example]] = {}
        if train:
            self._read_train(train, checked_seed(split_seed))

    def read(self, split):
        if split not in self.splits:
            path = self.files[split]
            if path is None:
                raise InputError(f"No {split} file: give --{split}=FILE")
            rows = self._rows(path, labelled=split != "test")
            self.splits[split] = self._noted(rows)
        return self.splits[split]

    def data_files(self):
        given = [self.files["train"], self.files["dev"]]
        return [
            path.strip()
            for paths in given
            if paths
            for path in str(paths).split(",")
        ]

    def write(self, examples, predictions, folder):
        """predictions.csv: the row, what was predicted, and its score."""
        path = Path(folder) / "predictions.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = ["text", "text_pair"][: len(self.columns)]
            writer.writerow([*names, "label", *self._headings()])
            rows = zip(examples, self._columns(predictions), strict=True)
            for example, columns in rows:
                label = "" if example.label is None else self._told(example)
                texts = [example.text, example.text_pair][: len(names)]
                writer.writerow([*texts, label, *columns])

    def _headings(self):
        if self.problem == "regression":
            return ["predicted"]
        if self.problem == "multi":
            return ["predicted", *self.labels]
        return ["predicted", "score"]

    def _columns(self, predictions):
        """What stands in a row of predictions.csv behind the label."""
        if self.problem == "regression":
            return [[f"{row[0]:.6g}"] for row in predictions]
        if self.problem == "single":
            return [
                [self.labels[row.argmax()], f"{row.max():.4f}"]
                for row in metrics.probabilities(predictions)
            ]
        shares = 1 / (1 + np.exp(-predictions.astype(np.float64)))
        return [
            [
                self._joined(np.flatnonzero(row > 0.5)),
                *(f"{share:.4f}" for share in row),
            ]
            for row in shares
        ]

    def _told(self, example):
        if self.problem == "single":
            return self.labels[example.label]
        if self.problem == "multi":
            return self._joined(sorted(example.label))
        return f"{example.label:.6g}"

    def _joined(self, indices):
        return self.separator.join(self.labels[index] for index in indices)

    def _read_train(self, train, split_seed):
        rows = self._rows(train, labelled=True)
        if self.problem != "regression":
            self.labels = self._discovered(train, rows)
            self.advice += custom_advice.on_names(
                self.labels, self.label_column
            )
        examples = self._noted(rows)
        if self.files["dev"]:
            dev = self._rows(self.files["dev"], labelled=True)
            self.splits = {"train": examples, "dev": self._noted(dev)}
            self.advice += custom_advice.on_overlap(rows, dev)
        else:
            held = self._held_out(train, examples, split_seed)
            for split, wanted in (("train", False), ("dev", True)):
                self.splits[split] = [
                    example
                    for i, example in enumerate(examples)
                    if (i in held) == wanted
                ]
        self.advice += custom_advice.on_labels(
            self.problem, self.splits["train"], self.labels
        )

    def _noted(self, rows):
        """The examples of rows that deserve a look or not, which is noted."""
        examples = self._examples(rows)
        self.advice += custom_advice.on_rows(rows)
        return examples

    def _rows(self, paths, labelled):
        """((file, line), texts, label) of each row; label None without."""
        wanted = [*self.columns, *([self.label_column] if labelled else [])]
        lists = [self.label_column] if self.problem == "multi" else []
        rows, unlabelled = [], []
        for path in map(str.strip, str(paths).split(",")):
            for number, values in read_rows(
                path, wanted, lists, own=self.dialect, notes=self.advice
            ):
                place = (path, number)
                label = values.pop() if labelled else None
                if label is not None and self._is_missing(label):
                    unlabelled.append(place)
                else:
                    rows.append((place, values, self._parsed(place, label)))
        self.advice += left_out(
            unlabelled, self.label_column, self.drop_unlabelled
        )
        if not rows:
            raise InputError(f"{paths}: expected at least one row, got none")
        return rows

    def _is_missing(self, label):
        if self.problem == "multi":
            return False
        is_number = self.problem == "regression"
        return not has_text(label) or (
            is_number and label.strip().lower() == "nan"
        )

    def _parsed(self, place, label):
        """A label as a name, a list of names or a number."""
        if label is None:
            return None
        if self.problem == "multi":
            listed = isinstance(label, list)  # of JSONL
            names = label if listed else label.split(self.separator)
            return sorted({name.strip() for name in names} - {""})
        if self.problem == "single":
            return label.strip()
        try:
            number = float(label)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            raise InputError(
                f"{told_place(place)}: expected a number in column "
                f"{self.label_column!r}, got {label!r}"
            )
        return number

    def _discovered(self, path, rows):
        names = {
            name
            for _, _, label in rows
            for name in (label if self.problem == "multi" else [label])
        }
        if len(names) < 2:
            raise InputError(
                f"{path}: expected at least 2 classes in column "
                f"{self.label_column!r}, got {len(names)}"
            )
        return sorted(names)

    def _examples(self, rows):
        index = {name: i for i, name in enumerate(self.labels or [])}
        return [
            Example(
                texts[0],
                texts[1] if len(texts) == 2 else None,
                self._indexed(place, label, index),
            )
            for place, texts, label in rows
        ]

    def _indexed(self, place, label, index):
        if label is None or self.problem == "regression":
            return label
        names = label if self.problem == "multi" else [label]
        if not index:
            raise InputError(
                f"{told_place(place)}: which labels there are is not known: "
                "give --train, or a --model that was fine-tuned on them"
            )
        for name in names:
            if name not in index:
                raise InputError(
                    f"{told_place(place)}: expected the labels of the "
                    f"training file ({', '.join(index)}), got {name!r}"
                )
        if self.problem == "multi":
            return frozenset(index[name] for name in names)
        return index[label]

    def _held_out(self, path, examples, split_seed):
        """Indices of the rows of a tenth of the texts, of each class alike.

        A text that is there under several classes counts as of the first.
        """
        generator = np.random.default_rng(split_seed)
        together: dict = {}
        for row, example in enumerate(examples):
            texts = example.text, example.text_pair
            together.setdefault(texts, []).append(row)
        groups: dict = {}
        for rows in together.values():
            label = examples[rows[0]].label
            key = label if self.problem == "single" else None
            groups.setdefault(key, []).append(rows)
        held: set[int] = set()
        for key in sorted(groups, key=lambda label: label or 0):
            units = groups[key]
            if len(units) < 2:  # of one text alone, some of its rows
                units = [[row] for row in units[0]]
            if len(units) < 2:
                which = "" if key is None else f"class {self.labels[key]!r}"
                hint = custom_advice.number_hint(self.labels or ["-"])
                raise InputError(
                    f"{path}: the {which or 'file'} has one row, expected at "
                    "least 2 to hold one out: "
                    + (hint[0] if hint else "add rows or give --dev")
                )
            count = max(1, round(HELD_OUT_SHARE * len(units)))
            for unit in generator.permutation(len(units))[:count]:
                held.update(units[unit])
        return held
