"""Padded batches of encoded rows, which a resumed run reproduces.

A batch depends only on the rows, the batch size, the seed, the number of steps
and the step. So a resumed run gets the same batches as an uninterrupted run.
"""

import itertools

import numpy as np
import tensorflow as tf

from bert_keras.data.tf_data import disable_tuning

# Rows of 32 batches are sorted by length together. With fewer batches, lengths
# in a batch differ more. With more batches, the order is less random.
WINDOW = 32
AHEAD = 2  # batches to prepare in advance; each takes only 1 to 2 ms
# Skip autograph, which takes a second: no function here branches on tensors.
_plain = tf.autograph.experimental.do_not_convert


def plan_evaluations(count, epochs, batch_size, evaluations=None) -> list[int]:
    """Return the steps after which dev is scored; the last one ends the run.

    Args:
        count: number of training rows.
        epochs: passes over the rows.
        batch_size: rows of a step.
        evaluations: see `space_evaluations`; None means one after each epoch.
    """
    steps = max(1, round(epochs * count / batch_size))
    if evaluations is None:
        per_epoch = -(-count // batch_size)
        return [*range(per_epoch, steps, per_epoch), steps]
    return space_evaluations(steps, evaluations)


def space_evaluations(steps, evaluations) -> list[int]:
    """Return the steps after which a model is evaluated; the last is `steps`.

    The evaluations are evenly spaced, at most one after each step.
    """
    parts = np.array_split(np.arange(1, steps + 1), min(evaluations, steps))
    return [int(part[-1]) for part in parts]


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
        seed: seed of the order of the rows.
        steps: steps of the whole run, including steps before `first_step`.
        first_step: the step to start at.
        pad_id: padding value of `token_ids`.
        length: pad every row to this length, so that all shapes are static.
            None pads a batch to its longest row, whose length is rounded up to
            a multiple of 8 except on a CPU; see `_Width`.

    Returns:
        `tf.data.Dataset` of `(inputs, targets, weights)`; the weights of a
        batch are scaled to mean 1.
    """
    lengths = row_lengths(encoded.inputs)
    plan = plan_batches(lengths, batch_size, seed, steps, length is None)
    weights = encoded.weights
    if weights is None:
        weights = tf.nest.map_structure(_ones_like, encoded.targets)
    width = _Width(encoded.inputs, length)

    @_plain
    def pad(rows):
        rows = tf.ensure_shape(rows, [batch_size])
        return (
            _gather(encoded.inputs, rows, width, pad_id),
            _gather(encoded.targets, rows, width),
            tf.nest.map_structure(_to_mean_one, _gather(weights, rows, width)),
        )

    batches = tf.data.Dataset.from_tensor_slices(plan[first_step:])
    batches = batches.map(pad, AHEAD, deterministic=True)
    return disable_tuning(batches.prefetch(AHEAD))


def plan_batches(lengths, batch_size, seed, steps, bucketed):
    """Return row indices of a run's batches, int64 `(steps, batch_size)`.

    Each pass is a new shuffle of all rows, and the batches take the rows pass
    by pass. If `bucketed`, the rows of up to `WINDOW` batches of a pass are
    sorted by length, and these batches are shuffled.

    Args:
        lengths: int64 `(R,)`, the number of tokens of each row.
        batch_size: rows of a batch.
        seed: seed of the order of the rows.
        steps: number of batches.
        bucketed: True to sort by length.
    """
    rng, count = np.random.default_rng(seed), len(lengths)
    passes = -(-steps * batch_size // count)
    rows = np.concatenate([rng.permutation(count) for _ in range(passes)])
    plan = rows[: steps * batch_size].reshape(steps, batch_size)
    if not bucketed:
        return plan
    # For each pass, the first step whose first row is of this pass.
    starts = [-(-i * count // batch_size) for i in range(passes + 1)]
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        for first in range(start, min(end, steps), WINDOW):
            window = plan[first : min(first + WINDOW, end)]  # (W, batch_size)
            # The last batch of a pass may have rows of the next pass. Sort
            # these rows to the end, so that they stay in this batch.
            position = first * batch_size + np.arange(window.size)
            is_next = position // count > number
            order = np.lexsort((lengths[window.ravel()], is_next))
            window[:] = window.ravel()[order].reshape(window.shape)
            rng.shuffle(window)  # the order of batches
    return plan


def prediction_batches(inputs, rows, batch_size, pad_id=0):
    """Return a `tf.data.Dataset` of padded inputs.

    `rows` are the indices of the rows, in the order of the batches.
    """
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
    """Width of a padded batch: its longest row, or a fixed length.

    On a GPU or TPU, the length of the longest row is rounded up to a multiple
    of 8. A TPU compiles for each shape; a GPU is fast only at multiples of 8.
    The result is at most the length of the longest row of all batches. On a
    CPU, the length is not rounded: a step of SST-2 then takes 11 % less time.
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


def _ones_like(values):
    if isinstance(values, tf.RaggedTensor):
        return tf.ones_like(values, tf.float32)
    return np.ones(np.shape(values)[:1], np.float32)


def _to_mean_one(weights):
    """Scale weights to mean 1.

    Keras divides the loss by the number of targets: one per row, or one per
    token, padding included. With mean 1, this number is the sum of the weights.
    """
    weights = tf.cast(weights, tf.float32)
    return tf.math.divide_no_nan(weights, tf.reduce_mean(weights))
