"""The manifest of a finished folder of data, the journal of a build."""

import json
import os

from bert_keras import files
from bert_keras.errors import InputError, cut_middle

# The file that vouches for a folder of data: written last, hashed itself.


def write_sealed(path: str, manifest: dict):
    """Writes a manifest with the hash of what it says."""
    manifest = {**manifest, "sha256": files.json_hash(manifest)}
    with files.written_beside(path) as partial:
        files.write_json(manifest, partial)


def read_sealed(path: str, what: str, check) -> dict:
    """The manifest at `path`.

    Args:
        what: it vouches for, in words.
        check: function of the manifest, which may hold anything; what it
            raises says that this is no such manifest. A hash that holds says
            nothing of who wrote it.

    Raises:
        InputError: there is none, it is damaged, or it is of something else.
    """
    folder, name = os.path.split(path)
    if not files.is_file(path):
        raise InputError(
            f"No finished {what} in {folder}: {name} is not there. Run the "
            "command that makes it again; it goes on where it stopped."
        )
    if not files.is_remote(path):
        files.check_inside(path, folder)
    try:
        manifest = files.read_json(path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: {error}. Make it again."
        ) from None
    try:
        rest = {k: v for k, v in manifest.items() if k != "sha256"}
        check(rest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} is no manifest of pre-training data ({what}): "
            f"{_fault(error)}. Make the {what} again."
        ) from None
    if manifest.get("sha256") != files.json_hash(rest):
        raise InputError(
            f"{path} is damaged: it does not match its own hash. Make the "
            f"{what} again."
        )
    return manifest


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, AttributeError):
        return "it is no JSON object"
    return cut_middle(str(error), 300)


def check_fields(fields: dict, kinds: dict):
    """Raises where a field is missing or is not of its kind.

    Args:
        fields: from a manifest, unchecked.
        kinds: dict of name -> type. Numbers must not be negative.
    """
    for name, kind in kinds.items():
        value = fields[name]
        if type(value) is not kind or (kind is int and not 0 <= value < 2**63):
            raise ValueError(
                f"{name!r} must be {_KINDS[kind]}, and is {value!r}"
            )


def check_entries(entries: dict):
    """Raises unless each is a plain name with the bytes and the hash."""
    for name, entry in entries.items():
        if not files.is_plain_name(name):
            raise ValueError(f"{name!r} is no name of a file in the folder")
        check_fields(entry, {"bytes": int, "sha256": str})


_KINDS = {
    int: "a whole number, not negative",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def check_side(manifest: dict, side: str | None, folder: str):
    """Refuses the held-out side where training data is expected, and so on.

    Older manifests do not say their side.
    """
    stated = manifest.get("side") or side
    if side is not None and stated != side:
        raise InputError(
            f"{folder} holds data that was made as {stated!r}, expected "
            f"{side!r}: the two were swapped or copied. Make the data again "
            "in a new folder."
        )


# What a long build has done so far, so that it can go on after a kill.

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
