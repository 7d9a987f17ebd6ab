"""Checkpoints of Model Garden's models, with both types of encoder."""

import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import UntrainedWarning
from bert_keras.interop.presets import load_model
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import weight_names
from tests.support.foreign_formats import write_objects, write_pieces
from tests.support.model_samples import assert_holds
from tests.support.shared_data import shared
from tests.support.tiny import CLASSES
from tests.support.weight_names import (
    CLASSIFIER,
    ENCODER,
    MODEL_GARDEN,
    PRETRAINER,
    TF_HUB,
)

# Variable's name -> path in a `BertEncoderV2`.
V2 = {
    r"^(word|position|type)_embeddings?/": r"_\1_embedding_layer/",
    "^_word_embedding": "_embedding",
    "^embeddings/layer_norm": "_embedding_norm_layer",
    "^pooler_transform": "_pooler_layer",
    r"^transformer/layer_(\d+)/(?=self_attention/)": (
        r"_transformer_layers/\1/_attention_layer/"
    ),
    r"^transformer/layer_(\d+)/": r"_transformer_layers/\1/",
    r"self_attention/(query|key|value)/": r"_\1_dense/",
    "self_attention/attention_output": "_output_dense",
    "/self_attention_layer_norm": "/_attention_layer_norm",
    "/(intermediate|output)/": r"/_\1_dense/",
    "/output_layer_norm": "/_output_layer_norm",
}
MLM = {
    "mlm/dense/": ("dense/", "transform/dense/"),
    "mlm/norm/": ("layer_norm/", "transform/LayerNorm/"),
    "mlm/bias": ("output_bias|bias", "output_bias/bias"),
}


def v2_path(name):
    for pattern, replacement in V2.items():
        name = re.sub(pattern, replacement, name)
    return name


def encoder_variables(arrays, root, encoder_type="bert_v2"):
    """Return dict of path -> (array, variable's name) of an encoder."""
    found = {}
    keys = weight_names.names(MODEL_GARDEN, ENCODER)
    for own, name in weight_names.names(TF_HUB, ENCODER).items():
        array = weight_names.with_heads_apart(own, arrays[own])
        is_v2 = encoder_type == "bert_v2"
        path = v2_path(name) if is_v2 else keys[own]
        prefix = "bert_encoder_v2_3/" if is_v2 else ""
        found[f"{root}{path}"] = array, prefix + name
    return found


def mlm_variables(arrays, root):
    found = {}
    for own in filter(lambda name: name.startswith("mlm/"), arrays):
        path, name = own, own
        for start, (in_path, in_name) in MLM.items():
            path = path.replace(start, in_path)
            name = name.replace(start, in_name)
        found[f"{root}{path}"] = arrays[own], f"bert/cls/predictions/{name}"
    return found


def head_variables(arrays, layer, root, name):
    return {
        f"{root}/{end}": (arrays[f"{layer}/{end}"], f"{name}/{end}")
        for end in ("kernel", "bias")
    }


def unnamed(variables):
    return {path: value[:1] for path, value in variables.items()}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("root", ["", "encoder/", "model/"])
def test_a_version_2_encoder_is_read(tmp_path, root, named):
    arrays = weight_names.weights(ENCODER)
    variables = encoder_variables(arrays, root)
    write_objects(tmp_path, variables if named else unnamed(variables))
    model = load_model(CLASSES["BertEncoder"], tmp_path)
    assert_holds(model, arrays)
    assert model.load_report.skipped == model.load_report.initialised == []


