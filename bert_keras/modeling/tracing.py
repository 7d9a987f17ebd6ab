"""Traces one of several equal layers, because tracing a layer takes time."""

import inspect

import keras

from bert_keras.modeling.gradients import tf
from bert_keras.modeling.keras_adapter import read_weights

# Attributes that no graph depends on. Keras wraps `build` and `quantize`.
_OWN = (
    "name _path _parent_path _called _tracker _trainable build quantize".split()
)
_PLAIN = (bool, int, float, str, type(None))
# Of these, only the types matter: `read_weights` and the caller of `trace_once`
# pass the values of weights and seeds.
_BY_TYPE = (
    keras.initializers.Initializer,
    keras.random.SeedGenerator,
    keras.layers.InputSpec,
    inspect.Signature,
)


def trace_once(layers, call):
    """Return a function like `call` that traces one layer for all `layers`.

    In a graph of TensorFlow, the first call traces a graph of the first layer,
    with the layer's weights as inputs. Each call uses this graph, so a training
    step of six layers is traced in half the time. TensorFlow puts the graph in
    the place of each use before it runs the step.

    `call` is returned in eager mode, on JAX, if the layers differ in more than
    their weights, and if they have parts or functions from outside of Keras and
    this package, because these may have a state. Layers in int8 are not
    compared either.

    Args:
        layers: list of layers.
        call: function of a layer and of tensors (or None) that computes the
            layer's outputs without changing its state. The outputs must depend
            on all weights: a weight without a gradient would get zeros. `call`
            may capture tensors that are the same for all layers.
    """
    if tf is None or tf.executing_eagerly():
        return call
    first, *others = layers
    settings = _read_settings(first)
    if settings is None or any(_read_settings(x) != settings for x in others):
        return call

    @tf.function(autograph=False)
    def compute(values, *tensors):
        with keras.StatelessScope(zip(first.weights, values, strict=True)):
            return call(first, *tensors)

    return lambda layer, *tensors: compute(read_weights(layer), *tensors)


def _read_settings(layer):
    """Return a list of what a layer's graph depends on, or None if unknown."""
    parts = layer._flatten_layers()
    places = {id(x): i for i, x in enumerate([*parts, *layer.variables])}
    settings = [[(v.shape, v.dtype) for v in layer.variables]]
    for part in parts:
        settings.append([type(part), part.dtype_policy])
        for name, value in vars(part).items():
            if name in _OWN or value is part.dtype_policy:
                continue
            if id(value) in places:
                value = places[id(value)]
            elif isinstance(value, list | dict | set | tuple):
                # Private ones are Keras's own, such as the list of the parts.
                # As text, because a comparison of arrays is no bool.
                value = None if name.startswith("_") else repr(value)
            elif isinstance(value, _BY_TYPE):
                value = type(value)
            elif not isinstance(value, _PLAIN) and not _is_known(value):
                return None
            settings.append((name, value))
        if not _is_known(type(part)):
            return None
    return settings


def _is_known(value):
    """Return True for a class or function of Keras or of this package."""
    module = getattr(value, "__module__", None) or ""
    is_code = inspect.isclass(value) or inspect.isfunction(value)
    return is_code and module.split(".")[0] in ("keras", "bert_keras")
