"""Every class through every format and back; the script that does it."""

import os
import pickle
import shutil
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from run_script import ROOT, run_script
from test_sentence_transformers import sentence_folder

from bert_keras import BertPreprocessor, WordPieceTokenizer
from bert_keras.errors import InputError
from bert_keras.interop import tensor_files
from bert_keras.interop.convert import (
    CLASSES,
    WRITERS,
    convert,
    greatest_difference,
    model_class,
    without_pickle,
)
from bert_keras.interop.huggingface import save_huggingface
from bert_keras.interop.native import save_native
from bert_keras.interop.presets import open_checkpoint
from bert_keras.interop.tensor_files import unpickle_folder
from bert_keras.interop.tensors import License
from bert_keras.modeling.weights import published_weights
from tools import convert_checkpoint

SCRIPT = ROOT / "tools" / "convert_checkpoint.py"
# What each format has a place for.
PLACES = {
    "bert_keras": set(CLASSES),
    "huggingface": set(CLASSES) - {"BertEmbedder"},  # an encoder there
    "google": {
        "BertEncoder",
        "BertPretrainer",
        "BertClassifier",
        "BertSpanPredictor",
    },
    "keras_hub": {"BertEncoder", "BertClassifier"},
    "sentence_transformers": set(),  # gives an encoder: see its own tests
}
# Classes that transformers has no pooler for.
WITHOUT_POOLER = ("BertCausalModel", "BertSpanPredictor", "BertTagger")
POOLER = ["encoder/pooler/bias", "encoder/pooler/kernel"]


def saved(folder, name, **arguments):
    if name == "BertCausalModel":
        arguments["attention"] = "left_to_right"
    model = tiny.model(name, **arguments)
    save_native(folder, model, tiny.preprocessor())
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
    # A name that says nothing of the text, or one that lies.
    target = tmp_path / ("uncased" if name == "BertClassifier" else "b")
    done = convert(folder, target, format)
    assert done.difference == 0.0
    without = format == "huggingface" and name in WITHOUT_POOLER
    assert done.left_out == (POOLER if without else [])
    written = open_checkpoint(target)
    assert (written.format, written.head) == (format, name)
    assert set(written.tensors) == weights - set(done.left_out)
    assert written.skipped == []
    assert written.encoder["max_sequence_length"] == 16
    if name == "BertClassifier":
        assert written.head_arguments["labels"] == ["no", "maybe", "yes"]
        assert written.head_arguments["problem"] == "single"
    text = written.read_text()
    assert text.sequence_length == 12
    assert text.pieces == tiny.PIECES
    assert set(text.cases.values()) == {False}
    assert text.tokenizer["max_word_length"] == 50


@pytest.mark.parametrize("length", [150, 200])  # 200 positions, 128 by default
@pytest.mark.parametrize("format", sorted(f for f in PLACES if PLACES[f]))
def test_lengths_accents_and_special_tokens_travel(tmp_path, format, length):
    model = tiny.model("BertEncoder", max_sequence_length=200, num_layers=1)
    own = {"lowercase": True, "strip_accents": False}
    own["keep_special_tokens"] = True
    text = BertPreprocessor(WordPieceTokenizer(tiny.PIECES, **own), length)
    save_native(tmp_path / "a", model, text)
    convert(tmp_path / "a", tmp_path / "b", format)
    again = BertPreprocessor.from_preset(tmp_path / "b")
    assert again.sequence_length == length
    assert {name: getattr(again.tokenizer, name) for name in own} == own


@pytest.mark.parametrize("format", sorted(WRITERS))
def test_of_sentence_transformers_the_length_travels(tmp_path, format):
    sentence_folder(tmp_path / "a")
    done = convert(tmp_path / "a", tmp_path / "b", format, True)
    assert open_checkpoint(tmp_path / "b").read_text().sequence_length == 9
    lost = "without how sentences are embedded (pooling mean, normalize True)"
    keeps = ("bert_keras", "sentence_transformers")
    assert done.remark == ("" if format in keeps else lost)


