"""A task as a variant of a table sees it: fewer rows, another head.

The head of the ablation stands on encoders that see in one direction: on one,
or on two that were trained apart, with their vectors concatenated, the shallow
way of ELMo (the paper, section 5.1).
"""

import copy

import keras
import numpy as np
from keras import ops

import bert_keras
from bert_keras.data.sentences import split_sentences
from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.heads import LogitsHead, check_labels
from bert_keras.modeling.layers import gather_positions
from bert_keras.modeling.task_models import TaskModel, encode, symbolic_inputs
from bert_keras.modeling.weights import copy_weights
from official_tasks.tasks.squad import answer_span

HEADS = ("classifier", "tagger", "span")


def vary(task, rows=None, bilstm_dim=None, second=None, sentence=False):
    """A copy of a task with other rows or another model.

    On an encoder that sees left to right, a classifier reads the last token.

    Args:
        task: a `Task`.
        rows: split -> most examples, drawn at random, the same each time.
        bilstm_dim: width of a BiLSTM between encoder and head.
        second: model folder of a right-to-left encoder, whose vectors are
            concatenated with those of the first one.
        sentence: whether questions see the sentence of their answer alone.
    """
    varied, original, most = copy.copy(task), type(task), rows or {}

    def read(split):
        examples = original.read(varied, split)
        if most.get(split) is not None and len(examples) > most[split]:
            order = np.random.default_rng(0).permutation(len(examples))
            examples = [examples[i] for i in sorted(order[: most[split]])]
        return list(map(in_its_sentence, examples)) if sentence else examples

    def build(encoder):
        model = original.build(varied, encoder)
        if bilstm_dim:
            arguments = {**model.arguments(), "bilstm_dim": bilstm_dim}
            return type(model)(encoder, **arguments)
        if second:
            return _paired(model, encoder, second)
        classifies = type(model) is bert_keras.BertClassifier
        if classifies and encoder.attention == "left_to_right":
            return DirectionalModel(encoder, **_kept(model))
        return model

    varied.read, varied.build = read, build
    return varied


def in_its_sentence(question):
    """A `Question` whose context is the sentence that holds its answer.

    All of them, where the first answer reaches over several; the whole
    context, where the answer's place in it is not known.
    """
    span = answer_span(question)
    if isinstance(span, str):
        return question
    context, held, end = question.context, [], 0
    for sentence in split_sentences(context):
        start = context.index(sentence, end)
        end = start + len(sentence)
        if start < span[1] and span[0] < end:
            held += [start, end]
    return question._replace(
        context=context[held[0] : held[-1]], start=span[0] - held[0]
    )


def _paired(model, encoder, second):
    """The model's head on this encoder and the one of the folder `second`."""
    heads = {
        bert_keras.BertClassifier: "classifier",
        bert_keras.BertTagger: "tagger",
        bert_keras.BertSpanPredictor: "span",
    }
    if type(model) not in heads:
        raise InputError(
            f"There is no {type(model).__name__} on two encoders. Expected a "
            "task that classifies, tags or finds spans."
        )
    paired = DirectionalModel(
        encoder, heads[type(model)], paired=True, **_kept(model)
    )
    other = bert_keras.BertEncoder.from_preset(
        second, dtype=encoder.dtype_policy
    )
    if other.attention != "right_to_left":
        raise InputError(
            f"The second encoder, {second}, sees {other.attention}. Expected "
            "one that was trained right to left."
        )
    copy_weights(other, paired.second)
    return paired


def _kept(model):
    """Of a head's arguments those that the directional one takes too."""
    names = ("labels", "problem", "dropout")
    return {k: v for k, v in model.arguments().items() if k in names}


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
