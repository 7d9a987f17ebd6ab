"""Dropout that draws 16 random bits per unit.

Each call of a layer draws one seed, a tensor. If the backward pass recomputes
the layer, it uses the same seed, so it drops the same units.
"""

import keras
from keras import ops

from bert_keras.modeling.gradients import custom_gradient, tf

# Number of 16-bit values. The rate is rounded to a multiple of 1/65536. In
# bfloat16, Keras's dropout draws only seven bits, so it rounds a rate of 0.1 to
# 13/128.
_LEVELS = 65536
# Bounds of a random 32-bit word. The upper bound is exclusive, so the word
# 2**31 - 1 is never drawn; a bound of 2**31 would overflow int32.
_WORDS = -(2**31), 2**31 - 1


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
    scales = _draw_scales(x, rate, seed, site)

    @custom_gradient
    def compute(x):
        return x * scales, lambda upstream: upstream * scales

    return compute(x)


def add_dropped(residual, x, rate, seed, site=0):
    """Return `residual + dropout(x)`; both have the same shape and dtype.

    The gradient needs no check for broadcast axes.
    """
    drops = seed is not None and rate
    scales = _draw_scales(x, rate, seed, site) if drops else None

    @custom_gradient
    def compute(residual, x):
        def gradient(upstream):
            return upstream, upstream * scales if drops else upstream

        return residual + (x * scales if drops else x), gradient

    return compute(residual, x)


def _draw_scales(x, rate, seed, site):
    """Return 0 for each dropped unit of `x` and 1 / (1 - rate) for others."""
    # A random value has `_LEVELS` levels. A unit is dropped if its value is one
    # of the lowest `dropped` levels.
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    # Add `site` to the seed's first number. Keras counts calls in the second,
    # so a site added there would give the seed of a later call.
    seed = seed + ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    lowest = dropped - _LEVELS // 2
    # 1 / (1 - rate), with the rounded rate
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    if tf is None:
        keep = _draw_int16(ops.shape(x), DrawnSeed(seed)) >= lowest
    else:
        lowest = tf.constant(lowest, "int16")
        keep = _draw_int16_in_tensorflow(x, seed) >= lowest
    return ops.where(keep, scale, ops.zeros((), x.dtype))


def _draw_int16(shape, seed):
    """Draw uniform 16-bit integers, two from each random 32-bit word."""
    *lead, last = shape
    words = keras.random.randint(  # (..., last / 2 rounded up, 1)
        (*lead, (last + 1) // 2, 1), *_WORDS, "int32", seed
    )
    bits = ops.view(words, "int16")  # (..., last / 2 rounded up, 2)
    # (..., last), or (..., last + 1) if `last` is odd
    bits = ops.reshape(bits, (*lead, (last + 1) // 2 * 2))
    return bits[..., :last]


def _draw_int16_in_tensorflow(x, seed):
    """Draw the values of `_draw_int16` by fewer operations.

    A graph is faster to trace and to optimize if it has fewer operations. Where
    sizes are unknown, Keras makes several for each size of a shape.
    """
    shape, last = tf.shape(x), x.shape[-1]
    if last is None:
        last = shape[-1]
    half = (last + 1) // 2
    lead = shape[:-1]
    if seed.dtype != tf.int32:  # as in Keras, for XLA
        seed = tf.cast(seed % (tf.int32.max - 1), "int32")
    words = tf.random.stateless_uniform(
        tf.concat([lead, [half]], 0), seed, *_WORDS, "int32"
    )
    bits = tf.bitcast(words, "int16")  # (..., half, 2)
    bits = tf.reshape(bits, tf.concat([lead, [2 * half]], 0))
    # `tf.slice` copies nothing if `last` is even.
    return tf.slice(bits, tf.zeros_like(shape), shape)


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
