"""Thresholds tuned on dev, and the loss with balanced labels."""

import csv
import json
import shutil

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import f1_score, log_loss, precision_recall_curve
from sklearn.utils.class_weight import compute_class_weight

from bert_keras import BertClassifier, BertPreprocessor, InputError
from official_tasks import predict
from official_tasks.engine import finetuning
from official_tasks.engine.balance import BalancedLabels
from official_tasks.engine.scoring import predict_split
from official_tasks.tasks import metrics
from official_tasks.tasks.own_tasks import classify_task, multilabel_task
from tests.support.script_flags import parse_flags
from tests.support.served_samples import live_answer
from tests.support.task_samples import (
    QUICK,
    eager_functions,
    sentences,
    write_csv,
)


def test_the_best_threshold_of_a_label_has_scikit_learns_best_f1(random):
    truth = random.random((40, 5)) < [0.1, 0.3, 0.5, 0.9, 0.0]
    probabilities = 0.05 + 0.9 * random.random((40, 5)).round(1)  # with ties
    thresholds = metrics.best_thresholds(truth, probabilities)
    assert thresholds[4] == 0.5  # no text has this label
    for label in range(4):
        precision, recall, _ = precision_recall_curve(
            truth[:, label], probabilities[:, label]
        )
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        predicted = probabilities[:, label] >= thresholds[label]
        score = f1_score(truth[:, label], predicted)
        assert score == pytest.approx(f1.max())


@pytest.mark.parametrize("precision", [0.5, 0.8, 1.0])
def test_the_threshold_of_a_precision_keeps_the_most_answers(random, precision):
    confidence = random.random(60).round(1).clip(0.05, 0.95)  # with ties
    right = random.random(60) < confidence
    least = metrics.lowest_threshold(right, confidence, precision)
    kept = {
        cut: right[confidence >= cut].mean()
        for cut in np.unique(confidence)
        if right[confidence >= cut].mean() >= precision
    }
    expected = min(kept, default=1)
    assert (confidence >= least).tolist() == (confidence >= expected).tolist()
    assert metrics.lowest_threshold(right & False, confidence, 0.1) > 0.99


def test_balanced_labels_weigh_as_scikit_learns_classes_of_each_label(random):
    targets = (random.random((50, 3)) < [0.1, 0.5, 0.8]).astype("float32")
    logits = random.normal(size=(50, 3)).astype("float32")
    expected = []
    for truth, column in zip(targets.T, logits.T, strict=True):
        weights = compute_class_weight(
            "balanced", classes=np.array([0, 1]), y=truth
        )
        expected.append(
            log_loss(
                truth,
                expit(column.astype("float64")),
                sample_weight=weights[truth.astype(int)],
            )
        )  # the weights have a mean of 1
    loss = float(BalancedLabels(targets)(targets, logits))
    assert loss == pytest.approx(np.mean(expected), rel=1e-5)
    all_or_none = np.array([[1.0, 0.0]] * 4, "float32")
    plain = log_loss([0, 1], [[0.5, 0.5]] * 2)
    loss = float(BalancedLabels(all_or_none)(all_or_none, 0 * all_or_none))
    assert loss == pytest.approx(plain)


@pytest.fixture(scope="module")
def several(place, tmp_path_factory):
    """Data, run folder and results of a multi-label run with thresholds."""
    folder = tmp_path_factory.mktemp("several")
    rows = [
        (text, ",".join(["good"] * y + ["film"] * ("film" in text)))
        for text, y in sentences(32)
    ]
    path = write_csv(folder / "t.csv", rows)
    task = multilabel_task(path, path)
    with eager_functions():
        results = finetuning.run(
            task,
            place / "init",
            folder / "run",
            tune_thresholds=True,
            class_weights="balanced",
            epochs=2,
            **QUICK,
        )
    return path, folder / "run", results


def test_official_files_follow_the_options_of_the_run(several, tmp_path):
    path, run, _ = several
    shutil.copytree(run, tmp_path / "run")
    settings = {"task": "custom", "problem": "multi"}
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({"settings": settings})
    )
    words = f"--task=multilabel --dev={path} --split=dev --model={tmp_path}/run"
    words = [*words.split(), f"--output={tmp_path}/files"]
    predict.main(parse_flags(predict.Options, words))
    name = "predictions.csv"
    written = (tmp_path / "files" / name).read_bytes()
    assert written == (run / "predictions" / name).read_bytes()


