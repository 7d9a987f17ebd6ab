"""Rows of the user's own files, for tasks that are more than one text."""

import numpy as np

from bert_keras.errors import InputError
from official_tasks import custom_advice
from official_tasks.table import dialect, read_rows
from official_tasks.task import Option

HELD_OUT_SHARE = 0.1  # of the contexts, texts or prompts, without a dev file
# A test file is read without its labels, whether it has any or not.
TO_SCORE = ". Score a file that has labels by --dev=FILE"
FILES = {
    "train": Option(None, "File to learn from; several with commas between."),
    "dev": Option(None, "File to score on."),
    "test": Option(None, "File to predict."),
    "split_seed": Option(0, "Of what is held out without --dev."),
    "separator": Option(
        None, "Between the columns of CSV, where it is no comma."
    ),
    "encoding": Option("utf-8", "Of the files."),
}
DROP_UNLABELLED = {
    "drop_unlabelled": Option(False, "Leave rows without a label out."),
}


class OwnRows:
    """Splits of rows of the user's own; a tenth is held out without --dev.

    A subclass says what `_columns` are needed, and needed but for a test
    file; which `_row` their cells make; by which texts and which label it is
    `_compared` with others; and which `_group` a row is of: rows of one, such
    as questions on one context, are held out together.

    Args:
        row: what the family's task takes as its first argument.
        split_seed: of what is held out.
        separator, encoding: of the files.
        drop_unlabelled: whether rows without a label are left out.
        own: of the family's task.
    """

    to_score = TO_SCORE
    lists: tuple[str, ...] = ()  # columns that JSONL may have as lists
    needs_label = True  # else an empty cell of the label says something

    def __init__(
        self,
        row,
        split_seed=0,
        separator=None,
        encoding=None,
        drop_unlabelled=False,
        **own,
    ):
        super().__init__(row, **own)
        self.split_seed = checked_seed(split_seed)
        self.dialect = dialect(separator, encoding)
        self.drop_unlabelled = drop_unlabelled
        self.advice: list[str] = []
        self.placed: dict[str, list] = {}  # split -> ((file, line), row)

    def _rows(self, split):
        if split == "dev" and not self.splits.files.get("dev"):
            return self._held_out()[1]
        rows = self._read_files(split)
        if split == "train" and not self.splits.files.get("dev"):
            return self._held_out()[0]
        return rows

    def _read_files(self, split):
        if split not in self.placed:
            self.placed[split] = self._placed_rows(split)
            self._advise(split)
        return [row for _, row in self.placed[split]]

    def _advise(self, split):
        noted = {
            name: [(place, *self._compared(row)) for place, row in rows]
            for name, rows in self.placed.items()
        }
        self.advice += custom_advice.on_rows(noted[split])
        if split != "test" and {"train", "dev"} <= noted.keys():
            self.advice += custom_advice.on_overlap(
                noted["train"], noted["dev"]
            )

    def _placed_rows(self, split):
        rows: list = []
        unlabelled = []
        needed, labels = self._columns()
        labels = labels if split != "test" else []
        columns = [*needed, *labels]
        for path in self.splits.paths(split):
            for line, values in read_rows(
                path,
                columns,
                self.lists,
                own=self.dialect,
                notes=self.advice,
            ):
                cells = dict(zip(columns, values, strict=True))
                place = (str(path), line)
                if self.needs_label and not all(
                    map(has_text, map(cells.get, labels))
                ):
                    unlabelled.append(place)
                    continue
                row = self._row(told_place(place), str(len(rows)), cells)
                rows.append((place, row))
        self.advice += left_out(
            unlabelled, ", ".join(labels), self.drop_unlabelled
        )
        if not rows:
            raise InputError(f"The {split} file has no rows: expected one")
        return rows

    def _held_out(self):
        rows = self._read_files("train")
        groups = list(dict.fromkeys(self._group(row) for row in rows))
        if len(groups) < 2:
            raise InputError(
                "The train file has one context, text or prompt, expected at "
                "least 2 to hold one out: add rows or give --dev"
            )
        count = max(1, round(HELD_OUT_SHARE * len(groups)))
        order = np.random.default_rng(self.split_seed).permutation(len(groups))
        held = {groups[i] for i in order[:count]}
        return (
            [row for row in rows if self._group(row) not in held],
            [row for row in rows if self._group(row) in held],
        )


def has_text(cell) -> bool:
    """Whether there is more in a cell, or a list of them, than blanks."""
    return bool(cell if isinstance(cell, list) else cell.strip())


def left_out(places, column: str, drop: bool) -> list[str]:
    """A note on rows without a label, which are refused unless `drop`."""
    if not places:
        return []
    told = (
        f"{custom_advice.lines_of(places)}: {len(places)} rows have no label "
        f"in column {column!r}"
    )
    if drop:
        return [f"{told} and are left out"]
    raise InputError(
        f"{told}: fill them in, or leave these rows out by --drop_unlabelled"
    )


def told_place(place: tuple[str, int]) -> str:
    """A file and a line as messages name them."""
    return f"{place[0]}, line {place[1]}"


def checked_seed(seed: int) -> int:
    if seed < 0:
        raise InputError(f"split_seed is {seed}: expected 0 or more")
    return seed


def choice_place(place: str, label: str, choices) -> int:
    """The number of the choice that a label names, by number or text."""
    readings = {choices.index(label)} if label in choices else set()
    if label.isdecimal() and int(label) < len(choices):
        readings.add(int(label))
    if len(readings) == 1:
        return readings.pop()
    if readings:
        raise InputError(
            f"{place}: expected a label that says one thing, got {label!r}, "
            f"the text of choice {choices.index(label)} and the number of "
            f"{choices[int(label)]!r}: write the choices in other words"
        )
    raise InputError(
        f"{place}: expected the number of a choice from 0 to "
        f"{len(choices) - 1}, or its text, got {label!r}"
    )


def whole_number(place: str, column: str, text: str) -> int:
    """The number in a cell."""
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{place}: expected a whole number in column {column!r}, got "
            f"{text!r}"
        ) from None


def word_list(cell) -> tuple[str, ...]:
    """The words of a cell: a list, of JSONL, or text with blanks between."""
    return tuple(cell if isinstance(cell, list) else cell.split())
