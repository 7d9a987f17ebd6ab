"""Every class through every format, and back with equal outputs."""

import os
import pickle
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import tiny
from test_sentence_transformers import sentence_folder

from bert_keras import BertPreprocessor, WordPieceTokenizer
from bert_keras.errors import InputError
from bert_keras.interop import torch_pickle
from bert_keras.interop.convert import (
    CLASSES,
    WRITERS,
    convert,
    convert_all,
    greatest_difference,
    model_class,
    remark,
    table,
)
from bert_keras.interop.huggingface import save_huggingface
from bert_keras.interop.presets import (
    load_model,
    load_preprocessor,
    open_checkpoint,
    save_preset,
)
from bert_keras.interop.tensors import License
from bert_keras.modeling.weights import published_weights

# What each format has a place for.
PLACES = {
    "bert_keras": set(CLASSES),
    "huggingface": set(CLASSES),
    "google": {
        "BertEncoder",
        "BertPretrainer",
        "BertClassifier",
        "BertSpanPredictor",
    },
    "keras_hub": {"BertEncoder", "BertClassifier"},
}
# Classes that transformers has no pooler for.
WITHOUT_POOLER = ("BertCausalModel", "BertSpanPredictor", "BertTagger")
POOLER = ["encoder/pooler/bias", "encoder/pooler/kernel"]


