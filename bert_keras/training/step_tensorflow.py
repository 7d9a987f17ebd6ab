"""The training step of a global batch on TensorFlow, under any strategy.

Each replica computes its rows, in micro-batches; the optimizer sums the
gradients over the replicas. At the end the arithmetic of our optimizers that
TensorFlow has as one operation.
"""

import keras
import tensorflow as tf
from keras import tree

from bert_keras.errors import InputError
from bert_keras.modeling import kernels
from bert_keras.training import step


def train_step(model, accumulate, data):
    """One optimizer step on this replica's rows; returns the logs."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    # Before the model is called: they follow from the weights alone.
    divisors = _sum_over_replicas(step.normalisers(model, batch))
    compute = _Gradients(model, divisors)
    if accumulate == 1:
        values, gradients = compute(batch)
    else:
        step.check_cut(model)
        values, gradients = _accumulate(compute, batch, accumulate)
    gradients = [
        # None where no loss depends on the weight, as Keras has it
        None if i in compute.missing else gradient
        for i, gradient in enumerate(gradients)
    ]
    gradients = _not_finite_together(model.optimizer, gradients)
    weights = model.trainable_weights
    model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
    step.track(model, values, divisors, _replicas())
    return model.get_metrics_result()


def test_step(model, data):
    """The losses of the global batch in evaluation; returns the logs."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    divisors = _sum_over_replicas(step.normalisers(model, batch))
    x, y, weights = batch
    outputs = model(x, training=False)
    values = step.losses(model, batch, outputs, divisors, _replicas())
    step.track(model, values, divisors, _replicas())
    return model.compute_metrics(x, y, outputs, weights)


class _Gradients:
    """Computes losses and gradients of a micro-batch; feeds the metrics."""

    def __init__(self, model, divisors):
        self.model, self.divisors = model, divisors
        # Numbers of weights that no loss depends on; known once it is traced.
        self.missing = set()
        self.compute = self._compute
        # Vectors of other replicas do not come into what XLA compiled.
        if _compile_here() and not step.compares_rows(model):
            self.compute = tf.function(
                self._compute, jit_compile=True, autograph=False
            )

    def __call__(self, batch):
        return self.compute(batch)

    def _compute(self, batch):
        model, (x, y, weights) = self.model, batch
        arithmetic = kernels.mode(compile_large=_on_cpu())
        with arithmetic, tf.GradientTape() as tape:
            outputs = model(x, training=True)
            values = step.losses(
                model, batch, outputs, self.divisors, _replicas()
            )
            # In float16 a power of two, so that small gradients do not vanish.
            loss = model.optimizer.scale_loss(values[0])
        gradients = tape.gradient(loss, model.trainable_weights)
        # Behind the tape: nothing learns from a metric.
        model.compute_metrics(x, y, outputs, weights)
        self.missing |= {i for i, g in enumerate(gradients) if g is None}
        # Dense: not the list of rows of which a look-up's gradient is.
        return values, [
            tf.zeros(()) if g is None else tf.convert_to_tensor(g)
            for g in gradients
        ]


