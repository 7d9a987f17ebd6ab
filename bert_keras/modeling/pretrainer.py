"""Pre-training: masked words and next sentence on one encoder."""

from typing import TYPE_CHECKING, Self, Unpack

import keras

from bert_keras.files import PathLike
from bert_keras.modeling.arguments import PretrainerArguments
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, MaskedLanguageModelHead
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


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
    return {
        name: keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        for name in ("mlm", "nsp")
    }


def pretraining_metrics():
    """For `compile(weighted_metrics=...)`: both accuracies."""
    return {
        name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        for name in ("mlm", "nsp")
    }
