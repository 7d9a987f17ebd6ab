"""Layer normalisation as BERT has it."""

import keras
from keras import ops

# The original's; far below float32's own rounding, kept for equal numbers.
NORM_EPSILON = 1e-12


@keras.saving.register_keras_serializable("bert_keras")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalisation over the last axis, in float32 inside.

    Computes in float32 under any half-precision policy and returns the
    policy's compute dtype. Its gradient is written out, which is a third
    faster on a CPU and keeps fewer tensors.
    """

    def call(self, inputs):
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        tensors = inputs, self.gamma, self.beta
        tensors = [ops.cast(tensor, dtype) for tensor in tensors]
        return ops.cast(normalize(*tensors, self.epsilon), self.compute_dtype)


def normalize(x, gamma, beta, epsilon):
    """`x` less its mean, over its deviation, times `gamma`, plus `beta`."""

    @ops.custom_gradient
    def normal(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        inverse = ops.rsqrt(variance + epsilon)
        unit = centred * inverse

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return _gradient(upstream, unit, inverse, gamma)

        return unit * gamma + beta, gradient

    return normal(x, gamma, beta)


def _gradient(upstream, unit, inverse, gamma):
    tokens = tuple(range(len(unit.shape) - 1))  # every axis but the last
    by_gamma = ops.sum(upstream * unit, axis=tokens)
    by_beta = ops.sum(upstream, axis=tokens)
    slope = upstream * gamma
    mean = ops.mean(slope, axis=-1, keepdims=True)
    along = ops.mean(slope * unit, axis=-1, keepdims=True)
    return (slope - mean - unit * along) * inverse, by_gamma, by_beta
