"""How many tokens of each segment stay when a row has no room for all."""

import tensorflow as tf


def longest_first(lengths, room):
    """Lengths after cutting rows to `room`, the longest segment first.

    Equals taking one token at a time from the longest segment, the later of
    equals, until the row fits: all that are cut end at one level, and the
    earlier ones of them at one more, as far as the room goes.

    Args:
        lengths: integers `(B, segments)`.
        room: tokens that a row may hold, or `(B, 1)`.

    Returns:
        Integers of the same shape and type.
    """
    ascending = tf.sort(lengths, axis=1)
    shorter = tf.cumsum(ascending, axis=1, exclusive=True)
    sharing = tf.range(lengths.shape[1], 0, -1, dtype=lengths.dtype)
    levels = (room - shorter) // sharing
    # The first segment, from the shortest, that has more than its share
    # tells the level; where none has, the row fits as it is.
    is_over = ascending > levels
    first_over = tf.argmax(is_over, axis=1)
    level = tf.gather(levels, first_over, batch_dims=1)[:, None]
    fits = ~tf.reduce_any(is_over, axis=1, keepdims=True)
    level = tf.where(fits, ascending[:, -1:], level)
    left = room - tf.reduce_sum(tf.minimum(lengths, level), 1, keepdims=True)
    is_cut = lengths > level
    rank = tf.cumsum(tf.cast(is_cut, lengths.dtype), axis=1)
    gets_one_more = is_cut & (rank <= left)
    return tf.minimum(lengths, level) + tf.cast(gets_one_more, lengths.dtype)


def cut_one(lengths, room, segment):
    """Lengths after cutting the one segment, and others if they must be.

    Args:
        lengths: integers `(B, segments)`.
        room: tokens that a row may hold.
        segment: the number of the segment to cut.
    """
    is_cut = tf.range(lengths.shape[1]) == segment
    others = longest_first(tf.where(is_cut, 0, lengths), room)
    left = room - tf.reduce_sum(others, axis=1, keepdims=True)
    return tf.where(is_cut, tf.minimum(lengths, left), others)


def first_of_rows(rows, lengths):
    """The first `lengths[i]` values of each row `i` of a ragged tensor."""
    starts = rows.row_starts()
    return stretches(rows, starts, tf.cast(lengths, starts.dtype))


def stretches(rows, starts, lengths):
    """A ragged tensor of stretches of the flat values of another."""
    return tf.gather(rows.values, tf.ragged.range(starts, starts + lengths))
