"""Models for pre-training: `BertPretrainer` has BERT's two objectives.

`BertCausalModel` predicts the next token (the paper's ablation, section 5.1).
"""

from typing import Any

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, MaskedLanguageModelHead
from bert_keras.modeling.inputs import ShowsArguments
from bert_keras.modeling.layers import name_activation
from bert_keras.modeling.task_base import TaskModel, encode, symbolic_inputs


@keras.saving.register_keras_serializable("bert_keras")
class BertPretrainer(TaskModel):
    """The encoder with its two pre-training heads.

    Vocabulary logits are computed at `mask_positions` only. Call
    `compile(loss=pretraining_losses(), weighted_metrics=pretraining_metrics())`
    before `fit`. Equals `model_fn_builder` of the original's
    `run_pretraining.py` (the paper, section 3.1).

    Weights, by path: the encoder's, mlm/dense/{kernel,bias},
    mlm/norm/{gamma,beta}, mlm/bias, nsp/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        examples_per_row: maximum number of examples in a packed row, E; None
            if rows are not packed.
        mlm_activation: activation of the masked-LM head, see `BertEncoder`;
            None: the encoder's. keras-hub's presets have "gelu_exact" here.
        mlm_norm_epsilon: epsilon of the masked-LM head's normalisation; None:
            the encoder's.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, int32
            (B, T), and `mask_positions`, int32 (B, M). For packed rows also
            `position_ids` and `example_ids`, int32 (B, T).

    Returns:
        dict of logits: `mlm`, float32 (B, M, V), and `nsp`, float32 (B, 2),
        or (B, E, 2) for packed rows.

    Examples:
        >>> from bert_keras import BertPretrainer
        >>> model = BertPretrainer.from_preset("bert_keras_mini_en")
        >>> inputs = {"token_ids": [[2, 4, 3]], "mask_positions": [[1]]}
        >>> print(model(inputs)["mlm"].shape)
        (1, 1, 16000)
    """

    reads_texts = False  # rows also need masks or targets

    def __init__(
        self,
        encoder: BertEncoder,
        examples_per_row: int | None = None,
        mlm_activation: Any = None,
        mlm_norm_epsilon: float | None = None,
        name: str = "pretrainer",
    ) -> None:
        self.encoder = encoder
        self.examples_per_row = examples_per_row
        self.mlm_activation = mlm_activation and name_activation(mlm_activation)
        self.mlm_norm_epsilon = mlm_norm_epsilon
        self.mlm = MaskedLanguageModelHead(
            encoder.embeddings.token,
            mlm_activation or encoder.activation,
            mlm_norm_epsilon or encoder.norm_epsilon,
            name="mlm",
            dtype=encoder.dtype_policy,
        )
        # Class 0: text B follows text A (the paper, section 3.1, task 2).
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

    def default_losses(self) -> dict[str, Any]:
        return {
            "loss": pretraining_losses(),
            "weighted_metrics": pretraining_metrics(),
        }


def pretraining_losses():
    """Return a dict of output name -> loss for `compile`."""
    return {name: CrossEntropy(name=name) for name in ("mlm", "nsp")}


@keras.saving.register_keras_serializable("bert_keras")
class CrossEntropy(ShowsArguments, keras.losses.Loss):
    """Cross entropy of integer labels and logits.

    Keras's `SparseCategoricalCrossentropy` keeps more tensors for the gradient.
    This loss keeps only the logits, and XLA can compute it in one pass. By
    default, the result is sum(weight x loss) / sum(weight). Keras's default
    divides by the number of positions, including padding. If a label is outside
    of 0 to C - 1, the loss is NaN, even with a sample weight of 0.

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
        return kernels.cross_entropy(ops.cast(y_true, "int32"), logits)


def pretraining_metrics():
    """Return a dict of output name -> [accuracy] for `weighted_metrics`."""
    return {
        name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        for name in ("mlm", "nsp")
    }


@keras.saving.register_keras_serializable("bert_keras")
class BertCausalModel(TaskModel):
    """Language model for one direction: an encoder and a masked-LM head.

    The next token is on the right for `attention="left_to_right"` and on the
    left for `"right_to_left"`. No input token is replaced by [MASK] (the paper,
    section 5.1). `causal_targets` returns the labels and the sample weights.

    Weights, by path: the encoder's, mlm/dense/{kernel,bias},
    mlm/norm/{gamma,beta}, mlm/bias.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"` or
            `"right_to_left"`.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids`, int32 (B, T); or
            only the token ids.

    Returns:
        float32 (B, T, V), logits.

    Raises:
        InputError: the encoder is bidirectional.

    Examples:
        >>> from bert_keras import BertCausalModel, BertEncoder
        >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
        >>> print(BertCausalModel(encoder)([[2, 45, 3]]).shape)
        (1, 3, 100)
    """

    pools = False
    token_outputs = ("logits",)

    reads_texts = False  # rows also need masks or targets

    def __init__(
        self, encoder: BertEncoder, name: str = "causal_model"
    ) -> None:
        if encoder.attention == "bidirectional":
            raise InputError(
                "The encoder is bidirectional, so each position attends to the "
                "token that it must predict. "
                'Expected attention="left_to_right" or "right_to_left".'
            )
        self.encoder = encoder
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

    def default_losses(self) -> dict[str, Any]:
        return {"loss": CrossEntropy()}


def causal_targets(inputs, attention):
    """Return labels and sample weights for `BertCausalModel`, each (B, T).

    The label of a position is the id of the next token: on the right for
    "left_to_right", else on the left. The weight is 1 if the next token belongs
    to the same example, else 0.

    Args:
        inputs: dict of the model's inputs.
        attention: the encoder's, "left_to_right" or "right_to_left".
    """
    ids = ops.convert_to_tensor(inputs["token_ids"])
    examples = inputs.get("example_ids")
    if examples is None:
        examples = inputs.get("padding_mask")
    if examples is None:
        examples = ops.ones_like(ids)
    examples = ops.convert_to_tensor(examples)
    next_examples = _shift(examples, attention)
    # `> 0` excludes padding, whose example id or padding mask is 0.
    is_same = ops.logical_and(examples > 0, examples == next_examples)
    return _shift(ids, attention), ops.cast(is_same, "float32")


def _shift(rows, attention):
    """Shift rows so that each position has its next token's value, or 0."""
    gap = ops.zeros_like(rows[:, :1])  # (B, 1)
    if attention == "left_to_right":
        return ops.concatenate([rows[:, 1:], gap], axis=1)
    return ops.concatenate([gap, rows[:, :-1]], axis=1)
