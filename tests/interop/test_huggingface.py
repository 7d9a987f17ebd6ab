"""Loading of Hugging Face folders in old and new formats of transformers."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_keras.errors import InputError
from bert_keras.interop import huggingface_weights
from bert_keras.interop.convert import convert
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.weights import published_weights
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.foreign_formats import tensorflow_arrays, write_tf_model
from tests.support.huggingface_folders import (
    CONFIG,
    KINDS,
    folder_of,
    write_json,
)
from tests.support.model_samples import assert_holds
from tests.support.tiny import CLASSES


@pytest.mark.parametrize("kind", KINDS)
def test_each_tensor_comes_to_its_place(tmp_path, kind):
    numbers = folder_of(tmp_path, kind)
    model = load_model(CLASSES[KINDS[kind][0]], tmp_path)
    assert_holds(model, numbers)
    assert model.load_report.skipped == model.load_report.initialised == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stated", [None, []])
def test_a_head_without_a_name_is_known_by_its_tensors(tmp_path, kind, stated):
    """Folders of transformers from 2019 have no `architectures`."""
    problem = {"problem_type": "single_label_classification"}
    numbers = folder_of(tmp_path, kind, architectures=stated, **problem)
    row = convert(tmp_path, tmp_path / "own")
    assert row.task == KINDS[kind][0]
    assert (row.skipped, row.untrained) == ([], [])
    assert_holds(load_model(CLASSES[row.task], tmp_path / "own"), numbers)


def test_a_language_model_that_sees_both_sides_is_no_causal_model(tmp_path):
    numbers = folder_of(tmp_path, "BertForPreTraining")
    for decodes, head in ((False, "BertPretrainer"), (True, "BertCausalModel")):
        names = {"architectures": ["BertLMHeadModel"], "is_decoder": decodes}
        write_json(tmp_path, "config.json", {**CONFIG, **names})
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.head == head
        found = checkpoint.tensors["mlm/bias"].load()
        assert np.array_equal(found, numbers["mlm/bias"])


def classifier_folder(folder, outputs, labels=None, pooler=True, **config):
    """Write a folder without `architectures`; return the head's arrays."""
    numbers = folder_of(folder, "BertForSequenceClassification")
    tensors = load_file(folder / "model.safetensors")
    if not pooler:
        tensors = {k: v for k, v in tensors.items() if "pooler" not in k}
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][:outputs]
    save_file(tensors, folder / "model.safetensors")
    names = {str(i): label for i, label in enumerate(labels or [])}
    config = {**CONFIG, **config, "id2label": names}
    write_json(folder, "config.json", config)
    return {
        "kernel": numbers["classifier/kernel"][:, :outputs],
        "bias": numbers["classifier/bias"][:outputs],
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"outputs": 1, "labels": ["score"]}, "BertClassifier"),
        ({"outputs": 1}, "BertChooser"),  # `id2label` defaults to 2 labels
        ({"outputs": 2, "pooler": False}, "BertTagger"),
        (
            {"outputs": 2, "problem_type": "multi_label_classification"},
            "BertClassifier",
        ),
    ],
)
def test_three_classes_call_their_head_classifier(
    tmp_path, arguments, expected
):
    numbers = classifier_folder(tmp_path, **arguments)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.head == expected
    weights = published_weights(load_model(CLASSES[expected], checkpoint))
    layer = expected.removeprefix("Bert").lower()
    for end, array in numbers.items():
        assert np.array_equal(weights[f"{layer}/{end}"].numpy(), array)