def test_thresholds_of_labels_are_kept_and_served(several):
    path, run, results = several
    model = BertClassifier.from_preset(run / "model")
    assert len(model.thresholds) == 2 and model.thresholds != [0.5, 0.5]
    best = max(results["curve"], key=lambda line: line["val_micro_f1"])
    assert results["micro_f1"] == best["val_micro_f1"]
    assert (model.labels, model.problem) == (["film", "good"], "multi")
    assert results["curve"][0]["loss"] == pytest.approx(np.log(2), abs=0.1)
    preprocess = BertPreprocessor.from_preset(run / "model")
    with open(run / "predictions" / "predictions.csv") as file:
        rows = list(csv.DictReader(file))
    texts = [row["text"] for row in rows]
    answers = live_answer(model, preprocess, texts)["label"].astype(str)
    for row, names in zip(rows, answers, strict=True):
        assert set(filter(None, names)) == set(
            filter(None, row["predicted"].split(","))
        )


def test_unsure_answers_of_one_class_a_text_are_kept_and_served(
    place, tmp_path
):
    rows = [(text, "good" if y else "bad") for text, y in sentences(40)]
    path = write_csv(tmp_path / "t.csv", rows)
    run = tmp_path / "run"
    with eager_functions():
        results = finetuning.run(
            classify_task(path, path),
            place / "init",
            run,
            min_precision=0.9,
            **QUICK,
        )
    model = BertClassifier.from_preset(run / "model")
    least, other = model.thresholds
    assert least == other and 0 < least < 1
    with open(run / "predictions" / "predictions.csv") as file:
        written = list(csv.DictReader(file))
    sure = [row for row in written if row["unsure"] == ""]
    right = [row["label"] == row["predicted"] for row in sure]
    assert results["coverage"] == len(sure) / len(written)
    assert results["precision"] == (np.mean(right) if right else 0)
    assert results["precision"] >= 0.9 or not sure
    texts = [row["text"] for row in written]
    preprocess = BertPreprocessor.from_preset(run / "model")
    answer = live_answer(model, preprocess, texts)
    unsure = [row["unsure"] == "unsure" for row in written]
    assert answer["unsure"].tolist() == unsure
    confidence = answer["probabilities"].max(axis=-1)
    assert (confidence < least).tolist() == unsure
    model.thresholds = None
    assert "unsure" not in live_answer(model, preprocess, texts[:1])
    fewer = BertClassifier.from_preset(run / "model", labels=["good", "bad"])
    assert fewer.thresholds == [least] * 2


def test_models_with_different_thresholds_are_not_averaged(several, tmp_path):
    path, run, _ = several
    other = tmp_path / "other"
    model = BertClassifier.from_preset(run / "model")
    model.thresholds = [0.3, 0.4]
    preprocess = BertPreprocessor.from_preset(run / "model")
    model.save_preset(other, preprocess)
    task = multilabel_task(dev=path)
    models = [str(run / "model"), str(other)]
    with pytest.raises(InputError, match="different thresholds"):
        predict_split(task, models, "dev")
    _, twice = predict_split(task, models[:1] * 2, "dev")
    _, once = predict_split(task, models[:1], "dev")
    np.testing.assert_allclose(twice, once, atol=1e-6)


def test_thresholds_that_cannot_be_are_refused(place, task, several):
    with pytest.raises(InputError, match="`tune_thresholds` is True, but the "):
        finetuning.run(task, place / "init", None, tune_thresholds=True)
    encoder = BertClassifier.from_preset(several[1] / "model").encoder
    for wrong in ([0.5], [0.0, 0.5], [0.5, 1.5]):
        with pytest.raises(InputError, match="thresholds is"):
            BertClassifier(encoder, ["a", "b"], "multi", thresholds=wrong)
    with pytest.raises(InputError, match="thresholds is"):
        BertClassifier(encoder, problem="regression", thresholds=[0.5])
    many = multilabel_task(several[0], several[0])
    with pytest.raises(
        InputError, match="`min_precision` is 0.9, but the task"
    ):
        finetuning.run(many, place / "init", None, min_precision=0.9)
    with pytest.raises(
        InputError, match="`min_precision` is 0; expected a numb"
    ):
        finetuning.run(task, place / "init", None, min_precision=0)
