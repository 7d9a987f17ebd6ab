"""Classification of a text or a pair, and regression."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling.arguments import ClassifierArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, check_labels
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


@keras.saving.register_keras_serializable("bert_keras")
class BertClassifier(TaskModel):
    """One dense layer on the pooled output, with dropout before it.

    Equals `create_model` of the original's `run_classifier.py`.

    Weights, by path: the encoder's, classifier/{kernel,bias}; with
    `bilstm_dim` those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits; may be left
            out for regression, which then has one output.
        problem: "single" (one label a text), "multi" (any number of labels a
            text, one sigmoid each) or "regression". The logits are the same;
            the loss, the export and the formats tell them apart.
        dropout: share of the pooled output dropped in training; the
            encoder's where None.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.
        examples_per_row: most examples in a packed row, E; rows are not
            packed where None.
        pair: whether a row is two texts, as trained. The export reads it; no
            weight depends on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            the token ids alone.

    Returns:
        float32 (B, C), logits; of packed rows (B, E, C).

    Raises:
        InputError: labels missing or repeated, an unknown problem, packed
            rows under a BiLSTM.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> BertClassifier(encoder, labels=["no", "yes"])([[2, 45, 3]]).shape
    (1, 2)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[ClassifierArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] | None = None,
        problem: str = "single",
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        examples_per_row: int | None = None,
        pair: bool = False,
        name: str = "classifier_model",
    ) -> None:
        check_labels(labels, problem)
        if bilstm_dim and examples_per_row:
            raise InputError(
                f"examples_per_row is {examples_per_row} and bilstm_dim is "
                f"{bilstm_dim}: the LSTM would read from one example into "
                "the next. Leave one of them out."
            )
        self.labels = None if labels is None else list(labels)
        self.problem = problem
        self.dropout = encoder.dropout if dropout is None else dropout
        self.bilstm_dim = bilstm_dim
        self.pools = bilstm_dim is None
        self.examples_per_row = examples_per_row
        self.pair = pair
        self.classifier = LogitsHead(
            1 if labels is None else len(labels),
            self.dropout,
            name="classifier",
            dtype=encoder.dtype_policy,
        )
        inputs = symbolic_inputs(packed=examples_per_row is not None)
        encoded = encode(encoder, inputs, bilstm_dim, examples_per_row)
        # (B, D) to (B, C); of packed rows (B, E, D) to (B, E, C)
        logits = self.classifier(encoded["pooled_output"])
        super().__init__(inputs, logits, encoder, name)

    def arguments(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "problem": self.problem,
            "dropout": self.dropout,
            "bilstm_dim": self.bilstm_dim,
            "examples_per_row": self.examples_per_row,
            "pair": self.pair,
        }
