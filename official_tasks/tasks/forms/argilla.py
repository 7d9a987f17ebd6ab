"""Read the records of Argilla, whose annotators respond to questions.

Argilla 2 writes JSON: {"fields": {"text": ...}, "responses": {"label":
[{"value": ..., "user_id": ...}]}}. Its data sets and flat lists have columns
such as "label.responses" and "label.responses.status". Argilla 1 writes a list
of {"value", "user_id", "status"} into the column of the question. Suggestions
are answers of models, and are not read.
"""

import json
from collections import Counter

from bert_keras.errors import format_count
from official_tasks.tasks.forms.list_cells import parse_list, unstack

_VALUES, _STATUS = ".responses", ".responses.status"
# Noun after a number in a note -> rest of the note.
NOTES = {
    "record": "left out, without a submitted response",
    "disputed record": "left out, whose annotators responded differently",
}
UNLABELLED, DISPUTED = NOTES


class Responses(list):
    """Responses to a question: dicts with "value", and "status" if known."""


def is_record(row) -> bool:
    """Return True for a record as Argilla 2 writes it to JSON."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("fields"), dict)
        and isinstance(row.get("responses"), dict)
    )


def flatten(record, columns) -> dict:
    """Return a record as a row: column -> field, metadata or `Responses`.

    Columns without a field count as questions without a response.
    """
    questions = {
        name: Responses(values) for name, values in record["responses"].items()
    }
    metadata = record.get("metadata") or {}
    unknown = dict.fromkeys(columns, Responses())
    identity = {"id": record.get("id")}
    return unknown | identity | metadata | questions | record["fields"]


def list_statuses(columns) -> list[str]:
    """Return the columns of the status of responses that are in `columns`."""
    return [
        column.removesuffix(_VALUES) + _STATUS
        for column in columns
        if column.endswith(_VALUES)
    ]


def choose_values(path, rows, columns, notes):
    """Yield (number, cells) with a value in place of the responses in a cell.

    Rows without a submitted response, or with several values, are left out.

    Args:
        path: the file, for notes.
        rows: iterable of (number, cells). The cells are those of `columns` and
            then of `list_statuses(columns)`. A str in place of the cells is a
            message, which is yielded unchanged.
        columns: names of the columns.
        notes: list to which notes are added; None for no notes.
    """
    counts: Counter = Counter()
    is_flat = any(column.endswith(_VALUES) for column in columns)
    for number, cells in rows:
        has_objects = any(isinstance(cell, list | dict) for cell in cells)
        if not isinstance(cells, str) and (is_flat or has_objects):
            statuses = iter(cells[len(columns) :])
            cells = [
                _find_responses(cell, next(statuses))
                if column.endswith(_VALUES)
                else _find_responses(cell)
                for column, cell in zip(columns, cells, strict=False)
            ]
            fault = next(filter(None, map(_find_fault, cells)), None)
            if fault:
                counts[fault] += 1
                continue
            cells = [
                _list_values(cell)[0] if isinstance(cell, Responses) else cell
                for cell in cells
            ]
        yield number, cells
    if notes is not None:
        notes += [
            f"{path}: {format_count(counts[noun], noun)} {NOTES[noun]}"
            for noun in NOTES
            if counts[noun]
        ]


def _find_responses(cell, statuses=()):
    """Return the `Responses` that a cell has, or the cell.

    `statuses` are those of the cell's values, in a flat list of records.
    """
    if statuses == ():
        cell = unstack(cell)
        is_list = isinstance(cell, list) and cell
        is_one = is_list and all(_is_response(one) for one in cell)
        return Responses(cell) if is_one else cell
    values, statuses = (
        (parse_list(one) if isinstance(one, str) else one) or []
        for one in (cell, statuses)
    )
    statuses = statuses or [None] * len(values)
    return Responses(
        {"value": value, "status": status}
        for value, status in zip(values, statuses, strict=False)
    )


def _is_response(one):
    return isinstance(one, dict) and "value" in one and "user_id" in one


def _list_values(responses) -> list:
    """Return the distinct values that were submitted."""
    values = {
        json.dumps(one["value"], sort_keys=True, default=str): one["value"]
        for one in responses
        if one.get("status") in (None, "submitted")
    }
    return list(values.values())


def _find_fault(cell):
    """Return a key of `NOTES`, or None for a cell that has one value."""
    if not isinstance(cell, Responses):
        return None
    count = len(_list_values(cell))
    return None if count == 1 else DISPUTED if count else UNLABELLED
