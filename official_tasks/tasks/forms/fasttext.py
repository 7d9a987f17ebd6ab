"""Read fastText's files of texts with labels: `__label__pos A good film`."""

import re

from bert_keras.errors import InputError
from bert_keras.file_forms import compression_errors, open_compressed
from official_tasks.tasks.forms.text_files import require_file

FASTTEXT = ".txt"  # ending of the files
_PREFIX = "__label__"


def is_fasttext(path) -> bool:
    """Return True if a file begins with a label."""
    require_file(path)
    with compression_errors(path), open_compressed(path) as file:
        return file.read(len(_PREFIX)) == _PREFIX.encode()


def read_fasttext(path, lines, wanted):
    """Yield (line number, cells) with the columns "text" and "label".

    The label of a line with several labels is a list.
    """
    columns, _, optional = wanted
    for column in {*columns} - {*optional, "text", "label"}:
        raise InputError(
            f"{path}: no column {column!r}: the columns of fastText's format "
            "are 'text' and 'label'"
        )
    for number, line in enumerate(lines, 1):
        labels, text = [], line.strip()
        while text.startswith(_PREFIX):
            label, text = [*re.split(r"[ \t\v\f]", text, maxsplit=1), ""][:2]
            labels.append(label.removeprefix(_PREFIX))
        label = labels[0] if len(labels) == 1 else labels
        row = {"text": text.strip(), "label": label or ""}
        if line.strip():
            yield number, [row.get(column) for column in columns]
