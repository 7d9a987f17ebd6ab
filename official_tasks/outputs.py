"""Checks of an output before any work: it replaces nothing by mistake."""

import itertools
import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.files import PathLike


def prepare_output(values, *inputs: str | None, is_folder=False) -> None:
    """Refuse an --output that exists or is an input; make its parent folder.

    With --overwrite the output may exist, but a folder is not replaced by a
    file. Without --output, do nothing.

    Args:
        values: absl's FLAGS.
        *inputs: paths to read, each maybe several with commas between, or None.
        is_folder: True if --output is a folder. It may exist if it is empty.
    """
    path = values.output
    if not path:
        return
    if not is_folder:
        files.refuse_folder(path)
    if files.has_content(path) and not values.overwrite:
        raise InputError(
            f"--output={path} exists. Name another one, or add --overwrite to "
            "replace it."
        )
    for source in filter(None, inputs):
        refuse_input_as_output(path, source, *files.split_paths(source))
    files.make_folder(os.path.dirname(files.absolute(path)))


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
