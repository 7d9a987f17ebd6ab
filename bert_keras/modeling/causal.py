"""Language modelling in one direction, for the paper's ablation."""

from typing import TYPE_CHECKING, Self, Unpack

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling.arguments import EncoderArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import MaskedLanguageModelHead
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


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
