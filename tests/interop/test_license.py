"""The license stays with the weights, from their source to the export."""

import pytest

from bert_keras import json_files
from bert_keras.interop.convert import convert
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.tensors import License, read_license
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.task_models import BertClassifier
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import CARD
from tests.support.model_samples import fill
from tests.support.served_samples import encoder, preprocessor

TEXT = "Do as you like, but say who made it.\n"
STATED = "---\nlanguage: en\nlicense: apache-2.0\n---\n# BERT\n"


@pytest.fixture
def home(tmp_path):
    """A folder of pre-trained weights as on the Hugging Face Hub."""
    BertPretrainer(encoder()).save_preset(tmp_path / "own", preprocessor())
    convert(tmp_path / "own", tmp_path / "home")
    (tmp_path / "home" / "README.md").write_text(STATED)
    (tmp_path / "home" / "LICENSE.txt").write_text(TEXT)
    return tmp_path / "home"


def test_a_folder_states_its_license(tmp_path):
    assert read_license(tmp_path) is None
    readme = tmp_path / "README.md"
    readme.write_text(STATED)
    assert read_license(tmp_path) == License("apache-2.0")
    readme.write_text("# BERT\n\nlicense: mine\n")
    assert read_license(tmp_path) is None
    (tmp_path / "COPYING").write_text(TEXT)
    assert read_license(tmp_path) == License(None, TEXT)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("license: 'mit'  # free", "mit"),
        ("license:\n- mit\ntags:\n- x", "mit"),
        ("license:\r\n- mit\r", "mit"),
        ("license: [mit, gpl]", "mit"),
        ("license:\nlanguage: en", None),
    ],
)
def test_a_license_may_be_a_list_or_missing(tmp_path, line, name):
    (tmp_path / "LICENSE").write_text(TEXT)
    (tmp_path / "README.md").write_text(f"---\n{line}\n---\n")
    assert read_license(tmp_path) == License(name, TEXT)


def test_a_fine_tuned_model_and_its_export_keep_it(home, tmp_path):
    model = BertClassifier.from_preset(home, labels=["bad", "good"])
    for name in ("first", "second"):  # written, read and written again
        copy = model.with_dtype("bfloat16")
        copy.save_preset(tmp_path / name, preprocessor())
        model = BertClassifier.from_preset(tmp_path / name)
        assert model.encoder.license == License("apache-2.0", TEXT)
    model.save_preset(tmp_path / "second", preprocessor())  # replaces it
    fill(model)  # as if it had been trained
    export_saved_model(model, tmp_path / "served", preprocessor())
    card = json_files.read_json(tmp_path / "served" / CARD)
    assert card["license_of_weights"] == "apache-2.0"
    assert (tmp_path / "served" / "LICENSE").read_text() == TEXT
    assert "LICENSE" in card["files"]


def test_what_the_export_is_told_goes_before(home, tmp_path):
    model = BertEncoder.from_preset(home)
    folder = tmp_path / "served"
    export_saved_model(model, folder, preprocessor(), license="mit")
    assert json_files.read_json(folder / CARD)["license_of_weights"] == "mit"
    assert not (folder / "LICENSE").exists()


def test_a_copy_keeps_its_text_and_its_name(home, tmp_path):
    convert(home, tmp_path / "copy")
    license = open_checkpoint(tmp_path / "copy").license
    assert license == License("apache-2.0", TEXT)


def test_new_weights_have_none(tmp_path):
    model = BertClassifier(encoder(), labels=["bad", "good"])
    model.save_preset(tmp_path / "new", preprocessor())
    config = json_files.read_json(tmp_path / "new" / "config.json")
    assert "license" not in config["bert_keras"]
    assert BertClassifier.from_preset(tmp_path / "new").encoder.license is None
