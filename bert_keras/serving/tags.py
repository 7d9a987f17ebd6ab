"""`tag`: the entities of a text, by whole words."""

import tensorflow as tf

from bert_keras.serving.graph import TRUNCATED, Signature, cut_out
from bert_keras.text.windows import best_context, in_chunks, windows

OUTSIDE = "O"


def tag(model, rows, long_text="truncate"):
    """Entities, from the label of each word's first piece.

    Labels are `O`, `B-TYPE`, `I-TYPE`, also `E-`, `L-`, `S-` and `U-`, or
    bare types. An entity goes on over words of one type until a label that
    begins another, or the word after one that ends it. Its score is the mean
    probability of its words' labels.

    Args:
        model: a `BertTagger` in float32.
        rows: `Rows` of its preprocessor.
        long_text: "truncate", or "windows": windows that overlap by half;
            each token counts where it has most context around it.
    """
    types, type_of, begins, ends = _scheme(model.labels)
    is_inner = tf.constant(
        [piece.startswith("##") for piece in rows.tokenizer.vocabulary]
    )

    def function(text):
        ids, first, after = rows.offsets(text)
        room = rows.sequence_length - 2
        truncated = rows.cut(ids)
        if long_text == "truncate":
            ids, first, after = ids[:, :room], first[:, :room], after[:, :room]
        probabilities = _probabilities(model, rows, ids, room)
        words = _words(ids, first, after, probabilities, is_inner)
        entities = _entities(words, type_of, begins, ends)
        answer = _answer(text, entities, types)
        if long_text == "truncate":
            answer["truncated"] = truncated
        return answer

    outputs = {
        "text": "string (B, N): the entities, cut from the text",
        "type": f"string (B, N): one of {types}",
        "start": "int32 (B, N): the first character, -1 padded",
        "end": "int32 (B, N): one after the last, -1 padded",
        "score": "float32 (B, N): mean probability of the words' labels",
        "count": "int32 (B,): how many entities a text has",
    }
    if long_text == "truncate":
        outputs["truncated"] = TRUNCATED
    inputs = {"text": "Ada Lovelace was born in London."}
    padded = ("text", "type", "start", "end", "score")
    return Signature("tag", inputs, function, outputs, padded, tuple(types))


def _scheme(labels):
    """The types, and of each label its type (-1: none), begins, ends."""
    prefixes = [
        label.partition("-") if label[1:2] == "-" else ("I", "-", label)
        for label in labels
    ]
    types = sorted({kind for _, _, kind in prefixes} - {OUTSIDE})
    return (
        types,
        tf.constant(
            [-1 if p[2] == OUTSIDE else types.index(p[2]) for p in prefixes]
        ),
        tf.constant([p[0] in "BSU" for p in prefixes]),
        tf.constant([p[0] in "ELSU" for p in prefixes]),
    )


def _probabilities(model, rows, ids, room):
    """Of every label, for each token of ragged ids: float32 (tokens, C)."""
    cut = windows(ids, room, max(room // 2, 1))
    width = len(model.labels)

    def some(begin, end):
        inputs = rows.framed(cut.ids[begin:end])
        logits = model(inputs, training=False)[:, 1:]  # without [CLS]
        length = cut.ids[begin:end].row_lengths()
        is_token = tf.sequence_mask(length, tf.shape(logits)[1])
        return [tf.nn.softmax(tf.boolean_mask(logits, is_token))]

    spec = tf.TensorSpec([None, width], tf.float32)
    (values,) = in_chunks(some, cut.ids.nrows(), [spec])
    is_best = best_context(cut).values
    places = tf.boolean_mask(cut.places.values, is_best)
    return tf.scatter_nd(
        places[:, tf.newaxis],
        tf.boolean_mask(values, is_best),
        [tf.size(ids.values, tf.int64), width],
    )


def _words(ids, first, after, probabilities, is_inner):
    """Text, offsets, label and score of each word: a dict of (words,)."""
    text = ids.value_rowids()
    is_first = ~tf.gather(is_inner, ids.values)
    # A text may begin within a word's pieces only by a strange vocabulary.
    is_first |= _changes(text)
    word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    count = tf.reduce_sum(tf.cast(is_first, tf.int32))
    of_first = tf.boolean_mask(probabilities, is_first)
    return {
        "text": tf.boolean_mask(text, is_first),
        "first": tf.boolean_mask(first.values, is_first),
        "after": tf.math.unsorted_segment_max(after.values, word, count),
        "label": tf.argmax(of_first, axis=-1, output_type=tf.int32),
        "score": tf.reduce_max(of_first, axis=-1),
    }


def _changes(values):
    """Where a value differs from the one before; the first does."""
    return tf.concat(
        [tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0
    )


def _entities(words, type_of, begins, ends):
    """Text, offsets, type and score of each entity: a dict of (entities,)."""
    kind = tf.gather(type_of, words["label"])
    after_end = tf.concat(
        [[False], tf.gather(ends, words["label"])[:-1]], axis=0
    )[: tf.size(kind)]
    is_new = (
        _changes(words["text"])
        | _changes(kind)
        | tf.gather(begins, words["label"])
        | after_end
    )
    group = tf.cumsum(tf.cast(is_new, tf.int32)) - 1
    count = tf.reduce_sum(tf.cast(is_new, tf.int32))
    found = {
        "text": tf.boolean_mask(words["text"], is_new),
        "first": tf.boolean_mask(words["first"], is_new),
        "after": tf.math.unsorted_segment_max(words["after"], group, count),
        "type": tf.boolean_mask(kind, is_new),
        "score": tf.math.unsorted_segment_mean(words["score"], group, count),
    }
    is_entity = found["type"] >= 0
    return {k: tf.boolean_mask(v, is_entity) for k, v in found.items()}


def _answer(text, entities, types):
    """The signature's outputs: one row a text."""

    def by_text(values):
        return tf.RaggedTensor.from_value_rowids(
            values, entities["text"], nrows=tf.size(text, tf.int64)
        )

    names = by_text(tf.gather([*types, ""], entities["type"]))
    count = tf.cast(names.row_lengths(), tf.int32)
    padded = names.to_tensor("")
    first, after, score = (
        by_text(entities[key]).to_tensor(-1)
        for key in ("first", "after", "score")
    )
    is_real = tf.sequence_mask(count, tf.shape(padded)[1])
    parts, start, end = cut_out(text, first, after, is_real)
    return {
        "text": parts,
        "type": padded,
        "start": start,
        "end": end,
        "score": score,
        "count": count,
    }
