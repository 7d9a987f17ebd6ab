"""The training step of a global batch on TensorFlow, under any strategy.

Each replica computes the gradients of its rows, in micro-batches. The optimizer
applies the sum of the gradients of all replicas.
"""

import warnings

import keras
import tensorflow as tf
from keras import tree

from bert_keras.errors import InputError
from bert_keras.modeling import keras_adapter, modes
from bert_keras.modeling.weights import split_trainable
from bert_keras.training import step
from bert_keras.training.optimizers_tensorflow import (
    runs_on_cpu,
    sum_over_replicas,
)


def train_step(model, data):
    """Take a step on the global batch; `data` is this replica's part of it."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    step.prepare_optimizer(model, _count_replicas())
    [divisors] = sum_over_replicas([step.compute_divisors(model, batch)])
    compute = _Gradients(model, divisors)
    accumulate = step.count_micro_batches(model)
    if accumulate == 1:
        values, gradients = compute.run(batch)
    elif step.caches_gradients(model):
        values, gradients = _accumulate_twice(compute, batch, accumulate)
    else:
        values, gradients = _accumulate(compute, batch, accumulate)
    gradients = [
        # Keras expects None if no loss depends on the weight.
        None if i in compute.missing else gradient
        for i, gradient in enumerate(gradients)
    ]
    # Sum the gradients before `apply_gradients` clips them. `apply_gradients`
    # also undoes the loss scaling of float16.
    gradients = sum_over_replicas(gradients)
    if compute.weights:
        _apply(model.optimizer, gradients, compute)
    else:
        warnings.warn("The model has no trainable weights.", stacklevel=2)
    step.track(model, values, divisors, _count_replicas())
    return model.get_metrics_result()


def _apply(optimizer, gradients, compute):
    # Reset before and after, because `apply_gradients` updates averages and may
    # replace weights by them.
    keras_adapter.reset_averages(optimizer, compute.left_out)
    with keras_adapter.summed_gradients(optimizer):
        optimizer.apply_gradients(zip(gradients, compute.weights, strict=True))
    keras_adapter.reset_averages(optimizer, compute.left_out)


def test_step(model, data):
    """Evaluate the model on this replica's rows; return the logs."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    [divisors] = sum_over_replicas([step.compute_divisors(model, batch)])
    x, y, weights = batch
    outputs = model(x, training=False)
    _, values = step.compute_losses(
        model, batch, outputs, divisors, _count_replicas()
    )
    step.track(model, values, divisors, _count_replicas())
    return model.compute_metrics(x, y, outputs, weights)


class _Gradients:
    """Losses and gradients of micro-batches, which also go into the metrics."""

    def __init__(self, model, divisors):
        self.model, self.divisors = model, divisors
        self.weights, self.left_out = split_trainable(model)
        # Indices of weights that no loss depends on. Tracing fills the set.
        self.missing = set()
        # A loss that compares rows needs the rows of other replicas, which code
        # compiled by XLA cannot read.
        if _compile_here() and not step.compares_rows(model):
            self.run = tf.function(self.run, jit_compile=True, autograph=False)

    def run(self, batch, gradient=None):
        """Compute a micro-batch; `gradient` is that of `continue_losses`."""
        model, (x, y, weights) = self.model, batch
        arithmetic = modes.use(compile_large=runs_on_cpu())
        with arithmetic, tf.GradientTape() as tape:
            outputs = model(x, training=True)
            if gradient is None:
                loss, values = step.compute_losses(
                    model, batch, outputs, self.divisors, _count_replicas()
                )
            else:
                loss, values = step.continue_losses(
                    model, batch, outputs, self.divisors, gradient
                )
            # In float16, a large factor keeps small gradients from being 0.
            loss = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.weights)
        # Metrics need no gradient, so they are computed outside of the tape.
        if gradient is None:
            model.compute_metrics(x, y, outputs, weights)
        self.missing |= {i for i, g in enumerate(gradients) if g is None}
        # Gradients are summed as dense tensors, so IndexedSlices of embeddings
        # are converted.
        return values, [
            tf.zeros(()) if g is None else tf.convert_to_tensor(g)
            for g in gradients
        ]


