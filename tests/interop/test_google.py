"""Checkpoints of the original, Model Garden and TF Hub."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
import tiny
import weight_names
from foreign_formats import write_tf_checkpoint
from model_samples import assert_holds
from tiny import CLASSES
from weight_names import (
    CLASSIFIER,
    ENCODER,
    GOOGLE,
    MODEL_GARDEN,
    PRETRAINER,
    SPAN,
    TF_HUB,
)

from bert_keras.interop.presets import (
    load_model,
    open_checkpoint,
)
from bert_keras.interop.tensors import WeightsError
from bert_keras.text.preprocessor import BertPreprocessor

CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 6,
    "initializer_range": 0.02,
    "intermediate_size": 10,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "type_vocab_size": 2,
    "vocab_size": 8,
}
KINDS = {
    "BertEncoder": "",
    "BertPretrainer": PRETRAINER,
    "BertClassifier": CLASSIFIER,
    "BertSpanPredictor": SPAN,
}


def released(folder, table="", name="bert_model.ckpt", config=CONFIG):
    """A folder as the original wrote it; returns the numbers in it."""
    os.makedirs(folder, exist_ok=True)
    numbers = weight_names.weights(ENCODER, table)
    variables = {"global_step": np.float32(7)}
    for ours, theirs in weight_names.names(GOOGLE, ENCODER, table).items():
        array = numbers[ours]
        variables[theirs] = array.T if "output_weights" in theirs else array
        variables[f"{theirs}/adam_m"] = np.zeros_like(variables[theirs])
        variables[f"{theirs}/adam_v"] = np.zeros_like(variables[theirs])
    write(folder, variables, name)
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(tiny.PIECES) + "\n")
    return numbers


def write(folder, variables, name="bert_model.ckpt"):
    write_tf_checkpoint(folder / name, variables)


@pytest.mark.parametrize("head", KINDS)
def test_each_variable_comes_to_its_place(tmp_path, head):
    numbers = released(tmp_path, KINDS[head])
    model = load_model(CLASSES[head], tmp_path)
    assert_holds(model, numbers)
    report = model.load_report
    assert report.initialised == []
    # The optimizer's copies are left, by name.
    assert len(report.skipped) == 2 * len(numbers) + 1
    encoder = getattr(model, "encoder", model)
    assert encoder.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("name", "lowercase"),
    [
        ("uncased_L-1_H-6_A-2", True),
        ("multi_cased_L-1_H-6_A-2", False),
        ("bert-base-cased", False),
    ],
)
def test_the_case_is_in_the_name(tmp_path, name, lowercase):
    released(tmp_path / name)
    text = BertPreprocessor.from_preset(tmp_path / name, sequence_length=8)
    assert text.tokenizer.lowercase is lowercase
    with pytest.raises(WeightsError, match=f"lowercase={lowercase}"):
        BertPreprocessor.from_preset(
            tmp_path / name, sequence_length=8, lowercase=not lowercase
        )


def test_a_fine_tuned_folder_gives_its_newest_checkpoint(tmp_path):
    released(tmp_path, name="model.ckpt-0")
    numbers = released(tmp_path, CLASSIFIER, name="model.ckpt-9")
    with pytest.raises(WeightsError, match="several checkpoints"):
        open_checkpoint(tmp_path)
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/somewhere/else/model.ckpt-9"\n'
    )
    assert_holds(load_model(CLASSES["BertClassifier"], tmp_path), numbers)
    named = open_checkpoint(tmp_path / "model.ckpt-0")
    assert named.head == "BertEncoder"


@pytest.mark.parametrize("shape", [(1,), ()])
def test_one_output_is_a_regression(tmp_path, shape):
    released(tmp_path)
    numbers = weight_names.weights(ENCODER)
    variables = {
        theirs: numbers[ours]
        for ours, theirs in weight_names.names(GOOGLE, ENCODER).items()
    }
    variables["output_weights"] = np.ones((1, 6), "float32")
    variables["output_bias"] = np.zeros(shape, "float32")
    write(tmp_path, variables)
    if shape == ():
        with pytest.raises(WeightsError, match=r"the shape \(1,\), found \(\)"):
            load_model(CLASSES["BertClassifier"], tmp_path)
        return
    model = load_model(CLASSES["BertClassifier"], tmp_path)
    assert (model.problem, model.classifier.units) == ("regression", 1)


def object_checkpoint(folder, prefix):
    """An object checkpoint as Model Garden writes it; its numbers."""
    numbers = weight_names.weights(ENCODER)
    root = tf.train.Checkpoint()
    for ours, theirs in weight_names.names(MODEL_GARDEN, ENCODER).items():
        array = weight_names.with_heads_apart(ours, numbers[ours])
        attach(root, theirs.split("/"), tf.Variable(array))
    checkpoint = tf.train.Checkpoint(**{prefix: root})
    checkpoint.write(str(folder / "bert_model.ckpt"))
    return numbers


def attach(root, path, variable):
    """Puts the variable at the end of a path of objects."""
    *parts, last = path
    for part in parts:
        if not hasattr(root, part):
            setattr(root, part, tf.train.Checkpoint())
        root = getattr(root, part)
    setattr(root, last, variable)


@pytest.mark.parametrize("write", ["google", "model garden"])
def test_the_case_is_not_in_a_folder_above_nor_within_a_word(tmp_path, write):
    folder = tmp_path / "uncased" / "lowercased"
    if write == "google":
        released(folder)
    else:
        folder.mkdir(parents=True)
        object_checkpoint(folder, "encoder")
        (folder / "vocab.txt").write_text("\n".join(tiny.PIECES) + "\n")
    for preset in (folder, folder / "bert_model.ckpt"):
        assert open_checkpoint(preset).read_text().cases == {}


@pytest.mark.parametrize("prefix", ["model", "encoder"])
def test_a_model_garden_checkpoint_is_read(tmp_path, prefix):
    numbers = object_checkpoint(tmp_path, prefix)
    model = load_model(CLASSES["BertEncoder"], tmp_path)
    assert_holds(model, numbers)
    assert (model.num_heads, model.num_layers) == (2, 1)
    assert model.load_report.skipped == model.load_report.initialised == []


@pytest.fixture
def hub_folder(tmp_path):
    """A SavedModel as TF Hub's: variables numbered, the case beside them."""
    root = tf.Module()
    numbers = weight_names.weights(ENCODER)
    names = weight_names.names(TF_HUB, ENCODER)
    root.variables_ = [
        tf.Variable(
            weight_names.with_heads_apart(ours, numbers[ours]), name=theirs
        )
        for ours, theirs in names.items()
    ]
    root.do_lower_case = tf.Variable(True, trainable=False)
    (tmp_path / "pieces.txt").write_text("\n".join(tiny.PIECES) + "\n")
    root.vocab_file = tf.saved_model.Asset(str(tmp_path / "pieces.txt"))
    tf.saved_model.save(root, str(tmp_path / "hub"))
    return tmp_path / "hub", numbers


