import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from bert_keras.modeling import dropout as dropout_module
from bert_keras.modeling.attention import (
    SelfAttention,
    TransformerLayer,
)
from bert_keras.modeling.dropout import add_dropped, dropout
from bert_keras.modeling.heads import (
    BiLSTM,
    LogitsHead,
    MaskedLanguageModelHead,
)
from bert_keras.modeling.layers import (
    BertEmbeddings,
    Dropout,
    LayerNorm,
    Projection,
)
from bert_keras.modeling.memory import paged_zeros, share_memory

pytestmark = pytest.mark.fast

VECTORS = np.random.default_rng(7).normal(size=(2, 5, 8)).astype("float32")
IDS = np.random.default_rng(7).integers(0, 20, (2, 5)).astype("int32")
POSITIONS = np.array([[4, 0, 0], [1, 1, 2]], "int32")
DENSE = ("kernel", "bias")


NORM = ("gamma", "beta")


def paths(*prefixes, names=DENSE):
    return [f"{prefix}/{name}" for prefix in prefixes for name in names]


def masked_head():
    embedding = keras.layers.Embedding(30, 8, name="token")
    return MaskedLanguageModelHead(embedding, name="mlm")


ATTENTION = paths("query", "key", "value", "output")
TABLES = paths("token", "position", "segment", names=["embeddings"])
CELLS = paths(
    "both/forward_lstm/lstm_cell",
    "both/backward_lstm/lstm_cell",
    names=("kernel", "recurrent_kernel", "bias"),
)
# Each case has a layer, its inputs, the paths of its weights, True if it drops
# units in training, and the dtype of its outputs under `mixed_bfloat16`.
LAYERS = [
    (
        masked_head,
        [VECTORS, POSITIONS],
        [
            "bias",
            "token/embeddings",
            *paths("dense"),
            "norm/gamma",
            "norm/beta",
        ],
        False,
        "float32",
    ),
    (
        lambda: LogitsHead(3, 0.5, name="classifier"),
        [VECTORS],
        [*DENSE],
        True,
        "float32",
    ),
    (
        lambda: BertEmbeddings(20, 8, 6, dropout=0.5, name="embeddings"),
        [IDS, (IDS > 9).astype("int32")],
        [*TABLES, "norm/gamma", "norm/beta"],
        True,
        "bfloat16",
    ),
    (
        lambda: SelfAttention(2, 8, 0.5, name="attention"),
        [VECTORS],
        ATTENTION,
        False,  # it drops only with a `seed`; see tests/golden
        "bfloat16",
    ),
    (
        lambda: TransformerLayer(2, 8, 16, 0.3, 0.3, name="layer_0"),
        [VECTORS],
        [
            *(f"attention/{path}" for path in ATTENTION),
            *paths("attention_norm", names=NORM),
            *paths("intermediate", "output"),
            *paths("output_norm", names=NORM),
        ],
        True,
        "bfloat16",
    ),
    (lambda: Dropout(0.4, name="d"), [VECTORS], [], True, "bfloat16"),
    (lambda: LayerNorm(name="n"), [VECTORS], [*NORM], False, "bfloat16"),
    (lambda: Projection(3, name="p"), [VECTORS], [*DENSE], False, "bfloat16"),
    (lambda: BiLSTM(4, name="b"), [VECTORS], CELLS, False, "bfloat16"),
]


def run(layer, inputs, **arguments):
    return np.array(layer(*inputs, **arguments), "float32")


