"""Dropout whose seed is drawn once a layer and handed on as a tensor.

A seed that is a tensor can be given again: a layer that is computed a second
time for its gradient (rematerialisation) drops the same units.
"""

import keras
from keras import ops
from keras.src.utils.module_utils import tensorflow  # loads at its first use

from bert_keras.errors import InputError

# A unit's fate takes 16 random bits, and its rate is met to 1 in 131072.
# Keras's own dropout spends 32 bits, and in bfloat16 compares seven of them,
# so that it drops 13/128 where 1/10 was asked for.
_LEVELS = 65536


class DrawnSeed(keras.random.SeedGenerator):
    """A seed already drawn, in the place where Keras takes a generator."""

    def __init__(self, value):
        self.value = value

    def next(self, ordered=True):
        return self.value


def dropout(x, rate, seed, site=0):
    """Drops units of `x` at `rate`, by the mask of `seed` at this `site`.

    The units kept are scaled by 1 / (1 - rate). `site` tells apart the places
    of one layer that share one drawn seed; nothing is dropped without a seed.
    """
    if seed is None or not rate:
        return x
    dropped = round(rate * _LEVELS)
    place = ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    bits = _random_int16(ops.shape(x), DrawnSeed(seed + place))
    keep = ops.greater_equal(bits, dropped - _LEVELS // 2)
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    return x * ops.where(keep, scale, ops.zeros((), x.dtype))


def _random_int16(shape, seed):
    """Every 16-bit number equally often, two from each random word."""
    *lead, last = shape
    words = keras.random.randint(
        (*lead, (last + 1) // 2, 1), -(2**31), 2**31 - 1, "int32", seed
    )
    bits = ops.view(words, "int16")  # (..., last / 2 rounded up, 2)
    bits = ops.reshape(bits, (*lead, (last + 1) // 2 * 2))
    if isinstance(last, int) and last % 2 == 0:
        return bits
    return bits[..., :last]


def _of_this_replica(seed):
    """The seed, with the replica's number far above the sites of a layer.

    It is not added to the count of the calls, which Keras takes modulo
    2**31 - 2: there, a replica would repeat what another one drew before.
    Under `tf.distribute` all replicas hold one state. On JAX a mask is drawn
    for the whole batch, wherever its rows lie.
    """
    if keras.backend.backend() != "tensorflow":
        return seed
    context = tensorflow.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = ops.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + ops.stack([replica * 2**20, ops.zeros_like(replica)])


@keras.saving.register_keras_serializable("bert_keras")
class SeededLayer(keras.layers.Layer):
    """A layer that draws one dropout seed a call while it trains."""

    def build_seed(self, *rates):
        """Makes the generator, if any rate needs one.

        Called in `build`, where its path is the layer's and not a number that
        counts the models of the process.

        Raises:
            InputError: a rate below 0, or not below 1.
        """
        for rate in rates:
            if not 0 <= rate < 1:
                raise InputError(
                    f"A dropout rate is {rate}; expected a share from 0 to "
                    "less than 1."
                )
        if any(rates):
            self.seed_generator = keras.random.SeedGenerator(name="dropout")

    def draw_seed(self, training):
        """int (2,), or None where nothing is dropped.

        A function of the layer's seed, of the number of the call and of the
        replica; the state that it is drawn from is the same on all replicas.
        """
        if training and hasattr(self, "seed_generator"):
            return _of_this_replica(self.seed_generator.next())
        return None


@keras.saving.register_keras_serializable("bert_keras")
class Dropout(SeededLayer):
    """Drops units at `rate` while training, scaling the rest by 1/(1 - rate).

    Args:
        rate: share of the units to drop, from 0 to less than 1.

    Call arguments:
        inputs: float, any shape.
        training: bool.
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.supports_masking = True

    def build(self, input_shape=None):
        self.build_seed(self.rate)

    def call(self, inputs, training=False):
        return dropout(inputs, self.rate, self.draw_seed(training))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate}
