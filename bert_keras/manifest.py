"""Manifests, which list the files of a finished folder.

A manifest is a JSON object with the size and SHA-256 of each file and a hash of
the manifest itself. The hashes reveal a single changed bit. The manifest is
written last, so a folder without a manifest is unfinished.
"""

import json
import os
from collections.abc import Iterable

from bert_keras import files, json_files
from bert_keras.errors import InputError, cut_middle
from bert_keras.json_files import NATURAL, TEXT


def write_manifest(path: str, manifest: dict) -> None:
    """Write a manifest and its hash atomically.

    Args:
        path: local or remote.
        manifest: JSON object; see `describe_files` for entries of files.
    """
    with files.atomic_output(path) as partial:
        json_files.write_json(add_hash(manifest), partial)


def add_hash(manifest: dict) -> dict:
    """Return the manifest with its hash."""
    return {**manifest, "sha256": json_files.json_hash(manifest)}


def read_manifest(
    path: str, what: str, check, most: int | None = json_files.MAX_JSON_BYTES
) -> dict:
    """Read and check the manifest at `path`; return it.

    Args:
        path: local or remote.
        what: name of the data in the folder, for error messages.
        check: function that gets the manifest without its hash and raises
            `KeyError`, `TypeError` or `ValueError` if a field is missing or
            wrong. A correct hash does not replace this check, because an
            attacker can compute the hash.
        most: largest allowed size in bytes; None for any size.

    Raises:
        InputError: the manifest is missing or damaged, or `check` refuses it.
    """
    folder, name = os.path.split(path)
    if not files.is_file(path):
        raise InputError(
            f"No finished {what} in {folder}: {name} is missing. Run again "
            "the command that writes this folder."
        )
    if not files.is_remote(path):
        files.check_inside(path, folder)
    try:
        manifest = json_files.read_json(path, most)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: {error}. Make the {what} again."
        ) from None
    try:
        rest = {k: v for k, v in manifest.items() if k != "sha256"}
        check(rest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path} does not describe the {what}: {_describe(error)}. Make "
            f"the {what} again."
        ) from None
    if manifest.get("sha256") != json_files.json_hash(rest):
        raise InputError(
            f"{path} is damaged: its hash does not match. Make the {what} "
            "again."
        )
    return manifest


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, AttributeError):
        return "it is not a JSON object"
    return cut_middle(str(error), 300)


def check_fields(fields: dict, kinds: dict) -> None:
    """Raise `KeyError` for a missing field, `ValueError` for a wrong one.

    Args:
        fields: JSON object from an unchecked file.
        kinds: dict of name -> `Kind`.
    """
    for name, kind in kinds.items():
        if not kind.fits(fields[name]):
            raise ValueError(
                f"{name!r} must be {kind.words}, but is {fields[name]!r}"
            )


def check_entries(entries: dict) -> None:
    """Raise `KeyError`, `TypeError` or `ValueError` for an invalid entry.

    Args:
        entries: dict of path -> {"bytes", "sha256"}. Paths must be relative to
            the folder, inside it, and have / as separator.
    """
    for name, entry in entries.items():
        if not all(map(files.is_plain_name, name.split("/"))):
            raise ValueError(f"{name!r} is not a plain relative path")
        check_fields(entry, {"bytes": NATURAL, "sha256": TEXT})


def describe_file(path: str) -> dict:
    """Return a file's entry: a dict of its size in bytes and its SHA-256."""
    return {"bytes": files.size(path), "sha256": files.sha256(path)}


def describe_files(folder: str, names: Iterable[str]) -> dict[str, dict]:
    """Return a dict of name -> entry for files in a folder."""
    return {name: describe_file(os.path.join(folder, name)) for name in names}


def find_size_fault(path: str, entry: dict) -> str | None:
    """Return None if a file's size is right, else a phrase like "is missing".

    Raises:
        InputError: the file is a link out of its folder, or not regular.
        OSError: the file cannot be read now, so it may be right.
    """
    try:
        files.check_inside(path, os.path.dirname(path))
        found = files.check_file(path)
    except FileNotFoundError:
        return "is missing"
    except (IsADirectoryError, NotADirectoryError) as error:
        return f"cannot be read ({error.strerror})"
    return _compare_size(found, entry)


def _compare_size(found, entry):
    if found == entry["bytes"]:
        return None
    if not found:
        return "is empty"
    return f"has {found} bytes instead of {entry['bytes']}"


def find_fault(path: str, entry: dict, source=None) -> str | None:
    """Return None if size and hash are right, else a phrase like "is missing".

    Args:
        path: the file.
        entry: dict of the file's "bytes" and "sha256".
        source: object with `sha256()` that has opened the file, or None. The
            path may lead to another file now.

    Raises:
        InputError: the file is a link out of its folder, or not regular.
        OSError: the file cannot be read now, so it may be right.
    """
    if source is not None:
        fault = _compare_size(source.size, entry)
    else:
        fault = find_size_fault(path, entry)
    if (
        fault is None
        and (source.sha256() if source else files.sha256(path))
        != entry["sha256"]
    ):
        fault = "is damaged: its bytes have changed since it was written"
    return fault


def check_files(
    folder: str, entries: dict[str, dict], fix: str, find=find_fault
) -> None:
    """Raise `InputError` for the first file that does not match its entry.

    Args:
        folder: folder that has the files.
        entries: dict of name -> entry, from a checked manifest.
        fix: sentence of the error message that says what to do.
        find: `find_fault`, or `find_size_fault` to compare only sizes.
    """
    for name, entry in entries.items():
        path = os.path.join(folder, name)
        fault = find(path, entry)
        if fault:
            raise InputError(f"{path} {fault}. {fix}")


def check_same_settings(old, new, folder, advice=""):
    """Raise `InputError` if a folder's `old` settings differ from `new`.

    A setting that is None equals one that is not set. `advice` is added to the
    message.
    """
    new = json.loads(json.dumps(new))
    old, new = (
        {name: value for name, value in settings.items() if value is not None}
        for settings in (old, new)
    )
    if old != new:
        raise InputError(
            f"{folder} was started with other settings: "
            f"{'; '.join(_list_changes(old, new))}. Use the same settings to "
            f"resume, or name another output.{advice}"
        )


def _list_changes(old, new):
    for name in sorted(old.keys() | new.keys()):
        values = old.get(name), new.get(name)
        if all(isinstance(value, dict) for value in values):
            yield from _list_changes(*values)
            continue
        was, now = (
            json.dumps(settings[name]) if name in settings else "not set"
            for settings in (old, new)
        )
        if was != now:
            yield cut_middle(f"{name} was {was} and is now {now}", 300)
