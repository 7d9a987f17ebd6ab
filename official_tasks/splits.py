"""Where the examples of a split are: files that were named, a folder, TFDS."""

import contextlib
from pathlib import Path

from bert_keras.errors import InputError
from official_tasks.task import Option

SPLITS = ("train", "dev", "test")
TFDS = "tfds:"
_TFDS_SPLITS = {
    "train": ("train",),
    "dev": ("validation", "dev"),
    "test": ("test",),
}
FILE_OPTIONS = {
    "data_dir": Option(
        None, "Folder of the official files, or tfds:NAME[/CONFIG]."
    ),
    "train": Option(None, "File to learn from; several with commas between."),
    "dev": Option(None, "File to score on."),
    "test": Option(None, "File to predict."),
}


class Splits:
    """The files of a task's splits.

    Args:
        task: the task's name, for messages.
        names: split -> the names, one of which its file has in `data_dir`.
        data_dir: folder of these files, or `tfds:NAME[/CONFIG]`.
        files: split -> path, or paths with commas between, that stand in
            place of those in `data_dir`; None where none was given.
    """

    def __init__(self, task, names, data_dir=None, files=None):
        self.task = task
        self.names = names
        self.data_dir = data_dir
        self.files = {k: v for k, v in (files or {}).items() if v}

    def tfds(self, split):
        """The TFDS data set to read this split from, or None for files."""
        source = self.data_dir or ""
        if split in self.files or not source.startswith(TFDS):
            return None
        return source.removeprefix(TFDS)

    def paths(self, split) -> list[Path]:
        """The files of the split; at least one, each of which exists."""
        if split in self.files:
            return [_existing(path) for path in self.files[split].split(",")]
        names = self.names.get(split, ())
        if self.data_dir is None:
            either = f" or --data_dir with {names[0]}" if names else ""
            raise InputError(
                f"The task {self.task} has no {split} file: give "
                f"--{split}=FILE{either}"
            )
        folder = Path(self.data_dir)
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder (from --data_dir)")
        for name in names:
            if (folder / name).is_file():
                return [folder / name]
        expected = f"expected {' or '.join(names)}, or " if names else ""
        raise InputError(
            f"{folder} has no {split} file of the task {self.task}: "
            f"{expected}give --{split}=FILE"
        )

    def found(self, *splits) -> list[Path]:
        """The files that these splits have; none of those from TFDS."""
        files = []
        for split in splits:
            # Reading tells what is missing, where it is needed.
            with contextlib.suppress(InputError):
                files += [] if self.tfds(split) else self.paths(split)
        return files


def _existing(path):
    path = Path(path.strip())
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return path


def tfds_info(name: str):
    """What TFDS tells of a data set `NAME[/CONFIG]`: its fields, its splits.

    Raises:
        InputError: TFDS is not installed, or has no such data set.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            f"tfds:{name} needs tensorflow-datasets, which is not installed: "
            "pip install 'bert_keras[tfds]'."
        ) from error
    try:
        return tfds.builder(name).info
    except (ValueError, tfds.core.DatasetNotFoundError) as error:
        raise InputError(
            f"tfds:{name}: TFDS has no such data set: "
            f"{str(error).splitlines()[0]}"
        ) from error


def tfds_rows(name: str, split: str):
    """Yields the rows of a TFDS data set as dicts of NumPy and str values.

    Args:
        name: `NAME[/CONFIG]`.
        split: "train", "dev" (as TFDS mostly calls it, "validation"),
            "test", or any other name that TFDS has.
    """
    there = tfds_info(name).splits
    names = _TFDS_SPLITS.get(split, (split,))
    found = [own for own in names if own in there]
    if there and not found:
        raise InputError(
            f"tfds:{name} has no {split} split, but {', '.join(there)}"
        )
    import tensorflow_datasets as tfds

    own = (found or names)[0]
    rows = tfds.load(name, split=own, shuffle_files=False)
    for row in tfds.as_numpy(rows):
        yield {key: _decoded(value) for key, value in row.items()}


def _decoded(value):
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {key: _decoded(part) for key, part in value.items()}
    if getattr(value, "dtype", None) is not None and value.dtype.kind == "O":
        return [_decoded(part) for part in value]
    return value
