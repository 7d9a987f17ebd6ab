"""Encoded rows as batches of rows of like length, a function of the step."""

import numpy as np

# The order of rows as a pure function of (seed, step).


def shuffled(count, batch_size, seed, first_step=0):
    """Endless data set of int64 `(B,)`: the rows of each step, shuffled.

    Each pass over the rows has an order of its own and holds each row once;
    a batch may span two passes. The batch of a step is a function of (seed,
    step) alone, so that a run can start at any step.

    Args:
        count: number of rows.
        batch_size: rows a batch.
        seed: int.
        first_step: the step to begin at.
    """
    import tensorflow as tf

    def rows(step):
        place = step * batch_size + tf.range(batch_size, dtype=tf.int64)
        return shuffled_rows(place, count, seed)

    steps = tf.data.Dataset.range(first_step, tf.int64.max)
    return steps.map(rows, tf.data.AUTOTUNE, deterministic=True)


def shuffled_rows(place, count, seed):
    """Which row stands at each place of endless shuffled passes.

    Args:
        place: int64 `(P,)`; a pass has `count` places.
        count: number of rows.
        seed: int.

    Returns:
        int64 `(P,)`.
    """
    import tensorflow as tf

    epoch = place // count
    # One seed a row: tf.random.experimental.index_shuffle pads a matrix
    # of seeds along the wrong axis, so the operation is called itself.
    seeds = tf.stack([seed + 0 * epoch, epoch, 0 * epoch], 1)
    return tf.raw_ops.RandomIndexShuffle(
        index=place % count,
        seed=tf.cast(seeds, tf.uint32),  # (P, 3)
        max_index=tf.constant(count - 1, tf.int64),
    )


# Encoded rows as batches of rows of like length, padded to the longest. The
# batch of a step is a function of (rows, batch size, seed, steps, step) alone,
# so that a run goes on at any step with the batches it would have had.

# Batches that are sorted by length together: enough that rows of a batch are
# about as long as each other, few enough that a batch still mixes the epoch.
WINDOW = 32
AHEAD = 2  # batches made while a step runs, and kept; one takes 1 to 2 ms


