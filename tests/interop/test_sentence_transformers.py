"""sentence-transformers folders: encoder, pooling and prompts."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export_saved_model
from bert_keras.errors import InputError
from bert_keras.interop.convert import convert
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.onnx_litert import export_on_ids
from bert_keras.text.preprocessor import BertPreprocessor
from tests.golden.record_sentences import CHANGES, changed
from tests.support import tiny
from tests.support.huggingface_folders import (
    MODULE,
    folder_of,
    sentence_folder,
    write_json,
)
from tests.support.served_samples import live_signatures

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_pooling_normalisation_and_length_are_kept(tmp_path, inner):
    sentence_folder(tmp_path / "a", inner)
    encoder = load_model(BertEncoder, tmp_path / "a")
    expected = {"pooling": "mean", "normalize": True}
    assert encoder.sentence_embedding == expected
    text = BertPreprocessor.from_preset(tmp_path / "a")
    assert text.sequence_length == 9
    save_model(tmp_path / "b", encoder, text)
    again = load_model(BertEncoder, tmp_path / "b")
    assert again.sentence_embedding == expected
    assert BertPreprocessor.from_preset(tmp_path / "b").sequence_length == 9


def test_the_case_of_the_module_is_compared_with_the_tokenizers(tmp_path):
    sentence_folder(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", {"do_lower_case": False})
    text = BertPreprocessor.from_preset(tmp_path)
    assert text.tokenizer.lowercase is False
    write_json(tmp_path, "sentence_bert_config.json", {"do_lower_case": True})
    with pytest.raises(WeightsError, match="lower-cased in .*sentence_bert_c"):
        BertPreprocessor.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("mode", "value", "pooling"),
    [
        ("pooling_mode_cls_token", True, "cls"),
        ("pooling_mode_max_tokens", True, "max"),
        ("pooling_mode", "mean", "mean"),  # since version 5.4
        ("pooling_mode", "cls", "cls"),
        ("pooling_mode", "max", "max"),
        ("pooling_mode", "lasttoken", "last"),
    ],
)
def test_the_ways_of_pooling_are_told_apart(tmp_path, mode, value, pooling):
    sentence_folder(tmp_path, kinds=("Pooling",), **{mode: value})
    embedding = open_checkpoint(tmp_path).embedding
    assert embedding == {"pooling": pooling, "normalize": False}


@pytest.mark.parametrize(
    ("pooling", "normalize"), [("mean", True), ("max", False), ("cls", True)]
)
def test_a_written_folder_gives_the_same_embedder(tmp_path, pooling, normalize):
    model = BertEmbedder(tiny.model("BertEncoder"), pooling, normalize)
    save_model(tmp_path / "a", model, tiny.preprocessor())
    done = convert(tmp_path / "a", tmp_path / "b")
    assert (done.difference, done.remark) == (0.0, "")
    names = {"", "1_Pooling", *(["2_Normalize"] if normalize else [])}
    assert {
        os.path.relpath(p, tmp_path / "b").strip(".")
        for p, *_ in os.walk(tmp_path / "b")
    } == names
    again = BertEmbedder.from_preset(tmp_path / "b")
    assert again.arguments() == model.arguments()
    assert tiny.largest_difference(model(tiny.IDS), again(tiny.IDS)) == 0.0
    text = BertPreprocessor.from_preset(tmp_path / "b")
    assert text.sequence_length == 12
    # An encoder loaded alone keeps the pooling, and can be saved again.
    encoder = load_model(BertEncoder, tmp_path / "b")
    save_model(tmp_path / "b", encoder, text)
    assert (tmp_path / "b" / "modules.json").exists()


def test_a_pooling_that_sentence_transformers_lacks_is_in_the_block(tmp_path):
    model = BertEmbedder(tiny.encoder(), "pooled", normalize=False)
    save_model(tmp_path / "a", model, tiny.preprocessor())
    assert not (tmp_path / "a" / "modules.json").exists()
    again = BertEmbedder.from_preset(tmp_path / "a")
    assert again.arguments() == model.arguments()


def test_a_cross_encoder_is_a_classifier(tmp_path):
    """With sentence-transformers 6, modules.json lists only the Transformer."""
    folder_of(tmp_path, "BertForSequenceClassification")
    module = {"type": f"{MODULE}Transformer", "path": ""}
    write_json(tmp_path, "modules.json", [module])
    model = load_model(BertClassifier, tmp_path)
    assert model.labels == ["no", "so", "yes"]
    assert model.load_report.initialised == []


GOLDEN = Path(__file__).parents[1] / "golden"


def loaded_again(source, folder):
    """Return model and preprocessor of a folder, saved and loaded again."""
    model = BertEmbedder.from_preset(source)
    model.save_preset(folder, BertPreprocessor.from_preset(source))
    return (
        BertEmbedder.from_preset(folder),
        BertPreprocessor.from_preset(folder),
    )


def assert_signatures(model, preprocess, texts, recorded, names):
    """Compare the vectors of an export's signatures with `recorded`."""
    signatures = live_signatures(model, preprocess)
    for name in names:
        vectors = signatures[name].trace()(tf.constant(texts))["embedding"]
        np.testing.assert_allclose(vectors, recorded[name], atol=1e-5)


