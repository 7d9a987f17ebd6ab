"""Padded batches of encoded rows, which a resumed run reproduces.

A batch depends only on the rows, the batch size, the seed, the number of steps
and the step. So a resumed run gets the same batches as an uninterrupted run.
"""

import numpy as np
import tensorflow as tf

from bert_keras.data.tf_data import disable_tuning

# Rows of 32 batches are sorted by length together. With fewer batches, lengths
# in a batch differ more. With more batches, the order is less random.
WINDOW = 32
AHEAD = 2  # batches to prepare in advance; each takes only 1 to 2 ms
# Skip autograph, which takes a second: no function here branches on tensors.
_plain = tf.autograph.experimental.do_not_convert


def training_steps(count, epochs, batch_size) -> tuple[int, int]:
    """Return (steps of a run on `count` rows, steps of an epoch)."""
    steps = max(1, round(epochs * count / batch_size))
    return steps, min(steps, -(-count // batch_size))


def training_batches(
    encoded, batch_size, seed, steps, first_step=0, *, pad_id=0, length=None
):
    """Return the batches of the steps from `first_step` to `steps`.

    Each pass over the rows has each row once; a batch may span two passes. If
    `length` is None, the rows of 32 batches of a pass are sorted by length and
    split into batches. These batches are then shuffled.

    Args:
        encoded: `Encoded` with targets.
        batch_size: rows of a batch, over all replicas.
        seed: int.
        steps: steps of the whole run, including steps before `first_step`.
        first_step: the step to start at.
        pad_id: padding value of `token_ids`.
        length: pad every row to this length, so that all shapes are static.
            None pads a batch to its longest row.

    Returns:
        `tf.data.Dataset` of `(inputs, targets, weights)`.
    """
    lengths = tf.constant(row_lengths(encoded.inputs))
    count, longest = len(lengths), tf.reduce_max(lengths) + 1

    @_plain
    def in_shuffled_order(step):
        positions = step * batch_size + tf.range(batch_size, dtype=tf.int64)
        return shuffled_rows(positions, count, seed)

    @_plain
    def bucketed_by_length(step):
        # The steps whose first rows are of one pass, in windows.
        number = step * batch_size // count
        first = -(-number * count // batch_size)
        end = tf.minimum(-(-(number + 1) * count // batch_size), steps)
        first += (step - first) // WINDOW * WINDOW
        batches = tf.minimum(tf.constant(WINDOW, tf.int64), end - first)
        positions = tf.range(first * batch_size, (first + batches) * batch_size)
        rows = shuffled_rows(positions, count, seed)
        # The last batch of a pass may have rows of the next pass: sort by pass,
        # then by length.
        order = positions // count * longest + tf.gather(lengths, rows)
        rows = tf.gather(rows, tf.argsort(order))
        keys = tf.random.stateless_uniform([batches], tf.stack([seed, first]))
        batch = tf.cast(tf.argsort(keys)[step - first], tf.int64)
        return rows[batch * batch_size : (batch + 1) * batch_size]

    weights = encoded.weights
    if weights is None:
        weights = _map(_ones_like, encoded.targets)
    width = _Width(encoded.inputs, length)

    @_plain
    def pad(rows):
        rows = tf.ensure_shape(rows, [batch_size])
        return (
            _gather(encoded.inputs, rows, width, pad_id),
            _gather(encoded.targets, rows, width),
            _map(_to_mean_one, _gather(weights, rows, width)),
        )

    choose = bucketed_by_length if length is None else in_shuffled_order
    batches = tf.data.Dataset.range(first_step, steps)
    batches = batches.map(choose, AHEAD, deterministic=True)
    batches = batches.map(pad, AHEAD, deterministic=True)
    return disable_tuning(batches.prefetch(AHEAD))


def shuffled_rows(position, count, seed):
    """Return the row index at each position of endless shuffled passes.

    Args:
        position: int64 `(P,)`; a pass over the rows has `count` positions.
        count: number of rows, int.
        seed: int.

    Returns:
        int64 `(P,)`.
    """
    epoch = position // count
    # Hash the seeds, because the operation reads only their last bits, and
    # hardly moves any row if these are zeros.
    hashes = tf.fingerprint(tf.stack([seed + 0 * epoch, epoch], 1))  # (P, 8)
    hashes = tf.bitcast(tf.reshape(hashes, [-1, 2, 4]), tf.uint32)  # (P, 2)
    seeds = tf.concat([hashes, tf.cast(epoch, tf.uint32)[:, None]], 1)

    # The raw operation is needed: tf.random.experimental.index_shuffle pads
    # (P, 3) seeds on the wrong axis, and its 4 rounds are too few. It never
    # returns `largest` if this is 4**8, 4**9, and so on.
    def shuffle(index, largest):
        largest = tf.constant(largest, tf.int64)
        return tf.raw_ops.RandomIndexShuffle(
            index=index, seed=seeds, max_index=largest, rounds=12
        )

    if count - 1 not in {4**power for power in range(8, 32)}:
        return shuffle(position % count, count - 1)
    # Shuffle one row more, and put that row's successor in its place.
    rows = shuffle(position % count, count)
    return tf.where(rows == count, shuffle(count + 0 * position, count), rows)


def prediction_batches(inputs, rows, batch_size, pad_id=0):
    """Return padded batches of the inputs of `rows`, in the order of `rows`."""
    width = _Width(inputs)
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)
    pad = _plain(lambda rows: _gather(inputs, rows, width, pad_id))
    batches = batches.map(pad, AHEAD)
    return disable_tuning(batches.prefetch(AHEAD))


def row_lengths(inputs) -> np.ndarray:
    """Return int64 `(R,)`: the length of each row, or of its longest choice."""
    lengths = inputs["token_ids"].row_lengths(axis=-1)
    if isinstance(lengths, tf.RaggedTensor):
        lengths = lengths.to_tensor()
    if lengths.shape.rank == 2:
        lengths = tf.reduce_max(lengths, axis=1)
    return lengths.numpy().astype(np.int64)


class _Width:
    """Pads a batch to its longest row, or to a fixed length.

    The length of the longest row is rounded up to a multiple of 8, except on a
    CPU. Other devices compile for each shape, or are fast only at multiples of
    8. On a CPU, a step of SST-2 takes 11 % less time without rounding.
    """

    def __init__(self, inputs, fixed=None):
        self.fixed = fixed
        self.longest = int(row_lengths(inputs).max())
        devices = tf.config.list_logical_devices()
        on_cpu = {device.device_type for device in devices} == {"CPU"}
        self.multiple = 1 if on_cpu else 8

    def pad(self, ragged, value):
        """Pad a ragged tensor `(B, None, ...)` to `(B, T, ...)`."""
        value = tf.cast(value, ragged.dtype)
        if self.fixed is not None:
            inner = ragged.flat_values.shape[1:]
            return ragged.to_tensor(value, shape=(None, self.fixed, *inner))
        padded = ragged.to_tensor(value)
        length = tf.shape(padded)[1]
        rounded = -(-length // self.multiple) * self.multiple
        more = tf.maximum(tf.minimum(rounded, self.longest) - length, 0)
        ends = [[0, 0], [0, more], *[[0, 0]] * (padded.shape.rank - 2)]
        return tf.pad(padded, ends, constant_values=value)


def _gather(values, rows, width, pad_id=0):
    """Return the padded `rows` of a tensor, or of each tensor in a dict."""
    if isinstance(values, dict):
        return {
            name: _gather(
                part, rows, width, pad_id if name == "token_ids" else 0
            )
            for name, part in values.items()
        }
    if not isinstance(values, tf.RaggedTensor):
        return tf.gather(values, rows)
    choices = values.uniform_row_length
    if values.ragged_rank == 2:  # (R, K, None) -> (R K, None)
        within = tf.range(choices, dtype=rows.dtype)
        first = rows[:, None] * tf.cast(choices, rows.dtype)
        rows = tf.reshape(first + within, [-1])  # (B, K) -> (B K,)
        values = values.values
    padded = width.pad(tf.gather(values, rows), pad_id)
    if choices is None:
        return padded
    return tf.reshape(padded, [-1, choices, tf.shape(padded)[1]])  # (B, K, T)


def _map(function, values):
    if isinstance(values, dict):
        return {name: function(part) for name, part in values.items()}
    return function(values)


def _ones_like(values):
    if isinstance(values, tf.RaggedTensor):
        return tf.ones_like(values, tf.float32)
    return np.ones(np.shape(values)[:1], np.float32)


def _to_mean_one(weights):
    """Scale weights to mean 1, because Keras divides the loss by row count."""
    weights = tf.cast(weights, tf.float32)
    return tf.math.divide_no_nan(weights, tf.reduce_mean(weights))
