"""The signatures `answer` and `tag`, which return slices of a text."""

import tensorflow as tf

from bert_keras.serving.signature import (
    TOKENS,
    TRUNCATED,
    Output,
    Signature,
    padded,
)
from bert_keras.serving.texts import check_top_k
from bert_keras.text.labels import BEGIN, END, OUTSIDE, split_label
from bert_keras.text.windows import best_context, in_chunks, windows

# `answer` finds slices of a context that answer a question.

# Defaults of the flags of the original's run_squad.py, in tokens.
QUESTION_LENGTH = 64  # flag max_query_length
ANSWER_LENGTH = 30  # flag max_answer_length
STRIDE = 128  # flag doc_stride: distance between starts of successive windows
# Maximum of `top_k`, because `tf.math.top_k` fails on fewer than k scores. The
# shortest row has 3 tokens, and each token gets `ANSWER_LENGTH` scores.
MAX_ANSWERS = 3 * ANSWER_LENGTH
NOWHERE = -1e30  # logit of a position where no answer can start or end


def answer(model, preprocess, top_k=5):
    """Return the signature `answer`: the best answers in a context.

    The question is cut to 64 tokens, or to (sequence_length - 3) // 2 if that
    is less. The context is read in windows that start at most 128 tokens apart.
    A span has at most 30 tokens. It is scored in the window in which its first
    token has the most context. As in the original, the score is start logit
    plus end logit. The original compares only the best 20 starts and ends. This
    signature compares all spans.

    Args:
        model: a `BertSpanPredictor`.
        preprocess: the model's preprocessor; see `copy_for_serving`.
        top_k: maximum number of answers.
    """
    check_top_k(top_k, MAX_ANSWERS)
    outputs = _describe_answers(model, top_k)
    inputs = {
        "question": "Where was it found?",
        "context": "It was lost for years, then found in an attic in Bern.",
    }

    def function(question, context):
        return _find_answers(model, preprocess, top_k, question, context)

    return Signature("answer", inputs, function, outputs, reads_windows=True)


def _describe_answers(model, top_k):
    outputs = {
        "answer": padded(
            "string", ("B", top_k), "slices of the context, best first"
        ),
        "start": padded("int32", ("B", top_k), TOKENS["start"].text),
        "end": padded("int32", ("B", top_k), TOKENS["end"].text),
        "score": padded("float32", ("B", top_k), "start logit plus end logit"),
        "count": Output("int32", ("B",), "number of answers"),
        "null_score": Output(
            "float32", ("B",), "score for no answer; compare with `score`"
        ),
    }
    if model.may_be_none:
        outputs["has_answer"] = Output(
            *("bool", ("B",)),
            "True if there is an answer, and `null_score` minus its score is "
            f"at most {model.null_threshold:g}",
        )
    return outputs


