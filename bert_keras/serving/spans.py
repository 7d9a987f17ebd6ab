"""The signatures `answer` and `tag`, which return slices of a text."""

import tensorflow as tf

from bert_keras.serving.graph import TRUNCATED, Signature
from bert_keras.text.labels import BEGIN, END, OUTSIDE, split_label
from bert_keras.text.windows import best_context, in_chunks, windows

# `answer`: the slice of a context that answers a question.

# From the original's run_squad.py: maximum tokens of a question, maximum tokens
# of an answer, and tokens between the starts of successive windows.
QUESTION_LENGTH = 64
ANSWER_LENGTH = 30
STRIDE = 128
MAX_ANSWERS = 3 * ANSWER_LENGTH  # number of spans in the shortest row
NOWHERE = -1e30


def answer(model, rows, top_k=5):
    """Return the signature `answer`: the best answers in a context.

    The context is read in windows that start 128 tokens apart. A span has at
    most 30 tokens and is scored in the window in which its first token has most
    context around it. As in the original, the score is start logit plus end
    logit. The original compares only the best 20 starts and ends; here all
    spans are compared.

    Args:
        model: a `BertSpanPredictor` in float32.
        rows: `Rows` of its preprocessor.
        top_k: number of answers.
    """
    outputs = _describe_answers(model, top_k)
    inputs = {
        "question": "Where was it found?",
        "context": "It was lost for years, then found in an attic in Bern.",
    }

    def function(question, context):
        return _find_answers(model, rows, top_k, question, context)

    padded = ("answer", "start", "end", "score")
    return Signature("answer", inputs, function, outputs, padded)


def _describe_answers(model, top_k):
    outputs = {
        "answer": f"string (B, {top_k}): cut from the context, best first",
        "start": f"int32 (B, {top_k}): first character of each, -1 padded",
        "end": f"int32 (B, {top_k}): one after the last character, -1 padded",
        "score": f"float32 (B, {top_k}): start logit plus end logit",
        "count": "int32 (B,): how many answers there are",
        "null_score": "float32 (B,): of no answer; compare it with `score`",
    }
    if model.may_be_none:
        outputs["has_answer"] = (
            "bool (B,): True unless `null_score` exceeds the best score by "
            f"more than {model.null_threshold:g}"
        )
    return outputs


