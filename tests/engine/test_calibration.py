"""The temperature that fits dev best, and the error of calibration."""

import csv
import json

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss
from task_samples import QUICK, sentences, write_csv

import bert_keras
from bert_keras import BertClassifier, BertPreprocessor, InputError
from official_tasks.engine import finetuning
from official_tasks.engine.calibration import (
    Temperature,
    calibration_error,
    count_bins,
)
from official_tasks.evaluate import evaluate
from official_tasks.tasks.custom import custom_task

RANDOM = np.random.default_rng(0)
TEXTS = ["a good film", "one awful cat sat"]


@pytest.mark.parametrize("classes", [2, 5])
def test_temperature_and_error_are_those_of_scipy_and_scikit_learn(classes):
    labels = RANDOM.integers(0, classes, 400)
    logits = RANDOM.normal(size=(400, classes)) * 3
    logits[np.arange(400), labels] += 2

    def loss(temperature):
        return log_loss(labels, softmax(logits / temperature, axis=-1))

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded")
    assert Temperature.fit(loss).value == pytest.approx(best.x, rel=1e-3)
    probabilities = softmax(logits, axis=-1)
    confidence = probabilities.max(-1)
    is_right = probabilities.argmax(-1) == labels
    accuracies, means = calibration_curve(is_right, confidence, n_bins=15)
    bins = count_bins(probabilities, labels)
    np.testing.assert_allclose([one["accuracy"] for one in bins], accuracies)
    np.testing.assert_allclose([one["confidence"] for one in bins], means)
    edges = np.histogram_bin_edges([], 15, (0, 1))
    rows = np.histogram(confidence, edges)[0]
    expected = np.abs(accuracies - means) @ rows[rows > 0] / 400
    assert calibration_error(bins) == pytest.approx(expected)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A task; a quarter of its labels are wrong."""
    folder = tmp_path_factory.mktemp("noisy")
    for name, seed in (("train", 0), ("dev", 1)):
        wrong = np.random.default_rng(seed).random(64) < 0.25
        rows = [
            (text, ("bad", "good")[label ^ bool(flip)])
            for (text, label), flip in zip(
                sentences(64, seed), wrong, strict=True
            )
        ]
        write_csv(folder / f"{name}.csv", rows)
    return custom_task(str(folder / "train.csv"), str(folder / "dev.csv"))


@pytest.mark.parametrize("epochs", [1, 4])
def test_the_saved_head_has_the_temperature(place, noisy, tmp_path, epochs):
    init, quick = place / "init", {**QUICK, "epochs": epochs}
    plain = finetuning.run(noisy, init, tmp_path / "plain", **quick)
    run = tmp_path / "run"
    results = finetuning.run(noisy, init, run, calibrate=True, **quick)
    temperature = results["temperature"]
    assert abs(np.log(temperature)) > 0.01
    assert results["best_step"] == plain["best_step"]
    models = [
        BertClassifier.from_preset(folder)
        for folder in (tmp_path / "plain", run)
    ]
    preprocess = BertPreprocessor.from_preset(run)
    before, after = (np.array(m(preprocess(TEXTS))) for m in models)
    np.testing.assert_allclose(after, before / temperature, rtol=1e-4)
    assert evaluate(noisy, [str(run)])["accuracy"] == results["accuracy"]
    bert_keras.export_saved_model(models[1], preprocess, tmp_path / "served")
    served = bert_keras.load_saved_model(tmp_path / "served")
    with open(run / "predictions" / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = served.classify([row["text"] for row in rows])
    found = np.max(answers["probabilities"], axis=-1)
    scores = [float(row["score"]) for row in rows]
    np.testing.assert_allclose(found, scores, atol=2e-4)
    is_right = [row["label"] == row["predicted"] for row in rows]
    accuracies, means = calibration_curve(is_right, found, n_bins=15)
    bins = results["reliability"]
    np.testing.assert_allclose([b["accuracy"] for b in bins], accuracies)
    written = json.loads((run / "results.json").read_text())
    assert written["ece_uncalibrated"] == results["ece_uncalibrated"]
    assert "Reliability" in (run / "report.html").read_text()


def test_a_killed_run_finds_the_same_temperature(
    place, noisy, tmp_path, monkeypatch
):
    quick = {**QUICK, "epochs": 2, "calibrate": True}
    whole = finetuning.run(noisy, place / "init", tmp_path / "whole", **quick)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(finetuning._Run, "_take_best", interrupt)
        finetuning.run(noisy, place / "init", tmp_path / "cut", **quick)
    cut = finetuning.run(noisy, place / "init", tmp_path / "cut", **quick)
    assert cut == whole


@pytest.mark.parametrize("problem", ["multi", "regression"])
def test_other_problems_have_nothing_to_calibrate(place, tmp_path, problem):
    rows = [(text, label) for text, label in sentences(16)]
    path = str(write_csv(tmp_path / "rows.csv", rows))
    task = custom_task(path, path, problem=problem)
    with pytest.raises(InputError, match="has not one class"):
        finetuning.run(
            task, place / "init", tmp_path / "run", calibrate=True, **QUICK
        )
