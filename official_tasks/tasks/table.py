"""Read tables: CSV, TSV and JSON (also packed), Parquet and data sets."""

import codecs
import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bert_keras import files
from bert_keras.bounded_lines import bound_lines
from bert_keras.errors import InputError, collect_faults
from bert_keras.file_forms import (
    HEAD,
    PACKED,
    open_packed,
    packing_errors,
    refuse_other_forms,
    split_ending,
)
from bert_keras.text.wordpiece import encodable
from official_tasks.tasks import label_studio
from official_tasks.tasks.list_cells import parse_list

MAX_CELL_LENGTH = 2**31 - 1  # characters; csv's default limit is 2**17
KINDS = (".csv", ".tsv", ".jsonl", ".json")
ID = "id"  # column that predictions repeat, so that rows can be joined
BLOCK = 1 << 20  # bytes to decode at once
# UTF-32's mark begins with that of UTF-16, so it comes first.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Values of --separator that a message may suggest -> name in the message.
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class Dialect(NamedTuple):
    """The separator and the encoding of a user's text files."""

    separator: str | None = None
    encoding: str = "utf-8-sig"


def make_dialect(separator=None, encoding=None) -> Dialect:
    """Return a `Dialect` from --separator and --encoding.

    Raises:
        InputError: the separator is not one character, "tab" or "\\t"; or is
            a double quote or a line break; or the encoding is unknown.
    """
    separator = "\t" if separator in ("\\t", "tab") else separator
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise InputError(
            f"--separator={separator}: expected one character except a double "
            "quote or a line break, such as --separator=';', or the word 'tab'"
        )
    try:
        name = codecs.lookup(encoding or "utf-8").name
        "".encode(name)  # raises for codecs that encode no text, such as hex
    except LookupError:
        raise InputError(
            f"--encoding={encoding}: there is no such encoding; expected "
            "utf-8, utf-16, cp1252 (Windows, Western Europe) or another "
            "encoding of Python"
        ) from None
    return Dialect(separator, "utf-8-sig" if name == "utf-8" else name)


def open_text(path, dialect=None, notes=None, **arguments):
    """Open a text file of a user, or standard input, for reading.

    A byte order mark decides the encoding. A file without one that is UTF-8,
    and not only ASCII, is read as UTF-8. Otherwise the dialect decides. With
    UTF-8 as the dialect's encoding, other files raise an error when they are
    read. Of standard input, only the first bytes are checked.

    Args:
        path: a file, packed if it ends in .gz, .bz2, .xz or .zst; or "-".
        dialect: `Dialect` of the file; None means UTF-8.
        notes: list that gets a note if the encoding is not the dialect's.
        **arguments: further arguments of `open`.

    Returns:
        The open text file, and the dialect with the encoding of the file.
    """
    advice = "give --encoding={}, or " if dialect else ""
    dialect = dialect or Dialect()
    encoding = dialect.encoding
    stream = _open_bytes(path)
    with plain_errors(path):
        refuse_other_forms(_read_head(stream, path == "-"), path)
    if encoding != "utf-8-sig":
        with plain_errors(path):
            found, reason = _detect_encoding(stream, path == "-")
        found = found or encoding
        if not encoding.startswith(found) and notes is not None:
            name = found.removesuffix("-sig").upper()
            notes.append(
                f"{path} is read as {name} and not as {encoding}, because "
                f"{reason}"
            )
        encoding = found
    elif marked := _find_mark(_read_head(stream, path == "-")):
        raise InputError(
            f"{path}: expected UTF-8 text, but it looks like {marked.upper()}: "
            f"{advice.format(marked)}convert the file to UTF-8"
        )
    # A JSON list is read as a whole, and may be one line.
    if split_ending(path)[0] != ".json":
        stream = bound_lines(stream, path)
    text = io.TextIOWrapper(stream, encoding=encoding, **arguments)
    return text, dialect._replace(encoding=encoding)


def _open_bytes(path):
    if path == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return open_packed(path)


