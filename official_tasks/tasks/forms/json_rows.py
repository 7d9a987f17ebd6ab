"""Read rows of JSON and JSONL, also of annotation tools' exports."""

import io
import itertools
import json

from bert_keras.errors import InputError
from official_tasks.tasks.forms import argilla, label_studio


def read_json_lines(lines, wanted):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = line.strip()
        if argilla.is_record(row):
            columns, _, optional = wanted
            row = argilla.flatten(row, {*columns} - {*optional})
        yield number, _select(row, wanted)


def read_json_list(path, stream, wanted, notes):
    """Yield the rows of a list of objects, of JSONL, or of pandas' JSON."""
    text = stream.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("["):
            yield from read_json_lines(io.StringIO(text), wanted)
            return
        raise InputError(
            f"{path}: expected a list of JSON objects, got text that is no "
            f"JSON: {error}"
        ) from error
    if isinstance(content, dict) and not label_studio.is_task(content):
        content = _read_object(path, content, wanted)
    elif not isinstance(content, list):
        content = [content]
    columns, lists, optional = wanted
    rows = list(enumerate(content, 1))
    is_tasks = bool(rows) and all(map(label_studio.is_task, content))
    if is_tasks:
        rows = label_studio.read_tasks(path, content, columns, notes)
    elif rows and all(map(argilla.is_record, content)):
        names = {*itertools.chain(*(row["responses"] for row in content))}
        rows = [(n, argilla.flatten(row, names)) for n, row in rows]
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


def _read_object(path, content, wanted) -> list:
    """Return the rows of a file with one object: a row, or pandas' columns.

    By default, pandas writes {"text": {"0": "a", "1": "b"}, ...}; with
    orient="index", {"0": {"text": "a", ...}, ...}.
    """
    columns, _, optional = wanted
    required = {*columns} - {*optional}
    cells = list(content.values())
    is_table = bool(cells) and all(isinstance(x, dict) for x in cells)
    if is_table and all(x.keys() == cells[0].keys() for x in cells):
        rows = [
            {name: column[key] for name, column in content.items()}
            for key in cells[0]
        ]
        is_index = not required <= content.keys() and required <= {*cells[0]}
        return cells if is_index else rows
    if content.keys() >= required:
        _refuse_columns(path, content, wanted)
        return [content]
    lists = {n: x for n, x in content.items() if isinstance(x, list) and x}
    advice = "".join(
        f". If its rows are the list {name!r}, write this list alone"
        for name in lists
        if isinstance(lists[name][0], list | dict)
    )
    first = lists.get("data", [None])[0]
    if isinstance(first, dict) and "paragraphs" in first:
        advice = ". For this file, give --task=squad1 or squad2"
    names = [name for name in columns if name in required]
    raise InputError(
        f"{path} is one JSON object with {', '.join(map(repr, content))[:60]}. "
        "Expected a list of objects, or an object on each line, with "
        f"{', '.join(map(repr, names))}{advice}"
    )


def _refuse_columns(path, content, wanted):
    """Raise if an object has a list for each column, not a cell."""
    columns, lists, optional = wanted
    cells = {x: content[x] for x in columns if x not in optional}
    is_nested = {
        name: isinstance(cell, list)
        and (name not in lists or all(isinstance(x, list) for x in cell))
        for name, cell in cells.items()
    }
    if all(isinstance(x, list) for x in cells.values()) and any(
        is_nested.values()
    ):
        raise InputError(
            f"{path} is one JSON object with a list for each column. Expected "
            "an object on each line, with "
            f"{', '.join(map(repr, cells))}. With pandas, write it by "
            'pandas.DataFrame(json.load(open(FILE))).to_json("FILE.jsonl", '
            'orient="records", lines=True)'
        )


def _select(row, wanted):
    """Return the cells of a JSON object, or a message if it lacks one."""
    columns, _, optional = wanted
    is_pair = isinstance(row, list) and [*map(type, row)] == [str, dict]
    if is_pair:  # spaCy's ("Anna ran", {"entities": [(0, 4, "PER")]})
        row = {"text": row[0]} | row[1]
    try:
        cells = dict.fromkeys(optional) | row
        return [cells[column] for column in columns]
    except (TypeError, KeyError):
        shown = repr((row if isinstance(row, str) else json.dumps(row))[:60])
        if isinstance(row, dict):
            names = ", ".join(map(repr, row))
            shown = f"one with {names[:200]}, {shown}"
        required = [repr(name) for name in columns if name not in optional]
        if label_studio.is_task(row):
            shown += (
                ". It is a task of Label Studio. Write all tasks as one list "
                "to a .json file, for instance by jq -s . FILE.jsonl > "
                "FILE.json, and give this file"
            )
        return f"expected a JSON object with {', '.join(required)}, got {shown}"