@pytest.mark.parametrize(
    "argument",
    [
        {"activation": "gelu_exact"},
        {"attention": "left_to_right"},
        {"norm_epsilon": 1e-5},
    ],
)
def test_what_a_format_would_compute_otherwise_is_refused(tmp_path, argument):
    model = saved(tmp_path / "a", "BertEncoder", **argument)
    (name,) = argument
    for format in ("google", "keras_hub"):
        with pytest.raises(InputError, match=f"model's {name} is .* computes"):
            convert(tmp_path / "a", tmp_path / "b", format)
        assert not os.path.exists(tmp_path / "b")
    convert(tmp_path / "a", tmp_path / "c", "huggingface")
    again = CLASSES["BertEncoder"].from_preset(tmp_path / "c")
    assert again.get_config() == model.get_config()


@pytest.mark.parametrize("problem", ["regression", "ranking"])
@pytest.mark.parametrize("format", ["huggingface", "google", "keras_hub"])
def test_one_score_of_a_pair_keeps_or_says_what_it_means(
    tmp_path, format, problem
):
    kind = CLASSES["BertClassifier"]
    model = kind(tiny.encoder(), problem=problem, pair=True)
    save_native(tmp_path / "a", model)
    done = convert(tmp_path / "a", tmp_path / "b", format)
    again = kind.from_preset(tmp_path / "b")
    lost = [] if again.problem == problem else [f"problem {problem}"]
    assert bool(lost) == ((format, problem) == ("huggingface", "ranking"))
    assert (again.labels, done.dropped) == (None, [*lost, "pair True"])


def test_right_to_left_stays_in_the_native_format(tmp_path):
    saved(tmp_path / "a", "BertEncoder", attention="right_to_left")
    convert(tmp_path / "a", tmp_path / "b")
    with pytest.raises(InputError, match="transformers computes"):
        convert(tmp_path / "a", tmp_path / "c", "huggingface")


def test_the_difference_of_the_other_form_of_gelu_is_returned(tmp_path):
    saved(tmp_path / "a", "BertEncoder", activation="gelu_exact")
    done = convert(
        tmp_path / "a", tmp_path / "b", "google", accept_difference=True
    )
    assert 1e-7 < done.difference < 1e-2
    again = open_checkpoint(tmp_path / "b")
    assert again.encoder["activation"] == "gelu_tanh"


def test_a_head_without_a_place_is_refused_by_name(tmp_path):
    saved(tmp_path / "a", "BertTagger")
    for format in ("google", "keras_hub"):
        with pytest.raises(InputError, match="no place for tagger/"):
            convert(tmp_path / "a", tmp_path / "b", format)
    with pytest.raises(InputError, match="'onnx'. Expected bert_keras"):
        convert(tmp_path / "a", tmp_path / "b", "onnx")


def test_a_head_of_a_task_is_refused_by_its_name(tmp_path):
    from official_tasks.tasks.feature_tagger import FeatureTagger

    tagger = FeatureTagger(tiny.encoder(), ["O"], "last", lstm_dim=2)
    save_native(tmp_path / "a", tagger)
    with pytest.raises(InputError, match="is a FeatureTagger, .* one of Bert"):
        model_class(open_checkpoint(tmp_path / "a"))


def test_keras_hub_goes_without_the_next_sentence_head(tmp_path):
    saved(tmp_path / "a", "BertPretrainer")
    with pytest.raises(InputError, match="mlm_activation is None, but keras-h"):
        convert(tmp_path / "a", tmp_path / "b", "keras_hub")
    done = convert(
        tmp_path / "a", tmp_path / "b", "keras_hub", accept_difference=True
    )
    assert sorted(done.left_out) == ["nsp/bias", "nsp/kernel"]
    assert 1e-6 < done.difference < 1e-2
    again = convert(tmp_path / "b", tmp_path / "c", "keras_hub")
    assert again.difference == 0.0


@pytest.mark.parametrize("format", sorted(f for f in PLACES if PLACES[f]))
def test_what_a_source_lacks_is_not_made_up(tmp_path, format):
    model = tiny.model("BertPretrainer")
    save_huggingface(tmp_path / "a", model, without=["nsp/kernel", "nsp/bias"])
    done = convert(
        tmp_path / "a", tmp_path / "b", format, format == "keras_hub"
    )
    lost = sorted(["nsp/bias", "nsp/kernel", *POOLER])
    assert sorted(done.left_out + done.at_random) == lost
    assert done.at_random == (POOLER if format == "keras_hub" else [])
    again = CLASSES["BertPretrainer"].from_preset(tmp_path / "b")
    assert set(again.load_report.initialised) == set(done.left_out)


