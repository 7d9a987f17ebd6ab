"""Checkpoints of Model Garden and TF Hub have equal outputs in bert_keras.

    pip install tf-models-official "transformers<5"

Model Garden runs on Keras 2, and bert_keras on Keras 3 in the same process.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest

from bert_keras.interop.convert import sample_inputs
from bert_keras.interop.presets import load_model
from bert_keras.modeling.kernels import gelu_tanh
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.tiny import CLASSES

export = pytest.importorskip("official.nlp.tools.export_tfhub_lib")


@pytest.fixture(scope="module")
def config():
    from official.legacy.bert import configs

    return configs.BertConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        type_vocab_size=2,
    )


def randomised(model):
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(0.3, 0.3, weight.shape))
    return model


def original_inputs(inputs):
    return {
        "input_word_ids": inputs["token_ids"],
        "input_mask": inputs["padding_mask"],
        "input_type_ids": inputs["segment_ids"],
    }


def compared(mine, theirs):
    """Return the largest difference of encoder outputs at real tokens."""
    inputs = sample_inputs(mine)
    inputs.pop("mask_positions", None)
    encoder = getattr(mine, "encoder", mine)
    first, second = encoder(inputs), theirs(original_inputs(inputs))
    mask = inputs["padding_mask"][..., None]
    sequence = (first["sequence_output"] - second["sequence_output"]) * mask
    pooled = first["pooled_output"] - second["pooled_output"]
    return float(max(np.abs(sequence).max(), np.abs(pooled).max()))


@pytest.mark.parametrize("name", ["model", "encoder"])
def test_an_encoder_checkpoint_is_read(
    tmp_path, config, name, check_difference
):
    import tensorflow as tf

    theirs = randomised(export.get_bert_encoder(config))
    tf.train.Checkpoint(**{name: theirs}).save(tmp_path / "bert_model.ckpt")
    mine = load_model(CLASSES["BertEncoder"], tmp_path)
    assert mine.load_report.skipped == mine.load_report.initialised == []
    check_difference(f"Model Garden encoder ({name})", compared(mine, theirs))


def pretrainer(config):
    from official.nlp.modeling import layers, models

    theirs = models.BertPretrainerV2(
        encoder_network=export.get_bert_encoder(config),
        mlm_activation=gelu_tanh,
        classification_heads=[
            layers.ClassificationHead(
                inner_dim=8, num_classes=2, name="next_sentence"
            )
        ],
    )
    theirs(theirs.inputs)
    return randomised(theirs)


def test_a_pretraining_checkpoint_is_read(tmp_path, config, check_difference):
    import tensorflow as tf

    theirs = pretrainer(config)
    checkpoint = tf.train.Checkpoint(model=theirs, **theirs.checkpoint_items)
    checkpoint.save(tmp_path / "bert_model.ckpt")
    mine = load_model(CLASSES["BertPretrainer"], tmp_path)
    assert mine.load_report.initialised == []
    inputs = sample_inputs(mine)
    outputs = theirs(
        {
            **original_inputs(inputs),
            "masked_lm_positions": inputs["mask_positions"],
        }
    )
    first = mine(inputs)
    mlm = np.abs(first["mlm"] - outputs["mlm_logits"]).max()
    nsp = np.abs(first["nsp"] - outputs["next_sentence"]).max()
    check_difference("Model Garden pre-trainer", float(max(mlm, nsp)))


@pytest.mark.parametrize("with_mlm", [False, True])
def test_a_saved_model_of_tf_hub_is_read(
    tmp_path, config, with_mlm, check_difference
):
    import tensorflow as tf

    theirs = pretrainer(config)
    items = {"model": theirs, **theirs.checkpoint_items}
    if not with_mlm:
        items = {"encoder": theirs.encoder_network}
    prefix = tf.train.Checkpoint(**items).save(tmp_path / "a" / "ckpt")
    vocabulary = tmp_path / "pieces.txt"
    vocabulary.write_text("\n".join(tiny.PIECES) + "\n")
    export.export_model(
        str(tmp_path / "hub"),
        bert_config=config,
        encoder_config=None,
        model_checkpoint_path=prefix,
        with_mlm=with_mlm,
        vocab_file=str(vocabulary),
        do_lower_case=True,
    )
    head = "BertPretrainer" if with_mlm else "BertEncoder"
    mine = load_model(CLASSES[head], tmp_path / "hub")
    loaded = tf.saved_model.load(str(tmp_path / "hub"))
    check_difference(f"TF Hub, mlm={with_mlm}", compared(mine, loaded))
    text = BertPreprocessor.from_preset(tmp_path / "hub", sequence_length=8)
    assert text.tokenizer.lowercase is True
    assert text.tokenizer.vocabulary == tiny.PIECES
