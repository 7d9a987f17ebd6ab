"""Read and write tables of CSV and TSV."""

import csv
import itertools
import re
import types

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.text.labels import is_full_label
from official_tasks.tasks.forms import label_studio
from official_tasks.tasks.forms.cells import ID, read_number
from official_tasks.tasks.forms.text_files import (
    quote_fault,
    refuse_annotations,
)

MAX_CELL_LENGTH = 2**31 - 1  # characters; csv's default limit is 2**17
_QUOTED_TSV = (
    ". If quotes enclose cells, name the file .csv, and give --separator=tab"
)
# Values of --separator that a message may suggest -> name in the message.
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def read_delimited_rows(path, lines, kind, wanted, dialect, notes):
    columns, lists, optional = wanted
    csv.field_size_limit(MAX_CELL_LENGTH)
    separator = (dialect and dialect.separator) or None
    separator, lines, skipped = _read_separator(path, lines, kind, separator)
    if kind == ".tsv":
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(lines, strict=True, delimiter=separator or ",")
    header = next(rows, None)
    if kind != ".tsv" and header and _has_blanks(header):
        skipped += rows.line_num
        header = [name.strip().strip('"') for name in header]
        rows = csv.reader(lines, rows.dialect, skipinitialspace=True)
    if not header:
        line = "an empty line" if header == [] else "none"
        raise InputError(f"{path}: expected a line of column names, got {line}")
    refuse_annotations(path, "\t".join(header))
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
    if kind == ".tsv":
        read = _note_quotes(path, read, notes)
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
                    message += _QUOTED_TSV
                yield line, message
            else:
                yield line, {name: row[i] for name, i in indices.items()}
    except csv.Error as error:
        # Reading stops: after a wrong quote, it is unclear where rows begin.
        yield line + 1, f"the row that begins here {quote_fault(error)}"


def _is_quoted(cell):
    """Return True if a cell is text in quotes, with its quotes doubled."""
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return is_quoted and '"' not in cell[1:-1].replace('""', "")


def _has_blanks(header):
    """Return True if a blank follows each separator: quotes come after it."""
    return len(header) > 1 and all(name[:1] == " " for name in header[1:])


def _note_quotes(path, rows, notes):
    """Yield the rows of a TSV file; note cells that are quoted as in CSV.

    A cell in quotes without a doubled quote may be a text in quotes.
    """
    first = None
    for line, row in rows:
        if not isinstance(row, str):
            cells = (x for x in row.values() if '""' in x and _is_quoted(x))
            quoted = next(cells, "")
            first = first or (line if quoted else None)
            if quoted.startswith(('"[', '"{')):  # JSON
                row = (
                    f"quotes are text in TSV, got {quoted[:60]!r}{_QUOTED_TSV}"
                )
        yield line, row
    if first and notes is not None:
        notes.append(
            f"{path}, line {first}: the quotes around cells, and doubled "
            f"quotes, are read as text{_QUOTED_TSV}"
        )


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


def _separator_hint(header, kind, dialect):
    names = {",": "commas"} if kind == ".tsv" else SEPARATORS
    separator = next((one for one in names if one in header[0]), None)
    if kind == ".tsv" and all(map(_is_quoted, header)):
        return _QUOTED_TSV
    if len(header) == 1 and separator is None and " " in header[0]:
        name = "" if kind == ".csv" else "name it .csv, and "
        return f". If blanks separate its columns, {name}give --separator=' '"
    if len(header) > 1 or separator is None:
        hint = ". Set the flag of the missing column to one of these"
        if len(header) == 2 and is_full_label(header[1]):
            return (
                f"{hint}. Or, if the first line is a word and its label, give "
                "--task=ner and separate the columns by tabs"
            )
        is_data = any(read_number(x) is not None for x in header)
        data = ", or add a line of names: these look like data" * is_data
        return f"{hint}{data}"
    advice = []
    if separator in ",\t":
        advice.append(f"name it .{'tsv' if kind == '.csv' else 'csv'}")
    if dialect and kind == ".csv":
        shown = "tab" if separator == "\t" else f"'{separator}'"
        advice.append(f"give --separator={shown}")
    hint = f". The file has {names[separator]} between its columns"
    return f"{hint}: {', or '.join(advice)}" if advice else hint


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