def _accumulate(compute, batch, accumulate):
    """Sums over the micro-batches, in the memory of one."""
    count = step.rows(batch)
    # Rows of each micro-batch, at least 1; the last one may have fewer.
    size = -(-count // accumulate)
    size = max(size, 1) if isinstance(size, int) else tf.maximum(size, 1)
    # The same size for all where it can be known: XLA wants it so.
    even = isinstance(count, int) and count % size == 0
    if compute.model.jit_compile and not even:
        raise InputError(
            f"accumulate={accumulate} with jit_compile, which Keras turns on "
            "by itself on a single GPU, needs batches whose number of rows is "
            "fixed and a multiple of it. Batch with drop_remainder=True, or "
            "compile the model with jit_compile=False."
        )

    def micro_batch(i):
        length = size if even else tf.minimum(size, count - i * size)

        def cut(values):
            if values is None:
                return None
            rank = len(values.shape)
            # Rows i * size and on; every other axis whole.
            begin = tf.stack([i * size] + [0] * (rank - 1))
            # -1: all of an axis whose length is not known.
            inner = [-1 if n is None else n for n in values.shape[1:]]
            return tf.slice(values, begin, tf.stack([length, *inner]))

        return tree.map_structure(cut, batch)

    def add(i, *sums):
        values, gradients = compute(micro_batch(i))
        new = [values, *gradients]
        return i + 1, *(a + b for a, b in zip(sums, new, strict=True))

    # Rounded up. The sums begin as (1 + losses,) and as the weights.
    number = -(-count // size)
    zeros = [tf.zeros_like(compute.divisors)]
    zeros += [
        tf.zeros(v.shape, v.dtype) for v in compute.model.trainable_weights
    ]
    _, values, *gradients = tf.while_loop(
        lambda i, *_: i < number,
        add,
        (tf.constant(0), *zeros),
        # Two at a time would take the memory of two.
        parallel_iterations=1,
    )
    return values, gradients


def _not_finite_together(optimizer, gradients):
    """Gradients that are not finite on all replicas where they are on one.

    They are not summed yet, and Keras's loss scaling lowers the scale, and
    skips the step, by what it finds on each worker's first replica.
    """
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales or _replicas() == 1:
        return gradients
    broken = ~optimizer.check_finite(gradients)
    broken = _sum_over_replicas(tf.cast(broken, tf.float32)) > 0
    # g + 0 is g, and g + NaN is seen as broken by every worker.
    poison = tf.where(broken, float("nan"), 0.0)
    return [
        None if g is None else g + tf.cast(poison, g.dtype) for g in gradients
    ]


def _replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def _sum_over_replicas(x):
    # `all_reduce` keeps the graph for ever: it registers a gradient for it.
    if _replicas() == 1:
        return x
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, x)


def _compile_here():
    """Whether XLA compiles each replica's computation by itself.

    Under a strategy Keras turns XLA off altogether; a TPU's program is
    compiled by its strategy.
    """
    if not tf.distribute.has_strategy():
        return False
    devices = tf.distribute.get_strategy().extended.worker_devices
    return "GPU" in devices[0].upper()


def _on_cpu():
    """Whether nothing but CPUs is there."""
    kinds = {device.device_type for device in tf.config.get_visible_devices()}
    return kinds == {"CPU"}


# The arithmetic of an optimizer by fused operations: the same numbers as by
# single operations, to rounding, in one pass over each weight instead of ten.
# On a CPU these passes are bound by memory.


def sum_of_squares(tensors):
    """Of all entries of all tensors together."""
    # TensorFlow's is half of it, in one pass over each.
    return 2 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(x) for x in tensors]))


def adam_numbers(decay, epsilon, *, rate, moved, powers):
    """The numbers of a step that `adam` takes, the same for many weights.

    Args:
        decay: share of a weight taken off per unit of the rate.
        epsilon: added to the root of the second moment.
        rate: learning rate.
        moved: shares of the gradient, and of its square, in the new moments.
        powers: of Adam's betas, to the number of this step.
    """
    power_1, power_2 = powers
    root = tf.sqrt(1.0 - power_2)
    return {
        "rate": rate,
        # Kingma and Ba 2015, section 2, in the order of its last lines.
        "corrected": rate * root / (1.0 - power_1),
        "taken_off": rate * decay,
        # A moment of which all is kept does not move.
        "kept": [1.0 - share for share in moved],
        "powers": powers,
        # It corrects the moments outside the root, and epsilon with them.
        "epsilon": epsilon * root,
    }


def adam(variable, m, v, gradient, numbers, decayed):
    """One step of Adam with decoupled decay, all in place.

    Args:
        variable, m, v: a weight and its moments, TensorFlow's variables.
        gradient: as the weight.
        numbers: as of `adam_numbers`, in the weight's type.
        decayed: whether a share of the weight is taken off.
    """
    if _on_cpu() and variable.shape.num_elements() >= kernels.LARGE:
        corrected, epsilon = numbers["corrected"], numbers["epsilon"]
        taken_off = numbers["taken_off"] if decayed else 0.0
        _adam_in_one_pass(
            variable.handle,
            m.handle,
            v.handle,
            gradient,
            tf.stack([corrected, taken_off, *numbers["kept"], epsilon]),
        )
        return
    # Decoupled: off the weight itself (Loshchilov and Hutter 2019,
    # algorithm 2).
    if decayed:
        variable.assign_sub(numbers["taken_off"] * variable)
    # var -= lr sqrt(1 - power_2) / (1 - power_1) m / (sqrt(v) + epsilon).
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=numbers["powers"][0],
        beta2_power=numbers["powers"][1],
        lr=numbers["rate"],
        beta1=numbers["kept"][0],
        beta2=numbers["kept"][1],
        epsilon=numbers["epsilon"],
        grad=gradient,
    )


@tf.function(jit_compile=True, autograph=False)
def _adam_in_one_pass(weight, m, v, gradient, numbers):
    """The same, read and written once: compiled for each shape there is.

    Args:
        weight, m, v: handles of variables.
        gradient: as the weight.
        numbers: (5,), the rate with its corrections, the share of the weight
            that is taken off, the shares of the moments kept, epsilon.
    """
    handles, dtype = (weight, m, v), gradient.dtype
    rate, taken_off, beta_1, beta_2, epsilon = tf.unstack(numbers)
    old, m, v = (
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle in handles
    )
    m += (gradient - m) * (1.0 - beta_1)
    v += (tf.square(gradient) - v) * (1.0 - beta_2)
    new = old - taken_off * old - rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (new, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
