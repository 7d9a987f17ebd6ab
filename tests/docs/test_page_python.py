"""The Python of embedding.md, finetuning.md and own_model.md runs."""

import json
import re

import pytest
import tensorflow as tf
from run_script import ROOT
from safetensors.numpy import load_file
from served_samples import encoder, preprocessor, spread
from task_samples import sentences, write_reviews
from test_page_commands import python_of

import bert_keras

pytestmark = pytest.mark.release


def test_texts_are_compared_and_ranked(tmp_path, monkeypatch):
    code, served = python_of("embedding")
    names = {}
    exec(code, names)
    vectors = names["model"].predict(
        names["preprocess"](names["questions"]), verbose=0
    )
    assert vectors.shape == (2, 256)
    assert abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    for loss in re.findall(r"^\| `(\w+\(.*?\))` ", page, re.M):
        exec(f"bert_keras.{loss}", names)
    monkeypatch.chdir(tmp_path)
    ranker = spread(
        bert_keras.BertClassifier(encoder(), problem="ranking", pair=True)
    )
    bert_keras.export_saved_model(ranker, preprocessor(), "runs/ranker/served")
    *lines, last = served.strip().splitlines()
    exec("\n".join(lines), names)
    assert sorted(eval(last, names)[0]) == [0, 1]


def test_lora_and_callbacks_work_as_shown(toy_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_reviews("train.csv", 64)  # 6 steps of the usual batch
    write_reviews("dev.csv", 6, seed=1)
    preprocess = bert_keras.BertPreprocessor.from_preset(
        toy_model, sequence_length=16
    )
    dataset = tf.data.Dataset.from_tensor_slices(
        tuple(map(list, zip(*sentences(8), strict=True)))
    )
    names = {
        "preset": toy_model,
        "dataset": dataset.batch(4).map(preprocess),
    }
    lora, callbacks = python_of("finetuning")
    exec(lora, names)
    inputs = preprocess(["a good film"])
    change = names["model"](inputs) - names["fresh"](inputs)
    assert abs(change.numpy()).max() < 1e-5
    assert all(
        ".lora_" in name or ".classifier." in name
        for name in load_file("reviews_lora/adapter_model.safetensors")
    )
    exec(callbacks, names)
    with open("journal.jsonl") as file:
        lines = [json.loads(line) for line in file]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert all(0 <= line["val_accuracy"] <= 1 for line in lines)


def test_the_packaged_model_gives_vectors():
    names = {}
    exec(python_of("own_model")[0], names)
    assert names["vectors"].shape == (1, 128, 256)
