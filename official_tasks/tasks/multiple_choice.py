"""The best of several choices: SWAG, CosmosQA, ComVE, and rows like theirs."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import Defaults, Encoded, check_labelled
from official_tasks.tasks.encoding import encode_texts, fold_choices
from official_tasks.tasks.file_task import FileTask
from official_tasks.tasks.metrics import probabilities
from official_tasks.tasks.table import (
    plain_errors,
    read_rows,
    read_text,
    write_csv,
)


class ChoiceRow(NamedTuple):
    """All about one of the data sets; see `DataRow` too.

    Attributes:
        prompt: the column of the text that all choices continue.
        choices: the columns of the choices.
        label: the column of the right one; None where it stands in a file of
            its own, rows of id and label.
        labels: how the right one is written, for each choice.
        written: name and header of the file of predictions.
        lead: a column that stands in front of each choice, or None.
        id: the column that names a row, or None.
        answer_files: (part of a file's name, what stands in its place in the
            name of the file of labels), where that is a file of its own; a
            prediction then stands behind its row's id.
    """

    name: str
    files: dict
    prompt: str
    choices: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...]
    written: tuple[str, tuple[str, ...]]
    lead: str | None = None
    id: str | None = None
    answer_files: tuple[tuple[str, str], ...] = ()
    defaults: Defaults = Defaults(16, 3.0, 2e-5, 128)

    @property
    def text_columns(self):
        lead = [self.lead] if self.lead else []
        return [self.prompt, *lead, *self.choices]


SWAG = ChoiceRow(
    name="swag",
    files={"train": ("train.csv",), "dev": ("val.csv",), "test": ("test.csv",)},
    prompt="sent1",
    lead="sent2",
    choices=("ending0", "ending1", "ending2", "ending3"),
    label="label",
    labels=("0", "1", "2", "3"),
    written=("predictions.csv", ("pred",)),
)
COSMOS_QA = ChoiceRow(
    name="cosmosqa",
    files={
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
    files={
        "train": ("Training  Data/subtaskB_data_all.csv",),
        "dev": ("Dev Data/subtaskB_dev_data.csv",),
        "test": ("Test Data/subtaskB_test_data.csv",),
    },
    prompt="FalseSent",
    choices=("OptionA", "OptionB", "OptionC"),
    label=None,
    labels=("A", "B", "C"),
    written=("subtaskB_answers.csv", ()),
    id="id",
    answer_files=(
        ("data_all", "answers_all"),
        ("dev_data", "gold_answers"),
        ("test_data", "gold_answers"),
    ),
)
ROWS = (SWAG, COSMOS_QA, COMVE)


class ChoiceExample(NamedTuple):
    """A text and its continuations; `label` is None where unknown."""

    id: str
    prompt: str
    choices: tuple[str, ...]
    label: int | None


class ChoiceTask(FileTask):
    """Which of several texts goes on best; scored by accuracy.

    Each choice is a row of its own, the prompt and the choice as a pair; the
    rows of a question are folded into one. What is too long is cut from the
    longer of the pair.

    Args:
        row: `ChoiceRow`.
        data_dir, train, dev, test: see `FileTask`.
    """

    metric = "accuracy"

    def from_file(self, path, split):
        """Each must have a label, but in a test file, which may have none."""
        row, labelled = self.row, split != "test"
        columns = [*row.text_columns, *([row.id] if row.id else [])]
        label = [row.label] if row.label else []
        answers = {} if row.label else _read_answers(row, path, labelled)
        cells = [
            (line, dict(zip([*columns, *label], values, strict=True)))
            for line, values in read_rows(
                path,
                [*columns, *label],
                optional=[] if labelled else label,
                split=split,
            )
        ]
        if not cells:
            raise InputError(f"{path}: expected at least one row, got none")
        labels = [
            one[row.label] if row.label else answers.get(one[row.id])
            for _, one in cells
        ]
        # A test split has no labels where none is known: empty, or -1.
        unknown = {"" if text is None else text.strip() for text in labels}
        labelled = labelled or not (None in labels or unknown <= {"", "-1"})
        return [
            ChoiceExample(
                one[row.id] if row.id else str(number),
                one[row.prompt],
                tuple(
                    (one[row.lead] + " " if row.lead else "") + one[column]
                    for column in row.choices
                ),
                _label_index(row, path, line, label) if labelled else None,
            )
            for number, ((line, one), label) in enumerate(
                zip(cells, labels, strict=True)
            )
        ]

    def from_data_set(self, source, split):
        if self.row.label is None:
            raise InputError(
                f"{source}: the task {self.row.name} has its labels in a file "
                "of their own: give a folder or files"
            )
        return self.from_file(source, split)

    def encode(self, examples, preprocess):
        count = len(self.row.choices)
        prompts = [e.prompt for e in examples for _ in range(count)]
        choices = [choice for e in examples for choice in e.choices]
        inputs, cut = encode_texts(preprocess, prompts, choices)  # (R K, None)
        labels = [example.label for example in examples]
        return Encoded(
            fold_choices(inputs, count),
            None if None in labels else np.array(labels, np.int32),
            cut=cut.reshape(-1, count).max(axis=1),
        )

    def build(self, encoder):
        from bert_keras import BertChooser

        return BertChooser(encoder)

    def score(self, examples, predictions):
        labels = [example.label for example in examples]
        check_labelled(self, labels)
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
                "predicted": example.choices[index],
                "probability": float(row[index]),
            }
            for example, row, index in zip(
                examples, shares, chosen, strict=True
            )
            if index != example.label
        ]
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        name, header = self.row.written
        chosen = np.argmax(predictions, axis=-1)
        rows = [header] if header else []
        for example, index in zip(examples, chosen, strict=True):
            with_id = [example.id] if self.row.answer_files else []
            rows.append([*with_id, self.row.labels[index]])
        write_csv(Path(folder) / name, rows)

    def read_predictions(self, path, examples):
        """1 for each chosen one, 0 for the others, `(R, K)`."""
        rows = [row for row in _csv_rows(path) if row]
        if rows and tuple(rows[0]) == self.row.written[1]:
            del rows[0]
        if self.row.answer_files:
            by_id = {row[0]: row[-1] for row in rows}
            rows = [[by_id[e.id]] for e in examples if e.id in by_id]
        if len(rows) != len(examples):
            raise InputError(
                f"{path}: expected a prediction for each of the "
                f"{len(examples)} examples, got {len(rows)}"
            )
        chosen = [
            _label_index(self.row, path, number, row[-1])
            for number, row in enumerate(rows, 1)
        ]
        return np.eye(len(self.row.choices))[chosen]


def _label_index(row, path, line, label) -> int:
    """The number of the choice that a label names."""
    if label is None or label.strip() not in row.labels:
        came = "none" if label is None else repr(label)
        raise InputError(
            f"{path}, line {line}: expected a label of "
            f"{', '.join(row.labels)}, got {came} (a test file without "
            "labels can only be predicted)"
        )
    return row.labels.index(label.strip())


def _read_answers(row, path, needed) -> dict[str, str]:
    """id -> label, of the file of labels that is next to `path`."""
    for part, other in row.answer_files:
        if part in path.name:
            answers = path.with_name(path.name.replace(part, other))
            if not (needed or answers.exists()):
                return {}
            rows = list(_csv_rows(answers))
            for number, cells in enumerate(rows, 1):
                if len(cells) != 2:
                    raise InputError(
                        f"{answers}, line {number}: expected an id and a "
                        f"label, got {len(cells)} columns"
                    )
            return dict(rows)
    if not needed:
        return {}
    parts = " or ".join(part for part, _ in row.answer_files)
    raise InputError(
        f"{path}: expected {parts} in the file's name, by which the file of "
        "labels is found"
    )


def _csv_rows(path):
    """Yields the rows of a CSV file without a header."""
    lines = io.StringIO(read_text(path), newline="")
    with plain_errors(path):
        yield from csv.reader(lines)
