"""Names of weights to download, and the case of a vocabulary."""

import email.message
import http.client
import io
import os
import shutil
import sys
import urllib.error
import urllib.response
import zipfile

import pytest
from safetensors.numpy import load_file

from bert_keras.errors import InputError
from bert_keras.interop import downloads as releases
from bert_keras.interop.downloads import WANTED
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensors import WeightsError
from bert_keras.interop.text_settings import (
    TextSettings,
    find_case,
    resolve_case,
)
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.sizes import SIZES
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.foreign_formats import write_google, write_tf_model
from tests.support.huggingface_folders import folder_of, sentence_folder

pytestmark = pytest.mark.fast

LOWER = [f"word{'abcdefghij'[i % 10] * (i // 10 + 1)}" for i in range(1200)]
LOWER = [word.replace("word", "w") for word in LOWER]
CASED = [*LOWER, *(word.title() for word in LOWER)]


@pytest.fixture
def hub(hub):
    """A stand-in for the Hub with one model."""
    folder_of(hub.folder)
    return hub


@pytest.mark.parametrize("name", ["org/tiny", "hf://org/tiny"])
def test_a_name_on_the_hub_is_fetched_and_its_commit_recorded(
    hub, tmp_path, name
):
    model = load_model(BertEncoder, name, revision="v1")
    assert hub.calls == [("org/tiny", "v1", list(WANTED))]
    assert model.load_report.source == "hf://org/tiny@0123456"
    save_model(tmp_path / "own", model, tiny.preprocessor())
    encoder = load_model(BertEncoder, tmp_path / "own")  # from another path
    classifier = BertClassifier(encoder, ["no", "yes"])
    tuned = classifier.with_dtype("bfloat16")
    save_model(tmp_path / "tuned", tuned, tiny.preprocessor())
    for folder in ("own", "tuned"):
        config = (tmp_path / folder / "config.json").read_text()
        assert '"source": "hf://org/tiny@0123456"' in config
    save_model(tmp_path / "new", tiny.encoder())
    assert '"source"' not in (tmp_path / "new" / "config.json").read_text()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("distilbert-base-cased", "distilbert/distilbert-base-cased"),
        ("bge_small_v1.5_en", "BAAI/bge-small-en-v1.5"),
        ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
    ],
)
def test_a_name_without_owner_is_fetched_from_the_hub(hub, name, folder):
    assert open_checkpoint(name).source == f"hf://{folder}@{hub.commit}"
    assert name in releases.presets()


def test_a_transformer_inside_is_fetched(hub, tmp_path):
    shutil.rmtree(hub.folder)
    sentence_folder(hub.folder, "0_Transformer")
    pickle = hub.folder / "0_Transformer" / "pytorch_model.bin"
    pickle.write_bytes(b"")
    encoder = load_model(BertEncoder, "org/tiny")
    assert encoder.sentence_embedding["pooling"] == "mean"
    assert BertPreprocessor.from_preset("org/tiny").sequence_length == 9
    left = {p.name for p in hub.folder.rglob("*.*")}
    left -= {p.name for p in hub.snapshot.rglob("*.*")}
    assert left == {"pytorch_model.bin"}


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("added_tokens.json", '{"<e1>": 8}', "<e1>"),
        ("special_tokens_map.json", '{"mask_token": "<e1>"}', "<e1>"),
        ("config_sentence_transformers.json", '{"prompts": 1}', "prompts"),
    ],
)
def test_every_file_that_changes_ids_is_fetched(
    hub, tmp_path, file, text, word
):
    sentence_folder(hub.folder)
    (hub.folder / file).write_text(text)
    with pytest.raises(WeightsError, match=word):
        BertPreprocessor.from_preset("org/tiny")


def test_weights_of_tensorflow_are_fetched_if_there_are_no_others(hub):
    tensors = load_file(hub.folder / "model.safetensors")
    (hub.folder / "model.safetensors").unlink()
    write_tf_model(hub.folder / "tf_model.h5", tensors)
    (hub.folder / "pytorch_model.bin").write_bytes(b"")
    assert load_model(BertEncoder, "org/tiny").load_report.initialised == []
    assert not (hub.snapshot / "pytorch_model.bin").exists()


def test_other_weights_on_the_hub_are_refused_with_the_fix(hub):
    file = "pytorch_model-00001-of-00002.bin"
    (hub.folder / "model.safetensors").unlink()
    (hub.folder / file).write_bytes(b"")
    with pytest.raises(InputError, match=f"{file}.*save_pretrained"):
        load_model(BertEncoder, "org/tiny")
    assert not (hub.snapshot / file).exists()


def test_a_folder_goes_before_a_name(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "org" / "tiny")
    assert open_checkpoint("org/tiny").source == "org/tiny"
    assert hub.calls == []


def test_a_name_that_is_not_there_is_told(hub):
    with pytest.raises(InputError, match="no folder org/none here.*404"):
        open_checkpoint("org/none")
    with pytest.raises(InputError, match="Expected hf://org/name"):
        open_checkpoint("hf://none")


def test_a_known_name_gets_no_other_name_as_advice():
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert releases.suggest_names(name) == ""
    assert "all-MiniLM-L6-v2" in releases.suggest_names(name.lower())


