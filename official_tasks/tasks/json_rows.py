"""Read rows of JSON and JSONL, also of annotation tools' exports."""

import io
import itertools
import json

from bert_keras.errors import InputError
from official_tasks.tasks import label_studio


def read_json_lines(lines, wanted):
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = line.strip()
        yield number, _select(row, wanted)


def read_json_list(path, stream, wanted, notes):
    text = stream.read()
    if not text.lstrip().startswith("["):
        yield from read_json_lines(io.StringIO(text), wanted)  # as in JSONL
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
