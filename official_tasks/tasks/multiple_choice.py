"""The best of several choices: SWAG, CosmosQA, ComVE, and rows like theirs."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import (
    FILE_OPTIONS,
    Defaults,
    Encoded,
    Splits,
    Task,
    tfds_rows,
)
from official_tasks.tasks.encoding import encode_texts, fold_choices
from official_tasks.tasks.metrics import probabilities
from official_tasks.tasks.table import read_rows, told_plainly

# The files of multiple-choice tasks, each described by one row.


class ChoiceRow(NamedTuple):
    """All about one of the data sets.

    Attributes:
        names: split -> names of its official file.
        prompt: the column of the text that all choices continue.
        lead: a column that stands in front of each choice, or None.
        choices: the columns of the choices.
        label: the column of the right one; None where it stands in a file of
            its own, rows of id and label.
        labels: how the right one is written, for each choice.
        answers: (part of a file's name, what stands in its place in the name
            of the file of labels), where that is a file of its own.
        written: name and header of the file of predictions.
        with_ids: whether a prediction stands behind its row's id.
    """

    name: str
    names: dict
    prompt: str
    lead: str | None
    choices: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...]
    written: tuple[str, tuple[str, ...]]
    with_ids: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    id: str | None = None
    defaults: Defaults = Defaults(16, 3.0, 2e-5, 128)


SWAG = ChoiceRow(
    name="swag",
    names={"train": ("train.csv",), "dev": ("val.csv",), "test": ("test.csv",)},
    prompt="sent1",
    lead="sent2",
    choices=("ending0", "ending1", "ending2", "ending3"),
    label="label",
    labels=("0", "1", "2", "3"),
    written=("predictions.csv", ("pred",)),
)
COSMOS_QA = ChoiceRow(
    name="cosmosqa",
    names={
        "train": ("train.csv",),
        "dev": ("valid.csv",),
        "test": ("test.csv",),
    },
    prompt="context",
    lead="question",
    choices=("answer0", "answer1", "answer2", "answer3"),
    label="label",
    labels=("0", "1", "2", "3"),
    written=("predictions.lst", ()),
    defaults=Defaults(16, 3.0, 2e-5, 256),
)
COMVE = ChoiceRow(
    name="comve",
    names={
        "train": ("Training  Data/subtaskB_data_all.csv",),
        "dev": ("Dev Data/subtaskB_dev_data.csv",),
        "test": ("Test Data/subtaskB_test_data.csv",),
    },
    prompt="FalseSent",
    lead=None,
    choices=("OptionA", "OptionB", "OptionC"),
    label=None,
    labels=("A", "B", "C"),
    written=("subtaskB_answers.csv", ()),
    with_ids=True,
    answers=(
        ("data_all", "answers_all"),
        ("dev_data", "gold_answers"),
        ("test_data", "gold_answers"),
    ),
    id="id",
)


class ChoiceExample(NamedTuple):
    """A text and its continuations; `label` is None where unknown."""

    id: str
    prompt: str
    choices: tuple[str, ...]
    label: int | None


def read_choices(row: ChoiceRow, path: Path, labelled) -> list[ChoiceExample]:
    """The examples of a file; with `labelled`, each must have a label.

    Without, the file may have none at all.

    Raises:
        InputError: a column or a label that is missing, no rows.
    """
    texts = [row.prompt, *([row.lead] if row.lead else []), *row.choices]
    columns = [*texts, *([row.id] if row.id else [])]
    own_label = [row.label] if row.label else []
    labels = {} if own_label else _labels_beside(row, path, labelled)
    optional = [] if labelled else own_label
    rows = (
        (line, dict(zip([*columns, *own_label], values, strict=True)))
        for line, values in read_rows(
            path, [*columns, *own_label], optional=optional
        )
    )
    return _examples(row, path, rows, labelled, labels)


def choices_of(row: ChoiceRow, source: str, rows, labelled):
    """The like of dicts by the same names, as TFDS gives them."""
    if row.label is None:
        raise InputError(
            f"{source}: the task {row.name} has its labels in a file of their "
            "own: give a folder or files"
        )
    wanted = [row.prompt, *([row.lead] if row.lead else []), *row.choices]
    wanted += [row.label] * labelled
    return _examples(row, source, _cells(source, wanted, rows), labelled, {})


def _cells(source, wanted, rows):
    for number, cells in enumerate(rows):
        absent = sorted(set(wanted) - cells.keys())
        if absent:
            raise InputError(
                f"{source}: expected the fields {', '.join(wanted)}, got none "
                f"named {absent[0]!r}"
            )
        yield number, {name: str(value) for name, value in cells.items()}


def _examples(row, path, rows, labelled, labels):
    own_label = row.label is not None
    found = []
    for line, cells in rows:
        name = cells[row.id] if row.id else str(len(found))
        written = cells.get(row.label) if own_label else labels.get(name)
        found.append((line, name, cells, written))
    if not found:
        raise InputError(f"{path}: expected at least one row, got none")
    if not labelled and _has_none([written for *_, written in found]):
        return [_example(row, n, cells, None) for _, n, cells, _ in found]
    return [
        _example(row, name, cells, label_index(row, path, line, written))
        for line, name, cells, written in found
    ]


def _has_none(written):
    """Whether labels are absent, or none is known: empty, or TFDS's -1."""
    return None in written or {text.strip() for text in written} <= {"", "-1"}


