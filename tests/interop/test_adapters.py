"""LoRA adapters: their output, files, merging and export."""

import json
import os
import shutil

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

import bert_keras
from bert_keras import InputError, enable_lora, load_lora, save_lora
from bert_keras.interop.peft import CONFIG, KEY, WEIGHTS
from bert_keras.interop.saving import save_model
from tests.support.model_samples import SMALL, fill, fill_weights, random_inputs
from tests.support.numpy_bert import softmax
from tests.support.task_samples import save_toy_model

LABELS = ["bad", "good"]


def classifier(labels=LABELS, name="encoder", **sizes):
    """Return a classifier with the same weights in each call."""
    sizes = {**SMALL, "num_layers": 1, "dtype": "float32", **sizes}
    encoder = bert_keras.BertEncoder(**sizes, name=name)
    return fill(bert_keras.BertClassifier(encoder, labels))


def adapted(rank=2, **sizes):
    """Return a classifier with random LoRA matrices, as after training."""
    model = classifier(**sizes)
    enable_lora(model, rank)
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_alpha = 3.0
    fill_weights(model.trainable_weights)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "lora"
    save_lora(adapted(), path)
    return path


def test_dropout_is_set_where_a_seed_is_drawn(tmp_path):
    """Layers of heads have no seed, so they get no LoRA dropout.

    PEFT's target "dense" includes the pooler and the head's transform.
    """

    def pretrainer():
        sizes = {**SMALL, "num_layers": 1, "dtype": "float32"}
        encoder = bert_keras.BertEncoder(**sizes, name="encoder", dropout=0.1)
        return fill(bert_keras.BertPretrainer(encoder))

    model = pretrainer()
    enable_lora(model, 2, dropout=0.25)
    heads = [model.encoder.pooler, model.mlm.dense]
    for layer in heads:
        layer.enable_lora(2)
    save_lora(model, tmp_path / "lora")
    loaded = pretrainer()
    load_lora(loaded, tmp_path / "lora")
    query = loaded.encoder.transformer_layers[0].attention.query
    assert query.lora_dropout == loaded.encoder.pooler.lora_dropout == 0.25
    assert loaded.mlm.dense.lora_dropout == 0


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


def test_the_file_holds_matrices_and_head_alone(saved):
    model = adapted()
    sizes = {name: x.size for name, x in load_file(saved / WEIGHTS).items()}
    assert sum(sizes.values()) == 4 * 2 * 8 + 2 * 8 + 2
    assert len(sizes) == len(model.trainable_weights)


def test_a_preset_and_an_export_merge_lora(tmp_path):
    preset = save_toy_model(tmp_path / "preset")
    preprocess = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16
    )
    model = bert_keras.BertClassifier.from_preset(preset, labels=LABELS)
    enable_lora(model, 2)
    fill_weights(model.trainable_weights)
    texts = ["a good film", "the cat sat"]
    expected = np.array(model(preprocess(texts)))
    save_lora(model, tmp_path / "lora")
    assert os.path.getsize(tmp_path / "lora" / WEIGHTS) < 4096
    model.save_preset(tmp_path / "merged", preprocess)
    merged = bert_keras.BertClassifier.from_preset(tmp_path / "merged")
    np.testing.assert_allclose(merged(preprocess(texts)), expected, atol=1e-5)
    served = bert_keras.load_saved_model(
        bert_keras.export_saved_model(
            model, tmp_path / "served", preprocess, verify=False
        )
    )
    found = served.classify(texts)["probabilities"]
    np.testing.assert_allclose(found, softmax(expected), atol=1e-5)


def test_weights_that_a_preset_lacks_stay_trainable(tmp_path):
    preset = save_toy_model(tmp_path / "preset")
    encoder = bert_keras.BertEncoder.from_preset(preset)
    pooler = ["encoder/pooler/kernel", "encoder/pooler/bias"]
    save_model(tmp_path / "a", encoder, without=pooler)
    with pytest.warns(bert_keras.errors.UntrainedWarning):
        model = bert_keras.BertClassifier.from_preset(
            tmp_path / "a", labels=LABELS
        )
    enable_lora(model, 2)
    names = {w.path for w in model.trainable_weights if "lora" not in w.name}
    assert names == {
        *pooler,
        "classifier/kernel",
        "classifier/bias",
    }


