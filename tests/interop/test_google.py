"""Checkpoints of the original BERT, Model Garden and TF Hub."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.interop.opening import open_checkpoint, read_text
from bert_keras.interop.presets import load_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny, weight_names
from tests.support.foreign_formats import (
    write_google,
    write_model_garden,
    write_tf_checkpoint,
    write_tf_hub,
)
from tests.support.model_samples import assert_holds
from tests.support.tiny import CLASSES
from tests.support.weight_names import (
    CLASSIFIER,
    ENCODER,
    GOOGLE,
    PRETRAINER,
    SPAN,
)

KINDS = {
    "BertEncoder": "",
    "BertPretrainer": PRETRAINER,
    "BertClassifier": CLASSIFIER,
    "BertSpanPredictor": SPAN,
}


@pytest.mark.parametrize("head", KINDS)
def test_each_variable_comes_to_its_place(tmp_path, head):
    numbers = write_google(tmp_path, KINDS[head])
    model = load_model(CLASSES[head], tmp_path)
    assert_holds(model, numbers)
    report = model.load_report
    assert report.initialised == []
    # The optimizer's two slots per weight and global_step are skipped.
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
    write_google(tmp_path / name)
    text = BertPreprocessor.from_preset(tmp_path / name, sequence_length=8)
    assert text.tokenizer.lowercase is lowercase
    with pytest.raises(WeightsError, match=f"lowercase={lowercase}"):
        BertPreprocessor.from_preset(
            tmp_path / name, sequence_length=8, lowercase=not lowercase
        )


def test_a_fine_tuned_folder_gives_its_newest_checkpoint(tmp_path):
    write_google(tmp_path, name="model.ckpt-0")
    numbers = write_google(tmp_path, CLASSIFIER, name="model.ckpt-9")
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
    write_google(tmp_path)
    numbers = weight_names.weights(ENCODER)
    variables = {
        theirs: numbers[ours]
        for ours, theirs in weight_names.names(GOOGLE, ENCODER).items()
    }
    variables["output_weights"] = np.ones((1, 6), "float32")
    variables["output_bias"] = np.zeros(shape, "float32")
    write_tf_checkpoint(tmp_path / "bert_model.ckpt", variables)
    if shape == ():
        with pytest.raises(WeightsError, match=r"the shape \(1,\), found \(\)"):
            load_model(CLASSES["BertClassifier"], tmp_path)
        return
    model = load_model(CLASSES["BertClassifier"], tmp_path)
    assert (model.problem, model.classifier.units) == ("regression", 1)


@pytest.mark.parametrize("write", [write_google, write_model_garden])
def test_the_case_is_not_in_a_folder_above_nor_within_a_word(tmp_path, write):
    folder = tmp_path / "uncased" / "lowercased"
    write(folder)
    for preset in (folder, folder / "bert_model.ckpt"):
        assert read_text(open_checkpoint(preset)).cases == {}


@pytest.mark.parametrize("prefix", ["model", "encoder"])
def test_a_model_garden_checkpoint_is_read(tmp_path, prefix):
    numbers = write_model_garden(tmp_path, prefix)
    model = load_model(CLASSES["BertEncoder"], tmp_path)
    assert_holds(model, numbers)
    assert (model.num_heads, model.num_layers) == (2, 1)
    assert model.load_report.skipped == model.load_report.initialised == []


def test_a_saved_model_gives_its_variables(tmp_path):
    folder = tmp_path / "hub"
    numbers = write_tf_hub(folder)
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
    write_google(tmp_path, vocab_size=10)
    lines = [*tiny.PIECES, "\u2028", "good"]
    text = "\n".join(lines) + "\n"
    (tmp_path / "vocab.txt").write_text(text, encoding="utf-8")
    tokenizer = BertPreprocessor.from_preset(
        tmp_path, sequence_length=8
    ).tokenizer
    assert tokenizer.vocabulary_size == 10
    assert tokenizer.vocabulary[8] == "\u2028"
    # A token that is listed twice gets its last id.
    assert list(np.asarray(tokenizer("good bad"))) == [9, 6]