def test_a_head_that_was_never_trained_is_no_head_of_keras_hub(tmp_path):
    model = tiny.model("BertPretrainer")
    head = [n for n in published_weights(model) if n.startswith("mlm/")]
    save_huggingface(tmp_path / "a", model, without=head)
    with pytest.raises(InputError, match="mlm/.* was never trained"):
        convert(
            tmp_path / "a", tmp_path / "b", "keras_hub", accept_difference=True
        )


def test_a_difference_is_seen():
    first, second = tiny.model("BertEncoder"), tiny.model("BertEncoder")
    second.load_report = type("Report", (), {"initialised": []})
    kernel = second.transformer_layers[1].output_projection.kernel
    kernel.assign(np.asarray(kernel) * 1.01)
    assert greatest_difference(first, second) > 1e-4
    bias = second.pooler.bias  # of the last output alone
    bias.assign(np.full(bias.shape, np.nan))
    assert np.isnan(greatest_difference(first, second))


# Pickles: read on request only, and in a process of their own.


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_is_read_on_request_only_and_apart(tmp_path):
    folder, mark = tmp_path / "old", tmp_path / "mark"
    save_huggingface(folder, tiny.model("BertEncoder"))
    os.remove(folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(str(mark))))
    with pytest.raises(InputError, match="--allow_torch"):
        convert(folder, tmp_path / "out")
    expected = (
        "restricted loader" if find_spec("torch") else "pip install torch"
    )
    with pytest.raises(InputError, match=expected):
        without_pickle(folder, tmp_path / "plain")
    assert not mark.exists()


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_shards_modules_and_the_licence_come_along(
    tmp_path, monkeypatch, inner
):
    """PyTorch is stood in for: what it would read is written already."""
    folder = tmp_path / "old"
    sentence_folder(folder, inner)
    weights = tmp_path / "model.safetensors"
    os.rename(folder / inner / "model.safetensors", weights)
    shards = [f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2)]
    for name in shards:
        (folder / inner / name).write_bytes(b"")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "LICENSE").write_text("All may use it.")

    def run_child(pickles, target):
        assert [os.path.basename(path) for path in pickles] == shards
        shutil.copyfile(weights, target)

    monkeypatch.setattr(tensor_files, "_run_child", run_child)
    plain = without_pickle(folder, tmp_path / "plain")
    assert convert(plain, tmp_path / "out").difference == 0
    found = open_checkpoint(tmp_path / "out")
    assert found.embedding == {"pooling": "mean", "normalize": True}
    assert found.license == License("mit", "All may use it.")
    assert found.read_text().sequence_length == 9


def test_a_pickle_next_to_links_is_not_copied(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/pytorch_model.bin").write_bytes(b"")
    for name in ("LICENSE", "vocab.txt"):
        (tmp_path / "a" / name).symlink_to(tmp_path / "secret")
        with pytest.raises(InputError, match="link out of the folder"):
            unpickle_folder(tmp_path / "a", tmp_path / "b")
        (tmp_path / "a" / name).unlink()


# The script.


def test_the_script_prints_the_difference_and_settles_the_case(
    tmp_path, capsys
):
    model = tiny.model("BertClassifier")
    save_huggingface(tmp_path / "a", model, tiny.preprocessor())
    fast = (tmp_path / "a" / "tokenizer.json").read_text()
    (tmp_path / "a" / "tokenizer.json").write_text(
        fast.replace('"lowercase": false', '"lowercase": true')
    )

    values = SimpleNamespace(
        source=str(tmp_path / "a"),
        output=str(tmp_path / "b"),
        format="google",
        accept_difference=True,
        lowercase=None,
        allow_torch=False,
        overwrite=False,
    )
    with pytest.raises(InputError, match="--nolowercase"):
        convert_checkpoint.main(values)
    values.lowercase = False
    convert_checkpoint.main(values)
    written = open_checkpoint(tmp_path / "b")
    assert written.format == "google"
    assert set(written.read_text().cases.values()) == {False}
    # One line, however long the paths are: a script may read it.
    (line,) = capsys.readouterr().out.splitlines()
    assert "b: BertClassifier of" in line
    assert "(huggingface), max abs difference" in line


def test_the_script_runs_in_a_process_of_its_own(tmp_path):
    saved(tmp_path / "a", "BertClassifier")
    done = run_script(
        SCRIPT, "--source=a", "--output=b", "--format=google", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "b: BertClassifier of a (bert_keras), max abs difference 0.0e+00"
    ]
