"""Hand-written gradients, and recomputation of layers for the gradient.

TensorFlow's `custom_gradient` and Keras's `remat` keep the gradient functions
of a graph until the process ends, so the graph and its weights are never freed.
This module's functions free the gradient functions together with the graph.
"""

import functools
import itertools
import weakref
from typing import Any

import keras
from keras import ops

from bert_keras.modeling import modes

tf: Any = None  # TensorFlow, if Keras runs on it
record: Any = None
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf  # type: ignore[no-redef]
    from tensorflow.python.eager import record  # type: ignore[no-redef]
    from tensorflow.python.framework.ops import gradient_registry


def custom_gradient(function):
    """Wrap `function` like `ops.custom_gradient`, but let graphs be freed.

    Args:
        function: takes tensors. Returns one tensor and a function that maps
            the upstream gradient to the gradients of the arguments.
    """
    by_keras = ops.custom_gradient(function)

    @functools.wraps(function)
    def compute(*tensors):
        if not modes.current().gradients:
            return function(*tensors)[0]
        if tf is None or tf.executing_eagerly():
            return by_keras(*tensors)
        return _record_in_graph(function, tensors)

    return compute


_counter = itertools.count()


def _record_in_graph(function, tensors):
    """Compute the value, and record its gradient in two ways.

    A tape in the same graph calls `gradients` directly. A tape outside of the
    graph, `tf.while_loop` and a SavedModel find `gradients` by `name`.
    """
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    value, gradient = function(*tensors)

    def gradients(upstream, *_):
        # One gradient for each input of `identity_n` below. The first input,
        # `value`, needs no gradient.
        return [None, *tf.nest.flatten(gradient(upstream))]

    name = f"bert_keras_gradient_{next(_counter)}"
    # Register the gradients; unregister them when the graph is freed.
    setattr(value.graph, name, gradients)
    reference = weakref.ref(value.graph)
    tf.RegisterGradient(name)(
        lambda _, *upstream: getattr(reference(), name)(*upstream)
    )
    weakref.finalize(value.graph, gradient_registry._registry.pop, name, None)
    inputs = [value, *tensors]
    with value.graph.gradient_override_map({"IdentityN": name}):
        output = tf.identity_n(inputs)[0]
    record.record_operation(name, [output], inputs, gradients)
    return output


def rematerialize(function, x, variables):
    """Return `function(x)`, and recompute it in the backward pass.

    Args:
        function: takes one tensor and reads only the given variables. In a
            graph, tensors that it captures get no gradient.
        x: float tensor.
        variables: Keras variables that `function` reads.
    """
    # Keras's `remat` keeps a graph of TensorFlow in memory. On JAX and in eager
    # mode there is no graph, so `remat` is safe.
    if tf is None or tf.executing_eagerly():
        return keras.remat(function)(x)

    def call(x, *values):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(x)

    @custom_gradient
    def compute(*inputs):
        # Prevent a caller's `GradientTape` from storing all tensors of `call`.
        with record.stop_recording():
            y = call(*inputs)

        def gradient(upstream):
            again = [
                _order_after(inputs[0], upstream),
                *map(tf.identity, inputs[1:]),
            ]
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = call(*again)
            return tape.gradient(y, again, upstream)

        return y, gradient

    return compute(x, *(ops.convert_to_tensor(v) for v in variables))


def _order_after(x, upstream):
    """Return `x` with a data dependency on `upstream`.

    Without the dependency, a compiler would merge the recomputation with the
    first computation and keep the tensors of the first.
    """
    first = tf.reduce_max(tf.reshape(upstream, (-1,))[:1])  # ()
    # `zero` is always 0, but compilers do not detect this. If they did, they
    # would drop the dependency on `upstream`.
    flag = tf.cast(first, tf.bool)
    zero = tf.where(tf.equal(flag, flag), 0.0, float("nan"))
    return x + tf.cast(zero, x.dtype)
