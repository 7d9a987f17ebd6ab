"""The interface of a task: what the engine calls to train, score and predict.

A task of this package is a `Problem` with a `Source` of examples, such as
`SpanTask(Source(SQUAD_1))`. A task outside the package may be one class.
"""

import abc
import types
from typing import Any, NamedTuple

from bert_keras.errors import InputError

SPLITS = ("train", "dev", "test")
RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # the grid of the paper, appendix A.3


class Example(NamedTuple):
    """A text or a pair of texts, with a label.

    A task may use another class for its examples.

    Attributes:
        label: an index into the task's `labels`, a set of indices, a number
            for regression, or None where unknown.
        index: for GLUE, the number of the row in its file.
        part: for MNLI, 0 in the matched part and 1 in the mismatched part.
    """

    text: str
    text_pair: str | None
    label: Any
    index: str = ""
    part: int = 0

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts; rows with equal texts are reported as repeated."""
        return self[:1] if self.text_pair is None else self[:2]

    group = texts  # rows of one group are held out together


class Examples(list):
    """The examples of a split, with notes on them.

    Args:
        examples: iterable.
        notes: list of str for the user.
    """

    def __init__(self, examples=(), notes=()):
        super().__init__(examples)
        self.notes = list(dict.fromkeys(notes))


class Encoded(NamedTuple):
    """Examples as R rows of token ids, tokenized once.

    A row is one input of the model: a text, a window of a long text, or the
    folded choices of a question.

    Attributes:
        inputs: dict of the model's inputs, each with R rows. An input with a
            token axis is a `tf.RaggedTensor`, `int32 (R, None)`, or
            `(R, K, None)` for choices; batches pad it to their longest row.
        targets: targets of the loss, an array `(R, ...)` (ragged if it has a
            token axis) or a dict of output name -> array; None if the labels
            are unknown.
        weights: weights of the targets, in the same shape; None: all are 1.
            Batches scale them to a mean of 1, so that the loss's plain mean is
            sum(weight x loss) / sum(weight).
        cut: int `(R,)`, the number of tokens that were cut from each row; for
            choices, the maximum over them. None if nothing is cut.
        notes: dict of what the task's `decode` needs to know about the rows.
    """

    inputs: dict
    targets: Any = None
    weights: Any = None
    cut: Any = None
    notes: dict = {}


class Defaults(NamedTuple):
    """Default hyperparameters of a task, which flags override."""

    batch_size: int = 32
    epochs: float = 3.0
    learning_rate: float = 5e-5
    sequence_length: int = 128


class Option(NamedTuple):
    """A keyword argument of a task, and the flag of the same name.

    The flag has the type of `default`. If `default` is None, the flag is an
    optional string.
    """

    default: Any
    help: str


def fill_options(options: dict[str, Option], values) -> types.SimpleNamespace:
    """Return a namespace of all options, with defaults for missing values.

    Raises:
        TypeError: a name is not among the options.
    """
    if unknown := values.keys() - options.keys():
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    defaults = {name: option.default for name, option in options.items()}
    return types.SimpleNamespace(**defaults | values)


class Task(abc.ABC):
    """Base class of a task to fine-tune, score and predict.

    Attributes:
        name: name of the task in messages and files.
        labels: list of str, the names of the classes; None without classes.
        metric: key in `score`'s dict by which runs are compared; higher values
            are better.
        defaults: `Defaults`.
        options: name -> `Option`, for each argument of the constructor. The
            values must be JSON values, because they identify a run.
        per_token: whether the model's outputs have a token axis, `(R, T,
            ...)`; `decode` then gets each row without its padding.
        loss_weights: argument of `compile`: output name -> weight.
        overrides: names of the model arguments that the user set; their
            values replace those saved with a trained model.
        averages: whether the outputs of several models can be averaged.
        has_dev_loss: whether `loss` can compare dev's outputs and targets.
        standardises: whether the model, a `BertClassifier` with one output,
            learns targets of mean 0 and standard deviation 1. The saved model
            returns numbers in the original scale.
        to_score: advice at the end of messages about a file without labels.
    """

    name: str
    labels: list[str] | None = None
    metric: str
    defaults = Defaults()
    options: dict[str, Option] = {}
    per_token = False
    loss_weights: Any = None
    overrides: tuple[str, ...] = ()
    averages = True
    has_dev_loss = True
    standardises = False
    to_score = ""

    @abc.abstractmethod
    def read(self, split: str) -> list:
        """Return the examples of a split: "train", "dev" or "test".

        If the list is an `Examples`, the engine shows its notes.

        Raises:
            InputError: there is no such split, or its file is not usable.
        """

    @abc.abstractmethod
    def encode(self, examples: list, preprocess) -> Encoded:
        """Return the examples as rows of token ids.

        `preprocess` is a `BertPreprocessor` with the run's `tokenizer`,
        `packer` and `sequence_length`. The targets are None if the label of an
        example is unknown.
        """

    def data_files(self) -> list:
        """Return the paths of the files that `read` reads to train and score.

        A run resumes only if these files are unchanged. Empty by default.
        """
        return []

    def take_arguments(self, arguments: dict) -> None:
        """Take properties of the task from a fine-tuned model, before `read`.

        Without a training file, only the model has them. By default the task
        takes the labels.

        Args:
            arguments: arguments of the model, from its folder.
        """
        if self.labels is None:
            labels = arguments.get("labels")
            self.labels = None if labels is None else list(labels)

    @abc.abstractmethod
    def build(self, encoder):
        """Return a `TaskModel` over `encoder`, not compiled."""

    def loss(self):
        """Return the Keras loss of the model, or dict of output name -> loss.

        The default is the cross-entropy of logits and integer labels.
        """
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def decode(self, examples: list, encoded: Encoded, outputs) -> Any:
        """Return one prediction per example; by default, return the outputs.

        Args:
            examples: examples of a split.
            encoded: their rows.
            outputs: outputs of the model, or their mean over several models:
                an array `(R, ...)`; with `per_token`, a list of R arrays
                `(T, ...)`. If the model has several outputs, a dict of output
                name -> such an array or list.
        """
        return outputs

    @abc.abstractmethod
    def score(self, examples: list, predictions) -> dict:
        """Return all official metrics of predictions that `decode` returned.

        The numbers at the top level are shown. Dicts and lists hold the rest,
        such as a table per class or a confusion matrix.
        """

    def mistakes(self, examples: list, predictions) -> list[dict]:
        """Return the wrong predictions, the most confident first.

        Each mistake is a dict of heading -> text or number. The report shows
        the dicts as a table, so all have the same keys. Empty by default.
        """
        return []

    def tune(self, examples: list, predictions) -> dict:
        """Return arguments of the model, such as thresholds, chosen on dev.

        The arguments are saved with the model and passed to `take_arguments`
        when the model is loaded. Empty by default.
        """
        return {}

    @abc.abstractmethod
    def write(self, examples: list, predictions, folder) -> None:
        """Write the predictions to the official files, in `folder`."""

    def read_predictions(self, path, examples: list) -> Any:
        """Return the predictions of an official file, in `decode`'s form."""
        raise InputError(
            f"The task {self.name} scores no files of predictions. Give "
            "--model instead."
        )


def require_labels(task, labels, each="row"):
    """Raise InputError if a label is None, because a score needs all labels."""
    if any(label is None for label in labels):
        raise InputError(
            f"The file of {task.name} has no labels; expected one for each "
            f"{each}. Without labels it can only be predicted{task.to_score}"
        )
