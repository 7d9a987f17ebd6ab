"""Parts of texts cut out by their bytes, and where they are in characters."""

import tensorflow as tf


def cut_out(text, first, after, is_real):
    """Parts of strings, in time and memory linear in the text.

    A string operation on every part would copy the whole text for each.

    Args:
        text: strings (B,).
        first: int32 (B, N), the byte where a part begins.
        after: int32 (B, N), the byte after it.
        is_real: bool (B, N); where it is false there is no part.

    Returns:
        the parts, strings (B, N); their first character and the one after
        their last, int32 (B, N); "" and -1 where there is no part.
    """
    first, after = (tf.where(is_real, x, 0) for x in (first, after))
    # Of the text only as much as the parts reach into.
    reach = tf.reduce_max(tf.pad(after, [[0, 0], [0, 1]]), axis=1)
    head = tf.strings.substr(text, tf.zeros_like(reach), reach)
    bytes_of = tf.strings.bytes_split(head)  # (B, None)
    origin = tf.cast(bytes_of.row_starts(), tf.int32)[:, tf.newaxis]
    parts = _joined(bytes_of.values, origin + first, origin + after)
    # The characters that begin before each byte of all heads, and at the end.
    begins = tf.cast(~_goes_on(bytes_of.values), tf.int32)
    before = tf.concat([[0], tf.cumsum(begins)], axis=0)
    start, end = (
        tf.gather(before, origin + x) - tf.gather(before, origin)
        for x in (first, after)
    )
    return parts, tf.where(is_real, start, -1), tf.where(is_real, end, -1)


def _joined(values, first, after):
    """Strings of one byte joined from each `first` to its `after`."""
    places = tf.ragged.range(tf.reshape(first, [-1]), tf.reshape(after, [-1]))
    joined = tf.strings.unsorted_segment_join(
        tf.gather(values, places.values),
        places.value_rowids(),
        places.nrows(),
    )
    return tf.reshape(joined, tf.shape(first))


def _goes_on(values):
    """Whether strings of one byte go on with a character, as UTF-8 has it."""
    codes = tf.reshape(tf.io.decode_raw(values, tf.uint8), [-1])
    return tf.bitwise.bitwise_and(codes, tf.constant(0xC0, tf.uint8)) == 0x80
