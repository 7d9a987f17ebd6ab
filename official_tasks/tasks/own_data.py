"""The user's own rows: read from tables, checked, a tenth of them held out."""

import functools
from collections import Counter

import numpy as np

from bert_keras.errors import InputError, collected, raise_all
from official_tasks.tasks.base import SPLITS, Option
from official_tasks.tasks.file_task import FileTask
from official_tasks.tasks.table import (
    dialect,
    line_or_row,
    read_rows,
)

HELD_OUT_SHARE = 0.1  # where no dev file is given
_OR_DATA_SET = " CSV, TSV, JSONL, Parquet or Arrow, or hf:NAME or tfds:NAME."
TABLE_OPTIONS = {
    **{
        split: Option(None, FileTask.options[split].help + _OR_DATA_SET)
        for split in SPLITS
    },
    "split_seed": Option(0, "Seed of the rows held out without --dev."),
    "separator": Option(
        None, "Character between the columns of CSV; by default a comma."
    ),
    "encoding": Option("utf-8", "Encoding of text files."),
}
DROP_UNLABELLED = {
    "drop_unlabelled": Option(False, "Leave out rows without a label."),
}


class OwnData(FileTask):
    """Splits of rows of tables; a tenth is held out without --dev.

    Tables are CSV, TSV, JSONL, Parquet and Arrow files, and data sets by name.

    Notes on what deserves a look in the rows are in `advice`.

    A subclass says which `columns_of` a row are read, which `example_of`
    their cells make, by which `texts_and_label` an example is compared with
    others, and which `group_of` examples, such as the questions on one
    context, are held out together.

    Args:
        row: of the family's task.
        split_seed: of what is held out.
        separator, encoding: of the files.
        drop_unlabelled: whether rows without a label are left out, which are
            refused otherwise.
        own: of the family's task, `train`, `dev` and `test` among them.
    """

    # A test file is read without its labels, whether it has any or not.
    to_score = ". Score a file that has labels by --dev=FILE"
    reads_tables = True
    lists: tuple[str, ...] = ()  # columns that may hold lists, outside CSV
    lacks = "have no label"  # of rows with an empty cell, in messages
    needs_label = True  # False where an empty cell of the label has a meaning

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
        if split_seed < 0:
            raise InputError(f"split_seed is {split_seed}: expected 0 or more")
        self.split_seed = split_seed
        self.dialect = dialect(separator, encoding)
        self.drop_unlabelled = drop_unlabelled
        self.placed: dict[str, list] = {}  # split -> ((file, line), example)

    def columns_of(self) -> tuple[list[str], list[str]]:
        """The columns of every file, and those that a test file may lack."""
        raise NotImplementedError

    def example_of(self, place, number, cells):
        """An example of a row.

        Args:
            place: (file, line).
            number: of the row in its split, from 0.
            cells: dict of the columns; without the labels of a test file.
        """
        raise NotImplementedError

    def texts_and_label(self, example) -> tuple:
        raise NotImplementedError

    def group_of(self, example):
        raise NotImplementedError

    def stratum_of(self, example):
        """A tenth is held out of each stratum; None where there is but one."""

    def is_missing(self, label) -> bool:
        return not has_text(label)

    def read_split(self, split):
        if split == "test" or "dev" in self.files or "train" not in self.files:
            return self._read_files(split)
        return [
            example
            for number, example in enumerate(self._read_files("train"))
            if (number in self._held_out) == (split == "dev")
        ]

    def _read_files(self, split):
        if split not in self.placed:
            self.placed[split] = self.read_placed(split)
            self._advise(split)
        return [example for _, example in self.placed[split]]

    def _advise(self, split):
        rows = {
            name: [(place, *self.texts_and_label(e)) for place, e in placed]
            for name, placed in self.placed.items()
        }
        self.advice += advice_on_rows(rows[split])
        if split != "test" and {"train", "dev"} <= rows.keys():
            self.advice += advice_on_overlap(rows["train"], rows["dev"])

    def read_placed(self, split) -> list[tuple]:
        """((file, line), example) of each row of the split's files.

        Raises:
            InputError: of all rows that cannot be used, a line each.
        """
        placed: list = []
        faults: list[str] = []
        unlabelled, empty = [], set()
        required, labels = self.columns_of()
        labels = labels if split != "test" else []
        columns = [*required, *labels]
        for path in self.paths(split):
            for line, values in read_rows(
                path,
                columns,
                self.lists,
                own=self.dialect,
                notes=self.advice,
                split=split,
                faults=faults,
            ):
                place = (str(path), line)
                cells = dict(zip(columns, values, strict=True))
                missing = {n for n in labels if self.is_missing(cells[n])}
                if self.needs_label and missing:
                    unlabelled.append(place)
                    empty |= missing
                    continue
                with collected(faults):
                    example = self.example_of(place, len(placed), cells)
                    placed.append((place, example))
        if unlabelled:
            names = [name for name in labels if name in empty]
            with collected(faults):
                self._drop_or_refuse(unlabelled, ", ".join(names))
        raise_all(faults)
        if not placed:
            files = self.files.get(split, split)
            raise InputError(f"{files}: expected at least one row, got none")
        return placed

    def _drop_or_refuse(self, places, column):
        message = (
            f"{format_lines(places)}: {len(places)} rows {self.lacks} in "
            f"column {column!r}"
        )
        if not self.drop_unlabelled:
            raise InputError(
                f"{message}: fill them in, or leave these rows out by "
                "--drop_unlabelled"
            )
        self.advice.append(f"{message} and are left out")

    @functools.cached_property
    def _held_out(self) -> set[int]:
        """Numbers of the examples of a tenth of the groups, by stratum.

        A group that is there in several strata counts as of the first.
        """
        examples = self._read_files("train")
        generator = np.random.default_rng(self.split_seed)
        groups: dict = {}
        for number, example in enumerate(examples):
            groups.setdefault(self.group_of(example), []).append(number)
        strata: dict = {}
        for numbers in groups.values():
            stratum = self.stratum_of(examples[numbers[0]])
            strata.setdefault(stratum, []).append(numbers)
        held: set[int] = set()
        for stratum in sorted(strata, key=lambda one: one or 0):
            units = strata[stratum]
            if stratum is not None and len(units) < 2:
                # Of one text that is there again and again, some rows.
                units = [[number] for number in units[0]]
            if len(units) < 2:
                self._refuse_one_group(stratum)
            count = max(1, round(HELD_OUT_SHARE * len(units)))
            for unit in generator.permutation(len(units))[:count]:
                held.update(units[unit])
        return held

    def _refuse_one_group(self, stratum):
        which, hint = "file has one context, text or prompt", []
        if stratum is not None:
            which = f"class {self.labels[stratum]!r} has one row"
            hint = advice_on_numbers(self.labels)
        raise InputError(
            f"{self.files['train']}: the {which}, expected at least 2 to hold "
            f"one out: {hint[0] if hint else 'add rows or give --dev'}"
        )


