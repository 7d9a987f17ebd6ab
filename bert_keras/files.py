"""Files and folders that are there whole or not at all; nothing of formats."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid

from bert_keras.errors import InputError

PARTIAL = ".partial-"


@contextlib.contextmanager
def written_beside(path):
    """Yields a free path beside `path` that takes its place at the end.

    What the caller wrote there, a file or a folder, is flushed to the disk,
    then renamed to `path`. A file that stands there is replaced; a folder is
    replaced too, but between two renames, so that a kill may leave neither
    in place. When the caller fails, what was written is removed.
    """
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    make_folder(parent)
    partial = os.path.join(parent, f".{name}{PARTIAL}{uuid.uuid4().hex[:12]}")
    try:
        yield partial
        _flush_tree(partial)
        if os.path.isdir(path):
            _replace_folder(path, partial)
        else:
            os.replace(partial, path)
        flush(parent)
    finally:
        remove(partial)


def _replace_folder(path, partial):
    replaced = partial + "-replaced"
    os.rename(path, replaced)
    try:
        os.rename(partial, path)
    except OSError:
        os.rename(replaced, path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def make_folder(path):
    """Makes the folder and those above it; one sentence where it cannot."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {path} cannot be made ({error.strerror}). "
            "Name a folder in a place where you may write."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(
            f"The folder {path} is not writable. "
            "Name a folder in a place where you may write."
        )


def remove(path):
    """Removes a file or a folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def is_partial(name):
    """Whether a killed writer left the file or folder of this name."""
    return name.startswith(".") and PARTIAL in name


def remove_partials(folder):
    """Removes what killed writers left half-written in `folder`."""
    for name in filter(is_partial, os.listdir(folder)):
        remove(os.path.join(folder, name))


def flush(path):
    """Has the disk hold the file, or the names that stand in the folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _flush_tree(path):
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            flush(os.path.join(folder, name))
        flush(folder)
    if os.path.isfile(path):
        flush(path)


def sha256(path):
    """Hash of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(value, path):
    """Writes one JSON value, for people to read too."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, sort_keys=True)
        file.write("\n")


def read_json(path):
    """Reads one JSON value."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)
