"""The Python of docs/finetuning.md, on toy data."""

import json
import re

import tensorflow as tf
from run_script import ROOT
from safetensors.numpy import load_file
from task_samples import sentences, write_reviews

import bert_keras

PAGE = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(toy_model, tmp_path, monkeypatch):
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
    lora, callbacks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    exec(lora, names)
    inputs = preprocess(["a good film"])
    change = names["model"](inputs) - names["fresh"](inputs)
    assert abs(change.numpy()).max() < 1e-5
    assert all(
        "lora_kernel" in name or name.startswith("classifier/")
        for name in load_file("reviews.safetensors")
    )
    exec(callbacks, names)
    with open("journal.jsonl") as file:
        lines = [json.loads(line) for line in file]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert all(0 <= line["val_accuracy"] <= 1 for line in lines)
