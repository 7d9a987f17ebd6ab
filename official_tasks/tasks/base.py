"""The interface of a task: what the engine calls to train, score and predict.

A task of this package is a `Problem` with a `Source` of examples, such as
`SpanTask(Official(SQUAD_1))`. A user's own task may extend `Task` directly.
"""

import abc
import math
from typing import Any, NamedTuple

from bert_keras.errors import InputError
from official_tasks.options import NoOptions

SPLITS = ("train", "dev", "test")
LARGEST_RATE = 5e-5  # of the paper's rates for fine-tuning, section 4.1


class Example(NamedTuple):
    """A text or a pair of texts, with a label.

    A task may use another class for its examples.

    Attributes:
        label: an index into the task's `labels`, a set of indices, a number
            for regression, or None if unknown.
        index: for GLUE, the index of the row in a submission.
        part: for MNLI, 0 in the matched part and 1 in the mismatched part.
        row_id: of a row of a table that has the column "id", its cell.
    """

    text: str
    text_pair: str | None
    label: Any
    index: str = ""
    part: int = 0
    row_id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts. Rows with equal texts are reported as repeated."""
        return self[:1] if self.text_pair is None else self[:2]

    # Rows with equal groups go to the same split, unless a class has only one
    # group.
    group = texts


class Examples(list):
    """The examples of a split, with notes on them.

    Args:
        examples: iterable of the elements of this list.
        notes: list of str to show to the user.
    """

    def __init__(self, examples=(), notes=()):
        super().__init__(examples)
        self.notes = list(dict.fromkeys(notes))


class Encoded(NamedTuple):
    """Examples encoded as R rows of token ids.

    A row is one input of the model: a text, a pair, or a window of a long text.
    A row may also consist of K sequences: the choices of a question, or the
    texts of an embedding example.

    Attributes:
        inputs: dict of the model's inputs, each with R rows. An input with a
            token axis is a `tf.RaggedTensor`, `int32 (R, None)`, or
            `(R, K, None)` for K sequences. The engine pads each batch.
        targets: targets of the loss: an array `(R, ...)`, ragged if it has a
            token axis, or a dict of output name -> array. None if labels are
            unknown.
        weights: float32 `(R,)`, or ragged if the targets are ragged; a dict if
            the targets are a dict. None: all weights are 1. The engine scales
            the weights of each batch to a mean of 1. The mean loss of the batch
            is then sum(weight x loss) / sum(weight).
        cut: int `(R,)`, the number of tokens that each row lost; for K
            sequences, the maximum over them. None if texts are split into
            windows.
        notes: dict of further data on the rows, which `decode` reads.
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


class Metric(NamedTuple):
    """A score that compares models, a key of the dict that `score` returns."""

    name: str
    higher_is_better: bool

    def rank(self, scores) -> float:
        """Return a number that is higher for better scores.

        It is -inf if the score is not finite.
        """
        value = float(scores[self.name])
        if not math.isfinite(value):
            return -math.inf
        return value if self.higher_is_better else -value


def list_metrics(*names: str) -> tuple[Metric, ...]:
    """Return a `Metric` for each different name; higher is better."""
    return tuple(Metric(name, True) for name in dict.fromkeys(names))


