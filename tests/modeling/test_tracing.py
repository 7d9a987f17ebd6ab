"""Equal layers are traced once. Layers that differ are not taken for one."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from bert_keras import BertEncoder, enable_lora
from bert_keras.modeling import encoder as encoder_module
from tests.support.model_samples import STILL, random_encoder, random_inputs

pytestmark = pytest.mark.fast

DROPS = {"dropout": 0.3, "attention_dropout": 0.2}


def trace(encoder, training=False):
    """Return the graph of a call: outputs, and gradients by the weights."""

    @tf.function(autograph=False)
    def call(inputs):
        with tf.GradientTape() as tape:
            outputs = encoder(inputs, training=training)
            parts = [tf.cast(x, "float32") for x in outputs.values()]
            loss = sum(tf.reduce_mean(x**3) for x in parts)
        return parts, tape.gradient(loss, encoder.trainable_weights)

    inputs = {name: tf.constant(x) for name, x in random_inputs().items()}
    return call.get_concrete_function(inputs), inputs


def compute(encoder, training=False):
    graph, inputs = trace(encoder, training)
    return [np.array(x) for x in tf.nest.flatten(graph(inputs))]


def trace_each(monkeypatch):
    monkeypatch.setattr(
        encoder_module.tracing, "trace_once", lambda layers, call: call
    )


def count_operations(encoder):
    return len(trace(encoder)[0].graph.get_operations())


def test_each_further_layer_adds_few_operations():
    two, six = (count_operations(random_encoder(num_layers=n)) for n in (2, 6))
    # The weights of a layer, their reading and their gradients
    assert six - two < 4 * 60
    encoder = random_encoder(num_layers=6)
    encoder.transformer_layers[5].output_norm.epsilon = 1e-3
    assert count_operations(encoder) - two > 4 * 120


@pytest.mark.parametrize(
    "arguments",
    [
        DROPS,
        {**DROPS, "dtype": "mixed_bfloat16"},
        {**DROPS, "rematerialize": True},
        {**STILL, "attention": "left_to_right"},
    ],
)
def test_outputs_and_gradients_are_those_of_each_layer(arguments, monkeypatch):
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        encoder = random_encoder(num_layers=3, **arguments)
        # Twice, because each call draws other units to drop.
        results.append([compute(encoder, training=True) for _ in range(2)])
        trace_each(monkeypatch)
    once, each = results
    tolerance = 1e-2 if "dtype" in arguments else 1e-5
    for left, right in zip(*map(tf.nest.flatten, results), strict=True):
        np.testing.assert_allclose(left, right, atol=tolerance, rtol=tolerance)
    is_equal = np.array_equal(once[0][0], once[1][0])
    assert is_equal == (arguments["dropout"] == 0)


class Shifted(keras.layers.Dense):
    """A layer that is not of this package, with a state of its own."""

    def build(self, shape):
        super().build(shape)
        self.calls = self.add_weight(trainable=False, initializer="zeros")

    def call(self, x, **_):
        self.calls.assign(self.calls + 1)
        return super().call(x) + 1.0


def replace(layer):
    own = Shifted(layer.intermediate.units)
    own.build((None, layer.hidden_dim))
    layer._tracker.unlock()
    layer.intermediate = own


def scale(factor, x):
    return factor * x


def double(call, *arguments, **keywords):
    return 2.0 * call(*arguments, **keywords)


def swap(norm):
    norm.gamma, norm.beta = norm.beta, norm.gamma


# Each changes a built layer so that its graph is another.
CHANGES = {
    "epsilon": lambda x: setattr(x.output_norm, "epsilon", 0.3),
    "activation": lambda x: setattr(
        x.intermediate, "activation", keras.activations.relu
    ),
    "object": lambda x: setattr(
        x.intermediate, "activation", functools.partial(scale, 3.0)
    ),
    "policy": lambda x: setattr(x.intermediate, "dtype_policy", "bfloat16"),
    "lora": lambda x: x.intermediate.enable_lora(2),
    "part": replace,
    "call": lambda x: setattr(
        x.attention, "call", functools.partial(double, x.attention.call)
    ),
    "private call": lambda x: setattr(x, "_call_layer", lambda y, **_: -y),
    "private number": lambda x: setattr(x.attention, "_scale", 3.0),
    "one weight for two": lambda x: setattr(
        x.attention, "key", x.attention.query
    ),
    "swapped weights": lambda x: swap(x.output_norm),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("place", [0, 1])
def test_a_changed_layer_is_not_taken_for_another(name, place, monkeypatch):
    keras.utils.set_random_seed(3)
    encoder = random_encoder(num_layers=2)
    unchanged = compute(encoder)[0]
    CHANGES[name](encoder.transformer_layers[place])
    once = compute(encoder)[0]
    assert not np.allclose(once, unchanged, atol=1e-3) or name == "lora"
    trace_each(monkeypatch)
    np.testing.assert_allclose(once, compute(encoder)[0], atol=1e-5)


def test_a_state_that_all_layers_have_is_kept():
    encoder = random_encoder(num_layers=2)
    for layer in encoder.transformer_layers:
        replace(layer)
    compute(encoder)
    for layer in encoder.transformer_layers:
        assert float(layer.intermediate.calls) == 1


def test_lora_on_all_layers_and_frozen_layers_learn_what_they_should(
    monkeypatch,
):
    results, counts = [], []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        encoder = random_encoder(num_layers=3, **DROPS)
        enable_lora(encoder, rank=2)
        encoder.transformer_layers[0].trainable = False
        counts.append(count_operations(encoder))
        results.append(compute(encoder, training=True))
        trace_each(monkeypatch)
    assert counts[1] - counts[0] > 2 * 100
    for left, right in zip(*results, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["regularizer", "list", "tuple"])
def test_objects_that_layers_share_or_that_have_no_order_are_no_settings(kind):
    encoder = random_encoder(num_layers=2, **STILL)
    regularizer = keras.regularizers.L2(10.0)
    for layer in encoder.transformer_layers:
        if kind == "regularizer":
            layer.intermediate.activity_regularizer = regularizer
        else:
            layer.notes = {"list": list, "tuple": tuple}[kind]([np.zeros(2)])
    inputs = random_inputs()
    lost = tf.function(lambda x: [encoder(x), sum(encoder.losses, 0.0)][1])
    in_graph = lost(inputs)
    encoder(inputs)
    np.testing.assert_allclose(in_graph, sum(encoder.losses, 0.0), rtol=1e-5)
    assert (in_graph > 0) == (kind == "regularizer")


def test_an_activation_keeps_its_state():
    calls = keras.Variable(0.0)

    def counted(x):
        calls.assign(calls + 1)
        return ops.relu(x)

    compute(random_encoder(num_layers=3, activation=counted))
    assert float(calls) == 3


def test_a_weight_that_changes_no_probability_gets_no_gradient():
    """A gradient of zeros would let the optimizer decay the weight."""
    encoder = random_encoder(num_layers=2)

    @tf.function
    def differentiate(inputs):
        with tf.GradientTape() as tape:
            outputs = encoder(inputs, attention_probabilities=True)
            loss = tf.reduce_sum(outputs["attention_probabilities"][-1] ** 2)
        weights = encoder.transformer_layers[-1].intermediate.weights
        return tape.gradient(loss, weights)

    assert differentiate(random_inputs()) == [None, None]


def test_a_subclass_of_the_encoder_is_traced_like_it():
    class Mine(BertEncoder):
        pass

    encoder = Mine(20, 2, 2, 8, 16)
    inputs = {"token_ids": np.arange(6, dtype="int32").reshape(2, 3)}
    expected = encoder(inputs)["sequence_output"]
    found = tf.function(lambda x: encoder(x)["sequence_output"])(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-6)