def _read_head(stream, is_pipe):
    if is_pipe:
        return stream.peek()
    head = stream.read(HEAD)
    stream.seek(0)
    return head


def _find_mark(head):
    """Return the encoding of a byte order mark other than that of UTF-8."""
    return next((x for mark, x in MARKS.items() if head.startswith(mark)), None)


def _detect_encoding(stream, is_pipe):
    """Return the encoding that the bytes show, or None, and the reason."""
    head = _read_head(stream, is_pipe)
    if is_pipe:
        stream = io.BytesIO(head)
    if marked := _find_mark(head):
        return marked, "it begins with a byte order mark"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig", "it begins with a byte order mark"
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        while block := stream.read(BLOCK):
            # UTF-16 has NUL in each ASCII letter.
            if b"\0" in block:
                return None, ""
            is_ascii = decoder.decode(block).isascii() and is_ascii
        # A pipe's first bytes may end within a letter.
        decoder.decode(b"", final=not is_pipe)
    except UnicodeDecodeError:
        return None, ""
    finally:
        stream.seek(0)
    reason = "its letters outside ASCII are valid UTF-8"
    return (None, "") if is_ascii else ("utf-8-sig", reason)


def read_rows(
    path,
    columns: list[str],
    lists=(),
    optional=(),
    dialect: Dialect | None = None,
    notes: list[str] | None = None,
    split: str = "train",
    faults: list[str] | None = None,
    stream=None,
    kind: str | None = None,
) -> Iterator[tuple[int, list]]:
    """Yield `(line number, cells)` of each row; a cell is a str or a list.

    CSV follows RFC 4180; commas and line breaks may stand inside quotes. TSV is
    split at tabs only. JSONL holds an object on each line, JSON a list of
    objects. Rows of JSON, Parquet and data sets are numbered from 1. A null
    becomes "". For exports of Label Studio, see `label_studio.py`.

    Args:
        path: a file, or the name of a data set; see `column_rows`.
        columns: names of the columns to read, in the order of the cells.
        lists: columns with cells that may be lists, also written as text; see
            `parse_list`. Their elements are yielded unchanged.
        optional: columns that may be missing; their cells are then "". Of an
            optional column "id", any value is accepted.
        dialect: `Dialect` of a user's file; messages then suggest --separator
            and --encoding.
        notes: list to which notes for the user are added.
        split: split to read if the name of the data set has no split.
        faults: list to which the error of each bad row is added; None raises
            the first error.
        stream: open text file to read in place of `path`, such as a pipe.
        kind: one of `KINDS`; None takes the ending of the file.

    Raises:
        InputError: the file, a column, a row or a cell cannot be read.
    """
    if stream is None and is_columnar(path):
        rows = _read_columnar(path, columns, optional, dialect, split)
    else:
        kind = kind or _find_kind(path)
        wanted = columns, lists, optional
        rows = _read_text_rows(path, stream, kind, wanted, dialect, notes)
    for number, values in rows:
        where = f"{path}, {line_or_row(path)} {number}"
        with collect_faults(faults):
            if isinstance(values, str):  # an error message, not cells
                raise InputError(f"{where}: {values}")
            cells = []
            for column, value in zip(columns, values, strict=True):
                if column in lists and isinstance(value, str):
                    items = parse_list(value)
                    value = value if items is None else items
                if column == ID and column in optional:
                    value = _show_id(value)
                is_list = isinstance(value, list) and column in lists
                cells.append(
                    value if is_list else to_text(where, column, value)
                )
            yield number, cells


def is_columnar(path) -> bool:
    """Return True for Parquet files and data sets, which store by column."""
    from bert_keras.data.data_sets import PARQUET, is_data_set

    return is_data_set(path) or str(path).lower().endswith(PARQUET)


