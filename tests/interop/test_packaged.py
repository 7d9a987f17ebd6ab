"""The packaged weights: loaded offline, small, rounded to bfloat16."""

import os
import shutil
import socket

import ml_dtypes
import numpy as np
import pytest
from pack_preset import pack
from safetensors.numpy import load_file

import bert_keras
from bert_keras.errors import UntrainedWarning
from bert_keras.interop import downloads
from bert_keras.modeling.weights import published_weights
from official_tasks.engine.models import list_model_files
from tests.support.tiny import INPUTS, largest_difference, preprocessor
from tests.support.tiny import model as toy

NAME = "bert_keras_mini_en"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("the test opened a network connection")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A toy model, and its folder, packed as a preset."""
    model = toy("BertPretrainer")
    model.save_preset(tmp_path / "model", preprocessor())
    pack(str(tmp_path / "model"), str(tmp_path / "presets" / "toy_en"))
    monkeypatch.setattr(downloads, "PACKAGED", str(tmp_path / "presets"))
    return model, tmp_path / "presets" / "toy_en"


@pytest.mark.parametrize("preset", [NAME, f"./{NAME}"])
def test_it_loads_without_a_network(no_network, preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if preset != NAME:  # a path, not a name
        shutil.copytree(os.path.join(downloads.PACKAGED, NAME), NAME)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16
    )
    model = bert_keras.BertPretrainer.from_preset(preset)
    encoder = bert_keras.BertEncoder.from_preset(preset)
    assert model.load_report.initialised == []
    assert (encoder.origin == NAME) == (preset == NAME)
    assert encoder.license.name == "cc-by-4.0"
    assert "OpenStax" in encoder.license.text
    inputs = preprocess(["An hour well spent."])
    vectors = encoder(inputs)["sequence_output"]
    assert vectors.shape == (1, 16, 256)
    with pytest.warns(UntrainedWarning, match=f"from .*{NAME}"):
        bert_keras.BertClassifier.from_preset(preset, labels=["no", "yes"])


def test_it_is_small_and_listed_first():
    folder = os.path.join(downloads.PACKAGED, NAME)
    paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    assert sum(map(os.path.getsize, paths)) <= 16 * 1024 * 1024
    names = bert_keras.presets()
    assert names[0] == NAME
    assert {"uncased_L-4_H-256_A-4", "bert_tiny_en_uncased"} <= set(names)
    assert len(names) == len(set(names))


def test_packing_rounds_each_weight_to_bfloat16(packed):
    model, folder = packed
    again = bert_keras.BertPretrainer.from_preset("toy_en")
    stored = published_weights(again)
    for name, weight in published_weights(model).items():
        rounded = weight.numpy().astype(ml_dtypes.bfloat16).astype("float32")
        assert np.array_equal(stored[name].numpy(), rounded)
    assert load_file(folder / "model.safetensors")[
        "cls.predictions.bias"
    ].dtype == np.dtype(ml_dtypes.bfloat16)
    inputs = INPUTS | {
        "mask_positions": np.zeros((len(INPUTS["token_ids"]), 1), "int32")
    }
    for name, output in model(inputs).items():
        assert 0 < largest_difference(output, again(inputs)[name]) < 0.05


def test_a_run_from_it_is_bound_to_its_bytes(packed):
    _, folder = packed
    found = list_model_files("toy_en")
    names = ("model.safetensors", "vocab.txt")
    assert {str(folder / name) for name in names} <= set(found)
