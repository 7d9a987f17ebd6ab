import keras
import numpy as np
import pytest
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels, modes
from bert_keras.modeling.attention import DIRECTIONS
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.sizes import SIZES
from tests.support import numpy_bert, tiny
from tests.support.model_samples import (
    SMALL,
    numpy_weights,
    random_encoder,
    random_inputs,
)
from tests.support.numpy_bert import encode

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("attention", "activation"),
    [(DIRECTIONS[0], "gelu_exact"), *((d, "gelu_tanh") for d in DIRECTIONS)],
)
def test_outputs_equal_the_numpy_restatement(activation, attention):
    encoder = random_encoder(activation=activation, attention=attention)
    inputs = random_inputs()
    outputs = encoder(inputs, hidden_states=True)
    second = encode(numpy_weights(encoder), encoder.get_config(), inputs)
    assert list(outputs) == list(second)
    np.testing.assert_allclose(
        outputs["pooled_output"], second["pooled_output"], atol=1e-5
    )
    real = inputs["padding_mask"].astype(bool)  # ignore padding
    assert len(outputs["hidden_states"]) == 3
    for left, right in zip(
        outputs["hidden_states"], second["hidden_states"], strict=True
    ):
        np.testing.assert_allclose(np.array(left)[real], right[real], atol=1e-5)
    np.testing.assert_array_equal(
        outputs["sequence_output"], outputs["hidden_states"][-1]
    )


@keras.saving.register_keras_serializable("mine")
def cubed(x):
    return x * x * x


@pytest.mark.parametrize(
    ("activation", "name", "formula"),
    [
        ("relu", "relu", lambda x: np.maximum(x, 0)),
        (keras.activations.silu, "silu", lambda x: x / (1 + np.exp(-x))),
        (cubed, cubed, lambda x: x**3),
        ("gelu", "gelu_exact", numpy_bert.GELU["gelu_exact"]),
        (kernels.gelu_tanh, "gelu_tanh", numpy_bert.GELU["gelu_tanh"]),
    ],
)
def test_any_activation_of_keras_is_computed_and_saved(
    activation, name, formula, monkeypatch, tmp_path
):
    monkeypatch.setitem(numpy_bert.GELU, name, formula)
    encoder, inputs = random_encoder(activation=activation), random_inputs()
    assert encoder.activation == name
    second = encode(numpy_weights(encoder), encoder.arguments(), inputs)
    encoder.save(tmp_path / "a.keras")
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    for model in (encoder, loaded, encoder.with_dtype("float32")):
        assert model.activation == name
        np.testing.assert_allclose(
            model(inputs)["pooled_output"], second["pooled_output"], atol=1e-5
        )


def packed_and_apart():
    """Return three examples packed in two rows, and again in three rows."""
    ids = np.random.default_rng(1).integers(0, 30, (3, 6))
    rows = [(0, 4), (1, 6), (2, 3)]  # example, tokens
    packed = {
        name: np.zeros((2, 10), int)
        for name in ("token_ids", "example_ids", "position_ids")
    }
    packed["token_ids"][:] = 7  # any id may be padding
    for row, number, start, (example, size) in [
        (0, 1, 0, rows[0]),
        (0, 2, 4, rows[1]),
        (1, 1, 0, rows[2]),
    ]:
        part = slice(start, start + size)
        packed["token_ids"][row, part] = ids[example, :size]
        packed["example_ids"][row, part] = number
        packed["position_ids"][row, part] = np.arange(size)
    packed["padding_mask"] = (packed["example_ids"] > 0).astype(int)
    apart = {
        "token_ids": ids,
        "padding_mask": np.array([np.arange(6) < n for _, n in rows], int),
    }
    return packed, apart


@pytest.mark.parametrize("attention", DIRECTIONS)
def test_a_packed_row_equals_its_examples_apart(attention):
    encoder = random_encoder(attention=attention)
    packed, apart = packed_and_apart()
    outputs = encoder(packed, examples_per_row=2)
    single = encoder(apart)
    assert outputs["pooled_output"].shape == (2, 2, 8)
    for row, number, example in [(0, 1, 0), (0, 2, 1), (1, 1, 2)]:
        np.testing.assert_allclose(
            outputs["pooled_output"][row, number - 1],
            single["pooled_output"][example],
            atol=1e-6,
        )
        is_inside = packed["example_ids"][row] == number
        np.testing.assert_allclose(
            np.array(outputs["sequence_output"])[row][is_inside],
            single["sequence_output"][example][: is_inside.sum()],
            atol=1e-6,
        )