def require_file(path) -> None:
    """Raise `InputError` unless there is a regular file at a local path."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; expected a file")
    files.check_file(path)  # a pipe can be read only once


def line_or_row(path) -> str:
    """Return "row" or "line", the word for a position in the file."""
    has_rows = is_columnar(path) or split_ending(path)[0] == ".json"
    return "row" if has_rows else "line"


def _find_kind(path):
    kind, _ = split_ending(path)
    if kind not in KINDS:
        raise InputError(
            f"{path}: expected a file that ends in {', '.join(KINDS)} (packed: "
            f"then {', '.join(PACKED)}) or .parquet, or a data set, tfds:NAME "
            f"or hf:NAME, got {Path(path).name!r}"
        )
    return kind


def _read_columnar(path, columns, optional, dialect, split):
    from bert_keras.data.data_sets import column_rows, is_data_set

    for flag, value, usual in (
        ("separator", dialect and dialect.separator, None),
        ("encoding", dialect and dialect.encoding, "utf-8-sig"),
    ):
        if value not in (None, usual):
            raise InputError(
                f"{path}: --{flag}={value} is for text files: leave it out"
            )
    if not is_data_set(path):
        require_file(path)
    yield from column_rows(str(path), columns, optional, split)


def _read_text_rows(path, stream, kind, wanted, dialect, notes):
    """Yield (line number, values); a bad row yields a message, not values.

    `wanted` has the arguments columns, lists and optional of `read_rows`.
    """
    if dialect and dialect.separator and kind != ".csv":
        raise InputError(
            f"{path}: --separator={dialect.separator} is for files that end in "
            f".csv, got {kind}: rename the file, or leave --separator out"
        )
    with contextlib.ExitStack() as stack:
        if stream is None:
            require_file(path)
            stream, found = open_text(path, dialect, notes, newline="")
            stack.enter_context(stream)
            dialect = dialect and found
        stack.enter_context(plain_errors(path, dialect))
        if kind == ".json":
            yield from _read_json_list(path, stream, wanted, notes)
        elif kind == ".jsonl":
            yield from _read_json_lines(stream, wanted)
        else:
            yield from _read_delimited_rows(
                path, stream, kind, wanted, dialect, notes
            )


def _read_json_lines(lines, wanted):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = line.strip()
        yield number, _select(row, wanted)


def _read_json_list(path, stream, wanted, notes):
    text = stream.read()
    if not text.lstrip().startswith("["):
        yield from _read_json_lines(io.StringIO(text), wanted)  # as in JSONL
        return
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected a list of JSON objects, got text that is no "
            f"JSON: {error}"
        ) from error
    columns, lists, optional = wanted
    rows = list(enumerate(content, 1))
    is_tasks = bool(rows) and all(map(label_studio.is_task, content))
    if is_tasks:
        rows = label_studio.read_tasks(path, content, columns, notes)
    objects = [row for _, row in rows if isinstance(row, dict)]
    header = list(dict.fromkeys(itertools.chain(*objects)))
    for column in columns:
        if header and column not in header and column not in optional:
            raise InputError(
                f"{path}: no column {column!r}: its columns are "
                f"{', '.join(map(repr, header))}"
            )
    if len(objects) == len(rows) and (
        is_tasks or label_studio.is_export(header)
    ):
        yield from label_studio.clean_rows(path, rows, columns, lists, notes)
        return
    for number, row in rows:
        yield number, _select(row, wanted)


def _select(row, wanted):
    """Return the cells of a JSON object, or a message if it lacks one."""
    columns, _, optional = wanted
    try:
        row = dict.fromkeys(optional) | row
        return [row[column] for column in columns]
    except (TypeError, KeyError):
        shown = row if isinstance(row, str) else json.dumps(row)
        return (
            f"expected a JSON object with {', '.join(map(repr, columns))}, got "
            f"{shown[:60]!r}"
        )


def _read_delimited_rows(path, lines, kind, wanted, dialect, notes):
    columns, lists, optional = wanted
    csv.field_size_limit(MAX_CELL_LENGTH)
    separator = (dialect and dialect.separator) or None
    separator, lines, skipped = _read_separator(path, lines, kind, separator)
    if kind == ".tsv":
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, strict=True, delimiter=separator or ",")
    header = next(rows, None)
    if not header:
        line = "an empty line" if header == [] else "none"
        raise InputError(f"{path}: expected a line of column names, got {line}")
    for column in columns:
        if column not in header and column not in optional:
            raise InputError(
                f"{path}: no column {column!r}: its columns are "
                f"{', '.join(map(repr, header))}"
                f"{_separator_hint(header, kind, dialect)}"
            )
        if notes is not None and header.count(column) > 1:
            notes.append(
                f"{path}: {header.count(column)} columns are called "
                f"{column!r}; the first of them is read"
            )
    names = {*columns, label_studio.CANCELLED} & {*header}
    indices = {name: header.index(name) for name in names}
    read = _read_cells(rows, header, indices, skipped)
    if label_studio.is_export(header):
        yield from label_studio.clean_rows(path, read, columns, lists, notes)
        return
    for line, row in read:
        is_message = isinstance(row, str)
        yield line, row if is_message else [row.get(c) for c in columns]


def _read_cells(rows, header, indices, skipped):
    """Yield (line number, dict of column -> cell) from a `csv.reader`.

    A bad row yields a message, not a dict. `indices` is a dict of column ->
    index. `skipped` is the number of lines before those that the reader gets.
    """
    line = skipped + rows.line_num
    try:
        for row in rows:
            line = skipped + rows.line_num
            if not row and len(header) > 1:
                continue
            row = row or [""]  # with one column, an empty line is an empty cell
            if len(row) != len(header):
                message = f"expected {len(header)} columns, got {len(row)}"
                if _has_quotes(rows, row):
                    message += (
                        ". If quotes enclose cells with tabs or line breaks, "
                        "name the file .csv, and give --separator=tab"
                    )
                yield line, message
            else:
                yield line, {name: row[i] for name, i in indices.items()}
    except csv.Error as error:
        # Reading stops: after a wrong quote, it is unclear where rows begin.
        yield line + 1, f"the row that begins here {_quote_fault(error)}"


def _has_quotes(rows, row):
    """Return True if a row of TSV has a cell with an odd number of quotes."""
    is_tsv = rows.dialect.quoting == csv.QUOTE_NONE
    return is_tsv and any(cell.count('"') % 2 for cell in row)


def _read_separator(path, lines, kind, separator):
    """Return the separator, the lines of the table, and how many are skipped.

    Excel reads a first line `sep=;` as the separator, and so does this
    function. `separator` is that of --separator, or None.
    """
    lines = iter(lines)
    first = next(lines, "")
    found = re.fullmatch('"?sep=(.)"?[\r\n]*', first, re.IGNORECASE)
    if not found:
        return separator, itertools.chain([first] if first else [], lines), 0
    wanted = "\t" if kind == ".tsv" else separator
    if wanted not in (None, found[1]):
        fix = "name the file .csv" if kind == ".tsv" else "leave the flag out"
        raise InputError(
            f"{path}: its first line names the separator {found[1]!r}, and "
            f"{'.tsv' if kind == '.tsv' else '--separator'} means {wanted!r}: "
            f"{fix}, or delete the line"
        )
    return found[1], lines, 1


def _quote_fault(error):
    return (
        f"cannot be read ({error}): a quote opens but is not closed, or text "
        "follows a closing quote. Double each quote inside quotes. If tabs "
        "separate columns and no cell is quoted, rename the file to .tsv"
    )


def _separator_hint(header, kind, dialect):
    names = {",": "commas"} if kind == ".tsv" else SEPARATORS
    separator = next((one for one in names if one in header[0]), None)
    if len(header) > 1 or separator is None:
        is_data = any(read_number(x) is not None for x in header)
        data = ", or add a line of names: these look like data" * is_data
        return f". Set the flag of the missing column to one of these{data}"
    advice = []
    if separator in ",\t":
        advice.append(f"name it .{'tsv' if kind == '.csv' else 'csv'}")
    if dialect and kind == ".csv":
        shown = "tab" if separator == "\t" else f"'{separator}'"
        advice.append(f"give --separator={shown}")
    hint = f". The file has {names[separator]} between its columns"
    return f"{hint}: {', or '.join(advice)}" if advice else hint


@contextlib.contextmanager
def plain_errors(path, dialect=None):
    """Convert errors in reading text or CSV to an `InputError`.

    Args:
        path: the file to name in messages.
        dialect: `Dialect` of a user's file; errors then suggest --encoding.
    """
    try:
        with packing_errors(path):
            yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        encoding = dialect.encoding.removesuffix("-sig") if dialect else "utf-8"
        advice, where = "", f" at index {error.start}"
        if dialect:
            # Text is decoded in blocks, and `start` is an index in the block,
            # not in the file.
            where = ""
            advice = "if it is a Windows file, give --encoding=cp1252, or "
        raise InputError(
            f"{path}: expected {encoding.upper()} text, got the byte "
            f"{byte:#04x}{where}: {advice}convert the file to UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path} {_quote_fault(error)}") from error
    except UnicodeError as error:  # UTF-16 without a byte order mark
        raise InputError(f"{path} cannot be read: {error}") from error


LARGEST_NUMBER = 1e18  # its square, in a loss, does not overflow float32


def to_text(where, column, value) -> str:
    """Return a cell as text, "" for null and NaN; refuse lists and dicts."""
    if value is None:
        return ""
    if isinstance(value, dict | list):
        raise InputError(
            f"{where}: expected text in {column!r}, got "
            f"{json.dumps(value, default=str)[:60]}"
        )
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where}: expected UTF-8 text in {column!r}, got the byte "
                f"{value[error.start]:#04x}"
            ) from None
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and math.isnan(value):
        return ""  # pandas writes NaN for a missing number
    is_json = isinstance(value, bool | int | float)
    return json.dumps(value) if is_json else str(value)  # str() for dates


def _show_id(value):
    """Return a value that `to_text` accepts."""
    if isinstance(value, dict | list | bytes):
        value = json.dumps(value, default=str).strip('"')
    return value


def read_number(text: str) -> float | None:
    """Return a cell as a float; None for other text, NaN and huge numbers."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None  # NaN gives None


