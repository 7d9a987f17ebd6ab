"""Read texts from a folder that has a folder of text files for each class.

This is the layout of `keras.utils.text_dataset_from_directory`.
"""

import os

from bert_keras import files
from bert_keras.errors import InputError, format_count
from official_tasks.tasks.forms.cells import ID
from official_tasks.tasks.forms.text_files import (
    advise_data_set,
    open_text,
    plain_errors,
)

TEXT = ".txt"  # ending of the files
# Names of folders that are splits, not classes.
_SPLITS = {"train", "dev", "val", "valid", "validation", "test"}
MAX_NAMED = 3  # files that a note names


def list_files(path) -> list[str]:
    """Return the text files of a folder; [path] if it is not a folder."""
    if not os.path.isdir(path):
        return [str(path)]
    return [x for x in files.walk(path) if _is_text(x, path)]


def _is_text(path, folder):
    parts = os.path.relpath(path, folder).split(os.sep)
    is_hidden = any(part.startswith(".") for part in parts)
    return path.lower().endswith(TEXT) and not is_hidden


def read_folder(folder, wanted, dialect, notes):
    """Yield (path in the folder, cells) of each text file.

    The columns are "text", "label" (the name of the folder in `folder`) and
    "id" (the path). Without "label" in the columns, the files may be anywhere
    in the folder. Hidden files and files of other endings are not read.

    Args:
        folder: path of the folder.
        wanted: the arguments columns, lists and optional of `read_rows`.
        dialect: `Dialect` of the files.
        notes: list to which notes are added; None for no notes.
    """
    columns, _, optional = wanted
    advise_data_set(folder)
    for column in {*columns} - {*optional, ID, "text", "label"}:
        raise InputError(
            f"{folder}: no column {column!r}: the columns of a folder of text "
            "files are 'text' and 'label'"
        )
    paths = list_files(folder)
    if "label" in columns:
        paths = _select_labelled(folder, paths)
    if notes is not None:
        notes += _note_others(folder, paths)
    for path in paths:
        name = os.path.relpath(path, folder)
        file, found = open_text(path, dialect, notes, newline="")
        with file, plain_errors(path, found):
            row = {"text": file.read(), "label": name.split(os.sep)[0]}
        yield name, [({ID: path} | row).get(column) for column in columns]


def find_changes(folder, inputs) -> list[str]:
    """Return the text files that came or went since a run read a folder.

    `inputs` names the files that the run read. The list is empty if it has none
    of the folder.
    """
    prefix = os.path.join(os.path.abspath(folder), "")
    known = set(
        filter(lambda x: x.startswith(prefix), map(os.path.abspath, inputs))
    )
    found = set(map(os.path.abspath, list_files(folder)))
    return sorted(found ^ known) if known else []


def _select_labelled(folder, paths) -> list[str]:
    """Return the paths that are in a folder of a class.

    Raises:
        InputError: there is no such folder, one of them has no text file, or
            all of them are splits.
    """
    classes = [
        name
        for name in files.list_folder(folder)
        if os.path.isdir(os.path.join(folder, name)) and name[0] != "."
    ]
    if not classes:
        raise InputError(
            f"{folder}: expected a folder of {TEXT} files for each class, got "
            "no folder"
        )
    if {name.lower() for name in classes} <= _SPLITS:
        raise InputError(
            f"{folder}: expected a folder for each class, got the splits "
            f"{', '.join(classes)}. Name one of them, such as "
            f"{os.path.join(folder, classes[-1])}"
        )
    names = [os.path.relpath(path, folder).split(os.sep) for path in paths]
    for name in classes:
        if not any(parts[0] == name for parts in names):
            raise InputError(
                f"{os.path.join(folder, name)}: expected {TEXT} files of the "
                f"class {name!r}, got none. Add files, or remove the folder"
            )
    pairs = zip(paths, names, strict=True)
    return [path for path, parts in pairs if len(parts) > 1]


def _note_others(folder, paths) -> list[str]:
    others = sorted({*files.walk(folder)} - {*paths})
    if not others:
        return []
    shown = [os.path.relpath(path, folder) for path in others[:MAX_NAMED]]
    more = ", ..." * (len(others) > MAX_NAMED)
    return [
        f"{folder}: {format_count(len(others), 'file')} not read: "
        f"{', '.join(shown)}{more}"
    ]