def saved(folder, name, **arguments):
    if name == "BertCausalModel":
        arguments["attention"] = "left_to_right"
    model = tiny.model(name, **arguments)
    save_preset(folder, model, tiny.preprocessor())
    return model


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder and the names of the weights in it, for each class."""
    found = {}
    for name in CLASSES:
        folder = tmp_path_factory.mktemp(name) / "a"
        found[name] = folder, set(published_weights(saved(folder, name)))
    return found


@pytest.mark.parametrize(
    ("format", "name"),
    [(format, name) for format in WRITERS for name in sorted(PLACES[format])],
)
def test_a_class_goes_through_a_format_unchanged(
    tmp_path, sources, name, format
):
    folder, weights = sources[name]
    row = convert(folder, tmp_path / "b", format)
    assert row.difference == 0.0
    without = format == "huggingface" and name in WITHOUT_POOLER
    assert row.left_out == (POOLER if without else [])
    written = open_checkpoint(tmp_path / "b")
    assert (written.format, written.head) == (format, name)
    assert set(written.tensors) == weights - set(row.left_out)
    assert written.skipped == []


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_labels_case_and_lengths_travel(tmp_path, format):
    saved(tmp_path / "a", "BertClassifier")
    # A name that says nothing of the text, and one that lies.
    convert(tmp_path / "a", tmp_path / "uncased", format)
    convert(tmp_path / "a", tmp_path / "b", format)
    model = load_model(CLASSES["BertClassifier"], tmp_path / "b")
    assert model.labels == ["no", "maybe", "yes"]
    assert model.problem == "single"
    assert model.encoder.max_sequence_length == 16
    for name in ("b", "uncased"):
        text = load_preprocessor(tmp_path / name)
        assert text.sequence_length == 12
        assert text.tokenizer.vocabulary == tiny.PIECES
        assert text.tokenizer.lowercase is False
        assert text.tokenizer.max_word_length == 50


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_accents_and_special_tokens_travel(tmp_path, format):
    model = tiny.model("BertEncoder")
    own = {"lowercase": True, "strip_accents": False}
    text = BertPreprocessor(
        WordPieceTokenizer(tiny.PIECES, keep_special_tokens=True, **own), 12
    )
    save_preset(tmp_path / "a", model, text)
    convert(tmp_path / "a", tmp_path / "b", format)
    again = load_preprocessor(tmp_path / "b").tokenizer
    assert again.keep_special_tokens is True
    assert {name: getattr(again, name) for name in own} == own


@pytest.mark.parametrize("length", [150, 200])  # 200 positions, 128 by default
@pytest.mark.parametrize("format", sorted(WRITERS))
def test_the_length_of_an_encoder_travels(tmp_path, format, length):
    model = tiny.model("BertEncoder", max_sequence_length=200)
    text = tiny.preprocessor(sequence_length=length)
    save_preset(tmp_path / "a", model, text)
    convert(tmp_path / "a", tmp_path / "b", format)
    assert load_preprocessor(tmp_path / "b").sequence_length == length


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_of_sentence_transformers_the_length_travels(tmp_path, format):
    sentence_folder(tmp_path / "a")
    row = convert(tmp_path / "a", tmp_path / "b", format, True)
    assert load_preprocessor(tmp_path / "b").sequence_length == 9
    lost = "without how sentences are embedded (pooling mean, normalize True)"
    assert remark(row) == ("" if format == "bert_keras" else lost)


@pytest.mark.parametrize("format", ["google", "keras_hub"])
@pytest.mark.parametrize(
    "argument",
    [
        {"activation": "gelu_exact"},
        {"attention": "left_to_right"},
        {"norm_epsilon": 1e-5},
    ],
)
def test_what_a_format_would_compute_otherwise_is_refused(
    tmp_path, format, argument
):
    saved(tmp_path / "a", "BertEncoder", **argument)
    (name,) = argument
    with pytest.raises(InputError, match=f"model's {name} is .* computes"):
        convert(tmp_path / "a", tmp_path / "b", format)
    assert not os.path.exists(tmp_path / "b")


def test_the_other_form_of_gelu_is_accepted_and_its_difference_told(tmp_path):
    saved(tmp_path / "a", "BertEncoder", activation="gelu_exact")
    row = convert(
        tmp_path / "a", tmp_path / "b", "google", accept_difference=True
    )
    assert 1e-7 < row.difference < 1e-2
    again = load_model(CLASSES["BertEncoder"], tmp_path / "b")
    assert again.activation == "gelu_tanh"


@pytest.mark.parametrize(
    "argument", [{"attention": "left_to_right"}, {"norm_epsilon": 1e-5}]
)
def test_transformers_settings_travel(tmp_path, argument):
    model = saved(tmp_path / "a", "BertEncoder", **argument)
    convert(tmp_path / "a", tmp_path / "b", "huggingface")
    again = load_model(CLASSES["BertEncoder"], tmp_path / "b")
    assert again.get_config() == model.get_config()


def test_a_head_without_a_place_is_refused_by_name(tmp_path):
    saved(tmp_path / "a", "BertTagger")
    for format in ("google", "keras_hub"):
        with pytest.raises(InputError, match="no place for tagger/"):
            convert(tmp_path / "a", tmp_path / "b", format)


def test_a_head_of_a_task_is_refused_by_its_name(tmp_path):
    from official_tasks.tasks.feature_tagger import FeatureTagger

    tagger = FeatureTagger(tiny.encoder(), ["O"], "last", lstm_dim=2)
    save_preset(tmp_path / "a", tagger)
    with pytest.raises(InputError, match="is a FeatureTagger, .* one of Bert"):
        convert(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match="is a FeatureTagger, .* one of Bert"):
        model_class(open_checkpoint(tmp_path / "a"))


def test_keras_hub_goes_without_the_next_sentence_head(tmp_path):
    saved(tmp_path / "a", "BertPretrainer")
    with pytest.raises(InputError, match="mlm_activation is None, but keras-h"):
        convert(tmp_path / "a", tmp_path / "b", "keras_hub")
    row = convert(
        tmp_path / "a", tmp_path / "b", "keras_hub", accept_difference=True
    )
    assert sorted(row.left_out) == ["nsp/bias", "nsp/kernel"]
    assert 1e-6 < row.difference < 1e-2
    again = convert(tmp_path / "b", tmp_path / "c", "keras_hub")
    assert again.difference == 0.0


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_what_a_source_lacks_is_not_made_up(tmp_path, format):
    model = tiny.model("BertPretrainer")
    pooler = [n for n in published_weights(model) if "pooler" in n]
    save_huggingface(tmp_path / "a", model, without=["nsp/kernel", "nsp/bias"])
    row = convert(tmp_path / "a", tmp_path / "b", format, format == "keras_hub")
    lost = sorted(["nsp/bias", "nsp/kernel", *pooler])
    assert sorted(row.left_out + row.at_random) == lost
    assert row.at_random == (sorted(pooler) if format == "keras_hub" else [])
    again = load_model(CLASSES["BertPretrainer"], tmp_path / "b")
    assert set(again.load_report.initialised) == set(row.left_out)


def test_a_head_that_was_never_trained_is_no_head_of_keras_hub(tmp_path):
    model = tiny.model("BertPretrainer")
    head = [n for n in published_weights(model) if n.startswith("mlm/")]
    save_huggingface(tmp_path / "a", model, without=head)
    with pytest.raises(InputError, match="mlm/.* was never trained"):
        convert(
            tmp_path / "a", tmp_path / "b", "keras_hub", accept_difference=True
        )


def test_right_to_left_stays_in_the_own_format(tmp_path):
    saved(tmp_path / "a", "BertEncoder", attention="right_to_left")
    convert(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match="transformers computes"):
        convert(tmp_path / "a", tmp_path / "c", "huggingface")


def test_a_fleet_becomes_one_table(tmp_path):
    saved(tmp_path / "fleet" / "sentiment", "BertClassifier")
    saved(tmp_path / "fleet" / "names", "BertTagger")
    (tmp_path / "fleet" / "empty").mkdir()
    (tmp_path / "fleet" / "names.zip").write_bytes(b"")
    rows = convert_all(tmp_path / "fleet", tmp_path / "out", "huggingface")
    clash = rows.pop(2)
    assert "would go where names goes. Rename one" in clash.refused
    assert [row.task for row in rows] == ["", "BertTagger", "BertClassifier"]
    assert "holds no weights" in rows[0].refused
    assert sorted(os.listdir(tmp_path / "out")) == ["names", "sentiment"]
    lines = table(rows).splitlines()
    assert lines[4].endswith(
        "| bert_keras | BertClassifier | no, maybe, yes | 0.0e+00 |  |"
    )


def test_an_unknown_format_is_named(tmp_path):
    with pytest.raises(InputError, match="'onnx'. Expected bert_keras"):
        convert(tmp_path, tmp_path / "b", "onnx")


def test_a_difference_is_seen():
    first, second = tiny.model("BertEncoder"), tiny.model("BertEncoder")
    second.load_report = type("Report", (), {"initialised": []})
    kernel = second.transformer_layers[1].output_projection.kernel
    kernel.assign(np.asarray(kernel) * 1.01)
    assert greatest_difference(first, second) > 1e-4
    bias = second.pooler.bias  # of the last output alone
    bias.assign(np.full(bias.shape, np.nan))
    assert np.isnan(greatest_difference(first, second))


def test_a_pickle_is_read_on_request_only_and_apart(tmp_path):
    save_huggingface(tmp_path / "fleet" / "old", tiny.model("BertEncoder"))
    folder = tmp_path / "fleet" / "old"
    mark = tmp_path / "mark"
    trap = pickle.dumps(Trap(str(mark)))
    os.remove(folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(trap)
    (row,) = convert_all(tmp_path / "fleet", tmp_path / "out")
    assert "--allow_torch" in row.refused
    (row,) = convert_all(tmp_path / "fleet", tmp_path / "out", allow_torch=True)
    wanted = "restricted loader" if find_spec("torch") else "pip install torch"
    assert wanted in row.refused
    assert not mark.exists()


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_shards_modules_and_the_licence_come_along(
    tmp_path, monkeypatch, inner
):
    """PyTorch is stood in for: what it would read is written already."""
    folder = tmp_path / "fleet" / "old"
    sentence_folder(folder, inner)
    weights = tmp_path / "model.safetensors"
    os.rename(folder / inner / "model.safetensors", weights)
    shards = [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    for name in shards:
        (folder / inner / name).write_bytes(b"")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "LICENSE").write_text("All may use it.")
    (row,) = convert_all(tmp_path / "fleet", tmp_path / "none")
    assert "--allow_torch" in row.refused

    def run_child(pickles, target):
        assert [os.path.basename(path) for path in pickles] == shards
        shutil.copyfile(weights, target)

    monkeypatch.setattr(torch_pickle, "_run_child", run_child)
    (row,) = convert_all(tmp_path / "fleet", tmp_path / "out", allow_torch=True)
    assert row.refused is None and row.difference == 0
    found = open_checkpoint(tmp_path / "out" / "old")
    assert found.embedding == {"pooling": "mean", "normalize": True}
    assert found.license == License("mit", "All may use it.")
    assert found.read_text().sequence_length == 9


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)