def drop_zeros(text: str) -> str:
    """Return "1" for "1.0", and any other text unchanged.

    In a column with an empty cell, pandas and Parquet store whole numbers as
    floats.
    """
    return re.sub(r"\A(-?[0-9]+)\.0+\Z", r"\1", text)


def read_index(text: str, count: int) -> int | None:
    """Return a cell as a whole number below `count`; None for other text."""
    is_short = len(text) <= 9  # int() raises for thousands of digits
    number = int(text) if is_short and text.isdecimal() else count
    return number if number < count else None


def add_ids(rows, examples) -> list:
    """Return rows of predictions, with the column "id" if examples have ids.

    The first of the rows is the header; each other row is of an example.
    """
    ids = [example.row_id for example in examples]
    if not any(ids):
        return rows
    return [[key, *row] for key, row in zip([ID, *ids], rows, strict=True)]


def write_csv(path, rows) -> None:
    """Write rows of cells to a CSV file, atomically."""
    with (
        files.atomic_output(path) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        make_csv_writer(file).writerows(rows)


def make_csv_writer(file, **dialect):
    """Return a `csv.writer` whose lines end in "\\n".

    `dialect` has further arguments of `csv.writer`.

    `csv` writes lines that end in "\\r\\n", and this function changes the end.
    With "\\n", `csv` before Python 3.13 would not quote a cell with a lone
    "\\r", and this "\\r" would end the row.
    """

    def write(line):
        file.write(line.removesuffix("\r\n") + "\n")

    lines = types.SimpleNamespace(write=write)
    return csv.writer(lines, lineterminator="\r\n", **dialect)


def read_text(path) -> str:
    """Return the text of a UTF-8 file without its byte order mark."""
    require_file(path)
    with plain_errors(path), open_packed(path) as file:
        content = file.read()
        refuse_other_forms(content[:HEAD], path)
        return content.decode("utf-8-sig")


def read_json(path, form):
    """Return the content of a JSON file; errors say that `form` is expected."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected {form}, got text that is no JSON: {error}"
        ) from error
