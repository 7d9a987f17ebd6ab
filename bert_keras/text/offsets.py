"""Where pieces come from in the strings that they were made of."""

import tensorflow as tf

from bert_keras.text.normalization import closed


def piece_spans(words, pieces, strings, unit):
    """Start and end of each piece in its own string, `int32 (P,)` both.

    Args:
        words: `Words` of the strings.
        pieces: `Pieces` of the words.
        strings: `(B,)`.
        unit: "characters" or "bytes".
    """
    first, last = _decoded_spans(words, pieces)
    if unit == "characters":
        row = tf.gather(words.rows, pieces.words)
        origin = tf.gather(words.row_splits, row)
        return tf.cast(first - origin, tf.int32), tf.cast(
            last - origin, tf.int32
        )
    characters, begins = tf.strings.unicode_decode_with_offsets(
        closed(strings), "UTF-8", errors="ignore"
    )
    start = tf.gather(begins.values, first)
    end = tf.gather(begins.values, last - 1) + _width(
        tf.gather(characters.values, last - 1)
    )
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)


def _decoded_spans(words, pieces):
    """First decoded character of each piece and the one behind it, `(P,)`.

    The least and the greatest of its characters, because sorting marks may
    have moved them.
    """
    start = tf.gather(words.starts, pieces.words) + pieces.starts
    piece = tf.repeat(tf.range(tf.size(start)), pieces.lengths)
    before = tf.cumsum(pieces.lengths, exclusive=True) - start
    place = tf.range(tf.size(piece, tf.int64)) - tf.gather(before, piece)
    return (
        tf.math.segment_min(tf.gather(words.sources, place), piece),
        tf.math.segment_max(tf.gather(words.ends, place), piece),
    )


def _width(code_points):
    """Bytes of each character in UTF-8."""
    return 1 + sum(
        tf.cast(code_points >= bound, tf.int64)
        for bound in (0x80, 0x800, 0x10000)
    )
