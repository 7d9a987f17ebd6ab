"""Every class converted and loaded again, and the conversion script."""

import json
import shutil

import numpy as np
import pytest

from bert_keras import BertPreprocessor, WordPieceTokenizer
from bert_keras.errors import InputError
from bert_keras.interop.convert import (
    compare_models,
    convert,
    model_class,
    sample_inputs,
)
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.opening import open_checkpoint, read_text
from bert_keras.interop.saving import save_model
from bert_keras.modeling.weights import published_weights
from tests.support import tiny
from tests.support.run_script import ROOT, call_script
from tests.support.tiny import CLASSES

SCRIPT = ROOT / "tools" / "convert_checkpoint.py"


def saved(folder, name, **arguments):
    if name == "BertCausalModel":
        arguments["attention"] = "left_to_right"
    model = tiny.model(name, **arguments)
    save_model(folder, model, tiny.preprocessor())
    return model


@pytest.mark.parametrize("with_block", [True, False])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_class_is_written_and_read_unchanged(tmp_path, name, with_block):
    model = saved(tmp_path / "a", name, dropout=0.25)
    weights = set(published_weights(model))
    done = convert(tmp_path / "a", tmp_path / "uncased")  # misleading name
    assert (done.difference, done.remark) == (0.0, "")
    if not with_block:  # like a folder saved by transformers
        tiny.remove_block(tmp_path / "uncased")
        name = "BertEncoder" if name == "BertEmbedder" else name
    written = open_checkpoint(tmp_path / "uncased")
    assert written.head == name
    assert set(written.tensors) == weights
    assert written.skipped == []
    assert written.encoder["max_sequence_length"] == 16
    if name == "BertClassifier":
        assert written.head_arguments["labels"] == ["no", "maybe", "yes"]
        assert written.head_arguments["problem"] == "single"
        assert written.head_arguments["dropout"] == model.dropout == 0.25
    text = read_text(written)
    assert text.sequence_length == 12
    assert text.pieces == tiny.PIECES
    assert set(text.cases.values()) == {False}
    assert text.tokenizer["max_word_length"] == 50


@pytest.mark.parametrize("length", [150, 200])  # default 128, maximum 200
def test_lengths_accents_and_special_tokens_travel(tmp_path, length):
    model = tiny.model("BertEncoder", max_sequence_length=200, num_layers=1)
    own = {"lowercase": True, "strip_accents": False}
    own["keep_special_tokens"] = True
    text = BertPreprocessor(WordPieceTokenizer(tiny.PIECES, **own), length)
    save_model(tmp_path / "a", model, text)
    again = BertPreprocessor.from_preset(tmp_path / "a")
    assert again.sequence_length == length
    assert {name: getattr(again.tokenizer, name) for name in own} == own


@pytest.mark.parametrize("problem", ["regression", "ranking", "multi"])
def test_what_hugging_face_lacks_is_in_the_block(tmp_path, problem):
    kind = CLASSES["BertClassifier"]
    labels = ["a", "b"] if problem == "multi" else None
    model = kind(tiny.encoder(), labels, problem, 0.2, pair=True)
    save_model(tmp_path / "a", model)
    again = kind.from_preset(tmp_path / "a")
    assert again.arguments() == model.arguments()


@pytest.mark.parametrize(
    ("name", "encoder", "head", "architecture", "model_type"),
    [
        # transformers lacks right-to-left attention, so it must refuse this.
        (
            "BertPretrainer",
            {"attention": "right_to_left"},
            {},
            "BertForPreTraining",
            "bert_keras",
        ),
        # transformers lacks the next four heads. It must load the
        # encoder alone.
        ("BertClassifier", {}, {"bilstm_dim": 3}, "BertModel", "bert"),
        (
            "BertClassifier",  # it reads the last token
            {"attention": "left_to_right"},
            {},
            "BertModel",
            "bert",
        ),
        (
            "BertClassifier",
            {},
            {"recipe": "weighted_sum:0,1", "pooling": "cls"},
            "BertModel",
            "bert",
        ),
        (
            "BertPretrainer",
            {},
            {"mlm_activation": "gelu_exact"},
            "BertModel",
            "bert",
        ),
        (
            "BertPretrainer",
            {"activation": "gelu_exact"},
            {"mlm_activation": "gelu_exact"},
            "BertForPreTraining",
            "bert",
        ),
    ],
)
def test_transformers_is_told_of_nothing_that_it_computes_otherwise(
    tmp_path, name, encoder, head, architecture, model_type
):
    head |= {"labels": ["a", "b"]} if name == "BertClassifier" else {}
    model = CLASSES[name](tiny.encoder(**encoder), **head)
    save_model(tmp_path / "a", model)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert config["model_type"] == model_type
    again = CLASSES[name].from_preset(tmp_path / "a")
    assert again.arguments() == model.arguments()
    assert again.load_report.initialised == again.load_report.skipped == []
    assert compare_models(model, again) == 0


