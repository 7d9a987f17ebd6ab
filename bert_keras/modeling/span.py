"""Answers that are a span of the text, as in SQuAD."""

from typing import TYPE_CHECKING, Self, Unpack

import keras

from bert_keras.files import PathLike
from bert_keras.modeling.arguments import SpanArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


@keras.saving.register_keras_serializable("bert_keras")
class BertSpanPredictor(TaskModel):
    """Scores every token as the first and as the last of the answer.

    Two dense logits a token. Padding and the question get scores like any
    token; whoever reads the answer leaves them out. Equals `create_model` of
    the original's `run_squad.py`, whose loss is the mean of the two cross
    entropies: `compile(loss=span_losses(), loss_weights=...)` with a dict of
    0.5 for "start" and "end".

    Weights, by path: the encoder's, span/{kernel,bias} (start, end); with
    `bilstm_dim` those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.
        may_be_none: whether a question may have no answer, as trained. Those
            who read the answers need it; no weight depends on it.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`,
            int32 (B, T); or the token ids alone.

    Returns:
        dict of `start` and `end`, float32 (B, T), logits.

    Example:
    >>> model = BertSpanPredictor(BertEncoder(100, 2, 2, 8, 16))
    >>> model([[2, 45, 3]])["start"].shape
    (1, 3)
    """

    pools = False
    token_outputs = ("start", "end")

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[SpanArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        bilstm_dim: int | None = None,
        may_be_none: bool = False,
        name: str = "span_predictor",
    ) -> None:
        self.bilstm_dim = bilstm_dim
        self.may_be_none = may_be_none
        self.span = LogitsHead(2, name="span", dtype=encoder.dtype_policy)
        inputs = symbolic_inputs()
        encoded = encode(encoder, inputs, bilstm_dim)
        logits = self.span(encoded["sequence_output"])  # (B, T, 2)
        outputs = {"start": logits[..., 0], "end": logits[..., 1]}  # (B, T)
        super().__init__(inputs, outputs, encoder, name)


def span_losses():
    """For `compile`: cross entropy over the tokens, at either end."""
    return {
        name: keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        for name in ("start", "end")
    }
