"""Multiple choice: SWAG and tables of the same form."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import Defaults, Encoded, list_metrics
from official_tasks.tasks.data_notes import format_lines
from official_tasks.tasks.encoding import encode_texts, fold_choices
from official_tasks.tasks.forms.cells import ID, read_index
from official_tasks.tasks.forms.delimited import add_ids, write_csv
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.forms.text_files import plain_errors, read_text
from official_tasks.tasks.metrics import probabilities
from official_tasks.tasks.source import Official, Problem


class ChoiceExample(NamedTuple):
    """A text, its continuations, and the index of the right one, if known."""

    prompt: str
    choices: tuple[str, ...]
    label: int | None
    row_id: str = ""  # see `Example`

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts; see `Example`."""
        return self.prompt, *self.choices

    @property
    def group(self):
        """The prompt. Rows with equal groups go to the same split."""
        return self.prompt


def read_choices(row, path, split, notes):
    """Return the examples of a file or data set; `row` names its columns.

    A test file may lack labels.
    """
    labelled = split != "test"
    lead = [row.lead] if row.lead else []
    columns = [row.prompt, *lead, *row.choices, row.label]
    cells = [
        (line, dict(zip(columns, values, strict=True)))
        for line, values in read_rows(
            path,
            columns,
            optional=[] if labelled else [row.label],
            split=split,
        )
    ]
    if not cells:
        raise InputError(f"{path}: expected at least one row, got none")
    labels = {one[row.label].strip() for _, one in cells}
    labelled = labelled or not labels <= UNKNOWN
    return [
        ChoiceExample(
            one[row.prompt],
            tuple(
                (one[row.lead] + " " if row.lead else "") + one[column]
                for column in row.choices
            ),
            _parse_index(
                one[row.label],
                len(row.choices),
                format_lines([(path, line)]),
                ". A test file without labels can only be used to predict"
                if one[row.label].strip() in UNKNOWN
                else "",
            )
            if labelled
            else None,
        )
        for line, one in cells
    ]


class ChoiceRow(NamedTuple):
    """Description of a data set of choices; see also `Official`.

    Attributes:
        prompt: the column of the text that all choices continue.
        choices: the columns of the choices.
        label: the column of the index of the right choice.
        lead: the column of a text before each choice, or None.
    """

    name: str
    files: dict
    prompt: str
    choices: tuple[str, ...]
    label: str
    lead: str | None = None
    read: Callable = read_choices


SWAG = ChoiceRow(
    name="swag",
    files={"train": ("train.csv",), "dev": ("val.csv",), "test": ("test.csv",)},
    prompt="sent1",
    lead="sent2",
    choices=("ending0", "ending1", "ending2", "ending3"),
    label="label",
)
ROWS = (SWAG,)
HEADER = ["pred"]  # the column of predictions.csv
UNKNOWN = {"", "-1"}  # cells of the label column that mean "no label"


def choice_task(row, data_dir=None, train=None, dev=None, test=None, **options):
    """Return the task of a `ChoiceRow`; see `Official` and `ChoiceTask`."""
    source = Official(row, data_dir, train, dev, test)
    return ChoiceTask(source, len(row.choices), **options)


class ChoiceTask(Problem):
    """A task that chooses the best continuation with a `BertChooser`.

    The prompt and each choice form a pair of texts. A row has all pairs of an
    example. If a pair is too long, its longer text loses tokens first.

    Args:
        source: `Source` that reads `ChoiceExample`s.
        num_choices: number of choices of each example.
        recipe, pooling: see `Problem`.
    """

    metrics = list_metrics("accuracy")
    defaults = Defaults(16, 3.0, 2e-5, 128)

    def __init__(self, source, num_choices, recipe=None, pooling=None):
        super().__init__(source, recipe, pooling)
        self.num_choices = num_choices

    def encode(self, examples, preprocess):
        count = self.num_choices
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

        return BertChooser(encoder, recipe=self.recipe, pooling=self.pooling)

    def score(self, examples, predictions):
        self.check_labels(examples)
        labels = [example.label for example in examples]
        counts = np.bincount(labels, minlength=self.num_choices)
        right = np.argmax(predictions, axis=-1) == labels
        return {
            "accuracy": float(right.mean()),
            "majority_baseline": float(counts.max() / len(labels)),
        }

    def mistakes(self, examples, predictions):
        rows = probabilities(predictions)
        chosen = rows.argmax(axis=-1)
        wrong = [
            {
                "text": example.prompt,
                "truth": example.choices[example.label],
                "predicted": example.choices[index],
                "probability": float(row[index]),
            }
            for example, row, index in zip(examples, rows, chosen, strict=True)
            if index != example.label
        ]
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        chosen = np.argmax(predictions, axis=-1).tolist()
        rows = [HEADER, *([index] for index in chosen)]
        path = Path(folder) / "predictions.csv"
        write_csv(path, add_ids(rows, examples))

    def read_predictions(self, path, examples):
        """Return float64 `(R, K)`: 1 at the predicted choice, 0 elsewhere."""
        reader = csv.reader(io.StringIO(read_text(path), newline=""))
        with plain_errors(path):
            rows = [(reader.line_num, row) for row in reader if row]
        if rows and rows[0][1] in (HEADER, [ID, *HEADER]):
            del rows[0]
        if len(rows) != len(examples):
            raise InputError(
                f"{path}: expected a prediction for each of the "
                f"{len(examples)} examples, got {len(rows)}"
            )
        chosen = [
            _parse_index(
                row[-1],
                self.num_choices,
                f"{path}, line {number}",
                ". Is it a file of another task?",
            )
            for number, row in rows
        ]
        return np.eye(self.num_choices)[chosen]


def _parse_index(label, count, where, advice) -> int:
    index = read_index(label.strip(), count)
    if index is None:
        raise InputError(
            f"{where}: expected a label from 0 to {count - 1}, got "
            f"{label!r}{advice}"
        )
    return index