def test_attention_probabilities_stay_inside_the_examples_of_a_row():
    encoder = random_encoder()
    packed, apart = packed_and_apart()
    whole = encoder(packed, attention_probabilities=True)
    single = encoder(apart, attention_probabilities=True)
    pairs = zip(
        whole["attention_probabilities"],
        single["attention_probabilities"],
        strict=True,
    )
    for layer, expected in pairs:
        assert layer.shape == (2, 2, 10, 10)
        second = packed["example_ids"][0] == 2  # positions of example 1
        found = np.array(layer)[0][:, second]
        np.testing.assert_allclose(found[..., second], expected[1], atol=1e-6)
        assert not found[..., ~second].any()


@pytest.mark.parametrize("training", [False, True])
def test_attention_probabilities_change_no_output(training):
    encoder = random_encoder(attention_dropout=0.0, dropout=0.0)
    plain = encoder(random_inputs(), training=training)
    outputs = encoder(
        random_inputs(), training=training, attention_probabilities=True
    )
    for name, values in plain.items():
        np.testing.assert_array_equal(values, outputs[name])
    for layer in outputs["attention_probabilities"]:
        np.testing.assert_allclose(np.sum(layer, -1), 1.0, atol=1e-6)


def test_a_functional_graph_of_a_used_encoder_has_every_output():
    encoder = random_encoder()
    inputs = keras.Input((None,), dtype="int32")
    keras.Model(inputs, encoder(inputs)["pooled_output"])
    every = {"hidden_states": True, "attention_probabilities": True}
    symbolic = encoder(inputs, **every)
    ids = random_inputs()["token_ids"]
    eager = encoder(ids, **every)
    outputs = keras.Model(inputs, symbolic).predict(ids, verbose=0)
    for symbol, found, expected in zip(
        *map(keras.tree.flatten, (symbolic, outputs, eager)), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert symbol.dtype == keras.backend.standardize_dtype(expected.dtype)
        for left, right in zip(symbol.shape, expected.shape, strict=True):
            assert left in (None, right)


def test_weights_to_be_loaded_are_not_drawn_first():
    with modes.use(draw_weights=False):
        encoder = BertEncoder(**SMALL)
    kernel = encoder.transformer_layers[0].attention.query.kernel
    assert not kernel.numpy().any()
    drawn = BertEncoder(**{**SMALL, "vocabulary_size": 5000})
    values = drawn.embeddings.token.embeddings.numpy()
    assert np.abs(values).max() <= 0.04  # truncated at two stds
    assert values.std() == pytest.approx(0.0176, abs=0.0005)


PARAMETERS = {
    "tiny": 4_385_920,
    "medium": 41_373_184,
    "large": 335_141_888,
    "uncased_L-12_H-768_A-12": 109_482_240,
    "wwm_cased_L-24_H-1024_A-16": 333_579_264,
    "multi_cased_L-12_H-768_A-12": 177_853_440,
    "chinese_L-12_H-768_A-12": 102_267_648,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_sizes_have_the_published_number_of_parameters(name):
    size = {"vocabulary_size": 30522, **SIZES[name]}

    def count(num_layers):
        shape = {**size, "vocabulary_size": 10, "num_layers": num_layers}
        with modes.use(draw_weights=False):
            return BertEncoder(**shape).count_params()

    # Extrapolate from one and two layers, to avoid building large models.
    layers = count(1) + (size["num_layers"] - 1) * (count(2) - count(1))
    words = (size["vocabulary_size"] - 10) * size["hidden_dim"]
    assert layers + words == PARAMETERS[name]


def test_the_small_released_models_and_any_other_size_have_names_or_numbers():
    assert sum(name.startswith("uncased_L-") for name in SIZES) == 25
    for size in SIZES.values():
        assert size["hidden_dim"] == 64 * size["num_heads"]
    of_the_paper = BertEncoder(30, 6, 3, 12, 24)
    assert of_the_paper(np.ones((1, 4), int))["pooled_output"].shape == (1, 12)


@pytest.mark.parametrize(
    ("arguments", "inputs", "message"),
    [
        ({"num_heads": 3}, None, "`num_heads` is 3"),
        ({"num_heads": 0}, None, "`num_heads` is 0"),
        ({"num_layers": -1}, None, "`num_layers` is -1"),
        ({"hidden_dim": 8.0}, None, "`hidden_dim` is 8.0"),
        ({"activation": "gelu2"}, None, "activation is 'gelu2'"),
        ({"activation": None}, None, "activation is None"),
        ({}, [np.ones((1, 2), int)] * 3, "list of 3 arrays"),
        ({"attention": "causal"}, None, "attention is 'causal'"),
        ({"dropout": -0.1}, None, "dropout rate is -0.1"),
        ({"dropout": float("nan")}, None, "dropout rate is nan"),
        ({"attention_dropout": 1.0}, None, "dropout rate is 1.0"),
        ({}, {"ids": np.ones((1, 2))}, r"named \['ids'\]"),
        ({}, {"token_ids": np.ones((1, 2)), "odd": np.ones(1)}, "odd"),
        (
            {},
            {"token_ids": np.ones((1, 2)), "example_ids": np.ones((1, 2))},
            "no position_ids",
        ),
        ({}, np.ones((1, 17), int), "17 tokens long"),
        ({}, np.ones(3, int), r"token_ids has the shape \(3,\)"),
        (
            {},
            {"token_ids": np.ones((1, 2)), "padding_mask": np.ones(2)},
            r"padding_mask has the shape \(2,\)",
        ),
        ({}, {"token_ids": np.array([[2, -1, 3]])}, "the number -1"),
        (
            {},
            {"token_ids": np.ones((1, 2)), "segment_ids": np.array([[0, 2]])},
            "segment_ids contains the number 2. .* numbers from 0 to 1: make",
        ),
        (
            {},
            {"token_ids": np.ones((1, 2)), "position_ids": np.array([[0, 16]])},
            "position_ids contains the number 16",
        ),
    ],
)
def test_sizes_and_inputs_that_do_not_fit_raise(arguments, inputs, message):
    with pytest.raises(InputError, match=message):
        BertEncoder(**{**SMALL, **arguments})(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples_per_row": 2}, "no example_ids"),
        (
            {"attention_probabilities": True, "training": True},
            "attention_probabilities is True in training with `rematerialize",
        ),
    ],
)
def test_calls_that_lack_something_raise(arguments, message):
    encoder = BertEncoder(**SMALL, rematerialize=True)
    with pytest.raises(InputError, match=message):
        encoder(np.ones((1, 2), int), **arguments)


def test_what_is_not_given_is_as_in_the_original():
    sizes = {k: v for k, v in SMALL.items() if k != "max_sequence_length"}
    original = {
        "max_sequence_length": 512,
        "num_segments": 2,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-12,
    }
    assert original.items() <= BertEncoder(**sizes).get_config().items()


def test_a_subclass_that_hands_its_arguments_on_keeps_them():
    class Wider(BertEncoder):
        def __init__(self, scale=2, **kwargs):
            super().__init__(**kwargs)
            self.scale = scale

    given = Wider(scale=3, **SMALL).arguments()
    assert given == {**BertEncoder(**SMALL).arguments(), "scale": 3}


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="JAX returns NaN"
)
@pytest.mark.parametrize("name", ["token_ids", "segment_ids"])
def test_a_graph_refuses_ids_that_have_no_vector(name):
    model = BertEncoder(24, 1, 2, 16, 32, 8, num_segments=1)
    ids = np.ones((2, 4), "int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids}
    model.predict(inputs, verbose=0)
    inputs[name] = {"token_ids": -ids, "segment_ids": ids}[name]
    word = {"token_ids": "the id -1", "segment_ids": "reads no pairs"}[name]
    with pytest.raises(InputError, match=word):
        model.predict(inputs, verbose=0)


IDS = np.array([[2, 5, 3], [2, 6, 3]], "int32")
LARGE = IDS + np.int64(2**32)


@pytest.mark.parametrize("name", tiny.CLASSES)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (LARGE, "token_ids contains the number 429496729"),
        (IDS + 0.5, r"token_ids contains the number 2\.5"),
        (np.ma.array(IDS, mask=IDS == 5), "token_ids contains masked values"),
        (IDS[:, :0], r"token_ids has the shape .*rows of length 0"),
    ],
)
def test_ids_that_int32_cannot_hold_are_refused(name, ids, message):
    is_causal = name == "BertCausalModel"
    directed = {"attention": "left_to_right"} if is_causal else {}
    model = tiny.model(name, **directed)
    if name == "BertChooser":
        ids = ids[:, np.newaxis]
    inputs = {"token_ids": ids}
    if name == "BertPretrainer":
        inputs["mask_positions"] = np.zeros((2, 1), "int32")
    values = ops.convert_to_tensor(np.asarray(ids))
    calls = [
        lambda: model(inputs),
        lambda: model.predict(inputs, verbose=0),
        lambda: model.predict_on_batch(inputs),
    ]
    if keras.backend.standardize_dtype(values.dtype) != "int32":
        calls.append(lambda: model({**inputs, "token_ids": values}))
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("name", ["segment_ids", "padding_mask"])
def test_other_inputs_that_int32_cannot_hold_are_refused(name):
    for model in (tiny.model("BertEncoder"), tiny.model("BertTagger")):
        for wrong in (LARGE, IDS * 0.5):
            with pytest.raises(InputError, match=f"{name} contains the number"):
                model({"token_ids": IDS, name: wrong})


