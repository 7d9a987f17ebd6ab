"""Checks that the files of a checkpoint do not change while they are read.

Another process may replace a folder by a newer save meanwhile. Then files of
both saves would be read.
"""

import glob
import os
import stat

from bert_keras import files
from bert_keras.errors import InputError

# Files that decide what is read from a folder, in all formats: settings,
# vocabularies and weights. A name that no pattern fits is no weights file.
MODEL = (
    *("*.json", "vocab.txt", "*.safetensors", "*.h5"),
    *("assets/*", "assets/*/*", "variables/*"),
)
# The same in the folders of sentence-transformers, which have any name.
PARTS = ("*/*.json", "*/vocab.txt", "*/*.safetensors", "*/*.h5")
# TensorFlow's checkpoints. A run that trains may write the next one into the
# same folder while this one is read.
CHECKPOINTS = ("checkpoint", "*.index", "*.data-*")
# Other files that a reader may read, such as those that state the license.
OTHERS = ("*.md", "*.pb", "LICENSE*", "COPYING")
ATTEMPTS = 5


def list_files(path, patterns=(*MODEL, *CHECKPOINTS)):
    """Return the paths of a checkpoint's files that match the patterns.

    Args:
        path: a local folder; or the prefix of a TensorFlow checkpoint, whose
            files do not depend on the patterns.
        patterns: patterns of names in the folder.
    """
    folder = os.fspath(path)
    if not os.path.isdir(folder):
        folder, name = os.path.split(folder)
        ends = (f"{glob.escape(name)}{end}" for end in (".index", ".data-*"))
        patterns = (*ends, "bert_config.json", "vocab.txt")
    elif os.path.exists(os.path.join(folder, "modules.json")):
        # Subfolders of other formats may lead to the user's own data.
        patterns = (*patterns, *PARTS)
    return [
        os.path.join(folder, name)
        for pattern in patterns
        for name in glob.iglob(
            pattern, root_dir=folder or ".", include_hidden=True
        )
    ]


def list_versions(path, more=()):
    """Return dict of file -> its identity, size and modification time.

    Args:
        path: a local folder, or the prefix of a TensorFlow checkpoint.
        more: paths of more files.
    """
    found = list_files(path, (*MODEL, *OTHERS))
    if os.path.isdir(path):
        found.append(os.fspath(path))
    versions: dict = {}
    for name in (*found, *more):
        try:
            status = os.stat(name)
        except OSError:
            versions[name] = None
            continue
        versions[name] = status.st_dev, status.st_ino
        if not stat.S_ISDIR(status.st_mode):
            # New files change a folder's size and time.
            versions[name] += status.st_size, status.st_mtime_ns
    return versions


def read_unchanged(path, read):
    """Return `read()`, which reads files at `path`, all of one version.

    If a file changes meanwhile, everything is read again.

    Raises:
        InputError: the files have changed each time, or one of them is a link
            out of the folder.
    """
    for _ in range(ATTEMPTS):
        before, fault, result = list_versions(path), None, None
        try:
            _check_links(path)
            result = read()
        except (ValueError, OSError) as error:  # may be due to the change
            fault = error
        if list_versions(path) == before:
            if fault is not None:
                raise fault
            return result
    raise change_error(path)


def _check_links(path):
    """Raise `InputError` for a link that leads out of a downloaded folder."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in list_files(path, (*MODEL, *CHECKPOINTS, *OTHERS)):
        files.check_inside(name, folder)


def make_check(path, data=()):
    """Return a function that raises `InputError` if files have changed.

    Args:
        path: see `list_versions`.
        data: paths of more files.
    """
    before = list_versions(path, data)

    def check():
        if list_versions(path, data) != before:
            raise change_error(path)

    return check


def change_error(path):
    """Return the error about files that changed."""
    return InputError(
        f"{path}: the files were replaced while they were read. Load them "
        "again when nothing writes them."
    )
