"""Many short examples in one row, so that little of it is padding."""

import collections

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.packing import (
    as_segments,
    first_of_rows,
    longest_first,
    segment_lengths,
    stretches,
)

# Texts longer than a row, in rows that overlap.


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


# Many short examples in one row, so that little of it is padding.

TOKENS = ("token_ids", "segment_ids", "padding_mask")
MASKS = ("mask_positions", "mask_ids", "mask_weights")

# Of each example: its row, its number in it (from 0), and how many tokens and
# masks stand before it there; all int32 (N,).
Places = collections.namedtuple("Places", "rows numbers tokens masks")


def pack_examples(
    examples, sequence_length, examples_per_row, masks_per_row=None
):
    """Examples, several to a row, as the encoder takes them with example ids.

    The longest example comes first, into the first row that still has room
    for its tokens, its masks and one more example. The more examples at a
    time, the less padding: under 2 % for some hundreds of mixed lengths.

    Args:
        examples: a dict of `token_ids`, `segment_ids`, `padding_mask`
            `(N, T)`, padded at the end; if there, `mask_positions`,
            `mask_ids`, `mask_weights` `(N, M)`; and what else there is of
            each example, such as `next_sentence_labels` `(N,)`.
        sequence_length: tokens in a packed row, at least those of the longest
            example.
        examples_per_row: most examples in a row, E.
        masks_per_row: most masks in a row; needed where examples have masks.

    Returns:
        The same names for R rows, with `example_ids` (1, 2, ... and 0 at
        padding) and `position_ids` (0 at each example's start)
        `(R, sequence_length)`; mask positions count from the row's start;
        what is of each example, and `example_weights` (float32, 1 where
        there is an example), is `(R, E)`.

    Raises:
        InputError: for masks without `masks_per_row`.
    """
    has_masks = MASKS[0] in examples
    if has_masks and masks_per_row is None:
        raise InputError(
            "The examples have masks, and masks_per_row is None. Say how many "
            "masks a row may have, about 0.16 of its tokens."
        )
    lengths = _count(examples["padding_mask"])
    masks = _count(examples["mask_weights"]) if has_masks else 0 * lengths
    room = (sequence_length, masks_per_row or 0, examples_per_row)
    places = _first_fit(lengths, masks, room)
    count = tf.reduce_max(places.rows) + 1
    packed = _packed_tokens(examples, places, count, sequence_length)
    if has_masks:
        packed |= _packed_masks(examples, places, count, masks_per_row)
    others = {
        name: values
        for name, values in examples.items()
        if name not in TOKENS + MASKS
    }
    others["example_weights"] = tf.ones_like(lengths, tf.float32)
    where = tf.stack([places.rows, places.numbers], axis=1)
    for name, values in others.items():
        shape = tf.concat(
            [[count, examples_per_row], tf.shape(values)[1:]], axis=0
        )
        packed[name] = tf.scatter_nd(where, values, shape)
    return packed


def _count(mask):
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)


def _first_fit(lengths, masks, room):
    """`Places` of examples with these many tokens and masks.

    Args:
        lengths, masks: `int32 (N,)`.
        room: tokens, masks and examples that a row may hold.
    """
    number = tf.size(lengths)
    needs = tf.stack([lengths, masks, tf.ones_like(lengths)], axis=1)  # (N, 3)
    message = "An example has more tokens or masks than a row may have:"
    too_big = tf.boolean_mask(needs, tf.reduce_any(needs > room, axis=1))
    fits = tf.debugging.Assert(tf.size(too_big) == 0, [message, too_big])
    with tf.control_dependencies([fits] if fits is not None else []):
        order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def place(step, left, rows, before):
        example = order[step]
        need = needs[example]
        row = tf.argmax(
            tf.reduce_all(left >= need, axis=1), output_type=tf.int32
        )
        used = tf.constant(room) - left[row]
        rows = tf.tensor_scatter_nd_update(rows, [[example]], [row])
        before = tf.tensor_scatter_nd_update(before, [[example]], [used])
        left = tf.tensor_scatter_nd_sub(left, [[row]], [need])
        return step + 1, left, rows, before

    _, _, rows, before = tf.while_loop(
        lambda step, *_: step < number,
        place,
        (
            tf.constant(0),
            tf.tile([room], [number, 1]),
            tf.zeros_like(lengths),
            tf.zeros_like(needs),
        ),
    )
    return Places(rows, before[:, 2], before[:, 0], before[:, 1])


def _packed_tokens(examples, places, count, width):
    example, inside = _real(examples["padding_mask"])
    values = {name: _taken(examples[name], example, inside) for name in TOKENS}
    values["example_ids"] = tf.gather(places.numbers, example) + 1
    values["position_ids"] = inside
    before = tf.gather(places.tokens, example)
    where = [tf.gather(places.rows, example), before + inside]
    return _scattered(values, where, [count, width])


def _packed_masks(examples, places, count, width):
    example, inside = _real(examples["mask_weights"])
    values = {name: _taken(examples[name], example, inside) for name in MASKS}
    values["mask_positions"] += tf.gather(places.tokens, example)
    before = tf.gather(places.masks, example)
    where = [tf.gather(places.rows, example), before + inside]
    return _scattered(values, where, [count, width])


def _scattered(values, where, shape):
    """Each of a dict of flat values, put in place in rows of zeros."""
    where = tf.stack(where, axis=1)
    return {
        name: tf.ensure_shape(
            tf.scatter_nd(where, flat, shape), [None, shape[1]]
        )
        for name, flat in values.items()
    }


def _real(mask):
    """Example and place of each entry that counts, `int32` both."""
    found = tf.cast(tf.where(tf.cast(mask, tf.bool)), tf.int32)
    return found[:, 0], found[:, 1]


def _taken(values, example, inside):
    return tf.gather_nd(values, tf.stack([example, inside], axis=1))
