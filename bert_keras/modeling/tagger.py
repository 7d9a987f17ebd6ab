"""One label a token, as in named-entity recognition."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, Unpack

import keras

from bert_keras.files import PathLike
from bert_keras.modeling.arguments import TaggerArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, check_labels
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


@keras.saving.register_keras_serializable("bert_keras")
class BertTagger(TaskModel):
    """One dense layer on every token's vector, with dropout before it.

    Which tokens count (the first piece of a word, say) `fit` learns from
    sample weights (B, T). Packed rows need nothing more than their inputs.

    Weights, by path: the encoder's, tagger/{kernel,bias}; with `bilstm_dim`
    those of `BiLSTM` behind bilstm/.

    Args:
        encoder: a `BertEncoder`.
        labels: names of the classes, in the order of the logits.
        dropout: share of the vectors dropped in training; the encoder's
            where None.
        bilstm_dim: width of a new bidirectional LSTM between encoder and
            head; none where None.

    Call arguments:
        inputs: dict of `token_ids`, `segment_ids`, `padding_mask`, and for
            packed rows `position_ids` and `example_ids` (not under a
            BiLSTM), int32 (B, T); or the token ids alone.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels missing or repeated.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> BertTagger(encoder, labels=["O", "B-PER"])([[2, 45, 3]]).shape
    (1, 3, 2)
    """

    pools = False
    token_outputs = ("logits",)

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[TaggerArguments]
        ) -> Self: ...

    def __init__(
        self,
        encoder: BertEncoder,
        labels: Sequence[str] = (),
        dropout: float | None = None,
        bilstm_dim: int | None = None,
        name: str = "tagger_model",
    ) -> None:
        check_labels(labels)
        self.labels = list(labels)
        self.dropout = encoder.dropout if dropout is None else dropout
        self.bilstm_dim = bilstm_dim
        self.tagger = LogitsHead(
            len(labels), self.dropout, name="tagger", dtype=encoder.dtype_policy
        )
        inputs = symbolic_inputs(packed=bilstm_dim is None)
        encoded = encode(encoder, inputs, bilstm_dim)
        logits = self.tagger(encoded["sequence_output"])  # (B, T, C)
        super().__init__(inputs, logits, encoder, name)
