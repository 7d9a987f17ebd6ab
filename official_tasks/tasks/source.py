"""Sources of a task's examples: named files, a folder, or a data set."""

import abc
import contextlib
import dataclasses
import glob
import os
from pathlib import Path

from bert_keras.data.data_sets import is_data_set, parse_data_set
from bert_keras.errors import InputError
from bert_keras.files import split_paths
from bert_keras.modeling.recipes import find_recipe
from official_tasks.options import option
from official_tasks.tasks.base import (
    Defaults,
    Examples,
    Task,
    require_labels,
)
from official_tasks.tasks.forms.text_files import require_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Files of an official task; see `Official`."""

    data_dir: str | None = option(
        None,
        "Folder of the official files, or a data set, tfds:NAME or hf:NAME. "
        "Default for GLUE, SQuAD, conll2003 and wikiann, if no file is given: "
        "the data set of TensorFlow Datasets.",
    )
    train: str | None = option(
        None, "Training file; separate several files by commas."
    )
    dev: str | None = option(None, "File to score on.")
    test: str | None = option(None, "File to predict.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """A frozen encoder and a head on its features; see `Problem`."""

    recipe: str | None = option(
        None,
        "Freeze the encoder; one dense layer reads the features of these "
        "layers: last, concat_last_four, sum_last_four, concat:-1,-2, ...",
    )
    pooling: str | None = option(
        None, "mean, max, cls, last: pooling of the features of --recipe."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfficialOptions(FileOptions, RecipeOptions):
    """Options of an official task whose head may read features."""


class Source(abc.ABC):
    """The examples of a task: how a split is read, and its files.

    Args:
        name: name of the task.
        train, dev, test: a path, or several paths separated by commas.
    """

    # Names of the classes, set once: by a model or by the training rows.
    labels: list[str] | None = None
    has_model_labels = False
    to_score = ""  # see `Task`

    def __init__(self, name, train=None, dev=None, test=None):
        self.name = name
        paths = {"train": train, "dev": dev, "test": test}
        self.files = {split: str(path) for split, path in paths.items() if path}

    @abc.abstractmethod
    def read(self, split) -> Examples:
        """Return the examples of a split; see `Task`."""

    def take_labels(self, labels):
        """Set the labels of a model, unless the labels are set already."""
        if self.labels is None:
            self.labels, self.has_model_labels = list(labels), True

    def find_labels(self) -> list[str] | None:
        """Return the labels; None if there are none or they are unknown."""
        return self.labels

    def parts(self, split) -> tuple[str, ...]:
        """Return the names of the split's parts, usually only `split`."""
        return (split,)

    def data_set(self, split) -> str | None:
        """Return the data set that replaces the split's files, or None."""
        return None

    def paths(self, part) -> list:
        """Return the files of a split or part; raise if one is missing."""
        if part not in self.files:
            raise InputError(
                f"The task {self.name} has no {part} file: give --{part}=FILE"
            )
        paths = split_paths(self.files[part])
        if not all(paths):
            raise InputError(
                f"--{part}={self.files[part]} has an empty path. Expected "
                "paths separated by commas"
            )
        return list(map(self._check, paths))

    def existing_files(self, *splits) -> list[Path]:
        """Return the existing files that the splits read; skip data sets."""
        return self._find_files(splits)

    def _find_files(self, splits):
        paths: list = []
        for split in splits:
            for part in () if self.data_set(split) else self.parts(split):
                # Ignore missing files here: `read` raises the error.
                with contextlib.suppress(InputError):
                    paths += self.paths(part)
        return [path for path in paths if isinstance(path, Path)]

    def has(self, split) -> bool:
        """Return True if there is a file or a data set for the split."""
        names = [self.data_set(split), *split_paths(self.files.get(split, ""))]
        # Avoid `existing_files`: a subclass adds files that all splits share.
        return any(map(is_data_set, names)) or bool(self._find_files([split]))

    def describe(self, example) -> str:
        """Return the text that names a training example in notes."""
        return repr(example.id)

    def _check(self, path):
        if glob.has_magic(path) and not os.path.exists(path):
            raise InputError(
                f"{path}: no such file, and patterns are not expanded. Name "
                "each file, separated by commas"
            )
        require_file(path)
        return Path(path)


