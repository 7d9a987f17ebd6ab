"""The machine's own limit: the products of a step, and nothing else.

Forward and both backward products of every dense layer of the model, and
those of attention, at their shapes, by TensorFlow's matrix product.
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from examples import SIZES, VOCABULARY


def products(settings):
    """Lists of (batch, rows, inner, columns) and how often in a step."""
    layers, width, heads = SIZES[settings["size"]]
    batch, length = settings["batch"], settings["length"]
    tokens, masked = batch * length, batch * settings["predictions"]
    pieces, head = batch * heads, width // heads
    dense = [
        (1, tokens, width, 3 * width, layers),
        (1, tokens, width, width, layers),
        (1, tokens, width, 4 * width, layers),
        (1, tokens, 4 * width, width, layers),
        (1, masked, width, width, 1),
        (1, masked, width, VOCABULARY, 1),
        (pieces, length, head, length, layers),
        (pieces, length, length, head, layers),
    ]
    return [
        (*shape, times)
        for n, rows, inner, columns, times in dense
        for *shape, times in (
            (n, rows, inner, columns, times),
            (n, rows, columns, inner, times),
            (n, inner, rows, columns, times),
        )
    ]


def operations(settings):
    """Floating-point operations of a step: 2 for each multiply and add."""
    return sum(2 * n * a * b * c * t for n, a, b, c, t in products(settings))


def step(settings):
    """All products of a step, at their shapes."""
    import tensorflow as tf

    half = settings["dtype"] == "mixed_bfloat16"
    dtype = tf.bfloat16 if half else tf.float32
    pairs = [
        (tf.random.normal((n, a, b)), tf.random.normal((n, b, c)), times)
        for n, a, b, c, times in products(settings)
    ]
    pairs = [(tf.cast(x, dtype), tf.cast(y, dtype), t) for x, y, t in pairs]

    @tf.function
    def multiply(x, y):
        if x.shape[0] == 1:
            return tf.matmul(x[0], y[0])
        return tf.matmul(x, y)

    def run():
        for x, y, times in pairs:
            for _ in range(times):
                result = multiply(x, y)
        return result.numpy()

    return run, settings["batch"]
