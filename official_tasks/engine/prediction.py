"""Reads the rows for `predict`: files, data sets or standard input."""

import glob
import hashlib
import json
import os
from itertools import islice

from bert_keras import files
from bert_keras.errors import InputError, format_count
from bert_keras.file_forms import split_ending
from bert_keras.text.wordpiece import encodable
from official_tasks.tasks.forms.cells import ID, to_text
from official_tasks.tasks.forms.fasttext import FASTTEXT, is_fasttext
from official_tasks.tasks.forms.table import (
    KINDS,
    is_columnar,
    line_or_row,
    read_rows,
)
from official_tasks.tasks.forms.text_files import (
    Dialect,
    open_text,
    plain_errors,
)


def choose_signature(served, name, columns):
    """Return a signature's name, its entry in `served.card`, and its columns.

    Args:
        served: a `ServedModel`.
        name: name of the signature; None means the model's default.
        columns: names of the columns to read; None means the inputs' names.
    """
    name = name or served.card["default"]
    if name not in served.signatures:
        raise InputError(
            f"The model has no signature {name!r}. It has "
            f"{', '.join(served.signatures)}."
        )
    entry = served.card["signatures"][name]
    columns = columns or entry["input_order"]
    if len(columns) != len(entry["input_order"]):
        raise InputError(
            f"--columns names {len(columns)} columns. Expected one for each "
            f"input of {name}: {', '.join(entry['input_order'])}."
        )
    return name, entry, columns


def check_kept(entry, columns, keep):
    """Raise if a table of answers would have two columns of the same name.

    Args:
        entry: the signature's entry in the card.
        columns: names of the columns to read; see `choose_signature`.
        keep: names of the columns to write next to the answers.
    """
    for name, column in zip(entry["input_order"], columns, strict=True):
        if name in keep and name != column:
            raise InputError(
                f"--keep={name} has the name of an input, which --columns "
                f"reads from {column!r}. A table cannot have two columns of "
                f"this name. Rename the column {name!r} in --input, or name a "
                ".jsonl file as --output."
            )


def find_id(paths, kind, names) -> list[str]:
    """Return ["id"] if this column is to be read from tables, or [].

    Args:
        paths: see `read_inputs`.
        kind: see `read_inputs`.
        names: names of the columns and inputs, which may include "id".
    """
    has_lines = any(find_kind(path, kind) == "lines" for path in paths)
    return [] if has_lines or ID in names else [ID]


def list_types(entry):
    """Return the argument `lists` of `read_inputs` for a signature's inputs.

    `entry` is the signature's entry in the card.
    """
    rows = [entry["request"][key][0] for key in entry["input_order"]]
    return [
        isinstance(row, list) and (isinstance(row[0], str) or type(row[0]))
        for row in rows
    ]


