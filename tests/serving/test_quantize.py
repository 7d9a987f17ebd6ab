"""Weights of smaller dtypes: stored values, and differences of outputs."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model
from bert_keras.serving.quantize import convert_weights
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, preprocessor, task_models

IDS = np.array([[2, 5, 9, 11, 3], [2, 13, 12, 3, 0]], "int32")
INPUTS = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}


def dtypes(model):
    return {w.dtype for w in model.weights if w.dtype != "uint32"}


def test_int8_rounds_each_output_by_its_own_scale():
    model = fill(encoder())
    layer = model.transformer_layers[0].attention.query
    kernel = layer.kernel.numpy()
    kernel[:, 3] *= 50.0  # a large output must not affect the others
    layer.kernel.assign(kernel)
    small = convert_weights(model, "int8")
    stored = small.transformer_layers[0].attention.query
    assert stored._kernel.dtype == "int8"
    rounded = stored._kernel.numpy() / stored.kernel_scale.numpy()
    step = np.abs(kernel).max(axis=0) / 127
    assert (np.abs(rounded - kernel) <= step * 0.51).all()
    x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype("float32")
    exact = x @ rounded + layer.bias.numpy()
    np.testing.assert_allclose(stored(x), exact, atol=1e-4)
    rows = small.embeddings.token(IDS)
    table = model.embeddings.token.embeddings.numpy()
    np.testing.assert_allclose(rows, table[IDS], atol=np.abs(table).max() / 250)
    assert dtypes(model) == {"float32"}  # the original is unchanged


def test_the_table_that_a_head_multiplies_by_stays_whole():
    pretrainer = next(m for m in task_models() if m.name == "pretrainer")
    small = convert_weights(pretrainer, "int8")
    assert small.encoder.embeddings.token.embeddings.dtype == "float32"
    inputs = {**INPUTS, "mask_positions": np.array([[1], [2]], "int32")}
    for name, value in pretrainer(inputs).items():
        assert np.abs(value - small(inputs)[name]).max() < 0.5


def test_bfloat16_halves_every_weight():
    model = fill(encoder())
    small = convert_weights(model, "bfloat16")
    assert (dtypes(model), dtypes(small)) == ({"float32"}, {"bfloat16"})
    for exact, rounded in zip(model.weights, small.weights, strict=True):
        expected = tf.cast(exact.value, "bfloat16")
        np.testing.assert_array_equal(rounded, expected)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(InputError, match="float32, int8, bfloat16"):
        convert_weights(encoder(), "int4")


@pytest.mark.parametrize(
    "dtype", ["int8", pytest.param("bfloat16", marks=pytest.mark.long)]
)
def test_small_exports_are_verified_and_near(tmp_path, dtype):
    model = fill(BertClassifier(encoder(), labels=["bad", "good"]))
    texts = ["an hour well spent", "bad film", "good"]
    full = np.array(tf.nn.softmax(model(preprocessor()(texts))))
    folder = tmp_path / "small"
    options = {
        "weights_dtype": dtype,
        "verify": True,
        "ids_signature": "model_garden",
    }
    export_saved_model(model, folder, preprocessor(), **options)
    answers = load_saved_model(folder).classify(texts)
    assert 0 < np.abs(answers["probabilities"] - full).max() < 0.2
    assert answers["probabilities"].dtype == np.float32
    data = folder / "variables/variables.data-00000-of-00001"
    assert data.stat().st_size < 0.8 * 4 * model.count_params()
