"""Rows of the user's own files, or of a data set that is named.

CSV, TSV and JSONL, plain or gzip, are read here; Parquet, Arrow, TFDS and
Hugging Face in `bert_keras/data/data_sets.py`.
"""

import codecs
import contextlib
import csv
import gzip
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_keras.errors import InputError, collected
from bert_keras.text.wordpiece import encodable

LONGEST = 2**31 - 1  # characters of a cell; the module's own limit is 2**17
KINDS = (".csv", ".tsv", ".jsonl")
# What stands between columns where it is no comma, and what it is called.
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "upright lines"}
_EXCEL_SEPARATOR = re.compile(r'"?sep=([^"\r\n])"?\r?\n?', re.IGNORECASE)


class Dialect(NamedTuple):
    """How the user's own file is written, by --separator and --encoding."""

    separator: str | None = None
    encoding: str = "utf-8-sig"


def dialect(separator=None, encoding=None) -> Dialect:
    """The dialect that flags name, where they were given.

    Raises:
        InputError: a separator of several characters, an unknown encoding.
    """
    separator = "\t" if separator in ("\\t", "tab") else separator
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise InputError(
            f"--separator={separator}: expected one character, such as "
            "--separator=';'"
        )
    try:
        name = codecs.lookup(encoding or "utf-8").name
        "".encode(name)  # refuses what encodes no text, such as hex
    except LookupError:
        raise InputError(
            f"--encoding={encoding}: there is no such encoding; expected "
            "utf-8, utf-16, cp1252 (Windows, Western Europe) or another of "
            "Python's"
        ) from None
    return Dialect(separator, "utf-8-sig" if name == "utf-8" else name)


def read_rows(
    path,
    columns: list[str],
    lists=(),
    optional=(),
    own: Dialect | None = None,
    notes: list[str] | None = None,
    split: str = "train",
    faults: list[str] | None = None,
) -> Iterator[tuple[int, list]]:
    """Yields `(line number, the values of columns)` of each row, str.

    CSV follows RFC 4180 (quotes, commas and line breaks inside quotes); TSV
    is split at tabs and nowhere else; JSONL holds one object a line. Of
    Parquet, Arrow and a data set the number is the row's, from 1. null is an
    empty cell.

    Args:
        path: a file, or a data set's name; see `column_rows`.
        lists: columns whose cells may be lists, in all but CSV and TSV; they
            come as lists of such values.
        optional: columns that may be missing; their values are None or empty
            then.
        own: of the user's own file; messages name its flags then.
        notes: list to which is added what deserves a look.
        split: of a data set whose name says none.
        faults: list to which the fault of a row is added, which is then left
            out; None raises the first.

    Raises:
        InputError: no such file, another kind of file, a column that is not
            there, a row of the wrong width, a list or an object in place of
            text, bytes that are not UTF-8, a separator for another kind; see
            `column_rows`.
    """
    if is_columnar(path):
        rows = columnar_rows(path, columns, lists, optional, own, split, faults)
    else:
        rows = _rows_of_text(path, columns, lists, optional, own, notes, faults)
    for line, row in rows:
        place = f"{path}, {line_or_row(path)} {line}"
        with collected(faults):
            for number, value in enumerate(row):
                if isinstance(value, list):
                    row[number] = cells(place, columns[number], value)
            yield line, row


def _rows_of_text(path, columns, lists, optional, own, notes, faults):
    path = Path(path)
    kind, packed = ending(path)
    if kind not in KINDS:
        raise InputError(
            f"{path}: expected a file that ends in {', '.join(KINDS)} (or "
            "that and .gz), .parquet, .arrow or .feather, or a data set, "
            f"hf:NAME or tfds:NAME, got {path.name!r}"
        )
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    opened = gzip.open if packed else open
    encoding = (own or Dialect()).encoding
    with opened(path, "rt", encoding=encoding, newline="") as lines:
        yield from rows_of(
            path, lines, columns, kind, lists, optional, own, notes, faults
        )


def ending(path) -> tuple[str, bool]:
    """The end of a file's name, in lower case, and whether .gz follows."""
    name = str(path).lower()
    return Path(name.removesuffix(".gz")).suffix, name.endswith(".gz")


def is_columnar(path) -> bool:
    """Whether `path` is read by column: Parquet, Arrow or a data set."""
    from bert_keras.data.data_sets import COLUMNAR, is_data_set

    return is_data_set(path) or str(path).lower().endswith(COLUMNAR)


def line_or_row(path) -> str:
    """What messages count in a file."""
    return "row" if is_columnar(path) else "line"


def columnar_rows(
    path,
    columns,
    lists=(),
    optional=(),
    own=None,
    split="train",
    faults=None,
):
    """As `read_rows`, of what is read by column; lists come as they are."""
    from bert_keras.data.data_sets import column_rows, is_data_set

    for flag, value, usual in (
        ("separator", own and own.separator, None),
        ("encoding", own and own.encoding, "utf-8-sig"),
    ):
        if value not in (None, usual):
            raise InputError(
                f"{path}: --{flag}={value} is for text files: leave it out"
            )
    if not is_data_set(path) and not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    for number, row in column_rows(str(path), columns, optional, split):
        place = f"{path}, row {number}"
        with collected(faults):
            yield number, _cells_of_row(place, columns, row, lists)


def rows_of(
    path,
    lines,
    columns,
    kind,
    lists=(),
    optional=(),
    own=None,
    notes=None,
    faults=None,
):
    """As `read_rows`, from open text that is called `path`, such as a pipe.

    Lists come as they are.
    """
    if own and own.separator and kind != ".csv":
        raise InputError(
            f"{path}: --separator={own.separator} is for files that end in "
            f".csv, got {kind}: rename the file, or leave --separator out"
        )
    with plain_errors(path, own):
        if kind == ".jsonl":
            yield from _json_rows(path, lines, columns, lists, optional, faults)
        else:
            yield from _delimited_rows(
                path, lines, columns, kind, optional, own, notes, faults
            )