def label_index(row, path, line, written) -> int:
    """The place of the choice that a label names."""
    if written is None or written.strip() not in row.labels:
        came = "none" if written is None else repr(written)
        raise InputError(
            f"{path}, line {line}: expected a label of "
            f"{', '.join(row.labels)}, got {came} (a test file without "
            "labels can only be predicted)"
        )
    return row.labels.index(written.strip())


def _labels_beside(row, path, needed):
    """id -> label, of the file of labels that stands beside `path`."""
    for part, other in row.answers:
        if part in path.name:
            beside = path.with_name(path.name.replace(part, other))
            if needed or beside.exists():
                return dict(_pairs(beside))
    if not needed:
        return {}
    parts = " or ".join(part for part, _ in row.answers)
    raise InputError(
        f"{path}: expected {parts} in the file's name, by which the file of "
        "labels is found"
    )


def _example(row, name, cells, label):
    lead = cells[row.lead] + " " if row.lead else ""
    choices = tuple(lead + cells[column] for column in row.choices)
    return ChoiceExample(name, cells[row.prompt], choices, label)


def _pairs(path):
    for number, row in enumerate(csv_rows(path), 1):
        if len(row) != 2:
            raise InputError(
                f"{path}, line {number}: expected an id and a label, got "
                f"{len(row)} columns"
            )
        yield row


def csv_rows(path):
    """Yields the rows of a CSV file without a header."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    with (
        open(path, encoding="utf-8-sig", newline="") as file,
        told_plainly(path),
    ):
        yield from csv.reader(file)


# The best of several choices: SWAG, CosmosQA, ComVE, and rows like theirs.


class ChoiceTask(Task):
    """Which of several texts goes on best; scored by accuracy.

    Each choice is a row of its own, the prompt and the choice as a pair; the
    rows of a question are folded into one. What is too long is cut from the
    longer of the pair.

    Args:
        row: `ChoiceRow`.
        data_dir, train, dev, test: where the files are.
    """

    metric = "accuracy"
    options = FILE_OPTIONS

    def __init__(self, row, data_dir=None, train=None, dev=None, test=None):
        self.row = row
        self.name = row.name
        self.defaults = row.defaults
        files = {"train": train, "dev": dev, "test": test}
        self.splits = Splits(row.name, row.names, data_dir, files)

    def read(self, split):
        labelled = split != "test"  # most test files have no labels
        name = self.splits.tfds(split)
        if name:
            rows = tfds_rows(name, split)
            return choices_of(self.row, f"tfds:{name}", rows, labelled)
        return [
            example
            for path in self.splits.paths(split)
            for example in read_choices(self.row, path, labelled)
        ]

    def data_files(self):
        return self.splits.found("train", "dev")

    def encode(self, examples, preprocess):
        count = len(self.row.choices)
        prompts = [e.prompt for e in examples for _ in range(count)]
        choices = [choice for e in examples for choice in e.choices]
        inputs, cut = encode_texts(preprocess, prompts, choices)
        labels = [example.label for example in examples]
        return Encoded(
            fold_choices(inputs, count),
            None if None in labels else np.array(labels, np.int32),
            cut=cut.reshape(-1, count).max(axis=1),
        )

    def build(self, encoder):
        from bert_keras import BertChooser

        return BertChooser(encoder)

    def loss(self):
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def score(self, examples, predictions):
        if any(example.label is None for example in examples):
            raise InputError(
                f"The file of {self.name} has no labels: expected one for "
                "each row; without, it can only be predicted" + self.to_score
            )
        labels = np.array([example.label for example in examples])
        counts = np.bincount(labels, minlength=len(self.row.choices))
        right = np.argmax(predictions, axis=-1) == labels
        return {
            "accuracy": float(right.mean()),
            "majority_baseline": float(counts.max() / len(labels)),
        }

    def mistakes(self, examples, predictions):
        shares = probabilities(predictions)
        chosen = shares.argmax(axis=-1)
        wrong = [
            {
                "text": example.prompt,
                "truth": example.choices[example.label],
                "predicted": example.choices[place],
                "probability": float(row[place]),
            }
            for example, row, place in zip(
                examples, shares, chosen, strict=True
            )
            if place != example.label
        ]
        return sorted(wrong, key=lambda shown: -shown["probability"])

    def write(self, examples, predictions, folder):
        name, header = self.row.written
        places = np.argmax(predictions, axis=-1)
        with open(
            Path(folder) / name, "w", encoding="utf-8", newline=""
        ) as file:
            writer = csv.writer(file, lineterminator="\n")
            if header:
                writer.writerow(header)
            for example, place in zip(examples, places, strict=True):
                label = self.row.labels[place]
                writer.writerow(
                    [example.id, label] if self.row.with_ids else [label]
                )

    def read_predictions(self, path, examples):
        """1 for each chosen place, 0 for the others, `(R, K)`."""
        rows = [row for row in csv_rows(path) if row]
        if rows and tuple(rows[0]) == self.row.written[1]:
            del rows[0]
        if self.row.with_ids:
            by_id = {row[0]: row[-1] for row in rows}
            rows = [[by_id[e.id]] for e in examples if e.id in by_id]
        if len(rows) != len(examples):
            raise InputError(
                f"{path}: expected a prediction for each of the "
                f"{len(examples)} examples, got {len(rows)}"
            )
        places = [
            label_index(self.row, path, number, row[-1])
            for number, row in enumerate(rows, 1)
        ]
        return np.eye(len(self.row.choices))[places]
