"""Outputs of DistilBERT models, compared with those of transformers.

record_distilbert.py next to this file records the outputs of transformers.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bert_keras
from bert_keras.interop.saving import save_model
from tests.support.tiny import edit_config

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "distilbert.json").read_text("utf-8"))
CLASSES = {
    "encoder": bert_keras.BertEncoder,
    "pretraining": bert_keras.BertPretrainer,
    "classes": bert_keras.BertClassifier,
    "tags": bert_keras.BertTagger,
    "spans": bert_keras.BertSpanPredictor,
    "choices": bert_keras.BertChooser,
}


def compute(name, model, **changes):
    x = {k: np.array(v) for k, v in (RECORDED["rows"] | changes).items()}
    if name == "choices":
        x = {key: value[None] for key, value in x.items()}
    if name == "pretraining":
        x["mask_positions"] = np.array([[*range(9)]] * 2)
    outputs = model(x)
    if not isinstance(outputs, dict):
        return [outputs]
    names = ("sequence_output", "mlm", "start", "end")
    return [outputs[key] for key in names if key in outputs]


@pytest.mark.filterwarnings("ignore:.*random until")
@pytest.mark.parametrize("name", CLASSES)
def test_outputs_equal_those_of_transformers(tmp_path, name):
    model = CLASSES[name].from_preset(HERE / "distilbert" / name)
    assert model.load_report.skipped == []
    # In transformers, the tagger has the encoder's dropout. The classifier and
    # the chooser have a dropout of 0.2.
    rates = {"encoder": 0.1, "classes": 0.2, "tags": 0.1, "choices": 0.2}
    assert getattr(model, "dropout", None) == rates.get(name)
    save_model(tmp_path / "a", model)
    again = CLASSES[name].from_preset(tmp_path / "a")
    ones = np.ones_like(RECORDED["rows"]["segment_ids"])
    for found in (
        compute(name, model),
        compute(name, model, segment_ids=ones),  # segments change nothing
        compute(name, again),
    ):
        for values, expected in zip(
            found, RECORDED["outputs"][name], strict=True
        ):
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    # transformers has no BERT with a ReLU pooler, so it must refuse the folder.
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    has_pooler = name not in ("tags", "spans")
    assert config["model_type"] == ("bert_keras" if has_pooler else "bert")


@pytest.mark.parametrize(
    ("model_type", "package"),
    [("roberta", "keras_hub.models.Roberta"), ("mpnet", "with transformers")],
)
def test_other_model_types_are_refused_with_a_package(
    tmp_path, model_type, package
):
    save_model(tmp_path / "a", CLASSES["encoder"](40, 1, 2, 8, 12, 20))
    edit_config(tmp_path / "a", model_type=model_type, bert_keras=None)
    with pytest.raises(bert_keras.InputError, match=package):
        bert_keras.BertEncoder.from_preset(tmp_path / "a")


def test_a_distilbert_has_two_segments_whatever_its_settings_say(tmp_path):
    shutil.copytree(HERE / "distilbert" / "spans", tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    config = json.loads(path.read_text()) | {"type_vocab_size": 2**31 - 1}
    path.write_text(json.dumps(config))
    model = bert_keras.BertSpanPredictor.from_preset(tmp_path / "a")
    assert model.encoder.num_segments == 2


def test_lora_of_a_distilbert_names_no_base_model(tmp_path):
    folder = HERE / "distilbert" / "classes"
    model = bert_keras.BertClassifier.from_preset(folder)
    model.encoder.origin = "hf://org/distilbert"
    bert_keras.enable_lora(model, 2)
    bert_keras.save_lora(model, tmp_path / "lora")
    config = json.loads((tmp_path / "lora/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
