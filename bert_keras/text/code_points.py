"""Tables by code point in a graph: small, and one look-up each."""

import numpy as np
import tensorflow as tf

from bert_keras.text.unicode_tables import CODE_POINTS

BLOCK = 256


class CodePointTable:
    """An integer for each code point, kept once for each distinct block.

    Most of the 4,352 blocks of 256 code points are alike, so that a table of
    a million entries takes some tens of kilobytes of a graph.

    Args:
        values: integers `(1114112,)`.

    Call arguments:
        code_points: `int32` of any shape.

    Returns:
        `int32` of the same shape.
    """

    def __init__(self, values):
        blocks = np.asarray(values, np.int32).reshape(-1, BLOCK)
        numbers = {}  # bytes of a block -> its number among the distinct
        index = [
            numbers.setdefault(block.tobytes(), len(numbers))
            for block in blocks
        ]
        self._starts = np.array(index, np.int32) * BLOCK
        self._values = np.frombuffer(b"".join(numbers), np.int32)

    def __call__(self, code_points):
        block = tf.bitwise.right_shift(code_points, 8)
        inside = tf.bitwise.bitwise_and(code_points, BLOCK - 1)
        return tf.gather(
            tf.constant(self._values),
            tf.gather(tf.constant(self._starts), block) + inside,
        )


def table_of(entries, default):
    """A `CodePointTable` of a dict, with one value for all that it lacks."""
    values = np.full(CODE_POINTS, default, np.int32)
    values[list(entries)] = list(entries.values())
    return CodePointTable(values)
