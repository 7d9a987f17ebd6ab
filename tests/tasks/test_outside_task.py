"""The task of CONTRIBUTING.md, loaded from a file, with its own head."""

import json
import re

import numpy as np
import pytest
from run_script import ROOT
from task_samples import save_toy_model, sentences

from official_tasks.engine.models import Predictor, load_model
from official_tasks.tasks.registry import load_task_class

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
(TASK,) = (
    block
    for block in re.findall("```python\n(.*?)```", GUIDE, re.DOTALL)
    if "class Reviews(Task)" in block
)
(CALL,) = re.findall("```python\n(from official_tasks.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the task's file, its data and a toy model."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "my_task.py").write_text(TASK)
    for split, count in (("train", 120), ("dev", 40)):
        rows = sentences(count, seed=count)
        (folder / f"{split}.json").write_text(json.dumps(rows))
    save_toy_model(folder / "init")
    return folder


@pytest.fixture(scope="module")
def task(place):
    return load_task_class(str(place / "my_task.py"))(data_dir=str(place))


@pytest.fixture(scope="module")
def results(place, task):
    """Results of the call in the guide, with other folders and settings."""
    settings = {"epochs": 6, "batch_size": 8, "learning_rate": 1e-2}
    call = CALL.replace("runs/pretrain/model", str(place / "init"))
    call = call.replace('"runs/mine"', f'"{place}/run", **settings')
    names = {"Reviews": lambda data_dir: task, "settings": settings}
    exec(call, names)
    return names["results"]


def test_it_learns_and_its_predictions_are_written(place, results):
    assert results["accuracy"] > 0.9
    assert len(results["curve"]) == 6
    written = json.loads((place / "run" / "results.json").read_text())
    assert written["accuracy"] == results["accuracy"]
    answers = place / "run" / "predictions" / "answers.json"
    assert len(json.loads(answers.read_text())) == 40


def test_the_model_reloads_with_its_head(place, task, results):
    from bert_keras import BertPreprocessor

    model = load_model(task, place / "run")
    preprocess = BertPreprocessor.from_preset(place / "run" / "model")
    dev = task.read("dev")
    predictions = Predictor(model)(task.encode(dev, preprocess))
    assert task.score(dev, predictions)["accuracy"] == results["accuracy"]


def test_the_best_weights_are_those_of_the_best_epoch(results):
    best = max(line["val_accuracy"] for line in results["curve"])
    assert results["accuracy"] == best
    first = next(
        line for line in results["curve"] if line["val_accuracy"] == best
    )
    assert results["best_step"] == first["step"]
    assert np.isfinite([line["loss"] for line in results["curve"]]).all()