@pytest.mark.parametrize(
    ("make", "inputs", "weights", "drops", "dtype"), LAYERS
)
def test_a_layer_is_saved_runs_in_half_precision_and_drops_in_training(
    make, inputs, weights, drops, dtype, tmp_path
):
    layer = make()
    outputs = run(layer, inputs)
    assert [w.path.removeprefix(f"{layer.name}/") for w in layer.weights] == (
        weights
    )
    np.testing.assert_array_equal(run(layer, inputs), outputs)
    if drops:
        first, second = (run(layer, inputs, training=True) for _ in range(2))
        assert not np.array_equal(first, second)
    # Save and load the layer in a graph of unknown batch size and length.
    symbols = [
        keras.Input((None, *x.shape[2:]), dtype=x.dtype.name) for x in inputs
    ]
    symbolic = layer(*symbols)
    assert len(symbolic.shape) == outputs.ndim
    for known, actual in zip(symbolic.shape, outputs.shape, strict=True):
        assert known in (None, actual)
    assert symbolic.shape[-1] == outputs.shape[-1]
    keras.Model(symbols, symbolic).save(tmp_path / "layer.keras")
    loaded = keras.saving.load_model(tmp_path / "layer.keras")
    np.testing.assert_array_equal(np.array(loaded(inputs)), outputs)
    assert loaded.layers[-1].get_config() == layer.get_config()
    config = {**layer.get_config(), "dtype": "mixed_bfloat16"}
    half = type(layer).from_config(config)(*inputs)
    assert keras.backend.standardize_dtype(half.dtype) == dtype
    assert np.isfinite(np.array(half, "float32")).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_bias_of_many_rows_gets_the_gradient_that_float64_has(dtype, random):
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    layer = Projection(8, dtype=policy)
    layer.build((None, None, 8))
    x = random.normal(size=(8, 512, 8))
    with tf.GradientTape() as tape:
        y = layer(tf.cast(x, dtype))
    # The mean is not 0, so that a sum in bfloat16 would stop growing.
    upstream = tf.cast(random.normal(0.1, size=y.shape), dtype)
    gradient = tape.gradient(y, layer.bias.value, upstream)
    exact = np.sum(tf.cast(upstream, "float64"), axis=(0, 1))
    bits = {"bfloat16": 8, "float16": 11, "float32": 18}[dtype]
    np.testing.assert_allclose(gradient, exact, rtol=2.0**-bits)


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (1151, 917)), ("bfloat16", (1024, 1024))]
)
def test_dropout_holds_its_rate_and_its_mean(dtype, shape):
    seed = ops.convert_to_tensor([3, 4], "int32")
    x = ops.ones(shape, dtype)
    y = np.array(ops.cast(dropout(x, 0.1, seed), "float32"))
    count = y.size
    dropped = (y == 0).sum()
    assert abs(dropped - 0.1 * count) < 4 * np.sqrt(0.09 * count)
    # Neighbouring bfloat16 values differ by up to 2 / 256 of their size.
    np.testing.assert_allclose(
        y[y > 0], 1 / 0.9, rtol=1e-4 if dtype == "float32" else 2 / 256
    )


def test_a_rate_of_almost_one_keeps_a_few_units():
    seed = ops.convert_to_tensor([3, 4], "int32")
    y = np.array(dropout(ops.ones((1000, 1000)), 0.999995, seed))
    assert 1 <= (y > 0).sum() < 50
    assert np.isfinite(y).all()


def test_neighbours_places_and_seeds_are_dropped_independently():
    one = ops.convert_to_tensor([3, 4], "int32")
    two = ops.convert_to_tensor([3, 5], "int32")
    x = ops.ones((300, 300))
    masks = [
        np.array(dropout(x, 0.5, seed, site)) > 0
        for seed, site in [(one, 0), (one, 1), (two, 0), (two, 1)]
    ]
    again = np.array(dropout(x, 0.5, one, 0)) > 0
    np.testing.assert_array_equal(masks[0], again)
    bound = 4 * np.sqrt(0.25 / x.shape[0] ** 2)
    for i, left in enumerate(masks):
        for right in masks[:i]:
            assert abs((left == right).mean() - 0.5) < bound
        assert abs((left[:, 1:] == left[:, :-1]).mean() - 0.5) < bound


