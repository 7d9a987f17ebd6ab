"""The verbs that every task answers, and where its examples are.

The engine asks a task for nothing but these verbs: read, encode, build, loss,
decode, score, mistakes, write, read_predictions.
"""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.errors import InputError

RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # the grid of the paper, appendix A.3


class Example(NamedTuple):
    """A text or a pair of texts, and its label.

    `label` is an index into the task's `labels`, a number for regression, or
    None where unknown. A task may have examples of its own instead.
    """

    text: str
    text_pair: str | None
    label: Any


class Encoded(NamedTuple):
    """Examples as rows of numbers, R of them; tokenised once.

    A row is what the model sees at once: a text, a window of a long one, or
    the folded choices of a question.

    Attributes:
        inputs: dict of what the model reads, each with R rows. What has a
            token axis is a `tf.RaggedTensor`, `int32 (R, None)`, or
            `(R, K, None)` for choices; batches pad it to their longest row.
        targets: what the loss compares with: array `(R, ...)`, ragged where
            it has a token axis, or a dict of them by the names of the
            model's outputs; None where the labels are unknown.
        weights: of the targets and shaped like them; all 1 where None. Each
            batch scales them to a mean of 1 over its slots, so that the
            loss's plain mean is sum(weight x loss) / sum(weight).
        example: int `(R,)`, which example each row is of; None: row i is of
            example i.
        cut: int `(R,)`, the example's tokens that no row has room for, of
            choices those of the longest; None: nothing is cut.
        notes: dict, whatever the task's `decode` wants to know of the rows.
    """

    inputs: dict
    targets: Any = None
    weights: Any = None
    example: Any = None
    cut: Any = None
    notes: dict = {}


class Defaults(NamedTuple):
    """How a task is fine-tuned unless a flag says otherwise."""

    batch_size: int = 32
    epochs: float = 3.0
    learning_rate: float = 5e-5
    sequence_length: int = 128


class Option(NamedTuple):
    """A keyword argument of a task's constructor, and a flag of its name.

    The default's type is the flag's; None is a string that may be left out.
    """

    default: Any
    help: str


class Task:
    """A task to fine-tune, score and predict; subclass it, answer the verbs.

    Attributes:
        name: how the task is called in messages and files.
        labels: list of str, the names of the classes; None for others.
        metric: the key of `score` by which runs are compared; the higher the
            better.
        defaults: `Defaults`.
        options: name -> `Option`, what the constructor takes; each must be a
            plain value, because runs with other options are other runs.
        per_token: whether the model's outputs have a token axis, `(R, T,
            ...)`, which is then cut to each row's own length.
        loss_weights: of the model's outputs, as `compile` takes them.
        standardises: whether the model, a `BertClassifier` with one number a
            row, learns targets of mean 0 and standard deviation 1. What it
            is saved with maps them back.
        advice: list of str, what in the data deserves a look.
        to_score: the end of messages on a file without labels: what to do.
    """

    name: str
    labels: list[str] | None = None
    metric: str
    defaults = Defaults()
    options: dict[str, Option] = {}
    per_token = False
    loss_weights: Any = None
    standardises = False
    advice: list[str] = []
    to_score = ""

    def read(self, split: str) -> list:
        """The examples of a split: "train", "dev" or "test".

        Raises:
            InputError: there is no such split, or its file is not usable.
        """
        raise NotImplementedError

    def encode(self, examples: list, preprocess) -> Encoded:
        """The examples' rows, by a `BertPreprocessor`.

        Its `tokenizer`, its `packer` and its `sequence_length` are the run's.
        Targets are left out where an example's label is unknown.
        """
        raise NotImplementedError

    def data_files(self) -> list:
        """Paths of what `read` reads to train and to score: a run goes on
        only while they hold what it began with. None by default."""
        return []

    def take_arguments(self, arguments: dict) -> None:
        """Takes what a fine-tuned model knows of the task, where there is no
        training file to learn it from; called before `read`.

        By default it takes the labels.

        Args:
            arguments: of the model, as its folder has them.
        """
        if self.labels is None:
            labels = arguments.get("labels")
            self.labels = None if labels is None else list(labels)

    def build(self, encoder):
        """A `TaskModel` over `encoder`, not compiled."""
        raise NotImplementedError

    def loss(self):
        """The Keras loss, or a dict by output, of `build`'s model.

        By default the cross-entropy of logits and integer labels.
        """
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def decode(self, examples: list, encoded: Encoded, outputs) -> Any:
        """The predictions, one an example: by default the outputs as such.

        Args:
            outputs: of the model, or the mean over several models: array
                `(R, ...)`; with `per_token` a list of R arrays `(T, ...)`; a
                dict of such by name where the model has several outputs.
        """
        return outputs

    def score(self, examples: list, predictions) -> dict:
        """All the official metrics of predictions as `decode` gives them.

        Numbers at the top level are the metrics that are shown; the rest (a
        table per class, a confusion matrix) lies in dicts and lists.
        """
        raise NotImplementedError

    def mistakes(self, examples: list, predictions) -> list[dict]:
        """The wrong predictions, the most confident first.

        For the report: each a dict of what to show, text and numbers by
        their headings; all with the same keys. None by default.
        """
        return []

    def write(self, examples: list, predictions, folder) -> None:
        """Writes the predictions to the official files, in `folder`."""
        raise NotImplementedError

    def read_predictions(self, path, examples: list) -> Any:
        """Predictions from somebody's official file, as `decode` gives."""
        raise InputError(
            f"The task {self.name} scores no files of predictions. Give "
            "--model instead."
        )


def check_labelled(task, labels, each="row"):
    """Refuses to score examples some of which have no label (None)."""
    if any(label is None for label in labels):
        raise InputError(
            f"The file of {task.name} has no labels: expected one for each "
            f"{each}; without, it can only be predicted{task.to_score}"
        )


# Where the examples of a split are: named files, a folder's files, or TFDS.

SPLITS = ("train", "dev", "test")
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
        defaults: `Defaults`.
    """

    name: str
    files: dict
    defaults: Defaults = Defaults()


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
        self.row, self.name, self.defaults = row, row.name, row.defaults
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
