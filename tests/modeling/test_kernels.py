"""Tuned kernels against their plain formulas; a trained model is freed."""

import gc
import weakref
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.modeling import kernels, modes
from bert_keras.training.optimizers import lamb
from tests.support.model_samples import make_model, random_inputs

IDS = tf.constant([[1, 0, 1], [5, 2, 5]])
# Name -> kernel, and the shapes of its arguments, which all have gradients.
KERNELS = {
    "gelu_tanh": (kernels.gelu_tanh, (3, 4)),
    "gelu_exact": (kernels.gelu_exact, (3, 4)),
    "add_bias": (kernels._add_bias_in_bfloat16, (3, 4), (4,)),
    "multiply_by_rows": (kernels.multiply_by_rows, (3, 4), (6, 4)),
    "normalize": (
        lambda *x: kernels.normalize(*x, 1e-3),
        (2, 3, 4),
        (4,),
        (4,),
    ),
    "cross_entropy": (
        lambda logits: kernels.cross_entropy(IDS, logits),
        (2, 3, 6),
    ),
    "look_up": (lambda table: kernels.look_up(table, IDS), (6, 4)),
    "few rows": (
        lambda table: kernels.look_up(table, IDS % 2),
        (2, 4),
    ),
}


@pytest.fixture
def draw(random):
    """Function that draws a float64 tensor."""
    return lambda shape: tf.constant(random.normal(size=shape), "float64")


def differentiate(function, *tensors):
    """Return y = function(*tensors), and the gradients of sum(sin(y))."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
        loss = tf.reduce_sum(tf.sin(y))
    return y, *map(tf.convert_to_tensor, tape.gradient(loss, tensors))


def trace(function, *tensors, **options):
    return tf.function(function, autograph=False, **options)(*tensors)


def in_a_graph(function, *tensors, **options):
    return trace(lambda *x: differentiate(function, *x), *tensors, **options)


def by_xla(function, *tensors):
    return in_a_graph(function, *tensors, jit_compile=True)


def around_a_graph(function, *tensors):
    return differentiate(lambda *x: trace(function, *x), *tensors)


def in_a_loop(function, *tensors):
    def add(i, *sums):
        new = differentiate(function, *tensors)
        return i + 1, *(a + b for a, b in zip(sums, new, strict=True))

    def loop():
        zeros = [tf.zeros_like(x) for x in differentiate(function, *tensors)]
        return tf.while_loop(lambda i, *_: i < 2, add, (0, *zeros))[1:]

    return [x / 2 for x in trace(loop)]


def where_large(function, *tensors):
    arithmetic = modes.use(compile_large=True)
    with arithmetic, mock.patch.object(kernels, "LARGE", 1):
        return in_a_graph(function, *tensors)


WAYS = [
    differentiate,
    in_a_graph,
    around_a_graph,
    in_a_loop,
    by_xla,
    where_large,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernels_gradient_equals_that_of_its_plain_formula(name, way, draw):
    function, *shapes = KERNELS[name]
    tensors = list(map(draw, shapes))
    with modes.use(gradients=False):
        expected = differentiate(function, *tensors)
    found = way(function, *tensors)
    # The bias's gradient is a sum in float32 of three numbers of at most 1.
    error = 1e-6 if name == "add_bias" else 1e-10
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=error)


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_exact", "cross_entropy"])
@pytest.mark.parametrize("large", [1, 1 << 20])
def test_long_arithmetic_on_large_tensors_alone_is_compiled(name, large, draw):
    function, shape = KERNELS[name]
    compiled = modes.use(compile_large=True)
    with compiled, mock.patch.object(kernels, "LARGE", large):
        graph = tf.function(function).get_concrete_function(draw(shape))
    functions = graph.graph.as_graph_def().library.function
    found = any(f"_{name}_" in x.signature.name for x in functions)
    assert found == (large == 1)


def test_cross_entropy_compares_no_label_with_every_class(draw):
    function, shape = KERNELS["cross_entropy"]
    traced = tf.function(lambda x: differentiate(function, x))
    operations = traced.get_concrete_function(draw(shape)).graph
    outputs = [y for op in operations.get_operations() for y in op.outputs]
    assert not [y for y in outputs if y.dtype == tf.bool and 6 in y.shape]


@pytest.mark.parametrize("label", [-1, 6])
def test_a_label_that_no_logit_has_gives_nan_alone(label, draw):
    loss = kernels.cross_entropy(tf.constant([label, 1]), draw((2, 6)))
    np.testing.assert_array_equal(np.isnan(loss), [True, False])


class Watched(keras.losses.SparseCategoricalCrossentropy):
    """Loss that records the graphs in which it is traced."""

    def __init__(self):
        super().__init__(from_logits=True)
        self.graphs = []

    def call(self, y_true, y_pred):
        self.graphs.append(weakref.ref(y_pred.graph))
        return super().call(y_true, y_pred)


def train_once(optimizer, **arguments):
    """Train a model; return weak references to it, its weights and graphs."""
    model = make_model("classifier", **arguments)
    loss = Watched()
    model.compile(optimizer, loss)
    inputs = random_inputs(batch=2)
    model.fit(inputs, np.array([0, 1]), verbose=0)
    model.predict(inputs, verbose=0)
    tables = [weight.value for weight in model.weights]
    return [*loss.graphs, *map(weakref.ref, [model, *tables])]


@pytest.mark.parametrize(
    ("optimizer", "arguments"),
    [
        (
            lambda: lamb(1e-3, steps=2),
            {"rematerialize": True, "dtype": "mixed_bfloat16"},
        ),
        (keras.optimizers.Adam, {"dtype": "mixed_float16"}),
    ],
)
def test_a_trained_model_and_its_graphs_are_freed(optimizer, arguments):
    left = train_once(optimizer(), **arguments)
    gc.collect()
    assert not [x for x in left if x() is not None]
