"""Tables of text pairs; a pair may also have a score or negatives."""

import dataclasses
import functools
from pathlib import Path
from typing import NamedTuple

from bert_keras.errors import InputError, format_count
from bert_keras.file_forms import split_ending
from official_tasks.options import option
from official_tasks.tasks.base import Examples
from official_tasks.tasks.data_notes import format_lines
from official_tasks.tasks.forms.cells import (
    LARGEST_NUMBER,
    drop_zeros,
    read_index,
    read_number,
)
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.own_data import (
    Columns,
    DropUnlabelled,
    Table,
    TableOptions,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairOptions(TableOptions, DropUnlabelled):
    """Columns of a table of text pairs."""

    text: str = option("text", "Column of the text.")
    text_pair: str = option("text_pair", "Column of the second text.")
    label: str | None = option(
        None, "Column of scores; without it, each row is a positive pair."
    )
    max_score: float = option(
        1.0, "Highest possible score in --label; the lowest is 0."
    )
    negative: str | None = option(
        None,
        "Column of negatives: texts that do not match --text; a,b for several.",
    )
    queries: str | None = option(
        None, "File of ids and texts, if --text has ids."
    )
    passages: str | None = option(
        None, "File of ids and texts, if --text_pair has ids."
    )
    id: str = option("id", "Column of the ids in --queries and --passages.")
    recall_at: str | None = option(
        None, "Values of k in recall at k; by default 1,10."
    )


class Pair(NamedTuple):
    """Texts (text, partner, negatives), and a score if known."""

    texts: tuple[str, ...]
    label: float | None
    row_id: str = ""  # see `Example`

    @property
    def group(self):
        """The first text. Rows with equal groups go to the same split."""
        return self.texts[0]


class PairTable(Table):
    """Rows of one or more texts, from columns of texts or ids.

    Args:
        name: name of the task.
        options: `PairOptions`.
        is_search: True if the texts of --text in dev and test are search
            queries. In dev, the column --negative may then be missing, or some
            of its cells may be empty. With --passages too, the column
            --text_pair may be missing in test.
    """

    def __init__(self, name, options, is_search=False):
        label, negative = options.label, options.negative
        self._text_notes: list[str] = []
        if label and negative:
            raise InputError(
                f"--label={label} and --negative={negative}: give one of them"
            )
        self.max_score = options.max_score
        is_usable = 0 < self.max_score <= LARGEST_NUMBER
        if not is_usable or not label and self.max_score != 1:
            raise InputError(
                f"--max_score={self.max_score:g}: expected a number above 0 "
                f"and up to {LARGEST_NUMBER:g}, together with --label=COLUMN"
            )
        if options.id != "id" and not (options.queries or options.passages):
            raise InputError(
                f"--id={options.id} only applies with --queries or --passages. "
                "Leave --id out"
            )
        self.options, self.label_column = options, label
        self.text_columns = [options.text, options.text_pair]
        negatives = [n.strip() for n in negative.split(",")] if negative else []
        self.text_columns += negatives
        count = 1 if options.passages and is_search else 2
        labels = [*self.text_columns[count:], *([label] if label else [])]
        if options.drop_unlabelled and not labels:
            either = "--label, --negative or --passages"
            raise InputError(
                "--drop_unlabelled only applies with "
                f"{either if is_search else '--label or --negative'}. Leave "
                "--drop_unlabelled out"
            )
        columns = Columns(
            name,
            self.text_columns[:count],
            labels,
            self._parse,
            optional=tuple(negatives) if is_search else (),
            lacks="without a value",
        )
        super().__init__(columns, options)

    @functools.cached_property
    def queries(self):
        """Dict of id -> text; None without --queries."""
        return self._read_texts(self.options.queries)

    @functools.cached_property
    def passages(self):
        """Dict of id -> title and text, as BEIR joins them, or None.

        BEIR: `(title + " " + text).strip()`, also if the title is empty.
        """
        return self._read_texts(self.options.passages, "title")

    def _read_texts(self, path, title=None):
        if not path:
            return None
        texts: dict[str, str] = {}
        num_titles = 0
        self.record_version(path)
        titles = [title] if title else []
        dialect = self.dialect
        if split_ending(path)[0] != ".csv":  # --separator is that of --train
            dialect = dialect._replace(separator=None)
        for line, (key, text, *names) in read_rows(
            path,
            [self.options.id, "text", *titles],
            optional=titles,
            dialect=dialect,
            notes=self._text_notes,
        ):
            if key in texts:
                where = format_lines([(path, line)])
                raise InputError(f"{where}: the id {key!r} occurs twice")
            num_titles += any(names)
            texts[key] = " ".join([*names, text]).strip() if title else text
        if not texts:
            raise InputError(f"{path}: expected at least one row, got none")
        if num_titles:
            passages = format_count(num_titles, "passage is", "passages are")
            self._text_notes.append(
                f"{path}: {passages} read with title and text"
            )
        return texts

    def read_files(self, split):
        """Return the rows; those of train and dev with unknown ids are not."""
        self._unknown: list[str] = []
        self._keeps_all = split == "test"
        rows = super().read_files(split)
        known = [row for row in rows if row[1] is not None]
        notes = [*self._text_notes, *rows.notes]
        if self._unknown:
            message = self._unknown[0]
            if not known:
                raise InputError(message)
            count = format_count(len(self._unknown), "row is", "rows are")
            notes.append(f"{count} left out for unknown ids. First, {message}")
        return Examples(known, notes)

    def existing_files(self, *splits):
        from bert_keras.data.data_sets import is_data_set

        paths = filter(None, (self.options.queries, self.options.passages))
        paths = [Path(path) for path in paths if not is_data_set(path)]
        return [*super().existing_files(*splits), *paths]

    def _parse(self, where, number, cells):
        tables = [("queries", self.queries)]
        tables += [("passages", self.passages)] * (len(self.text_columns) - 1)
        texts = []
        for column, (flag, table) in zip(
            self.text_columns, tables, strict=True
        ):
            if column in cells:
                cell = cells[column]
                if table is not None and cell not in table:
                    cell = drop_zeros(cell)
                if table is not None and cell not in table:
                    message = (
                        f"{where}: the id {cell!r} is not in --{flag}, which "
                        f"has {len(table)} ids such as {next(iter(table))!r}"
                    )
                    if self._keeps_all:
                        raise InputError(message)
                    self._unknown.append(message)
                    return None
                texts.append(cell if table is None else table[cell])
        label = cells.get(self.label_column)
        if label is not None:
            label = self._parse_score(where, label)
        return Pair(tuple(texts), label)

    def _parse_score(self, where, cell):
        score = read_number(cell)
        if score is None or not 0 <= score <= self.max_score:
            raise InputError(
                f"{where}: expected a score from 0 to {self.max_score:g} "
                f"(--max_score) in column {self.label_column!r}, got {cell!r}"
            )
        return score


def parse_numbers(flag, text) -> tuple[int, ...] | None:
    """Return the sorted distinct numbers in a text such as "1,10".

    Return None if the text is empty or None. Messages name the flag.
    """
    if not text:
        return None
    words = [word.strip() for word in str(text).split(",")]
    if not all(read_index(word, 10**9) for word in words):
        raise InputError(
            f"{flag}={text}: expected whole numbers above 0, separated "
            "by commas, such as 1,10"
        )
    return tuple(sorted({int(word) for word in words}))
