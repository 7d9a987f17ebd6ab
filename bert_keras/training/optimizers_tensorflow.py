"""The optimizers on TensorFlow: the sum over replicas, fused arithmetic.

The same numbers as by single operations, to rounding, in one pass over each
weight instead of ten. On a CPU these passes are bound by memory.
"""

import tensorflow as tf

from bert_keras.modeling import kernels


def sum_over_replicas(gradients):
    """Return dense gradients, summed over all replicas; None stays None."""
    known = [
        # tf.IndexedSlices, of a look-up in a foreign model's table
        tf.convert_to_tensor(gradient)
        for gradient in gradients
        if gradient is not None
    ]
    context = tf.distribute.get_replica_context()
    if known and context is not None and context.num_replicas_in_sync > 1:
        known = context.merge_call(_sum_in_one_batch, known)
    summed = iter(known)
    return [None if g is None else next(summed) for g in gradients]


def _sum_in_one_batch(strategy, *values):
    """Sum as `ReplicaContext.all_reduce` does, but without a gradient.

    Its gradient is registered for the whole process and keeps the graph, with
    all weights, for ever.
    """
    # On a TPU a value is one tensor, elsewhere one for each replica.
    pairs = [(x, x.device if tf.is_tensor(x) else x) for x in values]
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)


def runs_on_cpu():
    """Return True if nothing but CPUs is there."""
    types = {device.device_type for device in tf.config.get_visible_devices()}
    return types == {"CPU"}


def sum_of_squares(tensors):
    """Return the sum over all entries of all tensors."""
    # TensorFlow's is half of it, in one pass over each.
    return 2 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(x) for x in tensors]))


def adam_numbers(decay, epsilon, *, rate, moved, powers):
    """Return what `adam` takes in a step, the same for many weights.

    Args:
        decay: fraction of a weight subtracted per unit of the rate.
        epsilon: added to the root of the second moment.
        rate: learning rate.
        moved: weights of the gradient, and of its square, in the new moments.
        powers: Adam's betas, each to the power of this step's number.
    """
    power_1, power_2 = powers
    root = tf.sqrt(1.0 - power_2)
    return {
        "rate": rate,
        # Kingma and Ba 2015, section 2, in the order of its last lines.
        "corrected": rate * root / (1.0 - power_1),
        "decay_rate": rate * decay,
        # A moment of which all is kept does not move.
        "kept": [1.0 - share for share in moved],
        "powers": powers,
        # It corrects the moments outside the root, and epsilon with them.
        "epsilon": epsilon * root,
    }


def adam(variable, m, v, gradient, numbers, decayed):
    """Take one step of Adam with decoupled decay, all in place.

    Args:
        variable, m, v: a weight and its moments, TensorFlow's variables.
        gradient: as the weight.
        numbers: from `adam_numbers`, in the weight's dtype.
        decayed: bool; subtracts a fraction of the weight.
    """
    if runs_on_cpu() and variable.shape.num_elements() >= kernels.LARGE:
        corrected, epsilon = numbers["corrected"], numbers["epsilon"]
        decay_rate = numbers["decay_rate"] if decayed else 0.0
        _adam_in_one_pass(
            variable.handle,
            m.handle,
            v.handle,
            gradient,
            tf.stack([corrected, decay_rate, *numbers["kept"], epsilon]),
        )
        return
    # Decoupled: off the weight itself (Loshchilov and Hutter 2019,
    # algorithm 2).
    if decayed:
        variable.assign_sub(numbers["decay_rate"] * variable)
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
    """Take the same step, read and written once; compiled for each shape.

    Args:
        weight, m, v: handles of variables.
        gradient: as the weight.
        numbers: (5,), the corrected rate, the fraction of the weight that is
            subtracted, beta_1, beta_2, epsilon.
    """
    handles, dtype = (weight, m, v), gradient.dtype
    rate, decay_rate, beta_1, beta_2, epsilon = tf.unstack(numbers)
    old, m, v = (
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle in handles
    )
    m += (gradient - m) * (1.0 - beta_1)
    v += (tf.square(gradient) - v) * (1.0 - beta_2)
    new = old - decay_rate * old - rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (new, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
