"""A task model on encoders that see in one direction, for the paper's ablation.

On one, or on two that were trained apart, with their vectors concatenated:
the shallow way of ELMo (the paper, section 5.1).
"""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, check_labels
from bert_keras.modeling.layers import gather_positions
from bert_keras.modeling.task_models import TaskModel, encode, symbolic_inputs

HEADS = ("classifier", "tagger", "span")


@keras.saving.register_keras_serializable("bert_keras")
class LastVector(keras.layers.Layer):
    """The vector of each row's last token: left to right, it has seen all.

    Call arguments:
        sequence: float (B, T, D).
        padding_mask: int (B, T), 1 at tokens; every place is one where None.

    Returns:
        float (B, D).
    """

    def call(self, sequence, padding_mask=None):
        if padding_mask is None:
            return sequence[:, -1]
        counts = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)
        # A row that only fills a batch up has no token.
        return gather_positions(sequence, ops.maximum(counts - 1, 0))[:, 0]

    def compute_output_spec(self, sequence, padding_mask=None):
        shape = (sequence.shape[0], sequence.shape[-1])
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable("bert_keras")
class DirectionalModel(TaskModel):
    """A head on a left-to-right encoder, and on a second one if `paired`.

    The second encoder, `second`, sees right to left and has the sizes of the
    first; its weights begin at random. A classifier reads the token that has
    seen the whole text: the last one left to right, the first one right to
    left (`[CLS]`, which `BertClassifier` reads, sees nothing to its right).

    Weights, by path: the encoder's; those of the second behind
    right_to_left/; {classifier,tagger,span}/{kernel,bias}, by the head.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"`.
        head: "classifier", "tagger" or "span": what is answered, as by
            `BertClassifier`, `BertTagger` or `BertSpanPredictor`.
        labels, problem, dropout: as of these; a span predictor has none.
        paired: whether a second encoder reads right to left.

    Returns:
        float32 logits: (B, C) of a classifier, (B, T, C) of a tagger, of
        spans a dict of `start` and `end`, (B, T).

    Raises:
        InputError: another head or direction; labels missing or repeated.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
    >>> DirectionalModel(encoder, labels=["no", "yes"])([[2, 45, 3]]).shape
    (1, 2)
    """

    pools = False

    def __init__(
        self,
        encoder,
        head="classifier",
        labels=None,
        problem="single",
        dropout=None,
        paired=False,
        name="directional_model",
    ):
        if encoder.attention != "left_to_right":
            raise InputError(
                f"The encoder sees {encoder.attention}. Expected one with "
                'attention="left_to_right".'
            )
        if head not in HEADS:
            raise InputError(
                f"head is {head!r}. Expected one of {', '.join(HEADS)}."
            )
        policy = encoder.dtype_policy
        if head == "span":
            units, dropout = 2, 0.0
        else:
            check_labels(labels, problem)
            units = 1 if labels is None else len(labels)
        self.head, self.problem, self.paired = head, problem, paired
        self.labels = None if labels is None else list(labels)
        self.dropout = encoder.dropout if dropout is None else dropout
        self.classifier = LogitsHead(
            units, self.dropout, name=head, dtype=policy
        )
        inputs = symbolic_inputs()
        tokens = encode(encoder, inputs)["sequence_output"]  # (B, T, D)
        last = LastVector(name="last", dtype=policy.name)
        text = last(tokens, inputs["padding_mask"])  # (B, D)
        self.second = None
        if paired:
            backward = {"attention": "right_to_left", "name": "right_to_left"}
            self.second = BertEncoder(
                **{**encoder.arguments(), **backward, "dtype": policy}
            )
            back = encode(self.second, inputs)["sequence_output"]
            tokens = ops.concatenate([tokens, back], axis=-1)  # (B, T, 2 D)
            text = ops.concatenate([text, back[:, 0]], axis=-1)  # (B, 2 D)
        logits = self.classifier(text if head == "classifier" else tokens)
        if head == "span":  # (B, T, 2)
            logits = {"start": logits[..., 0], "end": logits[..., 1]}
        super().__init__(inputs, logits, encoder, name)

    def _in_use(self, variables):
        variables = super()._in_use(variables)
        if self.second is None:
            return variables
        idle = {id(weight) for weight in self.second.pooler.weights}
        return [v for v in variables if id(v) not in idle]