def test_whole_numbers_of_any_dtype_are_ids_in_half_precision_too():
    encoder = BertEncoder(2000, 1, 2, 8, 16, dtype="mixed_bfloat16")
    ids = np.array([[2, 1001, 3]], "int32")  # bfloat16 rounds 1001 to 1000
    expected = np.array(encoder(ids)["pooled_output"])
    for dtype in ("int64", "uint16", "float32", "float64"):
        found = encoder(ids.astype(dtype))["pooled_output"]
        np.testing.assert_array_equal(found, expected)
    predicted = encoder.predict(ids.astype("float64"), verbose=0)
    np.testing.assert_allclose(predicted["pooled_output"], expected, atol=0.01)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        with pytest.raises(InputError, match="round to bfloat16"):
            encoder(keras.Input((None,)))
    finally:
        keras.config.set_dtype_policy(policy)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="needs tf.data"
)
@pytest.mark.parametrize("name", ["BertEncoder", "BertTagger", "BertEmbedder"])
def test_ragged_ids_and_an_unknown_rank_say_what_to_pass(name):
    import tensorflow as tf

    model = tiny.model(name)
    ragged = tf.ragged.constant([[2, 5, 3], [2, 3]])
    rows = tf.data.Dataset.from_tensors(ragged)
    unknown = rows.map(lambda x: tf.numpy_function(lambda: IDS, [], tf.int32))
    for call, message in (
        (lambda: model(ragged), r"ragged.*to_tensor.*padding_mask"),
        (lambda: model({"token_ids": ragged}), "ragged"),
        (lambda: model.predict(ragged), "ragged"),
        (lambda: model.predict(rows), "ragged"),
        (lambda: model([[2, 5, 3], [2, 3]]), "rows of different lengths"),
        (lambda: model.predict(unknown), "ensure_shape"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    inputs = {
        "token_ids": ragged.to_tensor(),
        "padding_mask": tf.ones_like(ragged).to_tensor(),
    }
    model(inputs)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="JAX returns NaN"
)
@pytest.mark.parametrize("wrong", [LARGE, IDS + 0.5])
def test_a_graph_refuses_ids_that_int32_cannot_hold(wrong):
    import tensorflow as tf

    model = tiny.model("BertTagger")
    with pytest.raises(InputError, match="the id -1"):
        model.predict(tf.data.Dataset.from_tensors(wrong), verbose=0)