def has_text(cell) -> bool:
    """Whether there is more in a cell, or a list of them, than blanks."""
    return bool(cell if isinstance(cell, list) else cell.strip())


# What in the user's own rows deserves a look, with line numbers.

MOST_LINES = 5  # line numbers that a note names
RARE = 0.2  # of an even share, under which a class is rare
MOST_CLASSES = 20  # of integers that may be names of classes


def advice_on_rows(rows) -> list[str]:
    """Notes on empty texts and on texts that are there twice.

    Args:
        rows: list of `((file, line), texts, label)`.
    """
    notes = []
    empty = [
        place
        for place, texts, _ in rows
        if not all(text.strip() for text in texts)
    ]
    if empty:
        notes.append(f"{format_lines(empty)}: the text is empty")
    first: dict = {}
    again, contradicting = [], []
    for row in rows:
        place, texts, label = row
        before = first.setdefault(tuple(texts), row)
        if before is not row:
            same = before[2] == label
            (again if same else contradicting).append(place)
    if again:
        notes.append(
            f"{format_lines(again)}: {len(again)} rows repeat an earlier one"
        )
    if contradicting:
        notes.append(
            f"{format_lines(contradicting)}: {len(contradicting)} rows repeat "
            "an earlier text under another label"
        )
    return notes


def advice_on_overlap(train, dev) -> list[str]:
    """A note on texts that stand in train and in dev; rows as above."""
    known = {tuple(texts) for _, texts, _ in train}
    both = [row for row in dev if tuple(row[1]) in known]
    if not both:
        return []
    text = both[0][1][0]
    return [
        f"{format_lines([place for place, _, _ in both])}: {len(both)} texts "
        "stand in train and in dev, which flatters the score: the first is "
        f"{text[:60]!r}"
    ]


def advice_on_names(names, column) -> list[str]:
    """Notes on labels that may be one, or numbers; `names` are sorted."""
    alike: dict = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    notes = [
        f"the labels {', '.join(map(repr, same))} in column {column!r} differ "
        "in case or blanks only and are learned as different classes: write "
        "them alike if they are one"
        for same in alike.values()
        if len(same) > 1
    ]
    return notes + advice_on_numbers(names)


def advice_on_numbers(names) -> list[str]:
    """A note on labels that seem to be numbers, not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return []
    fractions = [n for n in numbers if not n.is_integer()]
    if not fractions and len(numbers) <= MOST_CLASSES:
        return []
    return [
        f"the labels are {len(names)} different numbers, such as {names[0]}, "
        "and each is a class of its own: to predict a number give "
        "--problem=regression"
    ]


def advice_on_labels(problem, examples, labels) -> list[str]:
    """A note on rare classes, or on numbers that are all the same."""
    if problem == "regression":
        first = examples[0].label
        if any(example.label != first for example in examples):
            return []
        return [
            f"every number of the training rows is {first:g}: there is "
            "nothing to learn"
        ]
    if problem == "multi":
        counts = Counter(i for example in examples for i in example.label)
    else:
        counts = Counter(example.label for example in examples)
    rare = min(range(len(labels)), key=lambda index: counts[index])
    share = counts[rare] / len(examples)
    if share * len(labels) >= RARE:
        return []
    return [
        f"the class {labels[rare]!r} has {share:.1%} of the rows: look at "
        "macro_f1 rather than accuracy, and add or repeat rows of it"
    ]


def format_lines(places):
    """The first few places, the file named once: "a.csv, line 4, 7, ..."."""
    file, _ = places[0]
    numbers = [str(n) for path, n in places[:MOST_LINES] if path == file]
    if len(numbers) < len(places):
        numbers.append("...")
    return f"{file}, {line_or_row(file)} {', '.join(numbers)}"
