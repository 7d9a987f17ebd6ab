"""Language models: masked words and next sentence, and in one direction.

The second is for the paper's ablation.
"""

from typing import TYPE_CHECKING, Self, Unpack

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling import kernels
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, MaskedLanguageModelHead
from bert_keras.modeling.inputs import EncoderArguments, PretrainerArguments
from bert_keras.modeling.task_models import TaskModel, encode, symbolic_inputs


@keras.saving.register_keras_serializable("bert_keras")
class BertPretrainer(TaskModel):
    """The encoder with its two pre-training heads.

    Vocabulary logits are computed at `mask_positions` only. Compile it with
    `pretraining_losses()` and, as `weighted_metrics`,
    `pretraining_metrics()`. Equals `model_fn_builder` of the original's
    `run_pretraining.py` (the paper, section 3.1).

    Weights, by path: the encoder's, mlm/dense/{kernel,bias},
    mlm/norm/{gamma,beta}, mlm/bias, nsp/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        examples_per_row: most examples in a packed row, E; rows are not
            packed where None.
        mlm_activation: the masked-word head's form of GELU; the encoder's
            where None. keras-hub's head has a form of its own.
        mlm_norm_epsilon: likewise.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); and
            `mask_positions`, int32 (B, M), places in the row.

    Returns:
        dict of `mlm` float32 (B, M, V) and `nsp` float32 (B, 2), logits; of
        packed rows, `nsp` is (B, E, 2).

    Example:
    >>> model = BertPretrainer(BertEncoder(100, 2, 2, 8, 16))
    >>> model({"token_ids": [[2, 4, 3]], "mask_positions": [[1]]})["mlm"].shape
    (1, 1, 100)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[PretrainerArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        examples_per_row: int | None = None,
        mlm_activation: str | None = None,
        mlm_norm_epsilon: float | None = None,
        name: str = "pretrainer",
    ) -> None:
        self.examples_per_row = examples_per_row
        self.mlm_activation = mlm_activation
        self.mlm_norm_epsilon = mlm_norm_epsilon
        self.mlm = MaskedLanguageModelHead(
            encoder.embeddings.token,
            mlm_activation or encoder.activation,
            mlm_norm_epsilon or encoder.norm_epsilon,
            name="mlm",
            dtype=encoder.dtype_policy,
        )
        # Class 0: B follows A (the paper, section 3.1, task 2).
        self.nsp = LogitsHead(2, name="nsp", dtype=encoder.dtype_policy)
        packed = examples_per_row is not None
        inputs = symbolic_inputs("mask_positions", packed=packed)
        encoded = encode(encoder, inputs, examples_per_row=examples_per_row)
        outputs = {
            "mlm": self.mlm(  # (B, M, V)
                encoded["sequence_output"], inputs["mask_positions"]
            ),
            "nsp": self.nsp(encoded["pooled_output"]),  # (B, 2) or (B, E, 2)
        }
        super().__init__(inputs, outputs, encoder, name)


def pretraining_losses():
    """For `compile`: each is its sum(weight x loss) / sum(weight)."""
    return {name: CrossEntropy(name=name) for name in ("mlm", "nsp")}


@keras.saving.register_keras_serializable("bert_keras")
class CrossEntropy(keras.losses.Loss):
    """Of labels, integers, and the logits of a vocabulary or of classes.

    As Keras's sparse one, but its gradient keeps the logits alone, and XLA
    computes it in one pass on a CPU. Without a weight that says
    otherwise each row counts once; Keras's own mean would divide by all
    places, padded ones too. A label that no logit has makes it NaN.

    Call arguments:
        y_true: int (...).
        y_pred: float (..., C), logits.
    """

    def __init__(
        self,
        reduction="mean_with_sample_weight",
        name="cross_entropy",
        dtype=None,
    ):
        super().__init__(name, reduction, dtype)

    def call(self, y_true, y_pred):
        logits = ops.convert_to_tensor(y_pred)
        return kernels.cross_entropy(ops.cast(y_true, "int32"), logits)  # (...)


def pretraining_metrics():
    """For `compile(weighted_metrics=...)`: both accuracies."""
    return {
        name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        for name in ("mlm", "nsp")
    }


@keras.saving.register_keras_serializable("bert_keras")
class BertCausalModel(TaskModel):
    """Scores, at every position, of the piece that comes next.

    Next is to the right of an encoder that sees leftwards and to the left of
    one that sees rightwards; nothing is masked (the paper, section 5.1).
    `causal_targets` gives what to learn.

    Weights, by path: the encoder's, mlm/dense/{kernel,bias},
    mlm/norm/{gamma,beta}, mlm/bias.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"` or
            `"right_to_left"`.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            the token ids alone.

    Returns:
        float32 (B, T, V), logits.

    Raises:
        InputError: the encoder sees both ways.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
    >>> BertCausalModel(encoder)([[2, 45, 3]]).shape
    (1, 3, 100)
    """

    pools = False
    token_outputs = ("logits",)

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[EncoderArguments]
        ) -> Self: ...

    def __init__(
        self, encoder: BertEncoder, name: str = "causal_model"
    ) -> None:
        if encoder.attention == "bidirectional":
            raise InputError(
                "The encoder sees the very token that it has to predict. "
                'Expected attention="left_to_right" or "right_to_left".'
            )
        self.mlm = MaskedLanguageModelHead(
            encoder.embeddings.token,
            encoder.activation,
            encoder.norm_epsilon,
            name="mlm",
            dtype=encoder.dtype_policy,
        )
        inputs = symbolic_inputs(packed=True)
        encoded = encode(encoder, inputs)
        logits = self.mlm(encoded["sequence_output"])  # (B, T, V)
        super().__init__(inputs, logits, encoder, name)


def causal_targets(inputs, attention):
    """What `BertCausalModel` learns: ids and weights, each (B, T).

    The id at a position is its neighbour's, and the weight is 1 where that
    neighbour is a token of the same example.

    Args:
        inputs: dict of the model's inputs.
        attention: "left_to_right" or "right_to_left", as the encoder's.
    """
    ids = ops.convert_to_tensor(inputs["token_ids"])
    examples = inputs.get("example_ids")
    if examples is None:
        examples = inputs.get("padding_mask")
    if examples is None:
        examples = ops.ones_like(ids)
    examples = ops.convert_to_tensor(examples)
    of_next = _neighbour(examples, attention)
    # Padding has the number 0, and its neighbour may be padding too.
    own = ops.logical_and(examples > 0, examples == of_next)
    return _neighbour(ids, attention), ops.cast(own, "float32")


def _neighbour(rows, attention):
    """What stands next to each place, (B, T); 0 next to the last one."""
    gap = ops.zeros_like(rows[:, :1])  # (B, 1)
    if attention == "left_to_right":
        return ops.concatenate([rows[:, 1:], gap], axis=1)
    return ops.concatenate([gap, rows[:, :-1]], axis=1)
