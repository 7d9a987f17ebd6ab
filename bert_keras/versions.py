"""Checks that the files of a checkpoint do not change while they are read.

Another process may replace a folder by a newer save meanwhile. Then files of
both saves would be read.
"""

import glob
import os
import stat

from bert_keras import files
from bert_keras.errors import InputError

# Files that a reader may read in a folder, except TensorFlow's checkpoints:
# a run that trains may write the next one into the same folder.
PATTERNS = (
    *("*.json", "*.txt", "*.safetensors", "*.h5", "*.pb", "*.md"),
    *("*/*.json", "*/*.txt", "*/*.safetensors", "*/*.h5"),
    *("assets/*", "assets/*/*", "variables/*"),
)
# Other files that a reader may read. Their links are checked too.
OTHERS = ("LICENSE*", "COPYING", "checkpoint", "*.index", "*.data-*")
ATTEMPTS = 5


def list_versions(path, more=()):
    """Return dict of file -> its identity, size and modification time.

    Args:
        path: a local folder, or the prefix of a TensorFlow checkpoint.
        more: paths of more files.
    """
    if os.path.isdir(path):
        found, root = [os.fspath(path)], glob.escape(os.fspath(path))
        for pattern in PATTERNS:
            found += glob.glob(os.path.join(root, pattern))
    else:
        found = glob.glob(f"{glob.escape(os.fspath(path))}.*")
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
    folder, patterns = os.fspath(path), (*PATTERNS, *OTHERS)
    if not os.path.isdir(folder):
        folder, name = os.path.split(folder)
        patterns = f"{glob.escape(name)}.*", "bert_config.json", "vocab.txt"
    elif not os.path.exists(os.path.join(folder, "modules.json")):
        # Only sentence-transformers has subfolders of any name. Other folders
        # may lead to the user's own data.
        patterns = [name for name in patterns if not name.startswith("*/")]
    for pattern in patterns:
        for name in glob.iglob(
            pattern, root_dir=folder or ".", include_hidden=True
        ):
            files.check_inside(os.path.join(folder, name), folder)


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