def test_a_head_of_a_task_is_refused_by_its_name(tmp_path):
    from official_tasks.tasks.feature_tagger import FeatureTagger

    tagger = FeatureTagger(tiny.encoder(), ["O"], "last", lstm_dim=2)
    save_model(tmp_path / "a", tagger)
    with pytest.raises(InputError, match="is a FeatureTagger, .* one of Bert"):
        model_class(open_checkpoint(tmp_path / "a"))
    assert FeatureTagger.from_preset(tmp_path / "a").load_report.skipped == []


def test_what_a_source_lacks_is_not_made_up(tmp_path):
    model = tiny.model("BertPretrainer")
    pooler = ["encoder/pooler/bias", "encoder/pooler/kernel"]
    lost = ["nsp/bias", "nsp/kernel"]
    save_model(tmp_path / "a", model, without=[*lost, *pooler])
    done = convert(tmp_path / "a", tmp_path / "b")
    assert (sorted(done.left_out), done.untrained) == ([*pooler, *lost], [])
    again = CLASSES["BertPretrainer"].from_preset(tmp_path / "b")
    assert again.load_report.initialised == [*pooler, *lost]


def test_a_difference_is_seen():
    first, second = tiny.model("BertEncoder"), tiny.model("BertEncoder")
    second.load_report = type("Report", (), {"initialised": []})
    kernel = second.transformer_layers[1].output_projection.kernel
    kernel.assign(np.asarray(kernel) * 1.01)
    assert compare_models(first, second) > 1e-4
    bias = second.pooler.bias  # affects only the pooled output
    bias.assign(np.full(bias.shape, np.nan))
    assert compare_models(first, second) == np.inf


def test_the_script_prints_the_difference_and_settles_the_case(tmp_path):
    model = tiny.model("BertClassifier")
    save_model(tmp_path / "a", model, tiny.preprocessor())
    tiny.remove_block(tmp_path / "a")
    fast = (tmp_path / "a" / "tokenizer.json").read_text()
    (tmp_path / "a" / "tokenizer.json").write_text(
        fast.replace('"lowercase": false', '"lowercase": true')
    )
    flags = (f"--source={tmp_path / 'a'}", f"--output={tmp_path / 'b'}")
    done = call_script(SCRIPT, *flags, folder=tmp_path)
    assert done.returncode and "--nolowercase" in done.stderr
    done = call_script(SCRIPT, *flags, "--nolowercase", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    text = read_text(open_checkpoint(tmp_path / "b"))
    assert set(text.cases.values()) == {False}
    # A script may read the line, so long paths must not wrap it.
    (line,) = done.stdout.splitlines()
    assert "b: BertClassifier of" in line
    assert "(huggingface), max abs difference 0.0e+00" in line


def test_of_two_conversions_into_a_new_folder_the_first_wins(
    tmp_path, monkeypatch
):
    save_model(tmp_path / "a", tiny.model("BertClassifier"))
    flags = (f"--source={tmp_path / 'a'}", f"--output={tmp_path / 'b'}")

    def model_class_late(checkpoint):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        return model_class(checkpoint)

    name = "bert_keras.interop.convert.model_class"
    monkeypatch.setattr(name, model_class_late)
    done = call_script(SCRIPT, *flags, folder=tmp_path)
    assert done.returncode == 2
    assert "Another command wrote" in done.stderr


def test_short_rows_are_compared_with_padding_too():
    inputs = sample_inputs(tiny.model("BertEncoder"), length=3)
    assert inputs["padding_mask"].sum(axis=1).tolist() == [3, 2, 1, 1]
