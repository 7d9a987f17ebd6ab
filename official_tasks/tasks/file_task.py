"""Tasks whose examples are in named files, in a folder's files, or in TFDS."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from bert_keras.errors import InputError
from official_tasks.tasks.base import Defaults, Option, Task

TFDS = "tfds:"
# What TFDS calls a split, by data set.
TFDS_SPLITS = {
    "train": ("train",),
    "dev": ("validation", "dev"),
    "test": ("test",),
}


class DataRow(NamedTuple):
    """All about a data set of a family of tasks.

    A family may have a row with more fields, but has these three.

    Attributes:
        name: on the command line.
        files: split -> the names, one of which its official file has.
        defaults: `Defaults`; the task's where None.
    """

    name: str
    files: dict
    defaults: Defaults | None = None


class FileTask(Task):
    """A task that reads its examples from files, or from TFDS.

    A subclass says how, by `from_file` and `from_tfds`.

    Args:
        row: `DataRow` or the like.
        data_dir: folder of the official files, or `tfds:NAME[/CONFIG]`.
        train, dev, test: path, or paths with commas between, that stand in
            place of the files in `data_dir`.
    """

    options = {
        "data_dir": Option(
            None, "Folder of the official files, or tfds:NAME[/CONFIG]."
        ),
        "train": Option(
            None, "File to learn from; several with commas between."
        ),
        "dev": Option(None, "File to score on."),
        "test": Option(None, "File to predict."),
    }

    def __init__(self, row, data_dir=None, train=None, dev=None, test=None):
        self.row, self.name = row, row.name
        self.defaults = row.defaults or self.defaults
        self.data_dir = data_dir
        paths = {"train": train, "dev": dev, "test": test}
        self.files = {split: str(path) for split, path in paths.items() if path}
        self.advice = []

    def read(self, split):
        return self.read_split(split)

    def read_split(self, split) -> list:
        """The examples as the split's files or TFDS have them."""
        name = self.tfds_name(split)
        if name:
            return list(self.from_tfds(name, split))
        return [
            example
            for path in self.paths(split)
            for example in self.from_file(path, split)
        ]

    def from_file(self, path, split):
        """The examples of one of the files of a split."""
        raise NotImplementedError

    def from_tfds(self, name, split):
        """The examples of the data set `NAME[/CONFIG]`."""
        raise NotImplementedError

    def tfds_name(self, split) -> str | None:
        """The TFDS data set to read this split from, or None for files."""
        source = self.data_dir or ""
        if split in self.files or not source.startswith(TFDS):
            return None
        return source.removeprefix(TFDS)

    def paths(self, split) -> list[Path]:
        """The files of the split; at least one, each of which exists."""
        if split in self.files:
            return [_existing(path) for path in self.files[split].split(",")]
        names = self.row.files.get(split, ())
        if self.data_dir is None:
            either = f" or --data_dir with {names[0]}" if names else ""
            raise InputError(
                f"The task {self.name} has no {split} file: give "
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
            f"{folder} has no {split} file of the task {self.name}: "
            f"{expected}give --{split}=FILE"
        )

    def data_files(self):
        return self.existing_files("train", "dev")

    def existing_files(self, *splits) -> list[Path]:
        """The files that these splits have; none of those from TFDS."""
        paths: list[Path] = []
        for split in splits:
            # Reading says what is missing, where it is needed.
            with contextlib.suppress(InputError):
                paths += [] if self.tfds_name(split) else self.paths(split)
        return paths


def _existing(path):
    path = Path(path.strip())
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return path


def tfds_info(name: str):
    """What TFDS knows of a data set `NAME[/CONFIG]`: its fields, its splits.

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
    available = tfds_info(name).splits
    names = TFDS_SPLITS.get(split, (split,))
    present = [one for one in names if one in available]
    if available and not present:
        raise InputError(
            f"tfds:{name} has no {split} split, but {', '.join(available)}"
        )
    import tensorflow_datasets as tfds

    tfds_split = (present or names)[0]
    rows = tfds.load(name, split=tfds_split, shuffle_files=False)
    for row in tfds.as_numpy(rows):
        yield {key: _decode(value) for key, value in row.items()}


def _decode(value):
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {key: _decode(part) for key, part in value.items()}
    if getattr(value, "dtype", None) is not None and value.dtype.kind == "O":
        return [_decode(part) for part in value]
    return value
