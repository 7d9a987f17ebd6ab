"""Dropout with 16 random bits per unit, from one seed per layer call.

The seed is a tensor. A layer that is computed a second time for its gradient
gets the same seed and so drops the same units.
"""

import keras
from keras import ops

from bert_keras.modeling.gradients import tf

# Number of 16-bit values. The rate is rounded to a multiple of 1/65536, an
# error of at most 1/131072. Keras's dropout compares only seven bits in
# bfloat16: at a rate of 1/10 it drops 13/128.
_LEVELS = 65536


class DrawnSeed(keras.random.SeedGenerator):
    """A seed already drawn, passed where Keras expects a generator."""

    def __init__(self, value):
        self.value = value

    def next(self, ordered=True):
        return self.value


def dropout(x, rate, seed, site=0):
    """Drop units of `x` at `rate`; scale the others by 1 / (1 - rate).

    Args:
        x: float, any shape.
        rate: fraction to drop.
        seed: int (2,); None: nothing is dropped.
        site: index of this dropout among the dropouts that share a seed.
    """
    if seed is None or not rate:
        return x
    # A unit is dropped if its value is among the lowest `dropped` of the 65536.
    dropped = round(rate * _LEVELS)
    # The site is added to the first number; Keras counts calls in the second.
    offset = ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    bits = _random_int16(ops.shape(x), DrawnSeed(seed + offset))
    keep = ops.greater_equal(bits, dropped - _LEVELS // 2)
    # 1 / (1 - rate), for the rounded rate
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    return x * ops.where(keep, scale, ops.zeros((), x.dtype))


def _random_int16(shape, seed):
    """Draw uniform 16-bit integers, two from each random 32-bit word."""
    *lead, last = shape
    # Keras excludes the upper bound, and 2**31 is no int32, so the word
    # 2**31 - 1 is never drawn. `ops.view` splits words along the last axis.
    words = keras.random.randint(  # (..., last / 2 rounded up, 1)
        (*lead, (last + 1) // 2, 1), -(2**31), 2**31 - 1, "int32", seed
    )
    bits = ops.view(words, "int16")  # (..., last / 2 rounded up, 2)
    # (..., last), or (..., last + 1) if `last` is odd
    bits = ops.reshape(bits, (*lead, (last + 1) // 2 * 2))
    if isinstance(last, int) and last % 2 == 0:
        return bits
    return bits[..., :last]


def add_replica(seed):
    """Add 2**20 times the replica's number to a seed; only on TensorFlow.

    Under `tf.distribute` all replicas hold the same state and would draw the
    same mask. The product is added to the seed's first number, like the site,
    which stays below 2**20. The second number counts calls: there, a replica
    would repeat the masks of another. On JAX one mask is drawn for the whole
    batch, on any number of devices.
    """
    if tf is None:
        return seed
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = ops.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + ops.stack([replica * 2**20, ops.zeros_like(replica)])
