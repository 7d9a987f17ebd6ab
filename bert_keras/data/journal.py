"""What a long build has done so far, so that it can go on after a kill."""

import json
import os

from bert_keras import files
from bert_keras.errors import InputError

PROGRESS = "progress.jsonl"  # the name of every build's


class Journal:
    """A file of one JSON value a line; the first holds the settings.

    A line that a kill left half-written is dropped.

    Args:
        path: of the file; made where it is missing.
        settings: dict of JSON values, of which the work is a function.

    Raises:
        InputError: work was done with other settings; names them.
    """

    def __init__(self, path: str, settings: dict):
        self._path = path
        lines = _whole_lines(path)
        if len(lines) > 1:
            check_same(os.path.dirname(path), lines[0], settings)
        self.entries = lines[1:]
        if not self.entries:
            files.remove(path)
            self._append(settings)

    def remove(self):
        """Forgets what was done."""
        files.remove(self._path)

    def add(self, entry):
        """Appends what is done, and has the disk hold it."""
        self._append(entry)
        self.entries.append(entry)

    def _append(self, value):
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _whole_lines(path: str) -> list:
    """The values of the lines; what is behind the last whole one is cut."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb+") as file:
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        file.truncate(len(whole))
    try:
        return [files.parse_json(line) for line in whole.splitlines()]
    except ValueError as error:
        raise InputError(
            f"{path} is damaged ({error}). Delete the folder that it lies in "
            "and build again."
        ) from error


def check_same(folder: str, old: dict, new: dict):
    """Refuses other settings than those that a folder was begun with."""
    new = json.loads(json.dumps(new))
    if old == new:
        return
    names = sorted(
        name for name in {*old, *new} if old.get(name) != new.get(name)
    )
    changes = "; ".join(
        f"{name} was {old.get(name)!r}, now {new.get(name)!r}"[:300]
        for name in names
    )
    raise InputError(
        f"{folder} was begun with other settings: {changes}. "
        "Use those, or name another folder."
    )