def test_half_precision_embeddings_are_rounded_once_at_the_end():
    whole = BertEmbeddings(20, 8)
    half = BertEmbeddings(20, 8, dtype="mixed_bfloat16")
    segments = (IDS > 9).astype("int32")
    outputs = whole(IDS, segments)
    half(IDS, segments)
    half.set_weights(whole.get_weights())
    np.testing.assert_array_equal(
        half(IDS, segments), ops.cast(outputs, "bfloat16")
    )


def test_a_variable_takes_memory_and_writes_to_none_but_its_own():
    numbers = paged_zeros((2, 3))
    with keras.device("cpu"):
        variable = keras.Variable(np.ones((2, 3), "float32"))
        variable.assign(share_memory(numbers))
    numbers[0] = 5.0
    assert variable.numpy().tolist() == [[5.0] * 3, [0.0] * 3]  # not copied
    variable.assign_add(np.ones((2, 3), "float32"))
    assert variable.numpy().tolist() == [[6.0] * 3, [1.0] * 3]
    assert numbers.tolist() == [[5.0] * 3, [0.0] * 3]
    del numbers
    assert variable.numpy().tolist() == [[6.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("shape", [(5, 6), (5, 7), (2, 3, 4, 8), (2, 3, 7, 1)])
def test_a_graph_of_unknown_sizes_draws_the_units_that_keras_draws(shape):
    seed = tf.constant([2**33, 9], "int64")
    draw = tf.function(
        lambda x: dropout_module._draw_int16_in_tensorflow(x, seed),
        input_signature=[tf.TensorSpec([None] * len(shape), "float32")],
    )
    generator = dropout_module.DrawnSeed(seed)
    np.testing.assert_array_equal(
        draw(tf.zeros(shape)), dropout_module._draw_int16(shape, generator)
    )


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sum_with_dropout_has_the_gradients_of_the_plain_sum(rate, random):
    seed = tf.constant([1, 2], "int64")
    x, y, upstream = map(tf.constant, random.normal(size=(3, 4, 6)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        results = (
            add_dropped(x, y, rate, seed, 3),
            x + dropout(tf.ones_like(y), rate, seed, 3) * y,
        )
    for left, right in zip(
        *[[r, *tape.gradient(r, [x, y], upstream)] for r in results],
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "layer",
    [Projection(4), SelfAttention(2, 8), TransformerLayer(2, 8, 16)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_take_vectors_of_unknown_width(layer):
    layer.build((None, None, 8))
    call = tf.function(
        layer, input_signature=[tf.TensorSpec([None, None, None], "float32")]
    )
    np.testing.assert_allclose(call(VECTORS), layer(VECTORS), atol=1e-6)


def test_a_layer_of_unknown_sizes_makes_few_operations():
    layer = TransformerLayer(2, 8, 16)
    layer.build((None, None, 8))
    call = tf.function(
        lambda x: layer(x, training=True),
        input_signature=[tf.TensorSpec([None, None, 8], "float32")],
    )
    operations = call.get_concrete_function().graph.get_operations()
    # Tracing takes about 1 ms for each. A layer that computes its sizes again
    # for each reshape and each dropout has more than 380.
    assert len(operations) <= 260


@pytest.mark.parametrize("kind", ["float64", "int32", ">f4", "odd", "columns"])
def test_numbers_of_any_kind_and_place_are_assigned(kind):
    numbers = np.arange(6.0, dtype="float32").reshape(2, 3)
    if kind == "odd":  # its address is no multiple of 64
        at = paged_zeros((10,))[4:].reshape(2, 3)
        at[:] = numbers
    else:
        at = numbers.T.copy().T if kind == "columns" else numbers.astype(kind)
    assert share_memory(at) is at
    variable = keras.Variable(np.ones((2, 3), "float32"))
    variable.assign(share_memory(at))
    assert np.array_equal(variable.numpy(), numbers)
