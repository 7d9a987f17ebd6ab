"""Read tables: CSV, TSV and JSON (also compressed), Parquet and data sets."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bert_keras.errors import InputError, collect_faults
from bert_keras.file_forms import COMPRESSED, split_ending
from official_tasks.tasks.forms import argilla
from official_tasks.tasks.forms.cells import ID, show_id, to_text
from official_tasks.tasks.forms.class_folders import read_folder
from official_tasks.tasks.forms.delimited import read_delimited_rows
from official_tasks.tasks.forms.fasttext import (
    FASTTEXT,
    is_fasttext,
    read_fasttext,
)
from official_tasks.tasks.forms.json_rows import read_json_lines, read_json_list
from official_tasks.tasks.forms.list_cells import parse_list
from official_tasks.tasks.forms.prodigy import ANSWER, leave_out_rejected
from official_tasks.tasks.forms.text_files import (
    Dialect,
    open_text,
    plain_errors,
    require_file,
)

KINDS = (".csv", ".tsv", ".jsonl", ".json")
FOLDER = "folder"
# Endings of files of other forms -> what to do.
_ADVICE = {
    (".xlsx", ".xls", ".ods"): ". In the spreadsheet's program, save the sheet "
    "as CSV UTF-8",
    (".spacy",): ". With spaCy, write a line of JSONL for each doc in "
    "DocBin().from_disk(FILE).get_docs(nlp.vocab): "
    'json.dumps({"text": doc.text, "spans": [{"start": e.start_char, "end": '
    'e.end_char, "label": e.label_} for e in doc.ents]}), and give '
    "--spans=spans",
    (".conll", ".conllu", ".iob", ".bio"): ". A file with a word and its label "
    "on each line needs --task=ner",
    (".ann",): ". It is a file of brat, which has spans and no text: write "
    'JSONL, {"text": "Anna ran", "spans": [{"start": 0, "end": 4, "label": '
    '"PER"}]}, and give --spans=spans',
    (".arrow",): ". For a data set that was saved to a folder, give hf:FOLDER",
    (".pkl", ".pickle", ".feather"): ". With pandas, write it by "
    'df.to_json("FILE.jsonl", orient="records", lines=True)',
}


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
    is_reviewed: bool = False,
) -> Iterator[tuple[int, list]]:
    """Yield `(line number, cells)` of each row; a cell is a str or a list.

    CSV follows RFC 4180; commas and line breaks may stand inside quotes. TSV is
    split at tabs only. JSONL holds an object on each line, JSON a list of
    objects. Rows of JSON, Parquet and data sets are numbered from 1. A null
    becomes "". For exports of Label Studio, Argilla and Prodigy, see
    `label_studio.py`, `argilla.py` and `prodigy.py`.

    Args:
        path: a file; the name of a data set, see `column_rows`; or with `kind`
            a folder, see `read_folder`.
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
        kind: one of `KINDS`; None takes the ending of the file; `FOLDER` for a
            folder.
        is_reviewed: True to leave out the rows of a file that a reviewer
            rejected.

    Raises:
        InputError: the file, a column, a row or a cell cannot be read.
    """
    more = argilla.list_statuses(columns)
    has_answers = is_reviewed and ANSWER not in columns and _is_file(path, kind)
    more += [ANSWER] if has_answers else []
    wanted = [*columns, *more], lists, [*optional, *more]
    if stream is None and is_columnar(path):
        rows = _read_columnar(path, wanted, dialect, split)
    elif kind == FOLDER:
        rows = read_folder(path, wanted, dialect, notes)
    else:
        kind = kind or _find_kind(path)
        rows = _read_text_rows(path, stream, kind, wanted, dialect, notes)
    if has_answers:
        rows = leave_out_rejected(path, rows, notes)
    for number, values in argilla.choose_values(path, rows, columns, notes):
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
                    value = show_id(value)
                is_list = isinstance(value, list) and column in lists
                cells.append(
                    value if is_list else to_text(where, column, value)
                )
            yield number, cells


def _is_file(path, kind):
    """Return True for a file whose rows may have any columns."""
    from bert_keras.data.data_sets import PARQUET

    return kind is None and split_ending(path)[0] in (*KINDS, PARQUET)


def is_columnar(path) -> bool:
    """Return True for Parquet files and data sets, which store by column."""
    from bert_keras.data.data_sets import PARQUET, is_data_set

    return is_data_set(path) or str(path).lower().endswith(PARQUET)


def line_or_row(path) -> str:
    """Return "row", "line" or "file", the word for a position in a source."""
    if os.path.isdir(path):
        return "file"
    has_rows = is_columnar(path) or split_ending(path)[0] == ".json"
    return "row" if has_rows else "line"


def _find_kind(path):
    kind, _ = split_ending(path)
    if kind in KINDS:
        return kind
    if kind == FASTTEXT and is_fasttext(path):
        return kind
    advice = next((x for ends, x in _ADVICE.items() if kind in ends), "")
    raise InputError(
        f"{path}: expected a file that ends in {', '.join(KINDS)} (compressed: "
        f"then {', '.join(COMPRESSED)}) or .parquet, or a data set, "
        f"tfds:NAME or hf:NAME, got {Path(path).name!r}{advice}"
    )


def _read_columnar(path, wanted, dialect, split):
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
    columns, _, optional = wanted
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
            yield from read_json_list(path, stream, wanted, notes)
        elif kind == ".jsonl":
            yield from read_json_lines(stream, wanted)
        elif kind == FASTTEXT:
            yield from read_fasttext(path, stream, wanted)
        else:
            yield from read_delimited_rows(
                path, stream, kind, wanted, dialect, notes
            )