def test_without_huggingface_hub_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install '\.\[hub\]'"):
        open_checkpoint("org/tiny")


def test_another_huggingface_hub_is_refused(monkeypatch):
    """Version 2 raises errors of another package."""
    monkeypatch.setattr("huggingface_hub.__version__", "2.4.0")
    with pytest.raises(InputError, match="huggingface-hub 1, and 2.4.0 is"):
        open_checkpoint("org/tiny")


@pytest.mark.skipif(
    os.environ.get("BERT_KERAS_ONLINE") != "1",
    reason="BERT_KERAS_ONLINE is not 1",
)
def test_a_tiny_model_of_the_real_hub_is_read():
    name = "hf-internal-testing/tiny-random-BertModel"
    assert load_model(BertEncoder, name).load_report.loaded


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A stand-in for a released zip, under a file URL."""
    write_google(tmp_path / "x")
    path = tmp_path / "web/2018_10_18/cased_L-12_H-768_A-12.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for file in os.listdir(tmp_path / "x"):
            archive.write(tmp_path / "x" / file, f"x/{file}")
    address = f"file://{tmp_path}/web/{{date}}/{{name}}.zip"
    assert releases.URL.startswith("https://storage.googleapis.com/bert_models")
    monkeypatch.setattr(releases, "URL", address)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    return path


def test_a_released_name_is_fetched_once(web):
    model = load_model(BertEncoder, "bert_base_en")
    assert model.load_report.initialised == []
    web.unlink()
    text = BertPreprocessor.from_preset("bert_base_en", sequence_length=8)
    assert text.tokenizer.lowercase is False  # the released name says cased
    assert (
        set(releases.ALIASES.values()) <= set(releases.RELEASED) <= set(SIZES)
    )


def test_a_released_zip_with_a_flipped_bit_is_refused(web, tmp_path):
    data = bytearray(web.read_bytes())
    data[len(data) // 2] ^= 1
    web.write_bytes(data)
    with pytest.raises(InputError, match="zip is damaged"):
        open_checkpoint("bert_base_en")
    assert not list(tmp_path.rglob("bert_keras/*"))


def cut_short(url, timeout):
    """Return the response of `urlopen` for a connection that ends early."""
    headers = email.message.Message()
    headers["Content-Length"] = "8"
    return urllib.response.addinfourl(io.BytesIO(b"half"), headers, url)


def unreachable(url, timeout):
    assert timeout <= 60  # so that a silent server raises an error
    raise urllib.error.URLError("no route to host")


def answered_by_a_proxy(url, timeout):
    raise http.client.BadStatusLine("<html>")


@pytest.mark.parametrize(
    ("urlopen", "message"),
    [
        (answered_by_a_proxy, "<html>.*by hand"),
        (cut_short, "4 bytes came instead of 8.*by hand"),
        (unreachable, "no route to host.*by hand"),
    ],
)
def test_a_download_that_is_interrupted_leaves_nothing(
    tmp_path, monkeypatch, urlopen, message
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(InputError, match=message):
        open_checkpoint("bert_base_en")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def stated(cases, pieces):
    return TextSettings(pieces, cases=cases)


def test_the_vocabulary_shows_its_case():
    assert find_case(LOWER) is True
    assert find_case(CASED) is False
    assert find_case(tiny.PIECES) is None
    # A few added capitals do not make a vocabulary cased.
    assert find_case([*LOWER, "XYZ"]) is None


@pytest.mark.parametrize("first", ["א", "ა", "一"])  # Georgian: no title case
def test_pieces_without_capitals_show_no_case(first):
    letters = [chr(ord(first) + i) for i in range(27)]
    words = [a + b + c for a in letters for b in letters for c in letters]
    assert len(words) > 10 * len(LOWER)
    assert find_case(words) is None
    # Google's Chinese BERT has such a vocabulary, and its config says cased.
    assert (
        resolve_case("f", stated({"config": False}, [*words, *LOWER])) is False
    )


@pytest.mark.parametrize(
    ("cases", "pieces", "lowercase", "expected"),
    [
        ({}, tiny.PIECES, None, True),
        ({}, CASED, None, False),
        ({"config": False}, CASED, None, False),
        ({"config": False}, tiny.PIECES, None, False),
        ({"config": False}, CASED, False, False),
        ({"config": False, "name": True}, tiny.PIECES, True, True),
        ({"config": False}, LOWER, True, True),
        ({"config": False}, LOWER, False, False),
    ],
)
def test_the_case_is_settled(cases, pieces, lowercase, expected):
    assert resolve_case("folder", stated(cases, pieces), lowercase) is expected


@pytest.mark.parametrize(
    ("cases", "pieces", "lowercase", "told"),
    [
        ({"config": False}, LOWER, None, "cased in config, lower-cased in its"),
        ({"config": True}, CASED, None, "lowercase=True` or `lowercase=False"),
        ({"config": True}, CASED, None, "convert_checkpoint --lowercase or"),
        ({"config": True}, tiny.PIECES, False, "pass lowercase=True"),
        ({}, CASED, True, "its vocabulary; lowercase=True"),
    ],
)
def test_a_contradiction_is_an_error(cases, pieces, lowercase, told):
    with pytest.raises(WeightsError, match=told):
        resolve_case("folder", stated(cases, pieces), lowercase)