def change(tmp_path, config=(), tensors=(), **about):
    """Return a saved folder with other settings, tensors or metadata."""
    folder = tmp_path / "lora"
    save_lora(adapted(), folder)
    stored = load_file(folder / WEIGHTS) | dict(tensors)
    with safetensors.safe_open(folder / WEIGHTS, framework="numpy") as file:
        known = json.loads(file.metadata()[KEY])
    metadata = {KEY: json.dumps({**known, **about})}
    save_file(stored, folder / WEIGHTS, metadata)
    settings = json.loads((folder / CONFIG).read_text()) | dict(config)
    (folder / CONFIG).write_text(json.dumps(settings))
    return folder


A = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
B = A.replace("_A", "_B")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "BertTagger"}, "another class .* BertTagger"),
        ({"labels": ["good", "bad"]}, "another labels .*good.*bad"),
        ({"tensors": {A: np.zeros((3, 8), "f4")}}, "another size"),
        ({"tensors": {A: np.zeros((0, 8), "f4")}}, "another size"),
        ({"tensors": {A: np.zeros((), "f4")}}, "another size"),
        ({"tensors": {B: np.full((8, 2), np.nan, "f4")}}, "damaged"),
        ({"tensors": {A: np.zeros((2, 8), "i4")}}, "lora_A.*integers"),
        ({"tensors": {"more": np.zeros(3, "f4")}}, "none, found .3"),
        (
            {"tensors": {A.replace("query", "x"): np.zeros((2, 8), "f4")}},
            "self.x.* the model lacks this tensor",
        ),
        ({"config": {"peft_type": "LOHA"}}, "peft_type"),
        ({"config": {"use_dora": True}}, "use_dora"),
        ({"config": {"bias": "lora_only"}}, "bias.*found lora_only"),
        ({"config": {"init_lora_weights": "pissa"}}, "init_lora_weights"),
        ({"config": {"lora_alpha": -1}}, "lora_alpha"),
        ({"config": {"lora_dropout": 1}}, "lora_dropout"),
        ({"config": {"alpha_pattern": {"x": 1}}}, "alpha_pattern"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, changes, message):
    folder = change(tmp_path, **changes)
    model = classifier()
    before = len(model.weights)
    with pytest.raises(InputError, match=message):
        load_lora(model, folder)
    assert len(model.weights) == before


def test_missing_files_other_sizes_and_ranks_are_refused(saved, tmp_path):
    (tmp_path / "foreign").mkdir()
    shutil.copy(saved / CONFIG, tmp_path / "foreign")
    with pytest.raises(InputError, match="adapter_model.safetensors"):
        load_lora(classifier(), tmp_path / "foreign")
    with pytest.raises(InputError, match="adapter_config.json"):
        load_lora(classifier(), tmp_path)
    for name, value in {
        "hidden_dim": 16,
        "num_layers": 3,  # this model has all layers of the file
        "vocabulary_size": 50,
        "activation": "gelu_exact",
    }.items():
        message = f"with another {name} than this model. Expected {value}"
        with pytest.raises(InputError, match=message):
            load_lora(classifier(**{name: value}), saved)
    with pytest.raises(InputError, match="has LoRA already"):
        load_lora(adapted(), saved)
    with pytest.raises(InputError, match="no LoRA to save"):
        save_lora(classifier(), tmp_path / "none")
    with pytest.raises(InputError, match="has LoRA already"):
        enable_lora(adapted(), 2)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_adapters_behind_a_link_out_of_the_folder_are_refused(
    saved, tmp_path, name
):
    folder = shutil.copytree(saved, tmp_path / "lora")
    os.replace(folder / name, tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="link out of the folder"):
        load_lora(classifier(), folder)


def test_the_first_alpha_pattern_of_a_layer_counts(tmp_path):
    """PEFT, too, takes the first key that matches."""
    query = A.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    patterns = {query.removeprefix("bert."): 4, "query": 8}
    for keys, alpha in ((list(patterns), 4), (list(patterns)[::-1], 8)):
        pattern = {key: patterns[key] for key in keys}
        folder = change(tmp_path / keys[0], {"alpha_pattern": pattern})
        model = classifier()
        load_lora(model, folder)
        attention = model.encoder.transformer_layers[0].attention
        assert attention.query.lora_alpha == alpha
