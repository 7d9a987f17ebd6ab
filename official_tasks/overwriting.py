"""Check that an output replaces no input."""

import itertools
import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.files import PathLike


def refuse_input_as_output(
    output: PathLike | None, *inputs: PathLike | None
) -> None:
    """Raise `InputError` if writing `output` would replace an input.

    Links are followed, so two paths of one file count as the same file.

    Args:
        output: file or folder to write; None if nothing is written.
        *inputs: files, folders (for all files in them) or patterns to read.
            None and names of data sets are skipped.
    """
    if not output:
        return
    files.check_name(output)
    if not files.exists(output):
        return
    written = _list_identities(output)
    for source in filter(None, inputs):
        if written & _list_identities(source):
            raise InputError(
                f"The output {output} is an input ({source}). Writing it would "
                "replace the input. Name another output."
            )


def _list_identities(source):
    """Return a set with the (device, inode) of each file at a path or pattern.

    Files in folders are included. For a remote file, the set has its path.
    """
    paths = [source] if files.exists(source) else files.find(os.fspath(source))
    below = [
        files.walk(path) if files.is_folder(path) else [path] for path in paths
    ]
    return {
        os.fspath(path)
        if files.is_remote(path)
        else (os.stat(path).st_dev, os.stat(path).st_ino)
        # Skip broken links.
        for path in filter(files.exists, itertools.chain(*below))
    }
