"""Long texts as overlapping windows, and their results merged."""

import dataclasses

import tensorflow as tf

# Rows that go through the model at once, so that a text of any length needs the
# memory of one batch.
ROWS_AT_ONCE = 32


@dataclasses.dataclass
class Windows:
    """Every text of a batch as one or more windows of its ids.

    Attributes:
        ids: ragged (W, None), the texts' windows one after the other.
        text: int64 (W,), the row of the batch that a window is of.
        start: int64 (W,), the position of its first id in that row.
        positions: ragged int64 (W, None), the index of each id among the
            flat ids of all texts.
        num_texts: int64, B.
    """

    ids: tf.RaggedTensor
    text: tf.Tensor
    start: tf.Tensor
    positions: tf.RaggedTensor
    num_texts: tf.Tensor

    def mean(self, values):
        """Return the mean by text (B, C) of windows (W, C), by length."""
        return mean_by_text(
            values, self.text, self.ids.row_lengths(), self.num_texts
        )


def mean_by_text(values, text, lengths, num_texts):
    """Return the mean over the windows of each text, (B, C).

    Args:
        values: float (W, C), of each window.
        text: int64 (W,), the number of its text.
        lengths: int64 (W,), its weight: the number of its ids.
        num_texts: B.
    """

    def sum_by_text(each):
        return tf.math.unsorted_segment_sum(each, text, num_texts)

    lengths = tf.maximum(lengths, 1)  # an empty text's is 0
    weights = tf.cast(lengths, values.dtype)[:, tf.newaxis]
    return sum_by_text(values * weights) / sum_by_text(weights)


def overlapping_stride(room):
    """Return the stride of windows of `room` ids, for their mean."""
    # Windows overlap by a quarter, so that few sentences are cut in both.
    return max(room * 3 // 4, 1)


def windows(ids, room, stride):
    """Cut ragged ids (B, None) into windows of `room`, `stride` apart.

    `room` and `stride` are integers, one for all or one a row (B,). The last
    window of a text is the first that reaches its end.
    """
    lengths = ids.row_lengths()
    room = tf.broadcast_to(tf.cast(room, tf.int64), tf.shape(lengths))
    stride = tf.broadcast_to(tf.cast(stride, tf.int64), tf.shape(lengths))
    beyond = tf.maximum(lengths - room, 0)
    # (B,), number of windows: one, and one for each further stride begun.
    counts = 1 + -(-beyond // stride)
    numbers = tf.ragged.range(counts)  # (B, windows of each)
    text = numbers.value_rowids()
    start = numbers.values * tf.gather(stride, text)
    end = tf.minimum(start + tf.gather(room, text), tf.gather(lengths, text))
    # (W,): where each window's text begins among the ids of all.
    offset = tf.gather(ids.row_starts(), text)
    positions = tf.ragged.range(offset + start, offset + end)  # (W, None)
    cut = tf.gather(ids.values, positions)
    return Windows(cut, text, start, positions, ids.nrows())


def best_context(cut):
    """Return True for each token of a window that has the most context.

    Context is min(tokens before, tokens after) + 0.01 * (length of the window);
    of equal windows the first counts. Equals the maximum-context rule of
    run_squad.py, in its float64. Each token counts in exactly one window.

    Returns:
        ragged bool (W, None).
    """
    # From here on a value for each token of each window, (tokens of all,).
    lengths = tf.gather(cut.ids.row_lengths(), cut.ids.value_rowids())
    before = tf.ragged.range(cut.ids.row_lengths()).values
    after = lengths - 1 - before
    context = tf.cast(tf.minimum(before, after), tf.float64)
    context += 0.01 * tf.cast(lengths, tf.float64)
    window = cut.ids.value_rowids()
    index = cut.positions.values
    count = tf.reduce_max(tf.concat([index, [-1]], axis=0)) + 1
    # The most context that each token has in one of its windows. `index`
    # numbers the tokens of all texts.
    most = tf.math.unsorted_segment_max(context, index, count)
    is_most = context == tf.gather(most, index)
    first = tf.math.unsorted_segment_min(
        tf.where(is_most, window, window.dtype.max), index, count
    )
    return cut.ids.with_values(window == tf.gather(first, index))


def in_chunks(function, count, specs, at_once=ROWS_AT_ONCE):
    """Apply `function` to the rows 0 to `count`, `at_once` at a time.

    Args:
        function: takes the first row and the one after the last, int64;
            returns a list of tensors with these rows as the first axis.
        count: int64, number of rows.
        specs: `tf.TensorSpec` of each tensor, the first axis None.
        at_once: number of rows of a call.

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
        # Two at a time would need twice the memory.
        parallel_iterations=1,
    )
    return [array.concat() for array in arrays]
