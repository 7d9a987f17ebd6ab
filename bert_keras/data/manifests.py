"""The file that vouches for a folder of data: written last, hashed itself."""

import os

from bert_keras import files
from bert_keras.errors import InputError, cut_middle


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
