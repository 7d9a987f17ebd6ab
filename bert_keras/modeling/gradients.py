"""Hand-written gradients, and recomputation of layers for the gradient.

TensorFlow's `custom_gradient` and Keras's `remat` register the gradients of a
graph for the whole process: the graph and its weights are never freed. Here
the gradients live as long as the graph.
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
    """Wrap `function` as `ops.custom_gradient` does, for tensor arguments.

    Args:
        function: takes tensors; returns its value and a function that maps
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
    """Compute the value; record its gradient for tapes and for graphs.

    A tape in the same graph calls `gradients` itself. A tape around the graph,
    a loop and a SavedModel look `gradients` up by its registered name.
    """
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    value, gradient = function(*tensors)

    def gradients(upstream, *_):
        # `identity_n` below has the inputs `value`, which needs no gradient,
        # and `tensors`.
        return [None, *tf.nest.flatten(gradient(upstream))]

    name = f"bert_keras_gradient_{next(_counter)}"
    _register(name, value.graph, gradients)
    inputs = [value, *tensors]
    with value.graph.gradient_override_map({"IdentityN": name}):
        outputs = tf.identity_n(inputs)
    record.record_operation(name, outputs, inputs, gradients)
    return outputs[0]


def _register(name, graph, gradients):
    """Register gradients for as long as the graph lives."""
    setattr(graph, name, gradients)
    reference = weakref.ref(graph)
    tf.RegisterGradient(name)(
        lambda _, *upstream: getattr(reference(), name)(*upstream)
    )
    weakref.finalize(graph, gradient_registry._registry.pop, name, None)


def rematerialize(function, x, variables):
    """Return `function(x)`; compute it again for the gradient.

    Args:
        function: takes one tensor; reads no variables but `variables`.
        x: float tensor.
        variables: Keras variables that `function` reads.
    """
    # In eager mode Keras's `remat` is used: it keeps no graph alive there, and
    # TensorFlow's `custom_gradient` would need the variables by name.
    if tf is None or tf.executing_eagerly():
        return keras.remat(function)(x)

    def call(x, *values):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(x)

    @custom_gradient
    def compute(*inputs):
        with record.stop_recording():  # no tape keeps inner tensors
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
    """Return `x`, made to depend on `upstream`.

    Without this, a compiler would see that the second computation equals the
    first, and keep the tensors of the first.
    """
    first = tf.reduce_max(tf.reshape(upstream, (-1,))[:1])  # ()
    # `is_known` always equals itself, so `zero` is 0. No compiler proves it.
    is_known = tf.cast(first, tf.bool)
    zero = tf.where(tf.equal(is_known, is_known), 0.0, float("nan"))
    return x + tf.cast(zero, x.dtype)