def test_where_two_classes_fit_the_caller_decides(tmp_path, recwarn):
    numbers = classifier_folder(tmp_path, 2, ["a", "b"])
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    for name, layer in (
        ("BertClassifier", "classifier"),
        ("BertTagger", "tagger"),
    ):
        model = load_model(CLASSES[name], tmp_path)
        assert model.labels == ["a", "b"]
        assert model.encoder.license.name == "mit"
        kernel = published_weights(model)[f"{layer}/kernel"].numpy()
        assert np.array_equal(kernel, numbers["kernel"])
    assert load_model(CLASSES["BertEncoder"], tmp_path)
    assert not recwarn.list
    with pytest.raises(
        InputError,
        match="fit BertForSequenceClassification or BertForTokenClass.*archit",
    ):
        convert(tmp_path, tmp_path / "own")


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": None},
        {"id2label": None, "num_labels": 3},
        {"id2label": {"0": 0, "1": 1, "2": 2}},
        {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "num_labels": 3},
    ],
)
def test_a_trained_head_without_names_takes_the_callers_labels(
    tmp_path, recwarn, config
):
    numbers = folder_of(tmp_path, "BertForSequenceClassification", **config)
    labels = ["no", "so", "yes"]
    model = load_model(CLASSES["BertClassifier"], tmp_path, labels=labels)
    assert (model.labels, model.load_report.initialised) == (labels, [])
    assert_holds(model, numbers)
    model = load_model(CLASSES["BertClassifier"], tmp_path)
    assert model.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert not recwarn.list


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["BertForVision"]},
        {"id2label": {"0": "a", "5": "b"}},
        {"id2label": {"0": "a", "1": "b", "2": "a"}},
        {"problem_type": "guess"},
        # BertClassifier would read the last token; transformers reads [CLS].
        {"is_decoder": True},
        {"architectures": ["BertForMaskedLM"], "tie_word_embeddings": False},
    ],
)
def test_a_fault_of_the_head_stops_neither_encoder_nor_text(tmp_path, config):
    folder_of(tmp_path, "BertForSequenceClassification", **config)
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.PIECES) + "\n")
    assert BertPreprocessor.from_preset(tmp_path, sequence_length=8)
    assert load_model(CLASSES["BertEncoder"], tmp_path)
    kind = "BertPretrainer" if len(config) == 2 else "BertClassifier"
    with pytest.raises(WeightsError, match=list(config)[-1]):
        load_model(CLASSES[kind], tmp_path)
    with pytest.raises(WeightsError, match=list(config)[-1]):
        convert(tmp_path, tmp_path / "own")


@pytest.mark.parametrize("end", ["weight", "bias"])
def test_a_copy_of_tied_weights_that_differs_is_refused(tmp_path, end):
    """transformers 5 computes with the copy, whatever the config says."""
    folder_of(tmp_path, "BertForPreTraining")
    path, name = tmp_path / "model.safetensors", "cls.predictions.decoder"
    tensors = load_file(path)
    tensors[f"{name}.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ]
    tensors[f"{name}.bias"] = tensors["cls.predictions.bias"]
    save_file(tensors, path)
    assert load_model(CLASSES["BertPretrainer"], tmp_path)
    tensors[f"{name}.{end}"] = tensors[f"{name}.{end}"] + np.float32(1e-3)
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=f"decoder.{end}: .*tied weight"):
        load_model(CLASSES["BertPretrainer"], tmp_path)
    assert load_model(CLASSES["BertEncoder"], tmp_path)


@pytest.mark.parametrize("copy", ["weight", "bias"])
def test_a_tied_weight_may_be_stored_as_its_copy_only(tmp_path, copy):
    numbers = folder_of(tmp_path, "BertForPreTraining")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = {
        "weight": "bert.embeddings.word_embeddings.weight",
        "bias": "cls.predictions.bias",
    }[copy]
    tensors[f"cls.predictions.decoder.{copy}"] = tensors.pop(name)
    save_file(tensors, path)
    model = load_model(CLASSES["BertPretrainer"], tmp_path)
    assert_holds(model, numbers)
    assert model.load_report.skipped == model.load_report.initialised == []


