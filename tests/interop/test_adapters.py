"""LoRA from the outside: exact, saved apart, merged, exported."""

import json
import os

import keras
import numpy as np
import pytest
from model_samples import SMALL, fill, random_inputs
from safetensors.numpy import load_file, save_file
from task_samples import save_toy_model

import bert_keras
from bert_keras import InputError, enable_lora, load_lora, save_lora
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensor_files import read_metadata
from bert_keras.modeling.weights import published_weights

LABELS = ["bad", "good"]


def classifier(labels=LABELS, name="encoder", **sizes):
    """The same weights in each call, as from a preset."""
    sizes = {**SMALL, "num_layers": 1, "dtype": "float32", **sizes}
    encoder = bert_keras.BertEncoder(**sizes, name=name)
    return fill(bert_keras.BertClassifier(encoder, labels))


def adapted(rank=2, **sizes):
    """As after training: no matrix is 0."""
    model = classifier(**sizes)
    enable_lora(model, rank)
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_alpha = 3.0
    random = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "lora.safetensors"
    save_lora(adapted(), path)
    return path


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("write", ["float32", "bfloat16", "adapters"])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, value, write):
    model = adapted()
    weight = next(w for w in model.trainable_weights if "lora" in w.path)
    array = weight.numpy()
    array[-1, -1] = value
    weight.assign(array)
    path = tmp_path / "saved"
    with pytest.raises(InputError, match="NaN or infinity"):
        if write == "adapters":
            save_lora(model, path)
        else:
            save_model(path, model, dtype=write)
    assert os.listdir(tmp_path) == []


def test_an_adapted_projection_is_w_plus_scale_times_a_b():
    query = adapted().encoder.transformer_layers[0].attention.query
    w, bias, a, b = (
        np.array(weight, np.float64)
        for weight in (
            query._kernel,
            query.bias,
            query.lora_kernel_a,
            query.lora_kernel_b,
        )
    )
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    expected = x @ (w + 3.0 / 2 * a @ b) + bias
    np.testing.assert_allclose(query(x.astype("f4")), expected, atol=1e-5)
    assert np.abs(expected - x @ w - bias).max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_loaded_and_merged_adapters_answer_as_the_saved_ones(saved, dtype):
    inputs = random_inputs()
    expected = np.array(adapted(dtype=dtype)(inputs))
    assert np.abs(expected - classifier(dtype=dtype)(inputs)).max() > 0.1
    loaded = classifier(dtype=dtype, name="other")
    load_lora(loaded, saved)
    np.testing.assert_array_equal(loaded(inputs), expected)
    names = {weight.path for weight in adapted().trainable_weights}
    there = {w.path.replace("other", "encoder") for w in loaded.weights}
    assert names < there and len(loaded.trainable_weights) == len(names)
    merged = classifier(dtype=dtype)
    load_lora(merged, saved, merge=True)
    assert not any("lora" in weight.path for weight in merged.weights)
    bound = 1e-5 if dtype == "float32" else 0.05
    np.testing.assert_allclose(merged(inputs), expected, atol=bound)
    other = classifier(dtype=dtype)
    enable_lora(other, 2)  # of the same rank, and scaled otherwise
    load_lora(other, saved)
    np.testing.assert_array_equal(other(inputs), expected)


def test_the_file_holds_matrices_and_head_alone(saved):
    model = adapted()
    sizes = {name: x.size for name, x in load_file(saved).items()}
    assert sum(sizes.values()) == 4 * 2 * 8 + 2 * 8 + 2
    assert len(sizes) == len(model.trainable_weights)


