"""What the live model answers of spans, tags and choices: see `live.py`."""

import numpy as np

from bert_keras.serving.live_rows import (
    best_windows,
    difference,
    framed,
    softmax,
    windows,
)

ANSWER_LENGTH, QUESTION_LENGTH, STRIDE = 30, 64, 128


def answer(model, preprocessor, options, answer, questions, contexts):
    """Compares the scores; the text where no two scores are near."""
    worst = 0.0
    for row, (question, context) in enumerate(
        zip(questions, contexts, strict=True)
    ):
        spans, null = _spans(model, preprocessor, question, context)
        spans = sorted(spans, reverse=True)[: options["top_k"]]
        count = answer["count"][row]
        if count != len(spans):
            return np.inf
        worst = max(
            worst,
            difference(answer["score"][row, :count], [s[0] for s in spans]),
            difference(answer["null_score"][row], null),
        )
        if count and answer["answer"][row, 0] != _best_text(spans, context):
            worst = np.inf
    return worst


def _best_text(spans, context):
    _, begin, end = spans[0]
    return context[begin:end].rstrip(b"\0")  # as NumPy's strings


def _spans(model, preprocessor, question, context):
    """(score, first byte, byte after) of every span, and the null score."""
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
    """Compares type, offsets in bytes of the text, and score."""
    worst = 0.0
    for row, text in enumerate(texts):
        found = _entities(model, preprocessor, options, text)
        count = answer["count"][row]
        if count != len(found):
            return np.inf
        for place, (kind, begin, end, score) in enumerate(found):
            piece = text[begin:end].rstrip(b"\0")
            if (
                answer["type"][row, place] != kind.encode()
                or answer["text"][row, place] != piece
            ):
                return np.inf
            apart = abs(answer["score"][row, place] - score)
            worst = np.maximum(worst, apart)  # keeps NaN
    return float(worst)


def _entities(model, preprocessor, options, text):
    """(type, first byte, byte after, score) of each entity."""
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
    """(label, first byte, byte after, probability) of each word."""
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
