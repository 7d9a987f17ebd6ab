"""A task as a variant of a table sees it: fewer rows, another head."""

import copy

import numpy as np

import bert_keras
from bert_keras.data.sentences import split_sentences
from bert_keras.errors import InputError
from bert_keras.modeling.weights import copy_weights
from official_tasks.paper.paired import DirectionalModel
from official_tasks.tasks.squad import answer_span


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
        return _directional(model, encoder)

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


def _directional(model, encoder):
    """The model; where [CLS] sees nothing, one that reads the last token."""
    classifies = type(model) is bert_keras.BertClassifier
    if classifies and encoder.attention == "left_to_right":
        return DirectionalModel(encoder, **_kept(model))
    return model


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