def test_a_preset_and_an_export_merge_lora(tmp_path):
    preset = save_toy_model(tmp_path / "preset")
    preprocess = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16
    )
    model = bert_keras.BertClassifier.from_preset(preset, labels=LABELS)
    enable_lora(model, 2)
    for weight in model.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, seed=1))
    texts = ["a good film", "the cat sat"]
    expected = np.array(model(preprocess(texts)))
    save_lora(model, tmp_path / "lora.safetensors")
    assert os.path.getsize(tmp_path / "lora.safetensors") < 4096
    model.save_preset(tmp_path / "merged", preprocess)
    merged = bert_keras.BertClassifier.from_preset(tmp_path / "merged")
    np.testing.assert_allclose(merged(preprocess(texts)), expected, atol=1e-5)
    served = bert_keras.load_saved_model(
        bert_keras.export_saved_model(
            model, preprocess, tmp_path / "served", verify=False
        )
    )
    shares = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    found = served.classify(texts)["probabilities"]
    np.testing.assert_allclose(found, shares, atol=1e-5)


def test_weights_that_a_preset_lacks_stay_trainable(tmp_path):
    preset = save_toy_model(tmp_path / "preset")
    encoder = bert_keras.BertEncoder.from_preset(preset)
    save_model(tmp_path / "a", encoder, without=["encoder/pooler/kernel"])
    with pytest.warns(bert_keras.errors.UntrainedWarning):
        model = bert_keras.BertClassifier.from_preset(
            tmp_path / "a", labels=LABELS
        )
    enable_lora(model, 2)
    names = {w.path for w in model.trainable_weights if "lora" not in w.name}
    assert names == {
        "encoder/pooler/kernel",
        "classifier/kernel",
        "classifier/bias",
    }


def refused(tmp_path, **changes):
    """The file with other tensors or other words about it."""
    model = adapted()
    save_lora(model, tmp_path / "lora")
    tensors = load_file(tmp_path / "lora") | changes.pop("tensors", {})
    about = json.loads(read_metadata(tmp_path / "lora")["bert_keras_lora"])
    about = json.dumps({**about, **changes})
    save_file(tensors, tmp_path / "lora", {"bert_keras_lora": about})
    return tmp_path / "lora"


QUERY = "encoder/layer_0/attention/query/lora_kernel_"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "BertTagger"}, "another class. .* BertTagger"),
        ({"labels": ["good", "bad"]}, "another labels. .*good.*bad"),
        ({"alpha": {"encoder/layer_7/x": 1.0}}, "another size. .*none"),
        ({"alpha": {}}, "another size. Expected none, found .8, 2."),
        ({"alpha": {"x": float("nan")}}, "header is damaged|alpha of x"),
        ({"tensors": {QUERY + "a": np.zeros((8, 3), "f4")}}, "another size"),
        ({"tensors": {QUERY + "a": np.zeros((8, 0), "f4")}}, "another size"),
        ({"tensors": {QUERY + "a": np.zeros((), "f4")}}, "another size"),
        ({"tensors": {QUERY + "b": np.full((2, 8), np.nan, "f4")}}, "damaged"),
        ({"tensors": {"more": np.zeros(3, "f4")}}, "none, found .3"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, changes, message):
    path = refused(tmp_path, **changes)
    model = classifier()
    before = len(model.weights)
    with pytest.raises(InputError, match=message):
        load_lora(model, path)
    assert len(model.weights) == before


def test_foreign_files_other_sizes_and_ranks_are_refused(saved, tmp_path):
    save_file({"x": np.zeros(3, "f4")}, tmp_path / "foreign")
    with pytest.raises(InputError, match="not a file of save_lora"):
        load_lora(classifier(), tmp_path / "foreign")
    for name, value in {
        "hidden_dim": 16,
        "num_layers": 3,  # which has a place for all that is in the file
        "vocabulary_size": 50,
        "activation": "gelu_exact",
    }.items():
        message = f"with another {name}. Expected {value}"
        with pytest.raises(InputError, match=message):
            load_lora(classifier(**{name: value}), saved)
    for rank, merge in ((4, False), (2, True)):
        with pytest.raises(
            InputError, match=f"rank 2 on 2 layers, and .* rank {rank} on"
        ):
            load_lora(adapted(rank), saved, merge)
    with pytest.raises(InputError, match="no LoRA to save"):
        save_lora(classifier(), tmp_path / "none")
    with pytest.raises(InputError, match="has LoRA already"):
        enable_lora(adapted(), 2)
    assert len(published_weights(adapted())) == len(classifier().weights)
