"""The journal of a long build, and the check that its settings are the same."""

import json
import os

from bert_keras import files, json_files
from bert_keras.errors import InputError, cut_middle

PROGRESS = "progress.jsonl"  # name of the journal of every build


class Journal:
    """The finished work of a build, which resumes after a kill.

    A file with a JSON value and its hash a line; the first value is the
    settings. A line that a kill left half-written is dropped.

    Args:
        path: of the file; made where it is missing.
        settings: dict of JSON values that determine the work.

    Attributes:
        entries: the values that were added.

    Raises:
        InputError: work was done with other settings; names them.
    """

    def __init__(self, path: str, settings: dict):
        self._path, self._settings = path, settings
        lines = _read_lines(path)
        if len(lines) > 1:
            check_same_settings(lines[0], settings, os.path.dirname(path))
        self.entries = lines[1:]
        if not self.entries:
            self.clear()

    def clear(self):
        """Remove all entries: the work starts again."""
        self.entries = []
        files.remove(self._path)
        self._append(self._settings)

    def remove(self):
        """Delete the file."""
        files.remove(self._path)

    def add(self, entry):
        """Append an entry, flushed to the disk."""
        self._append(entry)
        self.entries.append(entry)

    def _append(self, value):
        with open(self._path, "a", encoding="utf-8") as file:
            line = json.dumps([value, json_files.json_hash(value)])
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def _read_lines(path: str) -> list:
    """Return the values of the lines; cut off a half-written last line."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb+") as file:
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        file.truncate(len(whole))
    try:
        lines = [json_files.parse_json(line) for line in whole.splitlines()]
        for number, (value, expected) in enumerate(lines, 1):
            if json_files.json_hash(value) != expected:
                raise ValueError(f"line {number} does not match its hash")
        return [value for value, _ in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}). Delete its folder and build again."
        ) from error


def check_same_settings(old, new, folder):
    """Raise `InputError` if settings differ from those of an earlier start."""
    new = json.loads(json.dumps(new))
    if old != new:
        raise InputError(
            f"{folder} was begun with other settings: "
            f"{'; '.join(_changes(old, new))}. Give the same settings to go "
            "on with it, or name another folder."
        )


def _changes(old, new):
    """Yield a sentence for each setting that differs, also in inner dicts."""
    for name in sorted(old.keys() | new.keys()):
        values = old.get(name), new.get(name)
        if all(isinstance(value, dict) for value in values):
            yield from _changes(*values)
            continue
        was, now = (
            json.dumps(settings[name]) if name in settings else "not set"
            for settings in (old, new)
        )
        if was != now:
            yield cut_middle(f"{name} was {was} and is now {now}", 300)
