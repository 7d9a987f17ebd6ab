"""A training step of the global batch on TensorFlow, under any strategy."""

import keras
import tensorflow as tf
from keras import tree

from bert_keras.errors import InputError
from bert_keras.training import step

# An optimizer's arithmetic by TensorFlow's fused operations. The same numbers
# as by single operations, to rounding, in one pass over each weight instead of
# ten: on a CPU these passes are bound by memory.


def sum_of_squares(x):
    return 2 * tf.nn.l2_loss(x)


def fits(variable):
    """Whether the fused operations compute in this variable's precision."""
    return variable.dtype in (tf.float32, tf.float64)


def adam(variable, m, v, gradient, *, rate, decay, betas, powers, epsilon):
    """One step of Adam with decoupled decay, all in place.

    Args:
        variable, m, v: a weight and its moments, TensorFlow's variables.
        gradient: as the weight.
        rate: learning rate.
        decay: share of the weight taken off per unit of the rate, or 0.
        betas: shares of the old moments that are kept.
        powers: of `betas`, to the number of this step.
        epsilon: added to the root of the second moment.
    """
    dtype = variable.dtype
    if decay:
        variable.assign_sub((rate * tf.cast(decay, dtype)) * variable)
    beta_1, beta_2, power_1, power_2 = (
        tf.cast(x, dtype) for x in (*betas, *powers)
    )
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=power_1,
        beta2_power=power_2,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        # It corrects the moments outside the root, and epsilon with them.
        epsilon=tf.cast(epsilon, dtype) * tf.sqrt(1.0 - power_2),
        grad=gradient,
    )


# A training step of the global batch on TensorFlow, under any strategy.


def train_step(model, accumulate, data):
    """One optimizer step on this replica's rows; returns the logs."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    whole = _sum_over_replicas(step.sizes(model, batch))
    slopes = _Slopes(model, whole)
    if accumulate == 1:
        values, gradients = slopes(batch)
    else:
        values, gradients = _in_parts(slopes, batch, accumulate)
    gradients = slopes.without_missing(gradients)
    gradients = _broken_together(model.optimizer, gradients)
    weights = model.trainable_weights
    model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    step.track(model, values, whole, _replicas())
    return model.get_metrics_result()


def test_step(model, data):
    """The losses of the global batch in evaluation; returns the logs."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    whole = _sum_over_replicas(step.sizes(model, batch))
    x, y, weights = batch
    outputs = model(x, training=False)
    values = step.losses(model, batch, outputs, whole, _replicas())
    step.track(model, values, whole, _replicas())
    return model.compute_metrics(x, y, outputs, weights)


class _Slopes:
    """Computes losses and gradients of one part, and feeds the metrics."""

    def __init__(self, model, whole):
        self.model, self.whole = model, whole
        self.missing = set()
        self.compute = self._compute
        if _compile_here():
            self.compute = tf.function(
                self._compute, jit_compile=True, autograph=False
            )

    def __call__(self, batch):
        return self.compute(batch)

    def _compute(self, batch):
        model, (x, y, weights) = self.model, batch
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            values = step.losses(model, batch, outputs, self.whole, _replicas())
            loss = model.optimizer.scale_loss(values[0])
        gradients = tape.gradient(loss, model.trainable_weights)
        model.compute_metrics(x, y, outputs, weights)
        return values, [
            self._whole_table(i, gradient)
            for i, gradient in enumerate(gradients)
        ]

    def _whole_table(self, number, gradient):
        """Dense: not the list of rows of which a look-up's gradient is."""
        if gradient is None:
            self.missing.add(number)
            return tf.zeros(())
        return tf.convert_to_tensor(gradient)

    def without_missing(self, gradients):
        """None for each weight that no loss depends on, as Keras has it."""
        return [
            None if i in self.missing else gradient
            for i, gradient in enumerate(gradients)
        ]


def _in_parts(slopes, batch, accumulate):
    """Sums over the parts, one after another in the memory of one."""
    number = step.rows(batch)
    if slopes.model.jit_compile and not isinstance(number, int):
        raise InputError(
            f"accumulate={accumulate} with jit_compile, which Keras turns on "
            "by itself on a single GPU, needs batches whose number of rows is "
            "fixed. Batch with drop_remainder=True, or compile the model with "
            "jit_compile=False."
        )
    size = step.part_size(number, accumulate)

    def part(i):
        # The same size for all where it can be known: XLA wants it so.
        even = isinstance(number, int) and number % size == 0
        length = size if even else tf.minimum(size, number - i * size)

        def cut(values):
            if values is None:
                return None
            rank = len(values.shape)
            begin = tf.stack([i * size] + [0] * (rank - 1))
            inner = [-1 if n is None else n for n in values.shape[1:]]
            return tf.slice(values, begin, tf.stack([length, *inner]))

        return tree.map_structure(cut, batch)

    def add(i, *sums):
        values, gradients = slopes(part(i))
        new = [values, *gradients]
        return i + 1, *(a + b for a, b in zip(sums, new, strict=True))

    parts = -(-number // size)
    zeros = [tf.zeros_like(slopes.whole)]
    zeros += [
        tf.zeros(v.shape, v.dtype) for v in slopes.model.trainable_weights
    ]
    _, values, *gradients = tf.while_loop(
        lambda i, *_: i < parts,
        add,
        (tf.constant(0), *zeros),
        parallel_iterations=1,
    )
    return values, gradients


def _broken_together(optimizer, gradients):
    """Gradients that are not finite on all replicas where they are on one.

    They are not summed yet, and Keras's loss scaling lowers the scale, and
    skips the step, by what it finds on each worker's first replica.
    """
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales or _replicas() == 1:
        return gradients
    broken = ~optimizer.check_finite(gradients)
    broken = _sum_over_replicas(tf.cast(broken, tf.float32)) > 0
    poison = tf.where(broken, float("nan"), 0.0)
    return [
        None if g is None else g + tf.cast(poison, g.dtype) for g in gradients
    ]


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def _sum_over_replicas(x):
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def _compile_here():
    """Whether XLA compiles each replica's computation by itself.

    Under a strategy Keras turns XLA off altogether; a TPU's program is
    compiled whole by its strategy.
    """
    if not tf.distribute.has_strategy():
        return False
    devices = tf.distribute.get_strategy().extended.worker_devices
    return "GPU" in devices[0].upper()
