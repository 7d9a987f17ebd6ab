"""The methods that every task has.

The engine calls nothing but these: data_files, take_arguments, read, encode,
build, loss, decode, score, mistakes, write, read_predictions.
"""

import abc
from typing import Any, NamedTuple

from bert_keras.errors import InputError

SPLITS = ("train", "dev", "test")
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
        cut: int `(R,)`, the example's tokens that no row has room for, of
            choices those of the longest; None: nothing is cut.
        notes: dict, whatever the task's `decode` wants to know of the rows.
    """

    inputs: dict
    targets: Any = None
    weights: Any = None
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


class Task(abc.ABC):
    """A task to fine-tune, score and predict; subclass it, define its methods.

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
        averages: whether the outputs of several models can be averaged.
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
    averages = True
    standardises = False
    advice: list[str] = []
    to_score = ""

    @abc.abstractmethod
    def read(self, split: str) -> list:
        """The examples of a split: "train", "dev" or "test".

        Raises:
            InputError: there is no such split, or its file is not usable.
        """

    @abc.abstractmethod
    def encode(self, examples: list, preprocess) -> Encoded:
        """The examples' rows, by a `BertPreprocessor`.

        Its `tokenizer`, its `packer` and its `sequence_length` are the run's.
        Targets are left out where an example's label is unknown.
        """

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

    @abc.abstractmethod
    def build(self, encoder):
        """A `TaskModel` over `encoder`, not compiled."""

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

    @abc.abstractmethod
    def score(self, examples: list, predictions) -> dict:
        """All the official metrics of predictions as `decode` gives them.

        Numbers at the top level are the metrics that are shown; the rest (a
        table per class, a confusion matrix) lies in dicts and lists.
        """

    def mistakes(self, examples: list, predictions) -> list[dict]:
        """The wrong predictions, the most confident first.

        For the report: each a dict of what to show, text and numbers by
        their headings; all with the same keys. None by default.
        """
        return []

    @abc.abstractmethod
    def write(self, examples: list, predictions, folder) -> None:
        """Writes the predictions to the official files, in `folder`."""

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
