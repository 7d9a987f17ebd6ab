"""Sum gradients over replicas and take a fused Adam step, on TensorFlow.

The fused step equals a step in separate operations, up to rounding. It reads
each weight in one pass instead of ten. On a CPU, a step spends most of its time
on reading memory.
"""

import tensorflow as tf

from bert_keras.modeling import kernels


def sum_over_replicas(gradients):
    """Return dense gradients, summed over all replicas; None stays None."""
    tensors = [
        # Convert the IndexedSlices gradient of an embedding to a dense tensor.
        tf.convert_to_tensor(gradient)
        for gradient in gradients
        if gradient is not None
    ]
    context = tf.distribute.get_replica_context()
    if tensors and context is not None and context.num_replicas_in_sync > 1:
        tensors = context.merge_call(_sum_in_one_batch, tensors)
    sums = iter(tensors)
    return [None if g is None else next(sums) for g in gradients]


def _sum_in_one_batch(strategy, *values):
    """Sum like `ReplicaContext.all_reduce`, but register no gradient.

    `all_reduce` would register a gradient function, which would keep the graph
    and all weights in memory until the process ends.
    """
    # Pairs (value, destination of the sum). On a TPU, a value is one tensor and
    # the destination is its device. Elsewhere, a value has a tensor for each
    # replica. The sum goes to the devices of these tensors.
    pairs = [(x, x.device if tf.is_tensor(x) else x) for x in values]
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)


def runs_on_cpu():
    """Return True if all devices are CPUs."""
    types = {device.device_type for device in tf.config.get_visible_devices()}
    return types == {"CPU"}


def sum_of_squares(tensors):
    """Return the sum of squares over all entries of all tensors."""
    # `l2_loss` is half the sum of squares, in one pass over the tensor.
    return 2 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(x) for x in tensors]))


def adam_values(decay, epsilon, *, divisor, rate, gains, powers):
    """Return the argument `values` of `adam` for this step.

    Args:
        decay: factor of the decoupled weight decay.
        epsilon: added to the square root of the bias-corrected second moment.
        divisor: divisor of the gradient, or 0 in a skipped step.
        rate: learning rate of the weight's layer, or 0 in a skipped step.
        gains: 1 - beta_1 and 1 - beta_2, or zeros in a skipped step.
        powers: beta_1 ** t and beta_2 ** t, where t is the number of the step.

    Returns:
        dict of the scalars "divisor", "rate", "corrected" (the bias-corrected
        rate), "decay_rate" and "epsilon", and of the pairs "betas" and
        "powers".
    """
    power_1, power_2 = powers
    root = tf.sqrt(1.0 - power_2)
    return {
        "divisor": divisor,
        "rate": rate,
        # Kingma and Ba 2015, end of section 2: bias correction in the rate.
        "corrected": rate * root / (1.0 - power_1),
        "decay_rate": rate * decay,
        # The betas, or 1 in a skipped step.
        "betas": [1.0 - gain for gain in gains],
        "powers": powers,
        # The step adds epsilon to the uncorrected sqrt(v), so scale epsilon.
        "epsilon": epsilon * root,
    }


def adam(variable, m, v, gradient, values, is_decayed):
    """Update a weight and its moments by a step of Adam with decoupled decay.

    Args:
        variable: TensorFlow variable of the weight.
        m: variable of the first moment.
        v: variable of the second moment.
        gradient: tensor of the weight's shape, before it is clipped.
        values: dict from `adam_values`, in the weight's dtype.
        is_decayed: True to apply weight decay.
    """
    if runs_on_cpu() and variable.shape.num_elements() >= kernels.LARGE:
        corrected, epsilon = values["corrected"], values["epsilon"]
        decay_rate = values["decay_rate"] if is_decayed else 0.0
        _adam_in_one_pass(
            variable.handle,
            m.handle,
            v.handle,
            gradient,
            tf.cast(values["divisor"], gradient.dtype),
            tf.stack([corrected, decay_rate, *values["betas"], epsilon]),
        )
        return
    divisor = tf.cast(values["divisor"], gradient.dtype)
    gradient = tf.math.divide_no_nan(gradient, divisor)
    # The decay does not change the moments (Loshchilov and Hutter 2019).
    if is_decayed:
        variable.assign_sub(values["decay_rate"] * variable)
    # The operation corrects the bias itself, so `lr` is the uncorrected rate.
    # It subtracts a * (m / (sqrt(v) + epsilon)), where a is
    # (lr * sqrt(1 - beta2_power)) / (1 - beta1_power).
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=m.handle,
        v=v.handle,
        beta1_power=values["powers"][0],
        beta2_power=values["powers"][1],
        lr=values["rate"],
        beta1=values["betas"][0],
        beta2=values["betas"][1],
        epsilon=values["epsilon"],
        grad=tf.cast(gradient, variable.dtype),
    )


@tf.function(jit_compile=True, autograph=False)
def _adam_in_one_pass(weight, m, v, gradient, divisor, values):
    """Take the step of `adam` in one pass, which XLA compiles for each shape.

    Args:
        weight: handle of the weight's variable.
        m: handle of the first moment's variable.
        v: handle of the second moment's variable.
        gradient: tensor of the weight's shape.
        divisor: divisor of the gradient, in its dtype.
        values: (5,) in the weight's dtype, from `adam_values`: "corrected",
            "decay_rate", both "betas", and "epsilon".
    """
    handles, dtype = (weight, m, v), values.dtype
    gradient = tf.cast(tf.math.divide_no_nan(gradient, divisor), dtype)
    rate, decay_rate, beta_1, beta_2, epsilon = tf.unstack(values)
    old, m, v = (
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle in handles
    )
    m += (gradient - m) * (1.0 - beta_1)
    v += (tf.square(gradient) - v) * (1.0 - beta_2)
    new = old - decay_rate * old - rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (new, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
