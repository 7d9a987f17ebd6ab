"""Task models on encoders that see in one direction, for the paper's ablation.

Alone, or two that were trained apart, their vectors side by side: ELMo's
shallow way (the paper, section 5.1).
"""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, check_labels
from bert_keras.modeling.layers import gather_positions
from bert_keras.modeling.task_model import TaskModel, encode, symbolic_inputs


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


class DirectionalModel(TaskModel):
    """A head on a left-to-right encoder, and on a second one if `paired`.

    The second one, `second`, sees right to left and has the sizes of the
    first; its weights begin at random and lie behind right_to_left/.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"`.
        head: function of the token vectors and of the text's vector, which
            returns the outputs.
        paired: whether there is a second encoder.

    Raises:
        InputError: the encoder sees in another direction.
    """

    pools = False

    def __init__(self, encoder, head, paired, name):
        if encoder.attention != "left_to_right":
            raise InputError(
                f"The encoder sees {encoder.attention}. Expected one with "
                'attention="left_to_right".'
            )
        self.second = _second(encoder) if paired else None
        inputs = symbolic_inputs()
        tokens = encode(encoder, inputs)["sequence_output"]  # (B, T, D)
        last = LastVector(name="last", dtype=encoder.dtype_policy.name)
        text = last(tokens, inputs["padding_mask"])
        if paired:
            back = encode(self.second, inputs)["sequence_output"]
            tokens = ops.concatenate([tokens, back], axis=-1)  # (B, T, 2 D)
            text = ops.concatenate([text, back[:, 0]], axis=-1)
        super().__init__(inputs, head(tokens, text), encoder, name)

    def _in_use(self, variables):
        variables = super()._in_use(variables)
        if self.second is None:
            return variables
        idle = {id(weight) for weight in self.second.pooler.weights}
        return [v for v in variables if id(v) not in idle]


def _second(encoder):
    return BertEncoder(
        **{
            **encoder.arguments(),
            "attention": "right_to_left",
            "dtype": encoder.dtype_policy,
            "name": "right_to_left",
        }
    )


@keras.saving.register_keras_serializable("bert_keras")
class DirectionalClassifier(DirectionalModel):
    """Classes from the vector of the token that has seen the whole text.

    That is the last one left to right, and the first one right to left;
    `[CLS]`, which `BertClassifier` reads, sees nothing to its right.

    Weights, by path: the encoder's, those of the second behind
    right_to_left/, classifier/{kernel,bias}.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"`.
        labels, problem, dropout: as of `BertClassifier`.
        paired: whether a second encoder reads right to left.

    Returns:
        float32 (B, C), logits.

    Raises:
        InputError: labels missing or repeated, another direction.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
    >>> DirectionalClassifier(encoder, ["no", "yes"])([[2, 45, 3]]).shape
    (1, 2)
    """

    def __init__(
        self,
        encoder,
        labels=None,
        problem="single",
        dropout=None,
        paired=False,
        name="directional_classifier",
    ):
        check_labels(labels, problem)
        self.labels = None if labels is None else list(labels)
        self.problem, self.paired = problem, paired
        self.dropout = encoder.dropout if dropout is None else dropout
        self.classifier = LogitsHead(
            1 if labels is None else len(labels),
            self.dropout,
            name="classifier",
            dtype=encoder.dtype_policy,
        )
        super().__init__(
            encoder, lambda tokens, text: self.classifier(text), paired, name
        )

    def arguments(self):
        return {
            "labels": self.labels,
            "problem": self.problem,
            "dropout": self.dropout,
            "paired": self.paired,
        }


@keras.saving.register_keras_serializable("bert_keras")
class PairedTagger(DirectionalModel):
    """As `BertTagger`, on both encoders' vectors of each token.

    Weights, by path: the encoder's, those of the second behind
    right_to_left/, tagger/{kernel,bias}.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"`.
        labels, dropout: as of `BertTagger`.

    Returns:
        float32 (B, T, C), logits.

    Raises:
        InputError: labels missing or repeated, another direction.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
    >>> PairedTagger(encoder, labels=["O", "B-PER"])([[2, 45, 3]]).shape
    (1, 3, 2)
    """

    def __init__(self, encoder, labels=None, dropout=None, name="tagger_pair"):
        check_labels(labels)
        self.labels = list(labels)
        self.dropout = encoder.dropout if dropout is None else dropout
        self.tagger = LogitsHead(
            len(labels), self.dropout, name="tagger", dtype=encoder.dtype_policy
        )
        super().__init__(
            encoder, lambda tokens, text: self.tagger(tokens), True, name
        )

    def arguments(self):
        return {"labels": self.labels, "dropout": self.dropout}


@keras.saving.register_keras_serializable("bert_keras")
class PairedSpanPredictor(DirectionalModel):
    """As `BertSpanPredictor`, on both encoders' vectors of each token.

    Weights, by path: the encoder's, those of the second behind
    right_to_left/, span/{kernel,bias}.

    Args:
        encoder: a `BertEncoder` with `attention="left_to_right"`.

    Returns:
        dict of `start` and `end`, float32 (B, T), logits.

    Raises:
        InputError: another direction.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16, attention="left_to_right")
    >>> PairedSpanPredictor(encoder)([[2, 45, 3]])["end"].shape
    (1, 3)
    """

    def __init__(self, encoder, name="span_pair"):
        self.span = LogitsHead(2, name="span", dtype=encoder.dtype_policy)

        def head(tokens, text):
            logits = self.span(tokens)  # (B, T, 2)
            return {"start": logits[..., 0], "end": logits[..., 1]}

        super().__init__(encoder, head, True, name)
