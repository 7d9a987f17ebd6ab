"""Answers of the live model, computed in Python without the serving graph.

Each check returns the largest difference from the signature's answer. Checks
with windows, masks or features pack each row themselves, see `framed`.
"""

import numpy as np
import tensorflow as tf

from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.serving.signature import MASK
from tests.support.numpy_bert import softmax


def framed(preprocessor, *segments):
    """Return one row of model inputs, (1, T); ids that do not fit are cut."""
    tokenizer = preprocessor.tokenizer
    ids, numbers = [tokenizer.cls_id], [0]
    room = preprocessor.sequence_length - 1 - len(segments)
    for number, segment in enumerate(segments):
        kept = list(segment)[: max(room, 0)]
        room -= len(kept)
        ids += [*kept, tokenizer.sep_id]
        numbers += [number] * (len(kept) + 1)
    return {
        "token_ids": tf.constant([ids], tf.int32),
        "segment_ids": tf.constant([numbers], tf.int32),
        "padding_mask": tf.ones((1, len(ids)), tf.int32),
    }


def windows(length, room, stride):
    """Return (begin, end) of the windows; only the last reaches the end."""
    found, begin = [], 0
    while True:
        found.append((begin, min(begin + room, length)))
        if begin + room >= length:
            return found
        begin += max(stride, 1)


def best_windows(cut, length):
    """Return for each position the first window with the most context."""

    def context(window, place):
        begin, end = cut[window]
        if not begin <= place < end:
            return -1.0
        edge = min(place - begin, end - 1 - place)
        return edge + 0.01 * (end - begin)

    return [
        max(range(len(cut)), key=lambda window: context(window, place))
        for place in range(length)
    ]


def difference(left, right):
    """Return the largest difference; infinity if the shapes differ or a value
    is not finite."""
    left, right = np.asarray(left), np.asarray(right)
    finite = np.isfinite(left).all() and np.isfinite(right).all()
    if left.shape != right.shape or not finite:
        return np.inf
    return float(np.abs(left - right).max(initial=0.0))


ANSWER_LENGTH, QUESTION_LENGTH, STRIDE = 30, 64, 128


def answer(model, preprocessor, options, answer, questions, contexts):
    """Compare the number of spans, their scores and the null score."""
    worst = 0.0
    for row, (question, context) in enumerate(
        zip(questions, contexts, strict=True)
    ):
        spans, null = _spans(model, preprocessor, question, context)
        best = sorted((s[0] for s in spans), reverse=True)[: options["top_k"]]
        count = answer["count"][row]
        if count != len(best):
            return np.inf
        scores = answer["score"][row, :count]
        # Spans may have equal scores, so look up each served span.
        live = {_cut_out(context, *span): score for score, *span in spans}
        served = (answer[k][row, :count] for k in ("answer", "start", "end"))
        found = [live.pop(span, np.inf) for span in zip(*served, strict=True)]
        worst = max(
            worst,
            difference(scores, best),
            difference(scores, found),
            difference(answer["null_score"][row], null),
        )
    return worst


def _cut_out(text, begin, end):
    """Return the bytes text[begin:end], and both positions in characters."""
    start, stop = (len(text[:i].decode(errors="ignore")) for i in (begin, end))
    return text[begin:end].rstrip(b"\0"), start, stop  # NumPy drops final NULs