def _accumulate(compute, batch, accumulate, gradient=None):
    """Return the sums of losses and of gradients over the micro-batches."""
    number, cut = _split(compute.model, batch, accumulate)

    def add(i, *sums):
        values, gradients = compute.run(*cut(i, (batch, gradient)))
        new = [values, *gradients]
        return i + 1, *(a + b for a, b in zip(sums, new, strict=True))

    # Initial sums: one tensor (1 + losses,) for the losses, then one tensor for
    # each gradient.
    zeros = [tf.zeros_like(compute.divisors)]
    zeros += [tf.zeros(v.shape, v.dtype) for v in compute.weights]
    _, values, *gradients = _repeat(number, add, zeros)
    return values, gradients


def _accumulate_twice(compute, batch, accumulate):
    """Return `_accumulate` for a loss that needs all outputs together.

    See `step.caches_gradients`.
    """
    model, (x, y, weights) = compute.model, batch
    weight_ids = {id(v) for v in model.non_trainable_weights}
    seeds = [
        v for v in model.non_trainable_variables if id(v) not in weight_ids
    ]
    states = [tf.identity(seed.value) for seed in seeds]
    outputs = step.widen(_compute_outputs(model, x, accumulate))
    # The second pass draws the same dropout masks.
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        loss, values = step.compute_output_losses(
            model, batch, outputs, compute.divisors, _count_replicas()
        )
    gradient = tape.gradient(loss, outputs)
    model.compute_metrics(x, y, outputs, weights)
    sums, gradients = _accumulate(compute, batch, accumulate, gradient)
    return values + sums, gradients


def _compute_outputs(model, x, accumulate):
    """Return the outputs of a batch, computed in micro-batches."""
    number, cut = _split(model, x, accumulate)
    ids = next(v for v in tree.flatten(x) if v is not None)  # (B, K, T)

    def add(i, outputs, start):
        with modes.use(compile_large=runs_on_cpu()):
            new = model(cut(i, x), training=True)  # (rows, K, D)
        rows = start + tf.range(tf.shape(new)[0])
        outputs = tf.tensor_scatter_nd_update(outputs, rows[:, None], new)
        return i + 1, outputs, start + tf.shape(new)[0]

    shape = (*keras.ops.shape(ids)[:-1], model.output.shape[-1])
    outputs = tf.zeros(shape, model.output.dtype)  # (B, K, D)
    return _repeat(number, add, [outputs, tf.constant(0)])[1]


def _split(model, batch, accumulate):
    """Return the number of micro-batches, and a function that cuts one out."""
    count = step.count_rows(batch)
    # Rows of a micro-batch; the last micro-batch may have fewer rows. A replica
    # may have no rows, and `size` must not be 0, because it is a divisor.
    size = -(-count // accumulate)
    size = max(size, 1) if isinstance(size, int) else tf.maximum(size, 1)
    # XLA needs one fixed size for all micro-batches.
    even = isinstance(count, int) and count % size == 0
    if model.jit_compile and not even:
        raise InputError(
            f"accumulate={accumulate} with jit_compile (Keras's default on a "
            "single GPU) needs a fixed batch size that is a multiple of "
            "accumulate. Batch with drop_remainder=True, or compile the model "
            "with jit_compile=False."
        )

    def cut(i, arrays):
        length = size if even else tf.minimum(size, count - i * size)

        def cut_rows(values):
            if values is None:
                return None
            rank = len(values.shape)
            # Cut rows only; `begin` is 0 in the other axes.
            begin = tf.stack([i * size] + [0] * (rank - 1))
            # -1 takes the whole axis, if its length is unknown.
            inner = [-1 if n is None else n for n in values.shape[1:]]
            return tf.slice(values, begin, tf.stack([length, *inner]))

        return tree.map_structure(cut_rows, arrays)

    return -(-count // size), cut  # the number, rounded up


def _repeat(number, function, values):
    """Return (number, *values) after `number` calls function(i, *values)."""
    return tf.while_loop(
        lambda i, *_: i < number,
        function,
        (tf.constant(0), *values),
        # Two micro-batches at a time would take twice the memory.
        parallel_iterations=1,
    )


def _count_replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def _compile_here():
    """Return True if a `tf.distribute` strategy on GPUs is active.

    By default, Keras turns XLA off under a strategy, so this module compiles
    the gradients. On a TPU, the strategy compiles them.
    """
    if not tf.distribute.has_strategy():
        return False
    devices = tf.distribute.get_strategy().extended.worker_devices
    return "GPU" in devices[0].upper()
