"""Preset folders of keras-hub, with the weight paths of old and new files."""

import json
import os

import h5py
import ml_dtypes
import numpy as np
import pytest

from bert_keras.interop.convert import model_class
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.weights import published_weights
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny, weight_names
from tests.support.tiny import CLASSES
from tests.support.weight_names import ENCODER, KERAS_HUB

pytestmark = pytest.mark.fast


def backbone(package="keras_hub", **changes):
    return {
        "module": f"{package}.src.models.bert.bert_backbone",
        "class_name": "BertBackbone",
        "config": {**weight_names.SIZES, "dropout": 0.2, "dtype": "x"},
        "registered_name": f"{package}>BertBackbone",
        **changes,
    }


def preset(folder, old=False):
    """Write an encoder in the format of keras-hub; return its weights."""
    numbers = weight_names.weights(ENCODER)
    with h5py.File(folder / "model.weights.h5", "w") as file:
        for ours, theirs in weight_names.names(KERAS_HUB, ENCODER).items():
            path = f"layers/{theirs}"
            if old:
                path = old_path(theirs)
            file[path] = weight_names.with_heads_apart(ours, numbers[ours])
    package = "keras_nlp" if old else "keras_hub"
    (folder / "config.json").write_text(json.dumps(backbone(package)))
    return numbers


def old_path(path):
    """Return the path of a weight in keras-nlp 0.5 with Keras 2.13."""
    path = path.replace("_layer_norm/", "_layernorm/")
    for part in ("query", "key", "value", "output"):
        path = path.replace(f"/{part}_dense/", f"/_{part}_dense/")
    return f"_layer_checkpoint_dependencies/{path}"


def test_bfloat16_is_read(tmp_path):
    """HDF5 lacks bfloat16: Keras writes two bytes and an attribute."""
    numbers = preset(tmp_path)
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        paths = []
        file.visititems(
            lambda path, node: (
                paths.append(path) if isinstance(node, h5py.Dataset) else None
            )
        )
        for path in paths:
            half = file[path][:].astype(ml_dtypes.bfloat16)
            del file[path]
            file[path] = half.view("V2")
            file[path].attrs["dtype"] = "bfloat16"
    found = published_weights(load_model(CLASSES["BertEncoder"], tmp_path))
    for name, array in numbers.items():
        half = array.astype(ml_dtypes.bfloat16).astype("float32")
        assert np.array_equal(found[name].numpy(), half), name


@pytest.mark.parametrize("old", [False, True])
def test_each_dataset_comes_to_its_place(tmp_path, old):
    numbers = preset(tmp_path, old)
    model = load_model(CLASSES["BertEncoder"], tmp_path)
    found = published_weights(model)
    for name, expected in numbers.items():
        assert np.array_equal(found[name].numpy(), expected), name
    assert model.load_report.skipped == model.load_report.initialised == []
    assert (model.dropout, model.activation) == (0.2, "gelu_tanh")


def text_embedder(folder, **config):
    """Write a `BertTextEmbedder` as keras-hub 0.32 does; return its weights.

    The task adds no weights, so there is no task.weights.h5.
    """
    numbers = preset(folder)
    task = {
        "module": "keras_hub.src.models.bert.bert_text_embedder",
        "class_name": "BertTextEmbedder",
        "config": {
            "backbone": backbone(),
            "preprocessor": None,
            "pooling_mode": "mean",
            "normalize": True,
            **config,
        },
        "registered_name": "keras_hub>BertTextEmbedder",
    }
    (folder / "task.json").write_text(json.dumps(task))
    return numbers


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_text_embedder_is_an_encoder_that_pools_as_it_says(tmp_path, pooling):
    text_embedder(tmp_path, pooling_mode=pooling, normalize=False)
    checkpoint = open_checkpoint(tmp_path)
    model = load_model(model_class(checkpoint), checkpoint)
    assert type(model).__name__ == "BertEncoder"
    assert dict(model.sentence_embedding) == {
        "pooling": pooling,
        "normalize": False,
    }
    assert model.load_report.skipped == model.load_report.initialised == []


def test_a_single_sigmoid_output_is_one_label(tmp_path):
    text_embedder(tmp_path, num_classes=1, activation="sigmoid")
    path = tmp_path / "task.json"
    path.write_text(path.read_text().replace("TextEmbedder", "TextClassifier"))
    arguments = open_checkpoint(tmp_path).head_arguments
    assert arguments["labels"] == ["LABEL_0"]
    assert arguments["problem"] == "multi"


def test_a_pooling_that_is_not_known_is_refused(tmp_path):
    text_embedder(tmp_path, pooling_mode="attention")
    with pytest.raises(WeightsError, match="pooling_mode.*attention"):
        open_checkpoint(tmp_path)


def test_the_text_side_comes_along(tmp_path):
    preset(tmp_path)
    with pytest.raises(WeightsError, match="assets/tokenizer/vocabulary.txt"):
        BertPreprocessor.from_preset(tmp_path)
    os.makedirs(tmp_path / "assets" / "tokenizer")
    vocabulary = tmp_path / "assets" / "tokenizer" / "vocabulary.txt"
    vocabulary.write_text("\n".join(tiny.PIECES) + "\n")
    tokenizer = {
        "module": "keras_hub.src.models.bert.bert_tokenizer",
        "class_name": "BertTokenizer",
        "config": {"lowercase": True, "strip_accents": False},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    preprocessor = {"config": {"sequence_length": 14}}
    (tmp_path / "preprocessor.json").write_text(json.dumps(preprocessor))
    text = BertPreprocessor.from_preset(tmp_path)
    assert text.sequence_length == 14
    assert text.tokenizer.lowercase is True
    assert text.tokenizer.strip_accents is False
    del tokenizer["config"]["lowercase"]  # keras-hub then keeps the case
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = BertPreprocessor.from_preset(tmp_path)
    assert text.tokenizer.lowercase is False
    assert text.tokenizer.max_word_length == 200


def test_a_masked_language_model_has_the_head_of_keras_hub(tmp_path):
    text_embedder(tmp_path)
    path = tmp_path / "task.json"
    path.write_text(path.read_text().replace("TextEmbedder", "MaskedLM"))
    # `MaskedLMHead` of keras-hub 0.32: intermediate_activation="gelu" is the
    # exact GELU, and layer_norm_epsilon is 1e-05.
    assert open_checkpoint(tmp_path).head_arguments == {
        "mlm_activation": "gelu_exact",
        "mlm_norm_epsilon": 1e-5,
    }
