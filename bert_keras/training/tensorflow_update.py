"""An optimizer's arithmetic by TensorFlow's fused operations.

The same numbers as by single operations, to rounding, in one pass over each
weight instead of ten: on a CPU these passes are bound by memory.
"""

import tensorflow as tf


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