class Task(abc.ABC):
    """Base class of a task to fine-tune, score and predict.

    Attributes:
        name: name of the task in files, messages and --task.
        labels: list of str, the names of the classes. None if the task has no
            classes, or if their names are not known yet.
        metrics: `Metric`s among the numbers that `score` returns. The first
            compares runs and selects the best weights, or the one that
            --metric names.
        defaults: `Defaults`.
        options: for a task that a user writes, a dataclass of `option`s with a
            field for each argument of the constructor. The arguments must be
            JSON values, because the run folder stores them.
        per_token: whether the model's outputs have a token axis, `(R, T,
            ...)`; `decode` then gets each row without its padding.
        loss_weights: dict of output name -> weight, for `compile`. None: each
            weight is 1.
        overrides: names of the model arguments that the user set. The user's
            values replace the saved values of a trained model.
        averages: whether the outputs of several models can be averaged.
        has_dev_loss: whether `loss` can be computed on the dev examples.
        standardises: whether training scales the targets of a `BertClassifier`
            with one output to mean 0 and standard deviation 1. The saved model
            predicts in the original scale.
        to_score: advice at the end of messages about a file without labels.
    """

    name: str
    labels: list[str] | None = None
    metrics: tuple[Metric, ...]
    defaults = Defaults()
    options: type = NoOptions
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

        If the list is an `Examples`, its notes are shown to the user.

        Raises:
            InputError: the split is missing, or its file is not usable.
        """

    @abc.abstractmethod
    def encode(self, examples: list, preprocess) -> Encoded:
        """Return the examples as rows of token ids.

        `preprocess` is a `BertPreprocessor` with the run's `tokenizer`,
        `packer` and `sequence_length`. The targets are None if any label is
        unknown.
        """

    def data_files(self) -> list:
        """Return the paths of the train and dev files.

        A run resumes only if these files are unchanged. By default, the list
        is empty.
        """
        return []

    def take_arguments(self, arguments: dict) -> None:
        """Set attributes of the task from the arguments of a fine-tuned model.

        To predict, the engine calls this method before `read`, because a test
        file may have no labels. In training, the engine calls this method with
        the result of `tune`. By default, set only the labels, if they are None.

        Args:
            arguments: dict of the model's arguments, saved in its folder; or
                the result of `tune`.
        """
        if self.labels is None:
            labels = arguments.get("labels")
            self.labels = None if labels is None else list(labels)

    @abc.abstractmethod
    def build(self, encoder):
        """Return an uncompiled `TaskModel` on top of `encoder`."""

    def loss(self):
        """Return a Keras loss, or a dict of output name -> loss.

        The default is the cross-entropy of logits and integer labels.
        """
        import keras

        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def decode(self, examples: list, encoded: Encoded, outputs) -> Any:
        """Return one prediction per example; by default, return the outputs.

        Args:
            examples: examples of a split.
            encoded: the rows that `encode` made of the examples.
            outputs: output of the model, or the mean output of several models:
                an array `(R, ...)`, or with `per_token` a list of R arrays
                `(T, ...)`. If the model has several outputs, a dict of output
                name -> such an array or list.
        """
        return outputs

    def check_labels(self, examples: list) -> None:
        """Raise InputError if the examples lack labels that `score` needs.

        `evaluate` calls this method before it predicts. By default, return.
        """
        return

    @abc.abstractmethod
    def score(self, examples: list, predictions) -> dict:
        """Return a dict of all official metrics of `decode`'s predictions.

        Numbers in the dict are shown to the user. Nested dicts and lists hold
        details, such as a confusion matrix. The optional "majority_baseline"
        is the first of `metrics` for the best constant prediction.
        """

    def mistakes(self, examples: list, predictions) -> list[dict]:
        """Return the wrong predictions, the most confident first.

        Each mistake is a dict of heading -> text or number. The report shows
        the dicts as a table, so all dicts have the same keys. By default, the
        list is empty.
        """
        return []

    def tune(self, examples: list, predictions) -> dict:
        """Choose arguments of the model on dev, such as thresholds.

        The returned dict is saved with the model. When the model is loaded,
        `take_arguments` gets these arguments too. By default, the dict is
        empty.
        """
        return {}

    def can_tune(self) -> bool:
        """Return True if `tune` chooses something on dev.

        By default, True if the class has its own `tune`.
        """
        return type(self).tune is not Task.tune

    @abc.abstractmethod
    def write(self, examples: list, predictions, folder) -> None:
        """Write the predictions into `folder`, in the official format."""

    def read_predictions(self, path, examples: list) -> Any:
        """Read a file in official format; return the predictions.

        The predictions have the form of the result of `decode`. By default,
        raise InputError.
        """
        raise InputError(
            f"The task {self.name} cannot score files of predictions. Give "
            "--model instead of --predictions."
        )


def require_labels(task, labels, each="row"):
    """Raise InputError if a label is None, because a score needs all labels."""
    if any(label is None for label in labels):
        raise InputError(
            f"The file of {task.name} lacks labels: expected a label for each "
            f"{each}. The file can only be used to predict{task.to_score}"
        )
