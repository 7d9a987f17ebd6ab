"""Cut long texts into overlapping windows, and merge the windows' results."""

import dataclasses

import tensorflow as tf

# Maximum number of rows in a call of the model. So a text of any length needs
# only the memory of one batch.
ROWS_AT_ONCE = 32


@dataclasses.dataclass
class Windows:
    """The texts of a batch, each as one or more windows of its ids.

    Attributes:
        ids: ragged (W, None), the ids of each window, in the order of texts.
        text: int64 (W,), the index of each window's text in the batch.
        start: int64 (W,), the position of each window's first id in its text.
        positions: ragged int64 (W, None), the index of each id among the
            flat ids of all texts.
        num_texts: int64, the number of texts, B.
    """

    ids: tf.RaggedTensor
    text: tf.Tensor
    start: tf.Tensor
    positions: tf.RaggedTensor
    num_texts: tf.Tensor

    def mean(self, values):
        """Return the mean over each text's windows; see `mean_by_text`."""
        return mean_by_text(
            values, self.text, self.ids.row_lengths(), self.num_texts
        )


def mean_by_text(values, text, lengths, num_texts):
    """Return the weighted mean over the windows of each text, (B, C).

    Args:
        values: float (W, C), the values of each window.
        text: int64 (W,), the index of each window's text.
        lengths: int64 (W,), the number of ids of each window: the weights.
        num_texts: the number of texts, B.
    """

    def sum_by_text(each):
        return tf.math.unsorted_segment_sum(each, text, num_texts)

    lengths = tf.maximum(lengths, 1)  # an empty text would give 0 / 0
    weights = tf.cast(lengths, values.dtype)[:, tf.newaxis]
    return sum_by_text(values * weights) / sum_by_text(weights)


def overlapping_stride(room):
    """Return the stride for a mean over windows of `room` ids."""
    # Windows overlap by a quarter, so that most sentences fit into one window.
    return max(room * 3 // 4, 1)


def windows(ids, room, stride):
    """Cut ragged ids (B, None) into `Windows` of `room` ids, `stride` apart.

    `room` and `stride` are integers, or (B,) with a value for each text. A
    stride above `room` counts as `room`, so that no id is lost. The first
    window that reaches a text's end is the text's last window.
    """
    lengths = ids.row_lengths()
    room = tf.broadcast_to(tf.cast(room, tf.int64), tf.shape(lengths))
    stride = tf.minimum(room, tf.cast(stride, tf.int64))  # (B,)
    beyond = tf.maximum(lengths - room, 0)
    # (B,): one window, and one more for each full or partial stride after it.
    counts = 1 + -(-beyond // stride)
    numbers = tf.ragged.range(counts)  # (B, windows)
    text = numbers.value_rowids()
    start = numbers.values * tf.gather(stride, text)
    end = tf.minimum(start + tf.gather(room, text), tf.gather(lengths, text))
    # (W,): where each window's text begins among the ids of all texts.
    offset = tf.gather(ids.row_starts(), text)
    positions = tf.ragged.range(offset + start, offset + end)  # (W, None)
    cut = tf.gather(ids.values, positions)
    return Windows(cut, text, start, positions, ids.nrows())


def best_context(cut):
    """Mark each token of `cut` in the window that gives it the most context.

    `cut` is a `Windows`. A token's context in a window is min(tokens before it,
    tokens after it) + 0.01 * (length of the window). At a tie, the first window
    is marked. The original's run_squad.py has the same rule, also in float64.

    Returns:
        ragged bool (W, None); True in exactly one window for each token.
    """
    # These vectors have a value for each token of each window.
    lengths = tf.gather(cut.ids.row_lengths(), cut.ids.value_rowids())
    before = tf.ragged.range(cut.ids.row_lengths()).values
    after = lengths - 1 - before
    context = tf.cast(tf.minimum(before, after), tf.float64)
    context += 0.01 * tf.cast(lengths, tf.float64)
    window = cut.ids.value_rowids()
    index = cut.positions.values
    count = tf.reduce_max(tf.concat([index, [-1]], axis=0)) + 1
    # (count,): for each token, its maximum context over the windows that
    # contain it. `index` has each token's position in this vector.
    most = tf.math.unsorted_segment_max(context, index, count)
    is_most = context == tf.gather(most, index)
    first = tf.math.unsorted_segment_min(
        tf.where(is_most, window, window.dtype.max), index, count
    )
    return cut.ids.with_values(window == tf.gather(first, index))


def in_chunks(function, count, specs, at_once=ROWS_AT_ONCE):
    """Apply `function` to `count` rows, at most `at_once` rows in a call.

    Args:
        function: gets two int64, the index of the first row and the index
            after the last row. Returns a list of tensors, whose first axis
            has these rows.
        count: int64, number of rows.
        specs: `tf.TensorSpec` of each tensor, with None as first axis.
        at_once: maximum number of rows in a call.

    Returns:
        list of tensors, each with a first axis of `count`.
    """
    chunks = tf.maximum(-(-count // at_once), 1)
    arrays = [
        tf.TensorArray(
            spec.dtype,
            tf.cast(chunks, tf.int32),
            infer_shape=False,
            element_shape=spec.shape,
        )
        for spec in specs
    ]

    def one_chunk(number, arrays):
        begin = number * at_once
        values = function(begin, tf.minimum(begin + at_once, count))
        index = tf.cast(number, tf.int32)
        arrays = [
            array.write(index, value)
            for array, value in zip(arrays, values, strict=True)
        ]
        return number + 1, arrays

    _, arrays = tf.while_loop(
        lambda number, _: number < chunks,
        one_chunk,
        [tf.constant(0, tf.int64), arrays],
        # Two chunks at a time would need twice the memory.
        parallel_iterations=1,
    )
    return [array.concat() for array in arrays]
