"""The best of several continuations, as in SWAG."""

from typing import TYPE_CHECKING, Self, Unpack

import keras
from keras import ops

from bert_keras.files import PathLike
from bert_keras.modeling.arguments import EncoderArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead
from bert_keras.modeling.task_model import TaskModel, encode

_NAMES = ("token_ids", "segment_ids", "padding_mask")


@keras.saving.register_keras_serializable("bert_keras")
class BertChooser(TaskModel):
    """One score a choice; the softmax runs over the choices.

    Every choice is encoded as a row of its own, first text and choice as a
    pair; one dense logit on its pooled output, with dropout before it. Equals
    the paper, section 4.4.

    Weights, by path: the encoder's, chooser/{kernel,bias}.

    Args:
        encoder: a `BertEncoder`.
        dropout: share of the pooled output dropped in training; the
            encoder's where None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, K, T); or the token ids alone.

    Returns:
        float32 (B, K), logits.

    Example:
    >>> model = BertChooser(BertEncoder(100, 2, 2, 8, 16))
    >>> model([[[2, 45, 3], [2, 6, 3]]]).shape
    (1, 2)
    """

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[EncoderArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        dropout: float | None = None,
        name: str = "chooser_model",
    ) -> None:
        self.dropout = encoder.dropout if dropout is None else dropout
        self.chooser = LogitsHead(
            1, self.dropout, name="chooser", dtype=encoder.dtype_policy
        )
        inputs = {
            key: keras.Input(
                (None, None), dtype="int32", name=key, optional=key != _NAMES[0]
            )
            for key in _NAMES
        }
        rows = _RowPerChoice(name="rows")(inputs)  # (B, K, T) to (B K, T)
        encoded = encode(encoder, rows)
        scores = self.chooser(encoded["pooled_output"])  # (B K, 1)
        # Otherwise a global half precision would round the float32 logits.
        choices = _ChoicesOfRows(
            name="choices", dtype=self.chooser.dtype_policy.name
        )
        logits = choices(scores, inputs["token_ids"])  # (B, K)
        super().__init__(inputs, logits, encoder, name)


class _RowPerChoice(keras.layers.Layer):
    """Inputs (B, K, T) to (B K, T); what was left out is filled in."""

    def call(self, inputs):
        ids = inputs["token_ids"]
        inputs = {
            "token_ids": ids,
            "segment_ids": ops.zeros_like(ids),
            "padding_mask": ops.ones_like(ids),
            **{name: x for name, x in inputs.items() if x is not None},
        }
        rows = (-1, ops.shape(ids)[-1])  # (B K, T)
        return {name: ops.reshape(x, rows) for name, x in inputs.items()}

    def compute_output_spec(self, inputs):
        length = inputs["token_ids"].shape[-1]
        return {
            name: keras.KerasTensor((None, length), dtype="int32")
            for name in _NAMES
        }


class _ChoicesOfRows(keras.layers.Layer):
    """Scores (B K, 1) to (B, K), as the token ids have it."""

    def call(self, scores, token_ids):
        return ops.reshape(scores, ops.shape(token_ids)[:2])

    def compute_output_spec(self, scores, token_ids):
        return keras.KerasTensor(token_ids.shape[:2], dtype=scores.dtype)