@pytest.mark.parametrize("encoder_type", ["bert", "bert_v2"])
@pytest.mark.parametrize("with_items", [True, False])
def test_the_next_sentence_head_uses_its_own_pooler(
    tmp_path, encoder_type, with_items
):
    arrays = weight_names.weights(ENCODER, PRETRAINER)
    root = "encoder/" if with_items else "model/encoder_network/"
    variables = encoder_variables(arrays, root, encoder_type)
    for path in list(variables):
        if "_pooler" in path or "weights-5" in path:
            array, name = variables[path]
            variables[path] = array + 1, name
        slot, name = f"optimizer/{path.replace('/', '_')}", variables[path][1]
        variables[slot] = variables[path][0], f"Adam/m/{name}"
    variables |= mlm_variables(
        arrays, "masked_lm/" if with_items else "model/masked_lm/"
    )
    head = "model/classification_heads/0"
    variables |= head_variables(
        arrays, "nsp", f"{head}/out_proj", "bert/next_sentence/logits"
    )
    variables |= head_variables(
        arrays,
        "encoder/pooler",
        "next_sentence.pooler_dense" if with_items else f"{head}/dense",
        "bert/next_sentence/pooler_dense",
    )
    write_objects(tmp_path, variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = load_model(CLASSES["BertPretrainer"], tmp_path)
    assert_holds(model, arrays)
    assert model.load_report.initialised == []


@pytest.mark.parametrize("encoder_type", ["bert", "bert_v2"])
@pytest.mark.parametrize("own_pooler", [True, False])
def test_a_classifier_keeps_its_head(tmp_path, encoder_type, own_pooler):
    arrays = weight_names.weights(ENCODER, CLASSIFIER)
    head, name = "model/layer_with_weights-1", "sentence_prediction"
    variables = encoder_variables(
        arrays, "model/layer_with_weights-0/", encoder_type
    ) | head_variables(
        arrays, "classifier", f"{head}/out_proj", f"{name}/logits"
    )
    if own_pooler:
        variables = {
            path: value
            for path, value in variables.items()
            if "pooler" not in value[1]
        } | head_variables(
            arrays, "encoder/pooler", f"{head}/dense", f"{name}/pooler_dense"
        )
    write_objects(tmp_path, variables)
    model = load_model(CLASSES["BertClassifier"], tmp_path, labels=list("abc"))
    assert_holds(model, arrays)
    assert model.load_report.initialised == []


@pytest.mark.parametrize(
    ("cls", "path"),
    [
        ("BertTagger", "layer_with_weights-1"),
        ("BertSpanPredictor", "span_labeling/layer_with_weights-0"),
    ],
)
def test_heads_of_tokens_are_told_apart(tmp_path, cls, path):
    layer = {"BertTagger": "tagger", "BertSpanPredictor": "span"}[cls]
    arrays = weight_names.weights(ENCODER)
    kernel = np.arange(12, dtype="float32").reshape(6, 2)
    arrays |= {f"{layer}/kernel": kernel, f"{layer}/bias": kernel[0]}
    variables = encoder_variables(arrays, "encoder/") | head_variables(
        arrays, layer, f"model/{path}", "predictions/transform/logits"
    )
    write_objects(tmp_path, variables)
    model = load_model(CLASSES[cls], tmp_path)
    assert_holds(model, arrays)
    assert "encoder/pooler/kernel" in model.load_report.loaded


def test_a_saved_model_of_a_version_2_encoder_gives_the_language_model(
    tmp_path,
):
    arrays = weight_names.weights(ENCODER, PRETRAINER)
    root, mlm = tf.Module(), tf.Module()
    root.variables_ = [
        tf.Variable(array, name=name)
        for array, name in encoder_variables(arrays, "").values()
    ]
    mlm.variables_ = [
        tf.Variable(array, name=name)
        for array, name in mlm_variables(arrays, "").values()
    ]
    root.mlm, root.do_lower_case = mlm, tf.Variable(False, trainable=False)
    write_pieces(tmp_path / "some name.txt")
    root.vocab_file = tf.saved_model.Asset(str(tmp_path / "some name.txt"))
    tf.saved_model.save(root, str(tmp_path / "hub"))
    with pytest.warns(UntrainedWarning, match="nsp/bias, nsp/kernel$"):
        model = load_model(CLASSES["BertPretrainer"], tmp_path / "hub")
    del arrays["nsp/kernel"], arrays["nsp/bias"]
    assert_holds(model, arrays)
    text = BertPreprocessor.from_preset(tmp_path / "hub", sequence_length=8)
    assert text.tokenizer.lowercase is False


@pytest.mark.parametrize("shape", [(), (6, 5)])
def test_a_head_with_a_pooler_of_another_width_is_named(tmp_path, shape):
    arrays = weight_names.weights(ENCODER, CLASSIFIER)
    head, name = "model/classifier", "sentence_prediction"
    variables = encoder_variables(arrays, "encoder/") | head_variables(
        arrays, "classifier", f"{head}/out_proj", f"{name}/logits"
    )
    kernel = np.ones(shape, "float32"), f"{name}/pooler_dense/kernel"
    write_objects(tmp_path, {**variables, f"{head}/dense/kernel": kernel})
    with pytest.warns(UntrainedWarning, match="classifier/dense/kernel"):
        model = load_model(
            CLASSES["BertClassifier"], tmp_path, labels=["a", "b", "c"]
        )
    del arrays["classifier/kernel"], arrays["classifier/bias"]
    assert_holds(model, arrays)


def test_narrow_embeddings_are_refused_by_name(tmp_path):
    arrays = weight_names.weights(ENCODER)
    variables = encoder_variables(arrays, "encoder/")
    path = "encoder/_embedding_projection/kernel"
    variables[path] = np.ones((6, 6), "float32"), "v2/embedding_projection/k"
    write_objects(tmp_path, variables)
    with pytest.raises(ValueError, match="embedding_size"):
        load_model(CLASSES["BertEncoder"], tmp_path)


@pytest.mark.parametrize(
    "name", ["e_bert_v2", "h_bert_v2_True", "n_bert", "t_bert_v2"]
)
def test_checkpoints_of_model_garden_have_equal_outputs(name):
    folder = shared("model_garden")
    expected = np.load(folder / f"{name}_io.npz")
    inputs = {
        "token_ids": expected["x_ids"].astype("int32"),
        "segment_ids": expected["x_seg"].astype("int32"),
        "padding_mask": expected["x_mask"].astype("int32"),
        "mask_positions": expected["x_pos"].astype("int32"),
    }
    outputs = {}
    if "o_mlm" in expected:
        model = CLASSES["BertPretrainer"].from_preset(folder / name)
        outputs = {f"o_{k}": v for k, v in model(inputs).items()}
    del inputs["mask_positions"]
    if "o_seq" in expected:
        model = CLASSES["BertEncoder"].from_preset(folder / name)
        found = model(inputs)
        mask = inputs["padding_mask"][..., None]
        outputs["o_seq"] = found["sequence_output"] * mask
        outputs["o_pool"] = found["pooled_output"]
    for key in filter(lambda key: key.startswith("o_"), expected):
        mask = inputs["padding_mask"][..., None] if key == "o_seq" else 1
        np.testing.assert_allclose(
            outputs[key], expected[key] * mask, atol=1e-5, err_msg=key
        )


def test_a_head_under_an_unknown_name_is_named_beside_the_new_one(tmp_path):
    arrays = weight_names.weights(ENCODER, PRETRAINER)
    variables = encoder_variables(arrays, "encoder/")
    variables |= mlm_variables(arrays, "masked_lm/")
    for name in ("topic", "order"):  # two heads, and none is next_sentence
        variables |= head_variables(
            arrays, "nsp", f"model/heads/{name}", f"bert/{name}/logits"
        )
    write_objects(tmp_path, variables)
    with pytest.warns(UntrainedWarning, match=r"nsp/kernel.*heads/order/bias"):
        load_model(CLASSES["BertPretrainer"], tmp_path)
