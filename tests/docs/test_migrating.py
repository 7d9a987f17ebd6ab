"""The commands of docs/migrating.md, on small folders made here."""

import json
import re
import shlex
import warnings

import numpy as np
import pytest
import tiny
from foreign_formats import (
    GOOGLE_CONFIG,
    write_google,
    write_json,
    write_model_garden,
)
from run_script import ROOT, call_script
from weight_names import CLASSIFIER

import bert_keras
from bert_keras.errors import UntrainedWarning
from bert_keras.interop.saving import save_model

PAGE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip() for line in PAGE.splitlines() if line.startswith("    python")
]
TEXTS = ["good bad", "badly", ""]


def old(folder):
    write_google(folder, CLASSIFIER)


def hugging(folder):
    model = tiny.model("BertClassifier", activation="gelu_exact")
    save_model(folder, model, tiny.preprocessor())


def garden(folder):
    write_model_garden(folder)
    write_json(folder, "bert_config.json", GOOGLE_CONFIG)


def run(command, folder):
    python, script, *flags = shlex.split(command)
    return call_script(ROOT / script, *flags, folder=folder)


def exports(source):
    (command,) = [c for c in COMMANDS if f"--model={source} " in c]
    return command


@pytest.mark.release
def test_a_model_of_transformers_is_served_and_compared(tmp_path):
    hugging(tmp_path / "hugging")
    done = run(exports("hugging") + " --noverify", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "answers classify, ids, tokenize" in done.stdout
    model = bert_keras.BertClassifier.from_preset(tmp_path / "hugging")
    logits = np.array(model(tiny.preprocessor()(TEXTS)))
    records = [
        {
            "inputs": {"text": text},
            "answer": {"label": model.labels[row.argmax()]},
        }
        for text, row in zip(TEXTS, logits, strict=True)
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "recorded.jsonl").write_text(lines)
    (compare,) = [c for c in COMMANDS if "compare" in c]
    done = run(compare, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "'equal': 1.0" in done.stdout
    example = next(x for x in PAGE.splitlines() if x.startswith('    {"inputs'))
    assert set(json.loads(example)) == {"inputs", "answer"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "answers", "names"),
    [
        (
            old,
            "classify, ids, tokenize",
            {"input_ids", "input_mask", "segment_ids"},
        ),
        (
            garden,
            "embed, ids, tokenize",
            {"input_word_ids", "input_mask", "input_type_ids"},
        ),
    ],
)
def test_models_of_google_are_served(tmp_path, make, answers, names):
    name = make.__name__
    make(tmp_path / name)
    done = run(exports(name), tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"answers {answers}" in done.stdout
    served = bert_keras.load_saved_model(tmp_path / f"served_{name}")
    assert set(served.card["signatures"]["ids"]["inputs"]) == names


def test_the_habits_of_keras_hub_work(toy_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"bert_keras": bert_keras, "preset": toy_model}
    with warnings.catch_warnings(category=UntrainedWarning, action="ignore"):
        exec(code, names)
        again = bert_keras.BertClassifier.from_preset("mine")
    texts = names["preprocess"](["An hour well spent."])
    np.testing.assert_array_equal(again(texts), names["model"](texts))
