"""Rows of the user's own CSV, TSV and JSONL files, plain or gzip."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from bert_keras.errors import InputError

KINDS = (".csv", ".tsv", ".jsonl")


def read_rows(path, columns: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yields `(line number, the values of columns)` of each row.

    CSV follows RFC 4180 (quotes, commas and line breaks inside quotes); TSV
    is split at tabs and nowhere else; JSONL holds one object a line.

    Raises:
        InputError: no such file, another kind of file, a column that is not
            there, a row of the wrong width, bytes that are not UTF-8.
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in KINDS:
        raise InputError(
            f"{path}: expected a file that ends in {', '.join(KINDS)} (or "
            f"that and .gz), got {path.name!r}"
        )
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as lines:
        yield from rows_of(path, lines, columns, kind)


def rows_of(path, lines, columns, kind):
    """As `read_rows`, from open text that is called `path`, such as a pipe."""
    reader = _json_rows if kind == ".jsonl" else _delimited_rows
    try:
        yield from reader(path, lines, columns, kind)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected UTF-8 text, got the byte "
            f"{error.object[error.start]:#04x}: convert the file to UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(
            f"{path}: cannot be read: {error}: a quote opens that is not "
            "closed, or text follows a closing one. Double each quote inside "
            "quotes, or name a file without quoting .tsv"
        ) from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _delimited_rows(path, lines, columns, kind):
    if kind == ".tsv":
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, strict=True)
    header = next(rows, None)
    if header is None:
        raise InputError(f"{path}: expected a line of column names, got none")
    for column in columns:
        if column not in header:
            raise InputError(
                f"{path}: no column {column!r}: its columns are "
                f"{', '.join(map(repr, header))}{_hint(header, kind)}"
            )
    wanted = [header.index(column) for column in columns]
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {rows.line_num}: expected {len(header)} "
                f"columns, got {len(row)}"
            )
        yield rows.line_num, [row[index] for index in wanted]


def _hint(header, kind):
    """What to do where the file seems to be of the other kind."""
    other, name = (",", "csv") if kind == ".tsv" else ("\t", "tsv")
    if len(header) > 1 or other not in header[0]:
        return ""
    between = "commas" if kind == ".tsv" else "tabs"
    return f". It has {between} between its columns: name it .{name}"


def _json_rows(path, lines, columns, kind):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield number, [_text(row[column]) for column in columns]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path}, line {number}: expected a JSON object with "
                f"{', '.join(map(repr, columns))}, got {line.strip()[:60]!r}"
            ) from error


def _text(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
