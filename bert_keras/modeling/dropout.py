"""Dropout that draws 16 random bits per unit.

Each call of a layer draws one seed, a tensor. If the backward pass recomputes
the layer, it uses the same seed, so it drops the same units.
"""

import keras
from keras import ops

from bert_keras.modeling.gradients import tf

# Number of 16-bit values. The rate is rounded to a multiple of 1/65536. In
# bfloat16, Keras's dropout draws only seven bits, so it rounds a rate of 0.1 to
# 13/128.
_LEVELS = 65536


class DrawnSeed(keras.random.SeedGenerator):
    """Seed generator that always returns a given seed."""

    def __init__(self, value):
        self.value = value

    def next(self, ordered=True):
        return self.value


def dropout(x, rate, seed, site=0):
    """Drop units of `x` at `rate`; scale the kept units by 1 / (1 - rate).

    Args:
        x: float, any shape. The result has the same shape and dtype.
        rate: fraction to drop.
        seed: int (2,); None: nothing is dropped.
        site: index of this dropout among the dropouts that share a seed.
    """
    if seed is None or not rate:
        return x
    # A random value has `_LEVELS` levels. A unit is dropped if its value is one
    # of the lowest `dropped` levels.
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    # Add `site` to the seed's first number. Keras counts calls in the second,
    # so a site added there would give the seed of a later call.
    offset = ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    bits = _random_int16(ops.shape(x), DrawnSeed(seed + offset))
    keep = ops.greater_equal(bits, dropped - _LEVELS // 2)
    # 1 / (1 - rate), with the rounded rate
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    return x * ops.where(keep, scale, ops.zeros((), x.dtype))


def _random_int16(shape, seed):
    """Draw uniform 16-bit integers, two from each random 32-bit word."""
    *lead, last = shape
    # The word 2**31 - 1 is never drawn, because the upper bound is exclusive. A
    # bound of 2**31 would overflow int32.
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
    """Add 2**20 times the replica's number to the first number of a seed.

    Under `tf.distribute`, seed generators have the same state on all replicas.
    Without this addition, all replicas would drop the same units. `dropout`
    adds its `site`, which is below 2**20, to the first number too. The second
    number counts calls. An addition to it would give one replica the seed of
    another replica's later call. On JAX the seed is unchanged, because one mask
    is drawn for the whole global batch.
    """
    if tf is None:
        return seed
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = ops.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + ops.stack([replica * 2**20, ops.zeros_like(replica)])
