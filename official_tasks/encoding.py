"""Texts to ragged rows of ids: each is tokenised once, and never padded."""

import numpy as np

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
