"""The temperature that fits dev best, and the calibration error."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from bert_keras import BertPreprocessor, InputError
from official_tasks.engine import finetuning
from official_tasks.engine.calibration import (
    calibration_error,
    check_task,
    count_bins,
    fit_temperature,
)
from official_tasks.engine.models import load_model
from official_tasks.engine.scoring import average_outputs
from official_tasks.tasks.base import Metric
from official_tasks.tasks.own_tasks import (
    classify_task,
    multilabel_task,
    regress_task,
)
from tests.support.model_samples import fill
from tests.support.task_samples import (
    QUICK,
    read_csv,
    sentences,
    write_csv,
    write_reviews,
)


@pytest.mark.parametrize("classes", [2, 5])
def test_temperature_and_error_are_those_of_scipy_and_scikit_learn(
    random, classes
):
    labels = random.integers(0, classes, 400)
    logits = random.normal(size=(400, classes)) * 3
    logits[np.arange(400), labels] += 2

    def loss(temperature):
        return log_loss(labels, softmax(logits / temperature, axis=-1))

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded")
    assert fit_temperature(loss) == pytest.approx(best.x, rel=1e-3)
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
def noisy(place, tmp_path_factory):
    """A task, and a model folder with an accuracy of about 0.75 on dev."""
    folder = tmp_path_factory.mktemp("noisy")
    files = folder / "train.csv", folder / "dev.csv"
    task = classify_task(write_reviews(files[0], 16), str(files[1]))
    preprocess = BertPreprocessor.from_preset(place / "init")
    model = fill(load_model(task, place / "init"))
    texts = [text for text, _ in sentences(64, seed=1)]
    bad, good = np.array(model(preprocess(texts))).T
    model.classifier.bias.assign_sub([0, np.median(good - bad)])
    said = np.array(model(preprocess(texts))).argmax(-1)
    wrong = np.random.default_rng(1).random(64) < 0.25
    labels = np.array(["bad", "good"])[np.where(wrong, 1 - said, said)]
    write_csv(files[1], zip(texts, labels, strict=True))
    model.save_preset(folder / "init", preprocess)
    return task, folder / "init"


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("epochs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_saved_head_has_the_temperature(
    noisy, tmp_path, monkeypatch, eagerly, epochs
):
    (noisy, init), run = noisy, tmp_path / "run"
    arguments = {**QUICK, "epochs": epochs, "calibrate": True}
    arguments["learning_rate"] = 1e-9
    if epochs > 1:  # the run is killed, and its best step is not its last
        monkeypatch.setattr(Metric, "rank", lambda *_: 0.0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(finetuning._Run, "_score_best", interrupt)
            finetuning.run(noisy, init, run, **arguments)
    results = finetuning.run(noisy, init, run, **arguments)
    is_last = results["best_step"] == results["curve"][-1]["step"]
    assert is_last == (epochs == 1)
    dev = noisy.read("dev")
    labels = np.array([example.label for example in dev])
    _, logits = average_outputs(noisy, [run], dev)

    def loss(temperature):
        return log_loss(labels, softmax(logits / temperature, axis=-1))

    # The saved head already divides the logits by the temperature, so the best
    # further temperature is 1.
    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded")
    assert best.x == pytest.approx(1, rel=1e-3)
    temperature = results["temperature"]
    assert abs(np.log(temperature)) > 0.01
    for name, values in (("", logits), ("_uncalibrated", logits * temperature)):
        each = softmax(values, axis=-1)
        is_right = each.argmax(-1) == labels
        accuracies, means = calibration_curve(is_right, each.max(-1), n_bins=15)
        bins = results[f"reliability{name}"]
        np.testing.assert_allclose([b["accuracy"] for b in bins], accuracies)
        np.testing.assert_allclose(
            [b["confidence"] for b in bins], means, rtol=1e-4
        )
        gaps = [b["rows"] * abs(b["accuracy"] - b["confidence"]) for b in bins]
        error = sum(gaps) / len(labels)
        assert results[f"ece{name}"] == pytest.approx(error, rel=1e-9)
    assert results["accuracy"] == np.mean(logits.argmax(-1) == labels)
    rows = read_csv(run / "predictions" / "predictions.csv")
    scores = [float(row["score"]) for row in rows]
    found = softmax(logits, axis=-1).max(-1)
    np.testing.assert_allclose(scores, found, atol=2e-4)
    written = json.loads((run / "results.json").read_text())
    assert written["ece_uncalibrated"] == results["ece_uncalibrated"]
    assert "Reliability" in (run / "report.html").read_text()


def test_other_problems_have_nothing_to_calibrate(place, tmp_path):
    path = str(write_csv(tmp_path / "rows.csv", sentences(16)))
    for make in (multilabel_task, regress_task):
        task = make(path, path)
        with pytest.raises(InputError, match="does not have one class"):
            check_task(task, "calibrate", True)
    with pytest.raises(InputError, match="does not have one class"):
        finetuning.run(task, place / "init", None, calibrate=True)
