"""Python code of the pages; test_notebook.py runs that of the README."""

import csv
import glob
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import bert_keras
from bert_keras.data import record_files
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import UntrainedWarning
from tests.support.data_samples import corpus, toy_tokenizer
from tests.support.model_samples import fill
from tests.support.page_commands import python_of
from tests.support.run_script import ROOT
from tests.support.served_samples import encoder, preprocessor
from tests.support.task_samples import sentences, write_reviews

pytestmark = pytest.mark.release


@pytest.fixture
def names(toy_model, tmp_path, monkeypatch):
    """Variables that the code of the pages uses, with a toy model."""
    monkeypatch.chdir(tmp_path)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        toy_model, sequence_length=16
    )
    dataset = tf.data.Dataset.from_tensor_slices(
        tuple(map(list, zip(*sentences(8), strict=True)))
    )
    return {
        "bert_keras": bert_keras,
        "preset": toy_model,
        "dataset": dataset.batch(4).map(preprocess),
        "labels": ["bad", "good"],
        "steps": 2,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }


def test_texts_are_compared_and_ranked(names):
    code, served = python_of("embedding")
    exec(code, names)
    vectors = names["model"].predict(
        names["preprocess"](names["questions"]), verbose=0
    )
    assert vectors.shape == (2, 256)
    assert abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    for loss in re.findall(r"^\| `(\w+\(.*?\))` ", page, re.M):
        exec(f"bert_keras.{loss}", {**names, "loss": bert_keras.Triplet()})
    ranker = fill(
        bert_keras.BertClassifier(encoder(), problem="ranking", pair=True)
    )
    bert_keras.export_saved_model(ranker, "runs/ranker/served", preprocessor())
    *lines, last = served.strip().splitlines()
    exec("\n".join(lines), names)
    assert sorted(eval(last, names)[0]) == [0, 1]


def test_lora_callbacks_and_a_head_work_as_shown(names):
    write_reviews("train.csv", 64)  # 3 epochs of 2 steps
    write_reviews("dev.csv", 6, seed=1)
    lora, callbacks, _, head = python_of("finetuning")
    exec(lora, names)
    inputs = next(iter(names["dataset"]))[0]
    change = names["model"](inputs) - names["fresh"](inputs)
    assert abs(change.numpy()).max() < 1e-5
    assert all(
        ".lora_" in name or ".classifier." in name
        for name in load_file("reviews_lora/adapter_model.safetensors")
    )
    exec(callbacks, names)
    with open("journal.csv") as file:
        lines = [*csv.DictReader(file)]
    assert [line["epoch"] for line in lines] == ["0", "1", "2"]
    assert all(0 <= float(line["val_accuracy"]) <= 1 for line in lines)
    exec(head, names)
    assert names["served"].serve(tf.constant(["a"])).shape == (1, 3)


def test_keras_tuner_and_keras_distiller_work_as_shown(names):
    inputs = next(iter(names["dataset"]))[0]
    names["preprocess"] = bert_keras.BertPreprocessor.from_preset(
        names["preset"], sequence_length=16
    )
    exec(python_of("finetuning")[2], names)
    history = names["distiller"].history.history
    # The total is half of each: the weights of Keras's `Distiller`.
    assert history["total_loss"][0] == pytest.approx(
        (history["student_loss"][0] + history["distillation_loss"][0]) / 2,
        rel=1e-5,
    )
    again = bert_keras.BertClassifier.from_preset("student")
    np.testing.assert_allclose(
        again(inputs), names["student"](inputs), atol=1e-6
    )