# float32 holds the square of such a number, 3.4e38 at most.
LARGEST_NUMBER = 1e18


def read_number(text: str) -> float | None:
    """Return the number that a cell spells; None if none to learn from."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None  # NaN is not


def read_index(text: str, count: int) -> int | None:
    """Return the whole number below `count` that a cell spells, or None."""
    is_short = len(text) <= 9  # Python refuses to read thousands of digits
    number = int(text) if is_short and text.isdecimal() else count
    return number if number < count else None


def write_csv(path, rows) -> None:
    """Writes rows of cells; what `read_rows` reads again."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def read_text(path) -> str:
    """All of a UTF-8 file, with or without a byte order mark."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with plain_errors(path):
        return path.read_bytes().decode("utf-8-sig")


@contextlib.contextmanager
def plain_errors(path, own=None):
    """Turns errors of reading text or CSV into an `InputError`.

    Args:
        own: `Dialect` of the user's own file; messages name its flags then.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        encoding = own.encoding.removesuffix("-sig") if own else "utf-8"
        # Files of the user's own are read in pieces: the place is in one.
        advice = _other_encoding(error) if own else ""
        place = "" if own else f" at {error.start}"
        raise InputError(
            f"{path}: expected {encoding.upper()} text, got the byte "
            f"{byte:#04x}{place}: {advice}convert the file to UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(
            f"{path}: cannot be read: {error}: a quote opens that is not "
            "closed, or text follows a closing one. Double each quote inside "
            "quotes, or name a file without quoting .tsv"
        ) from error
    # UnicodeError: UTF-16 without a byte order mark.
    except (UnicodeError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _other_encoding(error):
    """What to try, by the byte that is no text."""
    if error.start == 0 and error.object[0] in (0xFE, 0xFF):
        return "it looks like UTF-16: give --encoding=utf-16, or "
    return (
        "it may be Latin-1, as Windows writes it: give --encoding=cp1252, or "
    )


def _delimited_rows(path, lines, columns, kind, optional, own, notes, faults):
    csv.field_size_limit(LONGEST)
    skipped = 0
    if kind == ".tsv":
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        first = next(iter(lines), "")
        marked = _EXCEL_SEPARATOR.fullmatch(first)  # its first line, or none
        separator = (own and own.separator) or (marked and marked[1]) or ","
        skipped = int(marked is not None)
        if first and not marked:
            lines = itertools.chain([first], lines)
        rows = csv.reader(lines, strict=True, delimiter=separator)
    header = next(rows, None)
    if not header:
        found = "an empty line" if header == [] else "none"
        raise InputError(
            f"{path}: expected a line of column names, got {found}"
        )
    for column in columns:
        if column not in header and column not in optional:
            raise InputError(
                f"{path}: no column {column!r}: its columns are "
                f"{', '.join(map(repr, header))}{_hint(header, kind, own)}"
            )
        if notes is not None and header.count(column) > 1:
            notes.append(
                f"{path}: {header.count(column)} columns are called "
                f"{column!r}; the first of them is read"
            )
    places = [
        header.index(name) if name in header else None for name in columns
    ]
    for row in rows:
        line = rows.line_num + skipped
        if not row:
            if len(header) > 1:
                continue
            row = [""]  # of one column, an empty line is an empty cell
        with collected(faults):
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {line}: expected {len(header)} columns, got "
                    f"{len(row)}"
                )
            yield line, [None if i is None else row[i] for i in places]


def _hint(header, kind, own):
    """Return what to do: columns may be separated otherwise."""
    names = {",": "commas"} if kind == ".tsv" else SEPARATORS
    separator = next((one for one in names if one in header[0]), None)
    if len(header) > 1 or separator is None:
        return ". Name one of them"
    advice = []
    if separator in ",\t":
        advice.append(f"name it .{'tsv' if kind == '.csv' else 'csv'}")
    if own and kind == ".csv":
        shown = "tab" if separator == "\t" else f"'{separator}'"
        advice.append(f"give --separator={shown}")
    hint = f". It has {names[separator]} between its columns"
    return f"{hint}: {', or '.join(advice)}" if advice else hint


def _json_rows(path, lines, columns, lists, optional, faults):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        with collected(faults):
            try:
                row = dict.fromkeys(optional) | json.loads(line)
                values = [row[column] for column in columns]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(
                    f"{place}: expected a JSON object with "
                    f"{', '.join(map(repr, columns))}, got "
                    f"{line.strip()[:60]!r}"
                ) from error
            yield number, _cells_of_row(place, columns, values, lists)


def _cells_of_row(place, columns, values, lists):
    """Texts; lists as they are, where a column may hold them."""
    return [
        value
        if isinstance(value, list) and column in lists
        else cell(place, column, value)
        for column, value in zip(columns, values, strict=True)
    ]


def cells(place, column, values):
    """A list of JSON as texts."""
    return [cell(place, column, value) for value in values]


def cell(place, column, value):
    """A value as text; null and NaN are empty, what has parts is refused."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        raise InputError(
            f"{place}: expected text in {column!r}, got "
            f"{json.dumps(value, default=str)[:60]}"
        )
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{place}: expected UTF-8 text in {column!r}, got the byte "
                f"{value[error.start]:#04x}"
            ) from None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and math.isnan(value):
        return ""  # as pandas writes what is missing of a column of numbers
    is_json = isinstance(value, bool | int | float)
    return json.dumps(value) if is_json else str(value)  # such as a date
