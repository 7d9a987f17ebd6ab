"""`tag`: the entities of a text, by whole words."""

import tensorflow as tf

from bert_keras.serving.graph import TRUNCATED, Signature, cut_out
from bert_keras.text.labels import BEGIN, END, OUTSIDE, split_label
from bert_keras.text.windows import best_context, in_chunks, windows


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
    truncates = long_text == "truncate"

    def function(text):
        ids, first, after = rows.byte_offsets(text)
        room = rows.sequence_length - 2
        truncated = {"truncated": rows.are_cut(ids)} if truncates else {}
        if truncates:
            ids, first, after = ids[:, :room], first[:, :room], after[:, :room]
        probabilities = _probabilities(model, rows, ids, room)
        words = _words(ids, first, after, probabilities, is_inner)
        entities = _entities(words, type_of, begins, ends)
        return _outputs(text, entities, types) | truncated

    of_entity = {
        "text": "string (B, N): the entities, cut from the text",
        "type": f"string (B, N): one of {types}",
        "start": "int32 (B, N): the first character, -1 padded",
        "end": "int32 (B, N): one after the last, -1 padded",
        "score": "float32 (B, N): mean probability of the words' labels",
    }
    outputs = of_entity | {"count": "int32 (B,): how many entities a text has"}
    return Signature(
        "tag",
        {"text": "Ada Lovelace was born in London."},
        function,
        outputs | TRUNCATED if truncates else outputs,
        padded=tuple(of_entity),
        labels=tuple(types),
    )


def _scheme(labels):
    """The types, and of each label its type (-1: none), begins, ends."""
    split = [split_label(label) for label in labels]
    types = sorted({kind for prefix, kind in split if prefix != OUTSIDE})
    type_of = [
        -1 if prefix == OUTSIDE else types.index(kind) for prefix, kind in split
    ]
    return (
        types,
        tf.constant(type_of),
        tf.constant([prefix in BEGIN for prefix, _ in split]),
        tf.constant([prefix in END for prefix, _ in split]),
    )


def _probabilities(model, rows, ids, room):
    """Of every label, for each token of ragged ids: float32 (tokens, C)."""
    cut = windows(ids, room, max(room // 2, 1))
    width = len(model.labels)

    def of_windows(begin, end):
        inputs = rows.pack(cut.ids[begin:end])
        logits = model(inputs, training=False)[:, 1:]  # without [CLS]
        length = cut.ids[begin:end].row_lengths()
        is_token = tf.sequence_mask(length, tf.shape(logits)[1])
        return [tf.nn.softmax(tf.boolean_mask(logits, is_token))]

    spec = tf.TensorSpec([None, width], tf.float32)
    (values,) = in_chunks(of_windows, cut.ids.nrows(), [spec])
    is_best = best_context(cut).values  # one window of each token
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
    words, _ = _merge(text, first.values, after.values, is_first)
    of_first = tf.boolean_mask(probabilities, is_first)
    return words | {
        "label": tf.argmax(of_first, axis=-1, output_type=tf.int32),
        "score": tf.reduce_max(of_first, axis=-1),
    }


def _entities(words, type_of, begins, ends):
    """Text, offsets, type and score of each entity: a dict of (entities,)."""
    kind = tf.gather(type_of, words["label"])
    follows_end = tf.concat(
        [[False], tf.gather(ends, words["label"])[:-1]], axis=0
    )[: tf.size(kind)]
    is_first = (
        _changes(words["text"])
        | _changes(kind)
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


def _changes(values):
    """Where a value differs from the one before; the first does."""
    return tf.concat(
        [tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0
    )


def _merge(text, first, after, is_first):
    """Spans that follow each other as one, from each where `is_first`.

    Returns:
        dict of the merged spans' text, first and after; and a function that
        gives the mean of the spans' values in each.
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


def _outputs(text, entities, types):
    """The signature's outputs: one row a text."""

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