def test_prompts_give_the_vectors_of_sentence_transformers(tmp_path):
    theirs = json.loads((GOLDEN / "sentences.json").read_text())
    texts = theirs["texts"]
    model, preprocess = loaded_again(GOLDEN / "sentences", tmp_path / "a")
    prompts = {"embed": "other", "embed_query": "query"}
    prompts |= {"embed_document": "document", "none": None}
    for name, prompt in prompts.items():
        vectors = model(preprocess.with_prompt(prompt)(texts))
        np.testing.assert_allclose(vectors, theirs[name], atol=1e-5)
    assert preprocess.prompt == "other"
    names = "embed", "embed_query", "embed_document"
    assert_signatures(model, preprocess, texts, theirs, names)
    new = {"prompts": {"task": "find: "}}  # lacks the preset's default prompt
    again = BertPreprocessor.from_preset(tmp_path / "a", **new)
    assert (again.prompts, again.prompt) == ({"task": "find: "}, None)
    again = BertPreprocessor.from_preset(tmp_path / "a", **new, prompt="task")
    assert again.prompt == "task"
    again = BertPreprocessor.from_preset(tmp_path / "a", prompts=None)
    assert (again.prompts, again.prompt) == ({}, None)


# Graphs of these changes are traced in every run; `-m long` traces the rest.
IN_GRAPHS = "truncate_dim", "without_prompt_mean", "without_prompt_lasttoken"


@pytest.mark.parametrize("name", CHANGES)
def test_vectors_are_cut_and_pooled_without_prompts(tmp_path, name):
    recorded = json.loads((GOLDEN / "sentences.json").read_text())
    texts, recorded = recorded["texts"], recorded[name]
    changed(tmp_path / "a", name)
    model, preprocess = loaded_again(tmp_path / "a", tmp_path / "b")
    prompts = {"embed": "other", "embed_query": "query", "none": None}
    prompted = {k: preprocess.with_prompt(p) for k, p in prompts.items()}
    call = model
    if name == "without_prompt_mean":  # traces (B, T), then (B, 1, T)
        call = functools.partial(model.predict, verbose=0)
    for rows_of in (
        lambda preprocess: preprocess(texts),
        lambda preprocess: preprocess.each((texts,)),
    ):
        for key in prompts:
            vectors = np.array(call(rows_of(prompted[key])))
            expected = np.reshape(recorded[key], vectors.shape)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
    if name in ("truncate_dim", "without_prompt_mean"):
        for key in prompts:  # `encode` pools like a call
            vectors = model.encode(texts, prompted[key])
            np.testing.assert_allclose(vectors, recorded[key], atol=1e-5)
    if name in IN_GRAPHS:
        names = ("embed_query",)
        assert_signatures(model, preprocess, texts, recorded, names)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*CHANGES} - {*IN_GRAPHS}))
def test_graphs_pool_without_prompts(tmp_path, name):
    recorded = json.loads((GOLDEN / "sentences.json").read_text())
    changed(tmp_path / "a", name)
    model, preprocess = loaded_again(tmp_path / "a", tmp_path / "b")
    texts = recorded["texts"]
    assert_signatures(model, preprocess, texts, recorded[name], ["embed_query"])


def test_a_prompt_that_is_not_pooled_needs_room_and_whole_texts(tmp_path):
    changed(tmp_path / "a", "without_prompt_mean")
    with pytest.raises(InputError, match="prompt .* tokens"):
        BertPreprocessor.from_preset(
            tmp_path / "a", prompt="query", sequence_length=3
        )
    model = BertEmbedder.from_preset(tmp_path / "a")
    preprocess = BertPreprocessor.from_preset(tmp_path / "a", prompt="query")
    with pytest.raises(InputError, match="not pooled"):
        export_saved_model(
            model, tmp_path / "b", preprocess, long_text="windows"
        )
    with pytest.raises(InputError, match="not pooled"):
        export_on_ids(model, preprocess, tmp_path / "b", "litert")


def test_a_classifier_is_not_served_with_a_prompt(tmp_path):
    preprocess = BertPreprocessor.from_preset(GOLDEN / "sentences")
    encoder = BertEncoder.from_preset(GOLDEN / "sentences")
    model = BertClassifier(encoder, labels=["a", "b"])
    with pytest.raises(InputError, match="with_prompt"):
        export_saved_model(
            model, tmp_path / "a", preprocess, allow_untrained=True
        )


def test_a_similarity_that_is_no_cosine_gives_a_warning(tmp_path, recwarn):
    name, settings = "config_sentence_transformers.json", {}
    settings["similarity_fn_name"] = "dot"
    sentence_folder(tmp_path / "unit")
    write_json(tmp_path / "unit", name, settings)
    open_checkpoint(tmp_path / "unit")
    assert not recwarn.list
    sentence_folder(tmp_path / "any", kinds=("Pooling",))
    write_json(tmp_path / "any", name, settings)
    with pytest.warns(UserWarning, match="is 'dot', but .* by cosine"):
        open_checkpoint(tmp_path / "any")


@pytest.mark.parametrize(
    ("inner", "fix"),
    [
        ("0_Transformer", "its folder 0_Transformer"),
        ("", "copy of the folder"),
    ],
)
def test_an_unknown_module_names_a_folder_to_load(tmp_path, inner, fix):
    sentence_folder(tmp_path, inner, kinds=("Pooling", "Dense"))
    with pytest.raises(WeightsError, match=f"module Dense.*{fix}"):
        open_checkpoint(tmp_path)
