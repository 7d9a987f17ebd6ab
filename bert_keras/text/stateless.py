"""Random numbers as a function of seed, row, position and stream alone.

TensorFlow's stateless draws depend on the shape of the batch; these do not,
so a row's numbers are the same in whatever batch, on whatever worker.
"""

import tensorflow as tf

GOLDEN = 0x9E3779B97F4A7C15  # of SplitMix64 (Steele, Lea, Flood 2014)


def row_keys(seed, rows):
    """One `uint64` key a row, `(B,)`.

    Args:
        seed: two integers for the batch, where rows count from 0, or
            `(B, 2)`, two for each row.
        rows: B.
    """
    seed = tf.cast(tf.convert_to_tensor(seed), tf.uint64)
    if seed.shape.rank == 1:
        numbers = tf.cast(tf.range(rows), tf.uint64)
        return _mixed(_mixed(seed[0]) + _mixed(_times(seed[1] + numbers)))
    return _mixed(_mixed(seed[:, 0]) + _mixed(_times(seed[:, 1])))


def uniform(keys, width, stream):
    """Numbers in [0, 1), `float64 (B, width)`; streams are independent."""
    places = tf.cast(tf.range(width), tf.uint64)
    stream = _mixed(tf.constant(stream + 1, tf.uint64))
    keys = _mixed(keys ^ stream)[:, tf.newaxis]
    bits = _mixed(keys + _times(places + 1))
    return tf.cast(_right(bits, 11), tf.float64) * 2.0**-53


def _mixed(bits):
    """The finalizer of SplitMix64: each bit depends on every bit."""
    bits = (bits ^ _right(bits, 30)) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    bits = (bits ^ _right(bits, 27)) * tf.constant(
        0x94D049BB133111EB, tf.uint64
    )
    return bits ^ _right(bits, 31)


def _times(numbers):
    return numbers * tf.constant(GOLDEN, tf.uint64)


def _right(bits, places):
    return tf.bitwise.right_shift(bits, tf.constant(places, tf.uint64))