def test_names_of_tensorflow_hub_have_the_same_values_here(names):
    preset = names["preset"]
    encoder = bert_keras.BertEncoder.from_preset(preset)
    tokenizer = bert_keras.WordPieceTokenizer.from_preset(preset)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        preset, sequence_length=16
    )
    ids = map(tokenizer.token_to_id, ("[CLS]", "[SEP]"))
    pack = bert_keras.SegmentPacker(16, *ids)
    inputs = preprocess((["the cat"], ["sat"]))
    packed = pack((tokenizer(["the cat"]), tokenizer(["sat"])))
    for name, value in packed.items():
        np.testing.assert_array_equal(value, inputs[name])
    outputs = encoder(inputs, hidden_states=True)
    layers = outputs["hidden_states"][1:]
    assert len(layers) == encoder.num_layers
    np.testing.assert_array_equal(layers[-1], outputs["sequence_output"])


def test_a_tagger_a_reader_and_a_chooser_learn_as_shown(names):
    exec(python_of("ner")[0], names)
    assert names["tags"].shape == (6,)
    for block in python_of("question_answering"):
        exec(block, names)
    assert names["choices"]["token_ids"].shape == (1, 2, 32)


def test_attention_has_the_shape_shown(names):
    exec(python_of("features")[1], names)
    assert np.shape(names["attention"][0]) == (1, 4, 16, 16)
    np.testing.assert_allclose(
        np.sum(names["attention"][0], axis=-1)[0, :, 0], 1, atol=1e-5
    )


def test_pages_import_public_names_only():
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) > 20
    for page in pages:
        for block in python_of(page.stem):
            found = re.findall(r"(?:from|import) (bert_keras\.\S+)", block)
            assert not found, page.name


def test_a_strategy_trains_as_shown(names):
    exec(python_of("devices")[0], names)
    assert names["strategy"].num_replicas >= 1


def test_weights_are_copied_and_loaded_as_shown(names):
    copy, load = python_of("formats")
    exec(copy, names)
    bert_keras.BertEncoder.from_preset("copy").save("my.keras")
    exec(load, names)
    assert isinstance(names["model"], bert_keras.BertEncoder)


def test_the_habits_of_keras_hub_work(names):
    preset = "bert_keras_mini_en"
    tokenizer = bert_keras.WordPieceTokenizer.from_preset(preset)
    cls_id = tokenizer.token_to_id("[CLS]")
    assert tokenizer.get_vocabulary()[cls_id] == "[CLS]"
    texts = ["An hour well spent."]
    with warnings.catch_warnings(category=UntrainedWarning, action="ignore"):
        model = bert_keras.BertClassifier.from_preset(
            preset, num_classes=2, sequence_length=64
        )
        model.save_preset("mine")  # weights and vocabulary
        again = bert_keras.BertClassifier.from_preset("mine")
    np.testing.assert_array_equal(again.predict(texts), model.predict(texts))


def test_records_are_read_into_fit_by_plain_tf_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer, rules = toy_tokenizer(), SamplingRules(64)
    manifests = create_pretraining_data(
        corpus(60),
        tokenizer,
        "runs/data",
        BuildOptions(records=True, rules=rules),
    )
    (code,) = python_of("data")
    # The page's model would take a minute.
    small = code.replace("2, 4, 256, 1024", "1, 2, 16, 32")
    names = {}
    exec(small.replace("epochs=2", "epochs=1"), names)
    assert rules.max_predictions == names["M"][0] == 10
    records = tf.data.TFRecordDataset(sorted(glob.glob("runs/*/train/*.tf*")))
    batch = next(iter(records.batch(32)))
    expected = record_files.parser(rules)(batch)
    x, y, w = names["to_batch"](batch)
    found = x | {"mask_ids": y["mlm"], "next_sentence_labels": y["nsp"]}
    found["mask_weights"] = w["mlm"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (int64|float), (\w) \|", page, re.M)
    (example,) = (
        tf.train.Example.FromString(record.numpy())
        for record in records.take(1)
    )
    lengths = {"T": 64, "M": 10, "1": 1}
    assert {
        name: (f"{kind}_list", lengths[length]) for name, kind, length in listed
    } == {
        name: (
            feature.WhichOneof("kind"),
            len(getattr(feature, feature.WhichOneof("kind")).value),
        )
        for name, feature in example.features.feature.items()
    }
    assert manifests["train"]["examples"] >= 32