def _spans(model, preprocessor, question, context):
    """Return (score, begin byte, end byte) of spans, and the null score."""
    tokenizer = preprocessor.tokenizer
    length = preprocessor.sequence_length
    asked = np.array(tokenizer(question))
    asked = asked[: min(QUESTION_LENGTH, (length - 3) // 2)]
    ids, begins, ends = (
        np.array(x) for x in tokenizer.tokenize_with_offsets(context, "bytes")
    )
    room = length - 3 - len(asked)
    cut = windows(len(ids), room, min(room, STRIDE))
    best = best_windows(cut, len(ids))
    spans, null = [], np.inf
    for number, (begin, end) in enumerate(cut):
        logits = model(framed(preprocessor, asked, ids[begin:end]))
        start, stop = (np.array(logits[k][0]) for k in ("start", "end"))
        null = min(null, start[0] + stop[0])
        shift = len(asked) + 2 - begin
        for first in range(begin, end):
            if best[first] != number:
                continue
            for last in range(first, min(first + ANSWER_LENGTH, end)):
                score = start[first + shift] + stop[last + shift]
                spans.append((score, begins[first], ends[last]))
    return spans, null


def tag(model, preprocessor, options, answer, texts):
    """Compare the type, text, positions and score of each entity."""
    worst = 0.0
    for row, text in enumerate(texts):
        found = _entities(model, preprocessor, options, text)
        count = answer["count"][row]
        if count != len(found):
            return np.inf
        for place, (kind, begin, end, score) in enumerate(found):
            names = ("type", "text", "start", "end")
            served = tuple(answer[name][row, place] for name in names)
            if served != (kind.encode(), *_cut_out(text, begin, end)):
                return np.inf
            apart = abs(answer["score"][row, place] - score)
            worst = np.maximum(worst, apart)  # keeps NaN
    return float(worst)


def _entities(model, preprocessor, options, text):
    """Return (type, begin byte, end byte, score) of each entity."""
    words = _words(model, preprocessor, options, text)
    entities, ended = [], True
    for label, begin, end, score in words:
        prefix, kind = (
            ("I", label)
            if label[1:2] != "-"
            else (
                label[0],
                label[2:],
            )
        )
        if kind == "O":
            ended = True
            continue
        if ended or prefix in "BSU" or entities[-1][0] != kind:
            entities.append((kind, begin, end, [score]))
        else:
            _, first, _, scores = entities[-1]
            entities[-1] = (kind, first, end, [*scores, score])
        ended = prefix in "ELSU"
    return [(k, b, e, np.mean(scores)) for k, b, e, scores in entities]


def _words(model, preprocessor, options, text):
    """Return (label, begin byte, end byte, probability) of each word."""
    tokenizer = preprocessor.tokenizer
    room = preprocessor.sequence_length - 2
    ids, begins, ends = (
        np.array(x) for x in tokenizer.tokenize_with_offsets(text, "bytes")
    )
    if options["long_text"] == "truncate":
        ids = ids[:room]
    cut = windows(len(ids), room, max(room // 2, 1))
    logits = [
        np.array(model(framed(preprocessor, ids[a:b]))[0]) for a, b in cut
    ]
    words = []
    for place, window in enumerate(best_windows(cut, len(ids))):
        is_inner = tokenizer.vocabulary[ids[place]].startswith("##")
        if is_inner and words:
            words[-1] = (*words[-1][:2], ends[place], words[-1][3])
            continue
        of_labels = softmax(logits[window][place - cut[window][0] + 1])
        label = model.labels[of_labels.argmax()]
        words.append((label, begins[place], ends[place], of_labels.max()))
    return words


def choose(model, preprocessor, options, answer, prompts, choices):
    expected = []
    for prompt, texts in zip(prompts, choices, strict=True):
        rows = preprocessor(([prompt] * len(texts), texts))
        logits = np.array(model({k: v[None] for k, v in rows.items()}))[0]
        expected.append(
            softmax(np.where([t != b"" for t in texts], logits, -1e30))
        )
    return difference(answer["probabilities"], expected)


def rank(model, preprocessor, options, answer, queries, passages):
    expected = []
    for query, texts in zip(queries, passages, strict=True):
        logits = np.array(model(preprocessor(([query] * len(texts), texts))))
        shares = 1 / (1 + np.exp(-logits[:, 0]))
        expected.append(np.where([t != b"" for t in texts], shares, 0.0))
    ordered = np.take_along_axis(answer["score"], answer["order"], axis=1)
    if (np.diff(ordered, axis=1) > 0).any():
        return np.inf
    return difference(answer["score"], expected)


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


FEATURES = {
    "last": lambda states: np.array(states[-1]),
    "sum_last_four": lambda states: np.sum(states[-4:], axis=0),
    "concat_last_four": lambda states: np.concatenate(states[-4:], axis=-1),
}


def _features(encoder, preprocessor, options, answer, texts):
    """Return the largest difference of the tokens' vectors."""
    worst = 0.0
    room = preprocessor.sequence_length - 2
    for row, text in enumerate(texts):
        ids = np.array(preprocessor.tokenizer(text))[:room]
        encoded = encoder(framed(preprocessor, ids), hidden_states=True)
        expected = FEATURES[options["features"]](encoded["hidden_states"])
        count = answer["count"][row]
        served = answer["features"][row, :count]
        worst = max(worst, difference(served, expected[0, 1:-1]))
    return worst


def fill_mask(model, preprocessor, options, answer, texts):
    """Compare the served probabilities with the live model's.

    They must equal those of the same tokens, and the highest probabilities.
    """
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
    BertChooser: {"choose": choose},
    BertClassifier: {"classify": classify, "rank": rank},
    BertEmbedder: {"embed": embed},
    BertEncoder: {"embed": embed},
    BertPretrainer: {
        "fill_mask": fill_mask,
        "next_sentence": next_sentence,
        "embed": embed,
    },
    BertSpanPredictor: {"answer": answer},
    BertTagger: {"tag": tag},
}


def _over_windows(function, preprocessor, texts):
    """Return each text's mean of `function`, weighted by window length."""
    room = preprocessor.sequence_length - 2
    means = []
    for text in texts:
        ids = np.array(preprocessor.tokenizer(text))
        cut = [ids[a:b] for a, b in windows(len(ids), room, room * 3 // 4)]
        values = [function(framed(preprocessor, part))[0] for part in cut]
        weights = [max(len(part), 1) for part in cut]
        means.append(np.average(values, axis=0, weights=weights))
    return np.stack(means)
