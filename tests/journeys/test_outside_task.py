"""The task of CONTRIBUTING.md, loaded from a file, with its own head."""

import copy
import json
import re

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.engine import finetuning, runs
from official_tasks.engine.hyperparameters import Hyperparameters
from official_tasks.engine.models import load_model
from official_tasks.engine.notes import has_failed
from official_tasks.engine.scoring import Predictor
from official_tasks.tasks.registry import load_task_class
from tests.support.run_script import ROOT
from tests.support.task_samples import save_toy_model, sentences

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
def run(place, task, tmp_path_factory):
    """Folder and results of the guide's call, with other settings."""
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = {"epochs": 6, "batch_size": 8, "learning_rate": 1e-2}
    call = CALL.replace("runs/pretrain/model", str(place / "init"))
    call = call.replace('"runs/mine"', f'"{folder}", **settings')
    names = {"Reviews": lambda data_dir: task, "settings": settings}
    exec(call, names)
    return folder, names["results"]


def test_it_learns_and_its_predictions_are_written(run):
    folder, results = run
    assert results["accuracy"] > 0.9
    assert len(results["curve"]) == 6
    written = json.loads((folder / "results.json").read_text())
    assert written["accuracy"] == results["accuracy"]
    answers = folder / "predictions" / "answers.json"
    assert len(json.loads(answers.read_text())) == 40


def test_the_model_reloads_with_its_head(task, run):
    from bert_keras import BertPreprocessor

    folder, results = run
    model = load_model(task, folder)
    preprocess = BertPreprocessor.from_preset(folder / "model")
    dev = task.read("dev")
    predictions = Predictor(model)(task.encode(dev, preprocess))
    assert task.score(dev, predictions)["accuracy"] == results["accuracy"]


def test_the_best_weights_are_those_of_the_best_epoch(run):
    _, results = run
    best = max(line["val_accuracy"] for line in results["curve"])
    assert results["accuracy"] == best
    first = next(
        line for line in results["curve"] if line["val_accuracy"] == best
    )
    assert results["best_step"] == first["step"]
    assert np.isfinite([line["loss"] for line in results["curve"]]).all()


# Lines of the guide's task -> lines of a task whose first metric is an error.
ERRORS = {
    'metrics = (Metric("accuracy", higher_is_better=True),)': """metrics = (
        Metric("mean_absolute_error", higher_is_better=False),
        Metric("accuracy", higher_is_better=True),
    )""",
    'return {"accuracy": float(np.mean(right))}': """
        odds = predictions[:, 1] - predictions[:, 0]
        errors = np.abs(1 / (1 + np.exp(-odds)) - [e.label for e in examples])
        return {
            "accuracy": float(np.mean(right)),
            "mean_absolute_error": float(errors.mean()),
            "largest_error": float(errors.max()),
            "majority_baseline": 0.5,
        }""",
}


@pytest.fixture(scope="module")
def errors(place, tmp_path_factory):
    """A task whose metric is an error, from a file."""
    text = TASK
    for old, new in ERRORS.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("errors") / "errors.py"
    path.write_text(text)
    return load_task_class(str(path))(data_dir=str(place))


def test_the_best_weights_of_an_error_have_the_lowest(place, errors, tmp_path):
    settings = {"batch_size": 8, "epochs": 6, "sequence_length": 24}
    results = runs.run(
        errors,
        place / "init",
        tmp_path / "grid",
        learning_rate=[1e-2, 1e-5],
        **settings,
    )
    name = "mean_absolute_error"
    found = {run: scores[name] for run, scores in results["runs"].items()}
    assert results["best_run"] == min(found, key=found.get)
    assert results[name] == min(found.values()) < 0.3 < max(found.values())
    values = [line[f"val_{name}"] for line in results["curve"]]
    best = results["curve"][int(np.argmin(values))]
    assert results["best_step"] == best["step"]
    assert results[name] == min(values)
    # The best constant prediction, 0.5, has an error of 0.5.
    metric, _ = errors.metrics
    assert has_failed(metric, {name: 0.6, "majority_baseline": 0.5})
    assert not has_failed(metric, {name: 0.4, "majority_baseline": 0.5})
    has_stopped = Hyperparameters(early_stopping=2).has_stopped
    falling = [{f"val_{name}": value} for value in (0.3, 0.2, 0.1)]
    assert not has_stopped(metric, falling)
    assert has_stopped(metric, falling[::-1])


@pytest.mark.parametrize("score", [None, np.zeros(1)])
def test_a_metric_that_is_no_number_is_named(place, errors, tmp_path, score):
    task, name = copy.copy(errors), errors.metrics[0].name
    task.score = lambda *_: {"accuracy": 0.5, name: score}
    with pytest.raises(InputError, match=f"have {name}, but .* accuracy. Corr"):
        finetuning.run(
            task, place / "init", tmp_path / "run", epochs=1, batch_size=64
        )


def test_a_metric_without_a_direction_is_refused_before_training(
    place, errors, tmp_path
):
    def run(task, **arguments):
        finetuning.run(task, place / "init", tmp_path / "run", **arguments)

    with pytest.raises(InputError, match="not state if a higher .*accuracy, l"):
        run(errors, metric="largest_error")
    named = copy.copy(errors)
    named.metrics = ("mean_absolute_error",)
    with pytest.raises(InputError, match="Expected metrics = .Metric.NAME, "):
        run(named)
    assert not (tmp_path / "run").exists()
