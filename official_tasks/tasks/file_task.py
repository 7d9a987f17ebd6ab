"""Tasks whose examples are in named files, a folder's files, or a data set."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bert_keras.errors import InputError
from bert_keras.files import split_paths
from official_tasks.tasks.base import Defaults, Option, Task


class DataRow(NamedTuple):
    """One data set of a family of tasks.

    A family may have a row with more fields, but has these. A data set in
    another file format is a row with another `read_file`.

    Attributes:
        name: on the command line.
        files: split -> the names, one of which its official file has.
        defaults: `Defaults`; the task's where None.
        read_file: function of the row, a path, the split and a list that
            takes notes; returns the family's examples. None: the family's
            own format.
        read_data_set: the same of a data set's name.
    """

    name: str
    files: dict
    defaults: Defaults | None = None
    read_file: Callable | None = None
    read_data_set: Callable | None = None


class FileTask(Task):
    """A task that reads its examples from files, or from a data set.

    A subclass names the readers of its family's format, `read_file` and
    `read_data_set`; a row may name others.

    Args:
        row: `DataRow` or the like.
        data_dir: folder of the official files, `tfds:NAME[/CONFIG]` or
            `hf:NAME[/CONFIG]`.
        train, dev, test: path, or paths with commas between, that stand in
            place of the files in `data_dir`; of a task that reads tables,
            names of data sets too.
    """

    read_file: Callable
    read_data_set: Callable
    reads_tables = False  # of any columns, as of the user's own files
    options = {
        "data_dir": Option(
            None,
            "Folder of the official files, or tfds:NAME[/CONFIG], or "
            "hf:NAME[/CONFIG].",
        ),
        "train": Option(
            None, "File to learn from; several separated by commas."
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
        """The examples as the split's files or the data set have them."""
        source = self.data_set(split)
        if source:
            return self.examples_in(source, split)
        return [
            example
            for path in self.paths(split)
            for example in self.examples_in(path, split)
        ]

    def examples_in(self, source, split, *more) -> list:
        """Return the examples in a file, a `Path`, or in a data set.

        Args:
            source: path or name; a name among files is one of a table.
            split: of it.
            *more: for the reader of a family.
        """
        is_named = source is self.data_dir
        name = "read_data_set" if is_named else "read_file"
        read = getattr(self.row, name) or getattr(type(self), name)
        return list(read(self.row, source, split, self.advice, *more))

    def data_set(self, split) -> str | None:
        """The data set to read this split from, or None for files."""
        from bert_keras.data.data_sets import is_data_set

        is_named = split not in self.files and is_data_set(self.data_dir)
        return self.data_dir if is_named else None

    def paths(self, split) -> list:
        """The files of the split; at least one, each of which exists.

        Names of data sets, which come as str, stand among them where the
        task reads tables.
        """
        if split in self.files:
            named = split_paths(self.files[split])
            return [self._existing(path) for path in named]
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
        """The files that these splits have; none of those of a data set."""
        paths: list = []
        for split in splits:
            # Reading says what is missing, where it is needed.
            with contextlib.suppress(InputError):
                paths += [] if self.data_set(split) else self.paths(split)
        return [path for path in paths if isinstance(path, Path)]

    def _existing(self, path):
        from bert_keras.data.data_sets import is_data_set

        if is_data_set(path):
            if self.reads_tables:
                return path
            raise InputError(
                f"{path} is a data set and no file of the task {self.name}: "
                f"give --data_dir={path}"
            )
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file")
        return Path(path)