def training_steps(count, epochs, batch_size) -> tuple[int, int]:
    """The steps of a run over `count` rows, and those of an epoch of it."""
    steps = max(1, round(epochs * count / batch_size))
    return steps, min(steps, -(-count // batch_size))


def training_batches(
    encoded,
    batch_size,
    seed,
    steps,
    first_step=0,
    *,
    pad_id=0,
    length=None,
):
    """The batches of the steps from `first_step` to `steps`.

    Each pass over the rows holds each row once; a batch may span two passes.
    The rows of 32 batches are sorted by length, cut into batches, and these
    are shuffled.

    Args:
        encoded: `Encoded` with targets.
        batch_size: rows a batch, over all replicas.
        seed: int.
        steps: steps of the whole run.
        first_step: the step to begin at.
        pad_id: what `token_ids` are padded with.
        length: pads every row to this length instead, in shuffled order, so
            that all shapes are static.

    Returns:
        `tf.data.Dataset` of `(inputs, targets, weights)`.
    """
    import tensorflow as tf

    from bert_keras.data.tf_data import untuned

    lengths = tf.constant(row_lengths(encoded.inputs))
    count = len(lengths)

    def rows(step):
        window = step // WINDOW
        first = window * WINDOW
        batches = tf.minimum(tf.constant(WINDOW, tf.int64), steps - first)
        places = tf.range(first * batch_size, (first + batches) * batch_size)
        drawn = shuffled_rows(places, count, seed)
        drawn = tf.gather(drawn, tf.argsort(tf.gather(lengths, drawn)))
        keys = tf.random.stateless_uniform([batches], tf.stack([seed, window]))
        batch = tf.cast(tf.argsort(keys)[step - first], tf.int64)
        return drawn[batch * batch_size : (batch + 1) * batch_size]

    if length is None:
        indices = tf.data.Dataset.range(first_step, steps).map(
            rows, AHEAD, deterministic=True
        )
    else:
        indices = shuffled(count, batch_size, seed, first_step)
        indices = indices.take(steps - first_step)
    pad = _padding(encoded, pad_id, length, batch_size)
    batches = indices.map(pad, AHEAD, deterministic=True)
    return untuned(batches.prefetch(AHEAD))


def prediction_batches(inputs, rows, batch_size, pad_id=0):
    """The inputs of `rows` in this order, in batches, padded each."""
    import tensorflow as tf

    from bert_keras.data.tf_data import untuned

    width = _Width(inputs)
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)
    batches = batches.map(
        lambda rows: _gathered(inputs, rows, width, pad_id), AHEAD
    )
    return untuned(batches.prefetch(AHEAD))


def row_lengths(inputs) -> np.ndarray:
    """Tokens of each row, int64 `(R,)`; of choices, the longest one's."""
    import tensorflow as tf

    lengths = inputs["token_ids"].row_lengths(axis=-1)
    if isinstance(lengths, tf.RaggedTensor):
        lengths = lengths.to_tensor()
    if lengths.shape.rank == 2:
        lengths = tf.reduce_max(lengths, axis=1)
    return lengths.numpy().astype(np.int64)


def length_multiple() -> int:
    """What lengths are rounded up to: 8, but 1 where all is on the CPU.

    Others compile for each shape, or are fast at multiples of 8 only. On a
    CPU a step of SST-2 took 0.89 of the time with 1.
    """
    import tensorflow as tf

    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return 1 if kinds == {"CPU"} else 8


class _Width:
    """Pads a batch to its longest row, or always to the same length."""

    def __init__(self, inputs, fixed=None):
        self.fixed = fixed
        self.longest = int(row_lengths(inputs).max())
        self.multiple = length_multiple()

    def pad(self, ragged, value):
        """A ragged `(B, None)` as `(B, T)`."""
        import tensorflow as tf

        value = tf.cast(value, ragged.dtype)
        if self.fixed is not None:
            return ragged.to_tensor(value, shape=(None, self.fixed))
        padded = ragged.to_tensor(value)
        length = tf.shape(padded)[1]
        wanted = -(-length // self.multiple) * self.multiple
        more = tf.maximum(tf.minimum(wanted, self.longest) - length, 0)
        return tf.pad(padded, [[0, 0], [0, more]], constant_values=value)


def _padding(encoded, pad_id, length, batch_size):
    """The function that turns indices (B,) into a batch."""
    import tensorflow as tf

    width = _Width(encoded.inputs, length)
    weights = encoded.weights
    if weights is None:
        weights = _map(_ones_like, encoded.targets)

    def pad(rows):
        rows = tf.ensure_shape(rows, [batch_size])
        return (
            _gathered(encoded.inputs, rows, width, pad_id),
            _gathered(encoded.targets, rows, width),
            _map(_to_mean_one, _gathered(weights, rows, width)),
        )

    return pad


def _map(function, values):
    """Of one array, or of each in a dict."""
    if isinstance(values, dict):
        return {name: function(part) for name, part in values.items()}
    return function(values)


def _ones_like(values):
    import tensorflow as tf

    if isinstance(values, tf.RaggedTensor):
        return tf.ones_like(values, tf.float32)
    return np.ones(np.shape(values)[:1], np.float32)


def _to_mean_one(weights):
    """So that a mean over the slots is one over what is weighted."""
    import tensorflow as tf

    weights = tf.cast(weights, tf.float32)
    return tf.math.divide_no_nan(weights, tf.reduce_mean(weights))


def _gathered(values, rows, width, pad_id=0):
    """Rows of arrays and ragged tensors, in a dict or alone, padded."""
    import tensorflow as tf

    if isinstance(values, dict):
        return {
            name: _gathered(
                part, rows, width, pad_id if name == "token_ids" else 0
            )
            for name, part in values.items()
        }
    if not isinstance(values, tf.RaggedTensor):
        return tf.gather(values, rows)
    choices = values.uniform_row_length
    if values.ragged_rank == 2:  # (R, K, None), as R K rows
        within = tf.range(choices, dtype=rows.dtype)
        first = rows[:, None] * tf.cast(choices, rows.dtype)
        rows = tf.reshape(first + within, [-1])
        values = values.values
    padded = width.pad(tf.gather(values, rows), pad_id)
    if choices is None:
        return padded
    return tf.reshape(padded, [-1, choices, tf.shape(padded)[1]])
