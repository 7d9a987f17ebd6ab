"""What the workers of one run agree on; TensorFlow only."""

import tensorflow as tf


def any_worker(strategy):
    """A function of this worker's bool: whether any worker says yes.

    All workers call it together, as they take each step together.

    Args:
        strategy: of `make_strategy`.
    """
    if strategy.name != "multi_worker":
        return bool

    def total(value):
        context = tf.distribute.get_replica_context()
        # A tensor of the device at hand: one from outside has no device.
        value = tf.identity(value)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)

    @tf.function
    def asked(value):
        found = strategy.distributed.run(total, args=(value,))
        return strategy.distributed.experimental_local_results(found)[0]

    return lambda flag: bool(asked(tf.constant(float(flag))) > 0)