def _find_answers(model, preprocess, top_k, question, context):
    """Return the outputs of `answer` for strings (B,)."""
    length = preprocess.sequence_length
    most = min(QUESTION_LENGTH, (length - 3) // 2)
    question_ids = preprocess.tokenizer(question)[:, :most]
    ids, begins, ends = preprocess.tokenizer.tokenize_with_offsets(
        context, unit="bytes"
    )
    room = length - 3 - question_ids.row_lengths()
    cut = windows(ids, room, STRIDE)
    scores, first, last, null = _find_spans(
        model, preprocess, question_ids, cut, top_k
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


def _find_spans(model, preprocess, question_ids, cut, top_k):
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
        inputs = preprocess.packer((questions, ids))
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
        # Turn positions in the row into token indices in the text.
        shift = tf.cast(cut.start[begin:end], tf.int32) - before
        return [
            scores,
            first + shift[:, tf.newaxis],
            last + shift[:, tf.newaxis],
            logits["start"][:, 0]
            + logits["end"][:, 0],  # [CLS] means no answer
        ]

    span_spec = tf.TensorSpec([None, top_k], tf.int32)
    scores = tf.TensorSpec([None, top_k], tf.float32)
    null = tf.TensorSpec([None], tf.float32)
    return in_chunks(
        score_windows, cut.ids.nrows(), [scores, span_spec, span_spec, null]
    )


def _shift(values, before, length):
    """Shift ragged bools right by `before` (n,); return (n, `length`)."""
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
    """Join the values (W, top_k) of each text's windows to a row: (B, N)."""
    ragged = tf.RaggedTensor.from_value_rowids(
        values, cut.text, nrows=cut.num_texts, validate=False
    )  # (B, windows of each text, top_k)
    return ragged.merge_dims(1, 2).to_tensor(missing)


def _gather_offsets(offsets, indices):
    """Return each row's values of ragged `offsets` at `indices` (B, top_k)."""
    flat = indices + tf.cast(offsets.row_starts(), tf.int32)[:, tf.newaxis]
    values = tf.concat([offsets.values, [0]], axis=0)
    return tf.gather(values, tf.clip_by_value(flat, 0, tf.size(offsets.values)))


# `tag` finds the entities of a text. An entity consists of whole words.


def tag(model, preprocess, long_text="truncate"):
    """Return the signature `tag`: the entities of a text.

    A word gets the label of its first token. Labels are `O`, types such as
    `LOC`, or types with a prefix of IOB, BIOES or BILOU, such as `B-LOC`. An
    entity is a sequence of words with one type. A word with `B-`, `S-` or `U-`
    begins a new entity. A word with `E-`, `L-`, `S-` or `U-` ends its entity.
    The score of an entity is the mean probability of its words' labels.

    Args:
        model: a `BertTagger`.
        preprocess: the model's preprocessor; see `copy_for_serving`.
        long_text: "truncate", or "windows" for windows that overlap by half.
            A token gets its label from the window with the most context.
    """
    types, label_types, begins, ends = _read_scheme(model.labels)
    is_inner = tf.constant(
        [piece.startswith("##") for piece in preprocess.tokenizer.vocabulary]
    )
    truncates = long_text == "truncate"

    def function(text):
        ids, first, after = preprocess.tokenizer.tokenize_with_offsets(
            text, unit="bytes"
        )
        room = preprocess.packer.room(1)
        truncated = {}
        if truncates:
            truncated = {"truncated": preprocess.packer.is_cut(ids)}
            ids, first, after = ids[:, :room], first[:, :room], after[:, :room]
        probabilities = _compute_probabilities(model, preprocess, ids)
        words = _find_words(ids, first, after, probabilities, is_inner)
        entities = _find_entities(words, label_types, begins, ends)
        return _make_outputs(text, entities, types) | truncated

    outputs = {
        "text": padded(
            "string", ("B", "N"), "the entities, slices of the text"
        ),
        "type": padded("string", ("B", "N"), f"one of {types}"),
        "start": padded("int32", ("B", "N"), TOKENS["start"].text),
        "end": padded("int32", ("B", "N"), TOKENS["end"].text),
        "score": padded(
            "float32", ("B", "N"), "mean probability of the words' labels"
        ),
        "count": Output("int32", ("B",), "number of entities of each text"),
    }
    return Signature(
        "tag",
        {"text": "Ada Lovelace was born in London."},
        function,
        outputs | TRUNCATED if truncates else outputs,
        labels=tuple(types),
        reads_windows=not truncates,
    )


def _read_scheme(labels):
    """Return the types, and three tensors with a value for each label.

    The first tensor has the index of the label's type, -1 for O. The second is
    True if the label begins an entity, the third if the label ends an entity.
    """
    split = [split_label(label) for label in labels]
    types = sorted({kind for prefix, kind in split if prefix != OUTSIDE})
    index = {kind: number for number, kind in enumerate(types)}
    label_types = [
        -1 if prefix == OUTSIDE else index[kind] for prefix, kind in split
    ]
    return (
        types,
        tf.constant(label_types),
        tf.constant([prefix in BEGIN for prefix, _ in split]),
        tf.constant([prefix in END for prefix, _ in split]),
    )


def _compute_probabilities(model, preprocess, ids):
    """Return probabilities of labels for ragged ids: float32 (tokens, C)."""
    room = preprocess.packer.room(1)
    cut = windows(ids, room, max(room // 2, 1))
    width = len(model.labels)

    def predict_windows(begin, end):
        inputs = preprocess.packer(cut.ids[begin:end])
        logits = model(inputs, training=False)[:, 1:]  # without [CLS]
        length = cut.ids[begin:end].row_lengths()
        is_token = tf.sequence_mask(length, tf.shape(logits)[1])
        return [tf.nn.softmax(tf.boolean_mask(logits, is_token))]

    spec = tf.TensorSpec([None, width], tf.float32)
    (values,) = in_chunks(predict_windows, cut.ids.nrows(), [spec])
    # For each token, True only in the window with the most context.
    is_best = best_context(cut).values
    indices = tf.boolean_mask(cut.positions.values, is_best)
    return tf.scatter_nd(
        indices[:, tf.newaxis],
        tf.boolean_mask(values, is_best),
        [tf.size(ids.values, tf.int64), width],
    )


def _find_words(ids, first, after, probabilities, is_inner):
    """Return a dict with text index, offsets, label and score of each word."""
    text = ids.value_rowids()
    is_first = ~tf.gather(is_inner, ids.values)
    # The first token of a text begins a word, even if it starts with "##".
    is_first |= _find_changes(text)
    words, _ = _merge(text, first.values, after.values, is_first)
    probabilities = tf.boolean_mask(probabilities, is_first)  # (words, C)
    return words | {
        "label": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
        "score": tf.reduce_max(probabilities, axis=-1),
    }


def _find_entities(words, label_types, begins, ends):
    """Return a dict with text index, offsets, type and score of each entity."""
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
        dict of `text`, `first` and `after` for the merged spans; and a function
        that takes a value for each span and returns the mean for each merged
        span.
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


# `answer` and `tag` return slices of strings.


def cut_out(text, first, after, is_real):
    """Cut slices out of strings at byte indices.

    The time is linear in the text's length. `tf.strings.substr` would copy the
    whole text for each slice.

    Args:
        text: strings (B,).
        first: int32 (B, N), index of a slice's first byte.
        after: int32 (B, N), index after a slice's last byte.
        is_real: bool (B, N); False if there is no slice.

    Returns:
        strings (B, N), the slices, "" if there is no slice; int32 (B, N), the
        index of a slice's first character; and int32 (B, N), the index after
        its last character. Both indices are -1 if there is no slice.
    """
    first, after = (tf.where(is_real, x, 0) for x in (first, after))
    # `reach` is the end of a text's last slice. `head` is the text before that.
    reach = tf.reduce_max(tf.pad(after, [[0, 0], [0, 1]]), axis=1)
    head = tf.strings.substr(text, tf.zeros_like(reach), reach)
    head_bytes = tf.strings.bytes_split(head)  # (B, None)
    # (B, 1): the index of each head's first byte among the bytes of all heads.
    origin = tf.cast(head_bytes.row_starts(), tf.int32)[:, tf.newaxis]
    slices = _join_bytes(head_bytes.values, origin + first, origin + after)
    # `before[i]` is the number of characters that begin before byte i.
    _, begins = tf.strings.unicode_decode_with_offsets(
        head, "UTF-8", errors="ignore"
    )  # like `tokenize`, ignore bytes that are not UTF-8
    begins += tf.cast(origin, tf.int64)
    is_begin = tf.scatter_nd(
        begins.values[:, tf.newaxis],
        tf.ones_like(begins.values, tf.int32),
        [tf.size(head_bytes.values, tf.int64)],
    )
    before = tf.concat([[0], tf.cumsum(is_begin)], axis=0)
    start, end = (
        tf.gather(before, origin + x) - tf.gather(before, origin)  # (B, N)
        for x in (first, after)
    )
    return slices, tf.where(is_real, start, -1), tf.where(is_real, end, -1)


def _join_bytes(values, first, after):
    """Join the one-byte strings of each slice; return strings (B, N)."""
    # (B * N, None): the index in `values` of each byte of a slice.
    indices = tf.ragged.range(tf.reshape(first, [-1]), tf.reshape(after, [-1]))
    slices = tf.strings.unsorted_segment_join(
        tf.gather(values, indices.values),
        indices.value_rowids(),
        indices.nrows(),
    )
    return tf.reshape(slices, tf.shape(first))  # (B * N,) to (B, N)