class Official(Source):
    """The examples of an official task, from a folder or a data set.

    Args:
        row: NamedTuple that describes the task's data. `name` is the name of
            the task. `files` maps a split or part to possible names of its
            official file. `read(row, path, split, notes)` returns examples and
            appends to the list of notes; `path` is a file or the name of a data
            set. `tfds` names the data set to read if no file or folder is
            given; it may be missing, as may `parts`, a dict of split -> names
            of its parts.
        data_dir: folder of the official files, or the name of a data set.
        train, dev, test: see `Source`. They replace the split's files in
            `data_dir`.
    """

    def __init__(self, row, data_dir=None, train=None, dev=None, test=None):
        super().__init__(row.name, train, dev, test)
        self.row = row
        if data_dir is None and not self.files:
            data_dir = getattr(row, "tfds", None)
        self.data_dir = data_dir
        if is_data_set(data_dir):
            data_set = parse_data_set(data_dir, "")
            if data_set.split:
                raise InputError(
                    f"--data_dir={data_dir} names one split, but a task reads "
                    f"several: give --data_dir={data_set.source}"
                )

    def read(self, split) -> Examples:
        """Return the examples of the split's files, or of the data set.

        If the split has several parts, the row's `read` also gets the index of
        the part.
        """
        notes: list[str] = []
        examples: list = []
        data_set, parts = self.data_set(split), self.parts(split)
        for number, part in enumerate(parts):
            which = (number,) if len(parts) > 1 else ()
            for path in [data_set] if data_set else self.paths(part):
                examples += self.row.read(self.row, path, split, notes, *which)
        if not examples:
            raise InputError(f"The {split} split of {self.name} has no rows.")
        return Examples(examples, notes)

    def parts(self, split):
        """Return the names of the split's parts, usually only `split`.

        For example, MNLI's dev split has the parts "dev_matched" and
        "dev_mismatched", each with its own file.
        """
        if split in self.files:
            return (split,)  # a user's file is not divided into parts
        return getattr(self.row, "parts", {}).get(split, (split,))

    def data_set(self, split):
        """Return the data set to read this split from, or None for files."""
        is_named = split not in self.files and is_data_set(self.data_dir)
        return self.data_dir if is_named else None

    def paths(self, part):
        if part in self.files:
            return super().paths(part)
        names = self.row.files.get(part, ())
        split = self._find_split(part)
        if self.data_dir is None:
            alternative = f" or a --data_dir with {names[0]}" if names else ""
            raise InputError(
                f"The task {self.name} has no {part} file: give "
                f"--{split}=FILE{alternative}"
            )
        folder = Path(self.data_dir)
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder (from --data_dir)")
        for name in names:
            if (folder / name).is_file():
                return [folder / name]
        expected = f"expected {' or '.join(names)}, or " if names else ""
        raise InputError(
            f"{folder} has no {part} file of the task {self.name}: "
            f"{expected}give --{split}=FILE"
        )

    def _find_split(self, part):
        """Return the split of a part, such as "dev" of "dev_matched"."""
        parts = getattr(self.row, "parts", {})
        return next((s for s, names in parts.items() if part in names), part)

    def _check(self, path):
        if is_data_set(path):
            raise InputError(
                f"{path} is a data set, but --train, --dev and --test of the "
                f"task {self.name} expect files: give "
                f"--data_dir={parse_data_set(path).source}"
            )
        return super()._check(path)


class Problem(Task):
    """Base class of tasks that read their examples from a `Source`.

    Args:
        source: `Source`.
        recipe: name of the features that the head reads; see `find_recipe`.
            With a recipe, the encoder is frozen, and the class attribute
            `on_features` replaces `defaults`.
        pooling: how the features are pooled; see `BertClassifier`.
    """

    # A dense layer on a frozen encoder needs a higher learning rate.
    on_features = Defaults(32, 10.0, 1e-2, 128)

    def __init__(
        self,
        source,
        recipe: str | None = None,
        pooling: str | None = None,
    ):
        self.source, self.name = source, source.name
        if recipe:
            find_recipe(recipe)  # raises for an unknown recipe
            self.defaults = self.on_features
        self.recipe, self.pooling = recipe, pooling
        self.to_score = source.to_score

    @property
    def labels(self):
        """Names of the classes, in the order of the logits."""
        return self.source.find_labels()

    @labels.setter
    def labels(self, names):
        self.source.labels = names

    def take_arguments(self, arguments):
        # Before a read: the training file may be gone.
        if arguments.get("labels"):
            self.source.take_labels(arguments["labels"])
        self.recipe = self.recipe or arguments.get("recipe")
        self.pooling = self.pooling or arguments.get("pooling")

    def read(self, split):
        return self.source.read(split)

    def check_labels(self, examples):
        require_labels(self, [example.label for example in examples])

    def data_files(self):
        return self.source.existing_files("train", "dev")
