"""Read examples from a user's tables; without a dev file, split train."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras import files
from bert_keras.errors import (
    InputError,
    collect_faults,
    format_count,
    raise_all,
)
from official_tasks.options import option
from official_tasks.tasks.base import Examples
from official_tasks.tasks.data_notes import (
    format_lines,
    note_numbers,
    note_overlap,
    note_rows,
)
from official_tasks.tasks.forms.cells import ID, to_text
from official_tasks.tasks.forms.class_folders import list_files
from official_tasks.tasks.forms.table import FOLDER, read_rows
from official_tasks.tasks.forms.text_files import make_dialect
from official_tasks.tasks.source import Source

HELD_OUT_FRACTION = 0.1  # without a dev file, this fraction of train is dev
_FORMS = " CSV, TSV, JSONL or Parquet, or a data set: tfds:NAME or hf:NAME."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Files of a user's own data."""

    train: str | None = option(
        None, f"Training file; separate several files by commas.{_FORMS}"
    )
    dev: str | None = option(None, f"File to score on.{_FORMS}")
    test: str | None = option(None, f"File to predict.{_FORMS}")
    split_seed: int = option(0, "Random seed for splitting dev from train.")
    separator: str | None = option(
        None, "Character between the columns of CSV; by default a comma."
    )
    encoding: str = option("utf-8", "Encoding of text files.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropUnlabelled:
    """The option of tasks that can skip rows without a label."""

    drop_unlabelled: bool = option(False, "Leave out rows without a label.")


def has_text(cell) -> bool:
    """Return True if the cell is a list with elements or a non-blank text."""
    return bool(cell if isinstance(cell, list) else cell.strip())


class Columns(NamedTuple):
    """The columns of a table, and the function that turns rows into examples.

    Attributes:
        name: name of the task.
        required: names of the columns that each file must have.
        labels: names of the columns that a test file may lack.
        parse: function that returns the example of a row. The example has the
            attributes `texts`, `label`, `group` and `row_id` of `Example`, and
            is a NamedTuple. Arguments: the
            location, such as "a.csv, line 4", the index of the row in the
            split, and a dict of column -> cell, without labels for a test file.
        lists: columns that may hold lists; see `read_rows`.
        objects: columns among `lists` whose elements may be dicts or lists.
        optional: columns among `labels` that may be missing or empty in a dev
            file. `parse` then gets no cell of the column.
        lacks: the words after "3 rows" in the message about rows without a
            label, such as "without a label".
        has_label: function of a cell; True if the cell has a label.
        is_stratified: whether to hold out a tenth of the groups of each label.
    """

    name: str
    required: list[str]
    labels: list[str]
    parse: Callable
    lists: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    lacks: str = "without a label"
    has_label: Callable = has_text
    is_stratified: bool = False


class Table(Source):
    """Source of rows from CSV, TSV, JSONL and Parquet files and data sets.

    Args:
        columns: `Columns`.
        options: `TableOptions`, and `DropUnlabelled` if the task has this
            option.
    """

    reads_folders = False  # True if a split may be a folder of classes
    # Labels of a test file are never read, so messages advise --dev.
    to_score = ". To get scores, give a file with labels as --dev=FILE"

    def __init__(self, columns: Columns, options):
        super().__init__(columns.name, options.train, options.dev, options.test)
        self.columns, self.split_seed = columns, options.split_seed
        if self.split_seed < 0:
            raise InputError(
                f"--split_seed={self.split_seed}: expected 0 or more"
            )
        self.dialect = make_dialect(options.separator, options.encoding)
        self.drop_unlabelled = getattr(options, "drop_unlabelled", False)
        # Version of each file when its rows were read, which may be long before
        # a run begins: see `RunFolder.check_inputs`.
        self.versions: dict = {}
        self._rows: dict[str, Examples] = {}
        self._loaded: dict[str, Examples] = {}

    def has(self, split):
        is_part_of_train = split == "dev" and "dev" not in self.files
        return super().has("train" if is_part_of_train else split)

    def read(self, split):
        has_held_out = "train" in self.files and "dev" not in self.files
        if split == "test" or not has_held_out:
            rows = self.load(split)
            notes = rows.notes
            if split == "dev" and "train" in self.files:
                notes = notes + self._note_overlap(rows)
            return Examples((example for _, example in rows), notes)
        rows = self.load("train")
        examples = (
            example
            for number, (_, example) in enumerate(rows)
            if (number in self._held_out) == (split == "dev")
        )
        return Examples(examples, rows.notes)

    def _note_overlap(self, rows) -> list[str]:
        """Return a note on rows of dev that are also in train.

        In `evaluate`, the path of train may come from the run's settings, so
        the file may be gone, or unreadable with the flags of dev. In
        `finetune`, reading train raises the same error again.
        """
        if not self.has("train"):
            return []
        try:
            # Do not `load` train, which refuses labels that the model lacks.
            return note_overlap(self.rows("train"), rows)
        except InputError as error:
            reason = str(error).splitlines()[0]
            return [f"dev was not searched for training texts: {reason}"]

    def rows(self, split) -> Examples:
        """Return the rows of `read_files`, which are read once.

        The rows of train also give the labels, the texts that dev repeats, and
        dev itself if it has no file.
        """
        if split not in self._rows:
            self._rows[split] = self.read_files(split)
        return self._rows[split]

    def load(self, split) -> Examples:
        """Return the rows of a split as `prepare` returns them.

        Returns:
            `Examples` with ((file, line), example) for each row.
        """
        if split not in self._loaded:
            rows = self.prepare(split, self.rows(split))
            notes = note_rows(rows, self.columns.required[0])
            self._loaded[split] = Examples(rows, rows.notes + notes)
        return self._loaded[split]

    def prepare(self, split, rows: Examples) -> Examples:
        """Return the rows of `read_files`; a subclass may change the rows."""
        return rows

    def read_files(self, split) -> Examples:
        """Return a split's rows, before `prepare` may change them.

        Returns:
            `Examples` with ((file, line), example) for each row.

        Raises:
            InputError: a file is missing or has no rows, or rows cannot be
                used. The message lists these rows.
        """
        rows: list = []
        notes: list[str] = []
        faults: list[str] = []
        unlabelled: list = []
        labels = self.columns.labels if split != "test" else []
        names = [*self.columns.required, *labels]
        optional = self.columns.optional if split == "dev" else ()
        ids = [] if ID in names else [ID]
        for path in self.paths(split):
            self.record_version(path)
            for line, values in read_rows(
                path,
                [*names, *ids],
                self.columns.lists,
                [*optional, *ids],
                dialect=self.dialect,
                notes=notes,
                split=split,
                faults=faults,
                kind=self._find_kind(path),
                is_reviewed=split != "test",
            ):
                location = (str(path), line)
                where = format_lines([location])
                with collect_faults(faults):
                    row_id = values.pop() if ids else ""
                    cells = _to_cells(
                        where, names, values, self.columns.objects
                    )
                    empty = [
                        name
                        for name in labels
                        if not self.columns.has_label(cells[name])
                    ]
                    missing = [n for n in empty if n not in optional]
                    if missing:
                        unlabelled.append((location, missing))
                        continue
                    for name in empty:
                        del cells[name]
                    example = self.columns.parse(where, len(rows), cells)
                    if row_id and example is not None:
                        example = example._replace(row_id=row_id)
                    rows.append((location, example))
        with collect_faults(faults):
            notes += self._drop_or_refuse(unlabelled)
        raise_all(faults)
        if not rows:
            name = self.files.get(split, split)
            raise InputError(f"{name}: expected at least one row, got none")
        return Examples(rows, notes)

    def _find_kind(self, path):
        """Return the argument `kind` of `read_rows`."""
        is_folder = self.reads_folders and os.path.isdir(path)
        return FOLDER if is_folder else None

    def record_version(self, path):
        """Record the version of a file that is about to be read."""
        for file in filter(files.is_file, list_files(path)):
            self.versions[files.absolute(file)] = files.describe_version(file)

    def read_columns(self, split, names) -> list[list]:
        """Return the cells of further columns, a list for each row."""
        return [
            cells
            for path in self.paths(split)
            for _, cells in read_rows(
                path,
                names,
                dialect=self.dialect,
                split=split,
                kind=self._find_kind(path),
                is_reviewed=split != "test",
            )
        ]

    def _drop_or_refuse(self, unlabelled) -> list[str]:
        """Return a note on unlabelled rows, or refuse the rows.

        `unlabelled` is a list of (location of a row, its empty columns).

        Raises:
            InputError: a row is unlabelled and `drop_unlabelled` is False.
        """
        if not unlabelled:
            return []
        locations = [location for location, _ in unlabelled]
        empty = {name for _, names in unlabelled for name in names}
        column = ", ".join(
            name for name in self.columns.labels if name in empty
        )
        message = (
            f"{format_lines(locations)}: {format_count(len(locations), 'row')} "
            f"{self.columns.lacks} in column {column!r}"
        )
        if not self.drop_unlabelled:
            fix = ", or leave the rows out by --drop_unlabelled"
            if self.drop_unlabelled is None:
                fix = ", or remove the rows"
            raise InputError(f"{message}: fill these cells{fix}")
        return [f"{message}, left out"]

    @functools.cached_property
    def _held_out(self) -> set[int]:
        """Indices of the rows in a random tenth of the groups; see `Example`.

        With `is_stratified`, a tenth of the groups of each label is drawn. A
        group has the label of its first row.
        """
        rows = self.load("train")
        generator = np.random.default_rng(self.split_seed)
        groups: dict = {}
        for number, (_, example) in enumerate(rows):
            groups.setdefault(example.group, []).append(number)
        strata: dict = {}
        for numbers in groups.values():
            label = rows[numbers[0]][1].label
            stratum = label if self.columns.is_stratified else None
            strata.setdefault(stratum, []).append(numbers)
        held: set[int] = set()
        for stratum in sorted(strata, key=lambda one: one or 0):
            units = strata[stratum]
            if stratum is not None and len(units) < 2:
                # All rows of the class are one group, so hold out single rows.
                units = [[number] for number in units[0]]
            if len(units) < 2:
                self._refuse_one_group(stratum)
            count = max(1, round(HELD_OUT_FRACTION * len(units)))
            for unit in generator.permutation(len(units))[:count]:
                held.update(units[unit])
        return held

    def _refuse_one_group(self, stratum):
        found, hint = "the file has one context, text or prompt", []
        if stratum is not None:
            names = self.find_labels()
            found = f"the class {names[stratum]!r} has one row"
            hint = note_numbers(names)
        note = f". Note that {hint[0]}" if hint else ""
        raise InputError(
            f"{self.files['train']}: {found}, expected at least 2, because "
            f"dev gets one. Add rows or give --dev{note}"
        )

    def describe(self, example):
        location, _ = self.load("train")[int(example.id)]
        return format_lines([location])

    def _check(self, path):
        from bert_keras.data.data_sets import is_data_set

        if self.reads_folders and os.path.isdir(path):
            return Path(path)
        return path if is_data_set(path) else super()._check(path)

    def _find_files(self, splits):
        paths = super()._find_files(splits)
        return [Path(x) for path in paths for x in list_files(path)]


def _to_cells(where, names, values, objects) -> dict:
    return {
        name: [to_text(where, name, one) for one in value]
        if isinstance(value, list) and name not in objects
        else value
        for name, value in zip(names, values, strict=True)
    }