def test_a_saved_model_gives_its_variables(hub_folder):
    folder, numbers = hub_folder
    assert_holds(load_model(CLASSES["BertEncoder"], folder), numbers)
    text = BertPreprocessor.from_preset(folder, sequence_length=8)
    assert text.tokenizer.vocabulary == tiny.PIECES
    assert text.tokenizer.lowercase is True


def test_an_exported_model_is_sent_to_the_right_function(tmp_path):
    root = tf.Module()
    root.kernel = tf.Variable(tf.zeros((3, 2)), name="dense/kernel")
    tf.saved_model.save(root, str(tmp_path / "served"))
    with pytest.raises(WeightsError, match="load_saved_model"):
        load_model(CLASSES["BertEncoder"], tmp_path / "served")


def test_the_blank_line_of_the_chinese_vocabulary_keeps_its_id(tmp_path):
    config = {**CONFIG, "vocab_size": 10}
    released(tmp_path, config=config)
    lines = [*tiny.PIECES, "\u2028", "good"]
    text = "\n".join(lines) + "\n"
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    tokenizer = BertPreprocessor.from_preset(
        tmp_path, sequence_length=8
    ).tokenizer
    assert tokenizer.vocabulary_size == 10
    assert tokenizer.vocabulary[8] == "\u2028"
    # Of a piece that is there twice the last one counts.
    assert list(np.asarray(tokenizer("good bad"))) == [9, 6]
