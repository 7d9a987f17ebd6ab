"""Texts longer than a row, in rows that overlap."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.packing import as_segments, segment_lengths
from bert_keras.text.truncation import (
    first_of_rows,
    longest_first,
    stretches,
)


def sliding_windows(packer, segments, stride, fixed_length=None):
    """Rows in which a window slides over the last segment.

    The segments before it, such as a question, stand whole in each row. A
    window begins `stride` tokens after the one before it, the last is the
    first that reaches the end; a stride beyond the window's length skips
    nothing. Equals the windows of the original's SQuAD script.

    Args:
        packer: the `SegmentPacker` whose frame and length rows have.
        segments: ragged `int32 (B, None)`, or a tuple of them.
        stride: tokens from one window's beginning to the next.
        fixed_length: tokens that the segments before the last may have
            together, beyond which they are cut; half the room by default.

    Returns:
        Rows as the packer's, `(R, T)`, and `window_examples` (which text a
        row is of), `window_starts` (the window's first token in the last
        segment), both `int32 (R,)`, and `token_places` (which token of its
        segment each is, -1 for special tokens and padding), `int32 (R, T)`.
    """
    *fixed, sliding = as_segments(segments)
    room = packer.room(len(fixed) + 1)
    fixed_length = room // 2 if fixed_length is None else fixed_length
    if stride < 1 or not 0 <= fixed_length < room:
        raise InputError(
            f"stride is {stride} and fixed_length {fixed_length}; expected a "
            f"stride from 1, and a fixed_length from 0 to {room - 1}, so that "
            f"rows of {packer.sequence_length} have room for the last segment."
        )
    fixed = _cut_together(fixed, fixed_length)
    taken = sum(segment.row_lengths() for segment in fixed)
    width = room - taken + tf.zeros_like(sliding.row_lengths())  # (B,)
    step = tf.minimum(width, stride)
    beyond = tf.maximum(sliding.row_lengths() - width, 0)
    windows = 1 + (beyond + step - 1) // step
    example = tf.repeat(tf.range(sliding.nrows()), windows)  # (R,)
    number = tf.ragged.range(windows).values
    start = number * tf.gather(step, example)
    length = tf.minimum(
        tf.gather(width, example),
        tf.gather(sliding.row_lengths(), example) - start,
    )
    first = tf.gather(sliding.row_starts(), example) + start
    parts = [tf.gather(segment, example) for segment in fixed]
    parts.append(stretches(sliding, first, length))
    starts = [tf.zeros_like(start)] * len(fixed) + [start]
    return {
        **packer.framed(parts),
        "token_places": _places(packer, parts, starts),
        "window_examples": tf.cast(example, tf.int32),
        "window_starts": tf.cast(start, tf.int32),
    }


def _cut_together(segments, length):
    if not segments:
        return []
    kept = longest_first(segment_lengths(segments), length)
    return [first_of_rows(s, kept[:, i]) for i, s in enumerate(segments)]


def _places(packer, parts, starts):
    """Each token's place in its segment, framed with -1."""
    column = tf.fill([parts[0].nrows(), 1], tf.constant(-1, tf.int64))
    framed = [column]
    for part, start in zip(parts, starts, strict=True):
        inside = tf.ragged.range(part.row_lengths())
        framed += [inside + start[:, None], column]
    places = tf.cast(tf.concat(framed, axis=1), tf.int32)
    return packer.padded(places, -1)