def find_inputs(pattern) -> list[str]:
    """Return the matching files, sorted; [pattern] for "-" or a data set."""
    from bert_keras.data.data_sets import is_data_set

    if pattern == "-" or os.path.isfile(pattern) or is_data_set(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        raise InputError(
            f"{pattern} is a folder. Name its files, as in "
            f"'{pattern.rstrip('/')}/*.csv'."
        )
    if os.path.exists(pattern):
        raise InputError(
            f"{pattern} is a pipe or a device; expected files. Send the rows "
            "to standard input, and give --input=-."
        )
    paths = files.find(pattern) if glob.has_magic(pattern) else []
    paths = list(filter(os.path.isfile, paths))
    if not paths:
        raise InputError(f"{pattern}: no such file")
    return paths


class Rows:
    """The rows of `read_inputs`, as they are when this object is made.

    All rows are checked and counted at once. Iteration reads them again, and
    ends with an `InputError` if the files changed. Standard input and data sets
    are read only by the iteration.

    Args:
        paths: see `read_inputs`.
        *arguments: the other arguments of `read_inputs`.

    Attributes:
        total: number of rows; None if one of the paths is "-" or a data set.
    """

    def __init__(self, paths, *arguments):
        from bert_keras.data.data_sets import is_data_set

        self.paths, self._arguments = paths, arguments
        self.total = self._hash = None
        if not any(path == "-" or is_data_set(path) for path in paths):
            rows_hash, self.total = hashlib.sha256(), 0
            for row in read_inputs(paths, *arguments):
                rows_hash.update(encode_row(row))
                self.total += 1
            self._hash = rows_hash.digest()

    def __iter__(self):
        rows_hash, count = hashlib.sha256(), 0
        # Do not read rows that were added to the files.
        rows = islice(read_inputs(self.paths, *self._arguments), self.total)
        for row in rows:
            yield row
            count += 1
            rows_hash.update(encode_row(row))
        if self.total is not None and rows_hash.digest() != self._hash:
            raise InputError(
                f"{', '.join(self.paths)} changed while it was read: expected "
                f"the {self.total} rows from the start of the command, got "
                f"{count} rows or other ones. Run the command again."
            )


def encode_row(row) -> bytes:
    """Return a row of JSON values as bytes, for a hash of all rows."""
    return json.dumps(row).encode() + b"\n"


def read_inputs(
    paths, kind, columns, lists, dialect=None, notes=None, optional=()
):
    """Yield each row as a list that holds a str or a list for each column.

    Args:
        paths: list of files (also `.gz`) and data sets; "-" is standard input.
        kind: "lines", "csv", "tsv" or "jsonl"; None: the file name decides.
            Ignored for Parquet files and data sets.
        columns: columns of a table: the inputs in order, then columns to keep.
        lists: for each column, True if its values are lists of str in JSON,
            `int` if they are lists of integers, `list` if they are lists of
            lists of integers, False if they are str.
        dialect: `Dialect` of the files; None means UTF-8 and commas.
        notes: list to which notes for the user are added.
        optional: columns that may be missing; their cells are then "".
    """
    for path in paths:
        form = dialect or Dialect()
        wanted = columns, lists, optional
        yield from _read_file(path, kind, wanted, form, notes)


def _read_file(path, kind, wanted, dialect, notes):
    columns = wanted[0]
    kind = find_kind(path, kind)
    if kind == "lines" and len(columns) > 1:
        raise InputError(
            f"{path} is read as one text a line, but the columns "
            f"{' and '.join(columns)} are needed. Name a .csv, .tsv, .jsonl or "
            ".parquet file, or set --input_format to csv, tsv or jsonl."
        )
    if kind == "lines" and dialect.separator:
        raise InputError(
            "--separator is for CSV, but the input is read as one text a line. "
            "Leave --separator out, or name a .csv file. With predict, "
            "--input_format=csv works too."
        )
    if kind == "columns":
        yield from _read_table(path, None, None, wanted, dialect, notes)
        return
    text, dialect = _open(path, kind, dialect, notes)
    with text:
        if kind == "lines":
            with plain_errors(path, dialect):
                yield from _read_lines(path, text, dialect, notes)
        else:
            yield from _read_table(
                path, text, f".{kind}", wanted, dialect, notes
            )


def _read_lines(path, lines, dialect, notes):
    """Yield [line]; note how many lines have bytes that cannot be decoded."""
    first = count = 0
    for number, line in enumerate(lines, 1):
        text = encodable(line)  # the bytes become U+FFFD, which has no token
        if text != line:
            first, count = first or number, count + 1
        yield [text.rstrip("\r\n")]
    if count and notes is not None:
        encoding = dialect.encoding.removesuffix("-sig").upper()
        notes.append(
            f"{path}, line {first}: bytes that are not {encoding} are left out "
            f"of {format_count(count, 'text')}. If the file has another "
            "encoding, give it, such as --encoding=cp1252"
        )


def _read_table(path, stream, kind, wanted, dialect, notes):
    columns, lists, optional = wanted
    listed = [c for c, is_list in zip(columns, lists, strict=True) if is_list]
    for number, row in read_rows(
        path,
        columns,
        listed,
        optional,
        dialect=dialect,
        notes=notes,
        stream=stream,
        kind=kind,
    ):
        row_name = f"{path}, {line_or_row(path)} {number}"
        cells = [
            _parse_list(row_name, column, value, is_list) if is_list else value
            for column, value, is_list in zip(columns, row, lists, strict=True)
        ]
        _check_lengths(row_name, columns, cells, lists)
        yield cells


def find_kind(path, kind=None):
    """Return the format of a path.

    It is "columns" for Parquet, data sets and fastText's format. Otherwise it
    is `kind` if set, else the path's ending: "csv", "tsv" or "jsonl". Other
    endings give "lines".
    """
    if is_columnar(path):
        return "columns"
    if kind:
        return kind
    suffix, _ = split_ending(path)
    if suffix == FASTTEXT and os.path.isfile(path) and is_fasttext(path):
        return "columns"  # its labels are no text
    return suffix[1:] if suffix in KINDS else "lines"


def _open(path, kind, dialect, notes):
    if path != "-" and not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if kind == "lines":
        # Invalid bytes become halves of surrogate pairs; see `_read_lines`.
        arguments = {"errors": "surrogateescape", "newline": "\n"}
    else:
        arguments = {"newline": ""}
    return open_text(path, dialect, notes, **arguments)


def _parse_list(row_name, column, value, item_type):
    content = {int: "integers", list: "lists of integers"}.get(
        item_type, "texts"
    )
    try:
        items = value if isinstance(value, list) else json.loads(value)
    except (ValueError, RecursionError):
        items = None
    if not items or not isinstance(items, list):
        raise InputError(
            f"{row_name}: expected a list of {content} in {column!r}, as JSON "
            f"and not empty, got {value[:60]!r}"
        )
    if item_type is True:
        return [to_text(row_name, column, item) for item in items]
    rows = items if item_type is list else [items]
    if not all(
        type(row) is list
        and set(map(type, row)) == {int}
        and 0 <= min(row) <= max(row) < 1 << 31
        for row in rows
    ):
        raise InputError(
            f"{row_name}: expected a list of {content} from 0 to 2147483647 in "
            f"{column!r}, got {json.dumps(items)[:60]}"
        )
    return items


def _check_lengths(row_name, columns, cells, lists):
    lengths = {
        column: list(map(len, cell)) if kind is list else len(cell)
        for column, cell, kind in zip(columns, cells, lists, strict=True)
        if kind in (int, list)
    }
    if len(set(map(str, lengths.values()))) > 1:
        raise InputError(
            f"{row_name}: expected the same number of integers in each of "
            f"{', '.join(lengths)}, got {list(lengths.values())}"
        )
