"""The rows that `predict` asks a served model, from any file or a pipe."""

import glob
import gzip
import json
import os
import sys

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks.tasks.table import (
    KINDS,
    Dialect,
    is_columnar,
    line_or_row,
    plain_errors,
    read_rows,
    split_ending,
    to_text,
)


def asked(served, name, columns):
    """The signature to ask, its entry in the card, and a column an input."""
    name = name or served.card["default"]
    if name not in served.signatures:
        raise InputError(
            f"The model answers {', '.join(served.signatures)}; got {name!r}."
        )
    entry = served.card["signatures"][name]
    columns = columns or entry["input_order"]
    if len(columns) != len(entry["input_order"]):
        raise InputError(
            f"--columns names {len(columns)}; {name} takes "
            f"{', '.join(entry['input_order'])}."
        )
    return name, entry, columns


def lists_of(entry):
    """For each input of a signature what `read_inputs` asks of its lists."""
    rows = [entry["request"][key][0] for key in entry["input_order"]]
    return [
        isinstance(row, list) and (isinstance(row[0], str) or int)
        for row in rows
    ]


def input_paths(pattern) -> list[str]:
    """Return the files that a pattern matches, sorted; a pipe as it is."""
    from bert_keras.data.data_sets import is_data_set

    if pattern == "-" or os.path.exists(pattern) or is_data_set(pattern):
        return [pattern]
    found = files.find(pattern) if glob.has_magic(pattern) else []
    found = list(filter(os.path.isfile, found))
    if not found:
        raise InputError(f"{pattern}: no such file")
    return found


def count_rows(paths, *arguments) -> int | None:
    """Read and check every row once; None where that can be done only once.

    Args:
        paths, *arguments: of `read_inputs`.
    """
    from bert_keras.data.data_sets import is_data_set

    if any(path == "-" or is_data_set(path) for path in paths):
        return None
    return sum(1 for _ in read_inputs(paths, *arguments))


def read_inputs(paths, kind, columns, lists, own=None):
    """Yield each row's inputs: a list of str, or of list of str.

    Args:
        paths: files, also `.gz`, names of data sets, or "-" for standard
            input; the rows of one follow those of the other.
        kind: "lines", "csv", "tsv" or "jsonl"; None: by the file's name.
        columns: of a table, in the order of the inputs; further ones that
            are kept follow.
        lists: for each column whether it holds a list, written as JSON; of
            numbers where this is `int`.
        own: `Dialect`, of a file that is no UTF-8 or has no commas.
    """
    for path in paths:
        yield from _rows_of_file(path, kind, columns, lists, own or Dialect())


def _rows_of_file(path, kind, columns, lists, own):
    kind = kind_of(path, kind)
    if kind == "lines" and len(columns) > 1:
        raise InputError(
            f"{path} has one text a line, and {' and '.join(columns)} are "
            "read of each row. Give a table with these columns: CSV, TSV, "
            "JSONL, Parquet, ..."
        )
    if kind == "lines" and own.separator:
        raise InputError(
            "--separator is for CSV, and the input has a text a line. Leave it "
            "out, or give --format=csv."
        )
    if kind == "columns":
        yield from _table_rows(path, None, None, columns, lists, own)
        return
    with _opened(path, kind, own.encoding) as text:
        if kind == "lines":
            with plain_errors(path, own):
                yield from ([line.rstrip("\r\n")] for line in text)
        else:
            yield from _table_rows(path, text, f".{kind}", columns, lists, own)


def _table_rows(path, stream, kind, columns, lists, own):
    listed = [c for c, is_list in zip(columns, lists, strict=True) if is_list]
    for number, row in read_rows(
        path, columns, listed, dialect=own, stream=stream, kind=kind
    ):
        place = f"{path}, {line_or_row(path)} {number}"
        yield [
            _list(place, column, value, is_list) if is_list else value
            for column, value, is_list in zip(columns, row, lists, strict=True)
        ]


def kind_of(path, kind=None):
    """What a file is read as; `kind` where that is given."""
    if kind:
        return kind
    if is_columnar(path):
        return "columns"
    suffix, _ = split_ending(path)
    return suffix[1:] if suffix in KINDS else "lines"


def _opened(path, kind, encoding):
    # Lines may be any bytes; what is not UTF-8 the tokenizer leaves out.
    text = {
        "encoding": encoding,
        "errors": "replace" if kind == "lines" else "strict",
        "newline": "\n" if kind == "lines" else "",
    }
    if path == "-":
        return open(sys.stdin.fileno(), closefd=False, **text)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    opened = gzip.open if split_ending(path)[1] else open
    return opened(path, "rt", **text)


def _list(place, column, value, of):
    try:
        items = value if isinstance(value, list) else json.loads(value)
    except ValueError:
        items = None
    if not items or not isinstance(items, list):
        raise InputError(
            f"{place}: expected a list of texts as JSON, got {value[:60]!r}"
        )
    if of is not int:
        return [to_text(place, column, item) for item in items]
    rows = items if isinstance(items[0], list) else [items]
    if not all(
        type(row) is list and set(map(type, row)) == {int} for row in rows
    ):
        raise InputError(
            f"{place}: expected a list of integers in {column!r}, or lists of "
            f"them, got {json.dumps(items)[:60]}"
        )
    return items