def _find_answers(model, rows, top_k, question, context):
    """Return the outputs of `answer` for strings (B,)."""
    most = min(QUESTION_LENGTH, (rows.sequence_length - 3) // 2)
    question_ids = rows.tokenizer(question)[:, :most]
    ids, begins, ends = rows.tokenizer.tokenize_with_offsets(
        context, unit="bytes"
    )
    room = rows.sequence_length - 3 - question_ids.row_lengths()
    cut = windows(ids, room, tf.minimum(room, STRIDE))
    scores, first, last, null = _find_spans(
        model, rows, question_ids, cut, top_k
    )
    best, index = tf.math.top_k(_group_by_text(cut, scores, NOWHERE), top_k)
    first, last = (
        tf.gather(_group_by_text(cut, x, 0), index, batch_dims=1)  # (B, top_k)
        for x in (first, last)
    )
    is_real = best > NOWHERE / 2
    slices, start, end = cut_out(
        context,
        _gather_offsets(begins, first),
        _gather_offsets(ends, last),
        is_real,
    )
    null_score = tf.math.unsorted_segment_min(null, cut.text, cut.num_texts)
    answers = {
        "answer": slices,
        "start": start,
        "end": end,
        "score": tf.where(is_real, best, -1.0),
        "count": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
        "null_score": null_score,
    }
    if model.may_be_none:
        odds = null_score - best[:, 0]
        answers["has_answer"] = is_real[:, 0] & (odds <= model.null_threshold)
    return answers


def _find_spans(model, rows, question_ids, cut, top_k):
    """Return the best spans and the null score of each window.

    Returns:
        A list: scores, float32 (W, top_k); first and last tokens as indices
        among the text's tokens, int32 (W, top_k) each; null scores, float32
        (W,).
    """
    may_start = best_context(cut)  # ragged bool (W, None)

    def score_windows(begin, end):
        questions = tf.gather(question_ids, cut.text[begin:end])
        ids = cut.ids[begin:end]
        inputs = rows.pack(questions, ids)
        logits = model(inputs, training=False)  # start and end, (n, T) each
        before = tf.cast(questions.row_lengths(), tf.int32) + 2
        length = tf.shape(inputs["token_ids"])[1]
        is_start = _shift(may_start[begin:end], before, length)
        is_end = _shift(tf.ones_like(ids, tf.bool), before, length)
        scores, first, last = _select_best_spans(
            tf.where(is_start, logits["start"], NOWHERE),
            tf.where(is_end, logits["end"], NOWHERE),
            top_k,
        )
        # From positions in the row to token indices of the text.
        shift = tf.cast(cut.start[begin:end], tf.int32) - before
        return [
            scores,
            first + shift[:, tf.newaxis],
            last + shift[:, tf.newaxis],
            logits["start"][:, 0] + logits["end"][:, 0],  # of [CLS]
        ]

    span_spec = tf.TensorSpec([None, top_k], tf.int32)
    scores = tf.TensorSpec([None, top_k], tf.float32)
    null = tf.TensorSpec([None], tf.float32)
    return in_chunks(
        score_windows, cut.ids.nrows(), [scores, span_spec, span_spec, null]
    )


def _shift(values, before, length):
    """Return ragged bools as (n, `length`), shifted right by `before` (n,)."""
    lead = tf.ragged.range(before)
    lead = lead.with_values(tf.zeros_like(lead.values, tf.bool))
    rows = tf.concat([lead, values], axis=1).to_tensor(False)
    return tf.pad(rows, [[0, 0], [0, length - tf.shape(rows)[1]]])


def _select_best_spans(start, end, top_k):
    """Return scores, first and last tokens of the best spans, (n, top_k)."""
    beyond = tf.pad(
        end, [[0, 0], [0, ANSWER_LENGTH - 1]], constant_values=NOWHERE
    )
    ends = tf.signal.frame(beyond, ANSWER_LENGTH, 1)  # (n, T, lengths)
    sums = start[:, :, tf.newaxis] + ends
    # (n, T, lengths) to (n, T * lengths)
    flat = tf.reshape(sums, [tf.shape(sums)[0], tf.size(sums[0])])
    scores, index = tf.math.top_k(flat, top_k)
    first = index // ANSWER_LENGTH
    return scores, first, first + index % ANSWER_LENGTH


def _group_by_text(cut, values, missing):
    """Return values (W, top_k) of windows as a row for each text, (B, N)."""
    ragged = tf.RaggedTensor.from_value_rowids(
        values, cut.text, nrows=cut.num_texts, validate=False
    )  # (B, windows of each, top_k)
    return ragged.merge_dims(1, 2).to_tensor(missing)


def _gather_offsets(offsets, indices):
    """Return the values of ragged offsets at indices (B, top_k) of each row."""
    flat = indices + tf.cast(offsets.row_starts(), tf.int32)[:, tf.newaxis]
    padded = tf.concat([offsets.values, [0]], axis=0)
    return tf.gather(padded, tf.clip_by_value(flat, 0, tf.size(offsets.values)))


# `tag`: the entities of a text, which consist of whole words.


def tag(model, rows, long_text="truncate"):
    """Return the signature `tag`: the entities of a text.

    A word's label is that of its first piece. Labels are `O`, `B-TYPE`,
    `I-TYPE`, also `E-`, `L-`, `S-` and `U-`, or bare types. An entity has
    successive words of one type. It ends before a `B-` label and after an `E-`
    label, for example. Its score is the mean probability of the words' labels.

    Args:
        model: a `BertTagger` in float32.
        rows: `Rows` of its preprocessor.
        long_text: "truncate", or "windows": windows that overlap by half;
            a token's label is from the window with most context around it.
    """
    types, label_types, begins, ends = _read_scheme(model.labels)
    is_inner = tf.constant(
        [piece.startswith("##") for piece in rows.tokenizer.vocabulary]
    )
    truncates = long_text == "truncate"

    def function(text):
        ids, first, after = rows.tokenizer.tokenize_with_offsets(
            text, unit="bytes"
        )
        room = rows.sequence_length - 2
        truncated = {"truncated": rows.are_cut(ids)} if truncates else {}
        if truncates:
            ids, first, after = ids[:, :room], first[:, :room], after[:, :room]
        probabilities = _compute_probabilities(model, rows, ids, room)
        words = _find_words(ids, first, after, probabilities, is_inner)
        entities = _find_entities(words, label_types, begins, ends)
        return _make_outputs(text, entities, types) | truncated

    entity_outputs = {
        "text": "string (B, N): the entities, cut from the text",
        "type": f"string (B, N): one of {types}",
        "start": "int32 (B, N): the first character, -1 padded",
        "end": "int32 (B, N): one after the last character, -1 padded",
        "score": "float32 (B, N): mean probability of the words' labels",
    }
    outputs = entity_outputs | {
        "count": "int32 (B,): how many entities a text has"
    }
    return Signature(
        "tag",
        {"text": "Ada Lovelace was born in London."},
        function,
        outputs | TRUNCATED if truncates else outputs,
        padded=tuple(entity_outputs),
        labels=tuple(types),
    )


def _read_scheme(labels):
    """Return the types, and three arrays with an entry for each label.

    The entries are the index of the label's type, -1 for O; True if the label
    begins an entity; and True if the label ends an entity.
    """
    split = [split_label(label) for label in labels]
    types = sorted({kind for prefix, kind in split if prefix != OUTSIDE})
    label_types = [
        -1 if prefix == OUTSIDE else types.index(kind) for prefix, kind in split
    ]
    return (
        types,
        tf.constant(label_types),
        tf.constant([prefix in BEGIN for prefix, _ in split]),
        tf.constant([prefix in END for prefix, _ in split]),
    )


def _compute_probabilities(model, rows, ids, room):
    """Return probabilities of labels for ragged ids: float32 (tokens, C)."""
    cut = windows(ids, room, max(room // 2, 1))
    width = len(model.labels)

    def predict_windows(begin, end):
        inputs = rows.pack(cut.ids[begin:end])
        logits = model(inputs, training=False)[:, 1:]  # without [CLS]
        length = cut.ids[begin:end].row_lengths()
        is_token = tf.sequence_mask(length, tf.shape(logits)[1])
        return [tf.nn.softmax(tf.boolean_mask(logits, is_token))]

    spec = tf.TensorSpec([None, width], tf.float32)
    (values,) = in_chunks(predict_windows, cut.ids.nrows(), [spec])
    is_best = best_context(cut).values  # True in one window for each token
    indices = tf.boolean_mask(cut.positions.values, is_best)
    return tf.scatter_nd(
        indices[:, tf.newaxis],
        tf.boolean_mask(values, is_best),
        [tf.size(ids.values, tf.int64), width],
    )


def _find_words(ids, first, after, probabilities, is_inner):
    """Return dict of the text, offsets, label and score, (words,) each."""
    text = ids.value_rowids()
    is_first = ~tf.gather(is_inner, ids.values)
    # A text's first piece begins a word, even if it starts with "##".
    is_first |= _find_changes(text)
    words, _ = _merge(text, first.values, after.values, is_first)
    of_first = tf.boolean_mask(probabilities, is_first)
    return words | {
        "label": tf.argmax(of_first, axis=-1, output_type=tf.int32),
        "score": tf.reduce_max(of_first, axis=-1),
    }


def _find_entities(words, label_types, begins, ends):
    """Return dict of the text, offsets, type and score, (entities,) each."""
    kind = tf.gather(label_types, words["label"])
    follows_end = tf.concat(
        [[False], tf.gather(ends, words["label"])[:-1]], axis=0
    )[: tf.size(kind)]
    is_first = (
        _find_changes(words["text"])
        | _find_changes(kind)
        | tf.gather(begins, words["label"])
        | follows_end
    )
    entities, mean = _merge(
        words["text"], words["first"], words["after"], is_first
    )
    entities["type"] = tf.boolean_mask(kind, is_first)
    entities["score"] = mean(words["score"])
    is_entity = entities["type"] >= 0
    return {k: tf.boolean_mask(v, is_entity) for k, v in entities.items()}


def _find_changes(values):
    """Return bool, True at the first value and where a value changes."""
    return tf.concat(
        [tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0
    )


def _merge(text, first, after, is_first):
    """Merge consecutive spans; a span with `is_first` starts a merged span.

    Returns:
        dict of the merged spans' text, first and after; and a function of the
        spans' values that returns the mean for each merged span.
    """
    group = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    count = tf.reduce_sum(tf.cast(is_first, tf.int32))
    merged = {
        "text": tf.boolean_mask(text, is_first),
        "first": tf.boolean_mask(first, is_first),
        "after": tf.math.unsorted_segment_max(after, group, count),
    }
    return merged, lambda values: tf.math.unsorted_segment_mean(
        values, group, count
    )


def _make_outputs(text, entities, types):

    def by_text(values):  # (entities,) to ragged (B, None)
        return tf.RaggedTensor.from_value_rowids(
            values, entities["text"], nrows=tf.size(text, tf.int64)
        )

    names = by_text(tf.gather([*types, ""], entities["type"]))
    count = tf.cast(names.row_lengths(), tf.int32)
    names = names.to_tensor("")  # (B, N)
    first, after, score = (
        by_text(entities[key]).to_tensor(-1)
        for key in ("first", "after", "score")
    )
    is_real = tf.sequence_mask(count, tf.shape(names)[1])
    slices, start, end = cut_out(text, first, after, is_real)
    return {
        "text": slices,
        "type": names,
        "start": start,
        "end": end,
        "score": score,
        "count": count,
    }


# `answer` and `tag`: slices of strings.


def cut_out(text, first, after, is_real):
    """Cut slices out of strings by bytes, in time linear in the text.

    `tf.strings.substr` for each slice would copy the whole text each time.

    Args:
        text: strings (B,).
        first: int32 (B, N), the byte where a slice begins.
        after: int32 (B, N), the byte after the end of a slice.
        is_real: bool (B, N); False if there is no slice.

    Returns:
        strings (B, N), the slices, "" if there is no slice; int32 (B, N), the
        index of a slice's first character; and int32 (B, N), the index after
        its last character. Both indices are -1 if there is no slice.
    """
    first, after = (tf.where(is_real, x, 0) for x in (first, after))
    # `head` is each text up to the end of its last slice.
    reach = tf.reduce_max(tf.pad(after, [[0, 0], [0, 1]]), axis=1)
    head = tf.strings.substr(text, tf.zeros_like(reach), reach)
    bytes_of = tf.strings.bytes_split(head)  # (B, None)
    # (B, 1): where each text begins among the bytes of all texts.
    origin = tf.cast(bytes_of.row_starts(), tf.int32)[:, tf.newaxis]
    slices = _join_bytes(bytes_of.values, origin + first, origin + after)
    # `before` counts the characters that begin before each byte of all heads;
    # its last value is their total.
    _, begins = tf.strings.unicode_decode_with_offsets(
        head, "UTF-8", errors="ignore"
    )  # like `tokenize`, ignore bytes that are not UTF-8
    begins += tf.cast(origin, tf.int64)
    is_begin = tf.scatter_nd(
        begins.values[:, tf.newaxis],
        tf.ones_like(begins.values, tf.int32),
        [tf.size(bytes_of.values, tf.int64)],
    )
    before = tf.concat([[0], tf.cumsum(is_begin)], axis=0)
    start, end = (
        tf.gather(before, origin + x) - tf.gather(before, origin)  # (B, N)
        for x in (first, after)
    )
    return slices, tf.where(is_real, start, -1), tf.where(is_real, end, -1)


def _join_bytes(values, first, after):
    """Join the one-byte strings of each slice; return strings (B, N)."""
    # (B * N, None): the bytes of each slice.
    indices = tf.ragged.range(tf.reshape(first, [-1]), tf.reshape(after, [-1]))
    slices = tf.strings.unsorted_segment_join(
        tf.gather(values, indices.values),
        indices.value_rowids(),
        indices.nrows(),
    )
    return tf.reshape(slices, tf.shape(first))  # (B * N,) to (B, N)
