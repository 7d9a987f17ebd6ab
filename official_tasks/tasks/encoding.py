"""Texts to ragged rows of ids: tokenised once, never padded, in windows."""

from typing import Any, NamedTuple

import numpy as np

# Texts to ragged rows of ids: each is tokenised once, and never padded.

CHUNK = 2048  # texts at a time: bounds what the padded rows take


def encode_texts(preprocess, *segments):
    """Texts, or pairs of them, as rows that a BERT model reads.

    Args:
        preprocess: a `BertPreprocessor`; its tokenizer and its packer frame
            and cut the rows.
        segments: list of str, one for each segment of the rows.

    Returns:
        `(inputs, cut)`: dict of ragged `int32 (R, None)` token_ids,
        segment_ids and padding_mask, and int `(R,)`, the tokens of each text
        that had no room.
    """
    import tensorflow as tf

    parts, cuts = [], []
    for begin in range(0, max(1, len(segments[0])), CHUNK):
        texts = [
            tf.constant(segment[begin : begin + CHUNK], tf.string)
            for segment in segments
        ]
        pieces = tuple(preprocess.tokenizer(text) for text in texts)
        rows = preprocess.packer(pieces)
        cuts.append(preprocess.packer.count_cut(pieces).numpy())
        parts.append(without_padding(rows, rows["padding_mask"]))
    inputs = {
        name: tf.concat([part[name] for part in parts], axis=0)
        for name in parts[0]
    }
    return inputs, np.concatenate(cuts)


def without_padding(rows, padding_mask):
    """Dict of `(R, T, ...)` as ragged tensors of each row's own length."""
    import tensorflow as tf

    lengths = tf.reduce_sum(tf.cast(padding_mask, tf.int64), axis=1)
    return {
        name: tf.RaggedTensor.from_tensor(values, lengths)
        for name, values in rows.items()
    }


def fold_choices(inputs, choices: int):
    """Rows `(R K, None)` as `(R, K, None)`: K choices of each example."""
    import tensorflow as tf

    return {
        name: tf.RaggedTensor.from_uniform_row_length(rows, choices)
        for name, rows in inputs.items()
    }


# Texts of any length as rows that overlap; each token counts in one.


class WindowedRows(NamedTuple):
    """Rows of texts, R of them, each a window of its text.

    Attributes:
        inputs: dict of ragged `int32 (R, None)`, what a BERT model reads.
        text: int64 `(R,)`, the number of the text that a row is of.
        start: int64 `(R,)`, the place of a row's first token in its text.
        before: int64 `(R,)`, the tokens of a row that precede the window.
        places: ragged int64 `(R, None)`, of each token of a window its place
            among the tokens of all texts.
        counts: ragged bool `(R, None)`, whether a token has in this window
            as much context as in any other, and in none before it.
    """

    inputs: dict
    text: Any
    start: Any
    before: Any
    places: Any
    counts: Any


def windowed_rows(preprocess, texts, stride: int, lead=None) -> WindowedRows:
    """Every text in windows that begin `stride` tokens after one another.

    Windows and the rule for which of them a token counts in are those of the
    exported model: see `bert_keras.text.windows`.

    Args:
        preprocess: the `BertPreprocessor` whose frame and length rows have.
        texts: ragged int32 ids `(B, None)`.
        stride: see above; no more than a window holds is skipped.
        lead: ragged ids `(B, None)` that stand whole in front of each window
            as the first segment, such as a question.
    """
    import tensorflow as tf

    from bert_keras.text.windows import best_context, windows

    packer = preprocess.packer
    room = packer.room(1 if lead is None else 2)
    taken = 0 if lead is None else lead.row_lengths()
    room = tf.fill([texts.nrows()], tf.constant(room, tf.int64)) - taken
    cut = windows(texts, room, tf.minimum(room, stride))
    segments = [cut.ids]
    before = tf.ones_like(cut.text)
    if lead is not None:
        segments.insert(0, tf.gather(lead, cut.text))
        before = segments[0].row_lengths() + 2
    rows = packer.framed(segments)
    return WindowedRows(
        without_padding(rows, rows["padding_mask"]),
        cut.text,
        cut.start,
        before,
        cut.places,
        best_context(cut),
    )


def rows_by_example(example, count: int) -> list[list[int]]:
    """For each of `count` examples, the numbers of its rows."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for number, owner in enumerate(example):
        rows[owner].append(number)
    return rows
