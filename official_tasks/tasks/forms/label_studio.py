"""Read Label Studio's exports: JSON, and the rows of JSON-MIN and CSV.

JSON has a list of tasks with annotations. JSON-MIN and CSV have a row for each
annotation: the fields of the task, and a column for each control, such as the
one that labels spans. A control without a result is missing or empty.
"""

import contextlib
import json
from collections import Counter

from bert_keras.errors import InputError, format_count
from official_tasks.tasks.forms.prodigy import ANSWER

_COLUMNS = {"annotation_id", "lead_time"}  # of each row of JSON-MIN and CSV
CANCELLED = "was_cancelled"  # column, or field of an annotation
# Noun after a number in a note -> rest of the note.
NOTES = {
    "task": "with several annotations: the one marked as ground truth, or else "
    "the newest, is read",
    "unlabelled task": "left out, without an annotation that was not cancelled",
    "relation": "between spans not read",
}
SEVERAL, UNLABELLED, RELATIONS = NOTES


def is_export(names) -> bool:
    """Return True if columns are those of a JSON-MIN or CSV export."""
    return {*names} >= _COLUMNS


def is_task(row) -> bool:
    """Return True for an element of the JSON export."""
    return (
        isinstance(row, dict)
        and isinstance(row.get("data"), dict)
        and isinstance(_list_annotations(row), list)
    )


def _list_annotations(task):
    # Exports before 2021 have "completions".
    return task.get("annotations", task.get("completions"))


def read_tasks(path, tasks, columns, notes) -> list[tuple[int, dict]]:
    """Return (number, row) for each task of a JSON export.

    A row has the fields of the task's data, and for each control the list of
    its results. Of several annotations, the one that is marked as ground truth
    is read, or else the newest. Tasks without annotations are left out if
    `columns` names a control.

    Args:
        path: the file, for messages.
        tasks: content of the file.
        columns: names of the columns that are read.
        notes: list to which notes are added; None for no notes.
    """
    rows, counts = [], Counter()
    for number, task in enumerate(tasks, 1):
        try:
            row = _read_task(task, columns, counts)
        except (AttributeError, KeyError, TypeError):
            raise InputError(
                f"{path}, row {number}: expected a task of Label Studio with "
                '"data" and "annotations", got '
                f"{json.dumps(task, default=str)[:60]}"
            ) from None
        if row is not None:
            rows.append((number, row))
    if notes is not None:
        notes += [
            f"{path}: {format_count(count, noun)} {NOTES[noun]}"
            for noun, count in counts.items()
            if count
        ]
    return rows


def _read_task(task, columns, counts) -> dict | None:
    """Return a task's row, or None to leave it out; count what notes say."""
    annotations = [
        annotation
        for annotation in _list_annotations(task)
        if not annotation.get(CANCELLED)
    ]
    row = {key: task[key] for key in {"id"} & task.keys()} | task["data"]
    if not annotations:
        needs_label = bool({*columns} - {*row, "id", ANSWER})
        counts[UNLABELLED] += needs_label
        return None if needs_label else row
    counts[SEVERAL] += len(annotations) > 1
    newest = max(enumerate(annotations), key=_rank)[1]
    counts[RELATIONS] += _add_results(row, newest["result"])
    return row


def _rank(numbered):
    number, annotation = numbered
    time = annotation.get("updated_at") or annotation.get("created_at") or ""
    return bool(annotation.get("ground_truth")), str(time), number


def _add_results(row, results) -> int:
    """Add an annotation's results to `row`; return the number of relations."""
    found: dict = {}
    relations = 0
    for result in results:
        name, value = result.get("from_name"), result.get("value")
        if name is None:
            relations += result["type"] == "relation"
        elif "labels" in value:
            found.setdefault(name, []).append(value)
        elif "start" not in value:  # choices of a span are not read
            values = value.get(result["type"])
            is_list = isinstance(values, list)
            found.setdefault(name, []).extend(values if is_list else [values])
    row |= found
    return relations


def clean_rows(path, rows, columns, lists, notes):
    """Yield (number, cells) of each row; leave out cancelled annotations.

    Args:
        path: the file, for notes.
        rows: iterable of (number, dict of column -> cell). A str in place of
            a dict is a message, which is yielded unchanged.
        columns: names of the columns to read.
        lists: columns that may hold lists. Their empty cells are empty lists: a
            text without spans has an annotation, but no result.
        notes: list to which a note is added; None for no notes.
    """
    cancelled = 0
    for number, row in rows:
        if isinstance(row, str):
            yield number, row
        elif str(row.get(CANCELLED)).lower() == "true":
            cancelled += 1
        else:
            yield number, [_clean(row.get(c), c in lists) for c in columns]
    if cancelled and notes is not None:
        notes.append(
            f"{path}: {format_count(cancelled, 'cancelled annotation')} left "
            "out"
        )


def _clean(cell, is_list):
    """Return spans as they are, and the choices of a control as names."""
    if isinstance(cell, str) and cell.startswith('{"choices":'):
        with contextlib.suppress(ValueError):  # a damaged cell stays text
            cell = json.loads(cell)
    if isinstance(cell, dict) and cell.keys() == {"choices"}:
        cell = cell["choices"]
    if is_list:
        if cell in (None, ""):
            return []
        is_name = isinstance(cell, str) and not cell.startswith("[")
        return [cell] if is_name else cell
    is_one = isinstance(cell, list) and len(cell) == 1
    return cell[0] if is_one and not isinstance(cell[0], dict) else cell