@pytest.mark.parametrize("file", ["tf_model.h5", "model.safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_the_tensorflow_classes_are_read(tmp_path, kind, file):
    numbers = folder_of(tmp_path, kind)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    if file == "tf_model.h5":
        write_tf_model(tmp_path / file, tensors)
    else:
        save_file(tensorflow_arrays(tensors), path, {"format": "tf"})
    model = load_model(CLASSES[KINDS[kind][0]], tmp_path)
    assert_holds(model, numbers)
    assert model.load_report.skipped == model.load_report.initialised == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "distilbert/tf_distil_bert_model/distilbert/transformer/layer_._1/"
            "attention/q_lin/kernel:0",
            "distilbert.transformer.layer.1.attention.q_lin.weight",
        ),
        (
            "pre_classifier/tf_distil_bert_for_sequence_classification/"
            "pre_classifier/bias:0",
            "pre_classifier.bias",
        ),
        (
            "bert/embeddings/token_type_embeddings/embeddings:0",
            "bert.embeddings.token_type_embeddings.weight",
        ),
        ("nsp___cls/seq_relationship/bias:0", "cls.seq_relationship.bias"),
    ],
)
def test_a_name_of_a_tensorflow_class_is_translated(name, expected):
    assert huggingface_weights.translate_name(name) == expected


def test_what_is_not_taken_along_is_named(tmp_path):
    folder_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["classifier.weight"] = np.ones((3, 6), "float32")
    tensors["embeddings.position_ids"] = np.ones((1, 16), "float32")
    save_file(tensors, tmp_path / "model.safetensors")
    row = convert(tmp_path, tmp_path / "own")  # config.json says BertModel
    assert row.skipped == ["classifier.weight"]
    assert row.remark == "skipped: classifier.weight"


def test_settings_of_the_start_come_along(tmp_path):
    folder_of(tmp_path / "a", initializer_range=0.05)
    pieces = [*tiny.PIECES[1:], "[PAD]"]
    (tmp_path / "a" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    convert(tmp_path / "a", tmp_path / "b", lowercase=True)
    text = BertPreprocessor.from_preset(tmp_path / "b", sequence_length=5)
    assert text("")["token_ids"].numpy()[-1] == 7
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["initializer_range"] == 0.05
    assert config["pad_token_id"] == 7
    folder_of(tmp_path / "c")  # config.json has neither field
    convert(tmp_path / "c", tmp_path / "d")
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    assert not {"initializer_range", "pad_token_id"} & set(config)


def old_name(name):
    """Return the name from before 2019, with a prefix that is ignored."""
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return "bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")


def test_old_names_and_half_precision_are_read(tmp_path):
    numbers = folder_of(tmp_path, rename=old_name)
    path = tmp_path / "model.safetensors"
    tensors = {k: v.astype("float16") for k, v in load_file(path).items()}
    save_file(tensors, path)
    model = load_model(CLASSES["BertEncoder"], tmp_path)
    for name, weight in published_weights(model).items():
        expected = numbers[name].astype("float16").astype("float32")
        assert np.array_equal(weight.numpy(), expected)
    # As in transformers, only names of a LayerNorm are old ones.
    save_file({**tensors, "pooler.dense.gamma": np.ones(3)}, path)
    report = load_model(CLASSES["BertEncoder"], tmp_path).load_report
    assert "pooler.dense.gamma" in report.skipped


def test_the_problem_type_and_the_form_of_gelu_come_along(tmp_path):
    kind = "BertForSequenceClassification"
    for theirs, ours in (
        ({}, "single"),
        ({"problem_type": "multi_label_classification"}, "multi"),
        ({"problem_type": "single_label_classification"}, "single"),
    ):
        folder_of(tmp_path, kind, **theirs)
        assert open_checkpoint(tmp_path).head_arguments["problem"] == ours
    for theirs, ours in (("gelu", "gelu_exact"), ("gelu_new", "gelu_tanh")):
        folder_of(tmp_path, hidden_act=theirs)
        assert open_checkpoint(tmp_path).encoder["activation"] == ours
    chosen = load_model(
        CLASSES["BertEncoder"], tmp_path, activation="gelu_exact"
    )
    assert chosen.activation == "gelu_exact"


def test_one_output_without_a_name_is_a_regression(tmp_path):
    model = tiny.model("BertClassifier")
    one = type(model)(model.encoder, problem="regression")
    save_model(tmp_path / "a", one)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0"}  # without it, two labels
    tiny.edit_config(tmp_path / "a", problem_type=None, bert_keras=None)
    again = load_model(CLASSES["BertClassifier"], tmp_path / "a")
    assert again.problem == "regression" and again.labels is None
    assert tiny.largest_difference(one(tiny.INPUTS), again(tiny.INPUTS)) == 0
