"""What the live model answers, found without the serving graph.

Each check computes in Python what a signature should have answered, row by
row on rows that it frames itself, and gives the greatest difference of the
two. Spans, tags and choices are in `live_spans.py`.
"""

import numpy as np
import tensorflow as tf

from bert_keras.modeling.chooser import BertChooser
from bert_keras.modeling.classifier import BertClassifier
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.span import BertSpanPredictor
from bert_keras.modeling.tagger import BertTagger
from bert_keras.serving import live_spans
from bert_keras.serving.features import RECIPES
from bert_keras.serving.live_rows import difference, framed, softmax, windows
from bert_keras.serving.rows import MASK


def classify(model, preprocessor, options, answer, *texts):
    def scores(inputs):
        logits = np.array(model(inputs))
        if model.problem == "regression":
            return logits
        is_multi = model.problem == "multi"
        return 1 / (1 + np.exp(-logits)) if is_multi else softmax(logits)

    if options["long_text"] == "windows":
        expected = _over_windows(scores, preprocessor, texts[0])
    else:
        expected = scores(preprocessor(texts if len(texts) > 1 else texts[0]))
    if model.problem == "regression" and not model.labels:
        return difference(answer["score"], expected[:, 0])
    regression = model.problem == "regression"
    served = answer["score" if regression else "probabilities"]
    return difference(served, expected)


def next_sentence(model, preprocessor, options, answer, *texts):
    inputs = preprocessor(texts)
    inputs["mask_positions"] = tf.zeros((len(texts[0]), 1), tf.int32)
    expected = softmax(np.array(model(inputs)["nsp"]))[:, 0]
    return difference(answer["probability"], expected)


def embed(model, preprocessor, options, answer, texts):
    encoder = getattr(model, "encoder", model)

    def vectors(inputs):
        encoded = encoder(inputs)
        if options["pooling"] == "pooled":
            return np.array(encoded["pooled_output"])
        rows = np.array(encoded["sequence_output"], "float64")
        if options["pooling"] == "cls":
            return rows[:, 0]
        real = np.array(inputs["padding_mask"], bool)
        pool = np.max if options["pooling"] == "max" else np.mean
        pairs = zip(rows, real, strict=True)
        return np.stack([pool(row[mask], axis=0) for row, mask in pairs])

    if options["long_text"] == "windows":
        expected = _over_windows(vectors, preprocessor, texts)
    else:
        expected = vectors(preprocessor(texts))
    if options["normalize"]:
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    worst = difference(answer["embedding"], expected)
    if options["features"]:
        features = _features(encoder, preprocessor, options, answer, texts)
        worst = max(worst, features)
    return worst


def _features(encoder, preprocessor, options, answer, texts):
    """The greatest difference of the tokens' vectors, row by row."""
    worst = 0.0
    room = preprocessor.sequence_length - 2
    for row, text in enumerate(texts):
        ids = np.array(preprocessor.tokenizer(text))[:room]
        encoded = encoder(framed(preprocessor, ids), hidden_states=True)
        expected = RECIPES[options["features"]](encoded["hidden_states"])
        count = answer["count"][row]
        served = answer["features"][row, :count]
        worst = max(worst, difference(served, expected[0, 1:-1]))
    return worst


def fill_mask(model, preprocessor, options, answer, texts):
    """Compares the probabilities of the pieces that were answered."""
    tokenizer = preprocessor.tokenizer
    worst = 0.0
    for row, text in enumerate(texts):
        parts = [np.array(tokenizer(p)) for p in text.split(MASK.encode())]
        ids = list(parts[0])
        for part in parts[1:]:
            ids += [tokenizer.mask_id, *part]
        inputs = framed(preprocessor, ids)
        places = np.flatnonzero(inputs["token_ids"][0] == tokenizer.mask_id)
        if len(places) != answer["count"][row]:
            return np.inf
        if not len(places):
            continue
        inputs["mask_positions"] = tf.constant([places], tf.int32)
        logits = np.array(model(inputs)["mlm"][0])
        live = softmax(logits[:, : tokenizer.vocabulary_size])
        best = -np.sort(-live)[:, : answer["piece_ids"].shape[-1]]
        chosen = answer["piece_ids"][row, : len(places)]
        served = answer["probabilities"][row, : len(places)]
        of_chosen = np.take_along_axis(live, chosen, axis=-1)
        worst = max(
            worst, difference(served, of_chosen), difference(served, best)
        )
    return worst


CHECKS = {
    BertChooser: {"choose": live_spans.choose},
    BertClassifier: {"classify": classify},
    BertEncoder: {"embed": embed},
    BertPretrainer: {
        "fill_mask": fill_mask,
        "next_sentence": next_sentence,
        "embed": embed,
    },
    BertSpanPredictor: {"answer": live_spans.answer},
    BertTagger: {"tag": live_spans.tag},
}


def _over_windows(function, preprocessor, texts):
    """Mean of `function` over the windows of each text, by their length."""
    room = preprocessor.sequence_length - 2
    means = []
    for text in texts:
        ids = np.array(preprocessor.tokenizer(text))
        cut = [ids[a:b] for a, b in windows(len(ids), room, room * 3 // 4)]
        values = [function(framed(preprocessor, part))[0] for part in cut]
        weights = [max(len(part), 1) for part in cut]
        means.append(np.average(values, axis=0, weights=weights))
    return np.stack(means)
