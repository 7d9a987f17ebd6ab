"""Cross-validation: folds, out-of-fold predictions and wrong labels."""

import csv
import json

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.model_selection import StratifiedKFold

from bert_keras import InputError
from official_tasks.engine import finetuning, folds, scoring, splits
from official_tasks.engine.training import DivergedError
from official_tasks.tasks.base import Example
from official_tasks.tasks.own_tasks import classify_task, tags_task
from tests.support.task_samples import QUICK, sentences, write_csv


def test_folds_have_the_classes_that_scikit_learns_have():
    labels = np.random.default_rng(0).choice(3, 101, p=[0.6, 0.3, 0.1])
    examples = [Example(f"text {i}", None, x) for i, x in enumerate(labels)]
    numbers = folds.assign_folds(examples, 5)
    for label in range(3):
        split = StratifiedKFold(5).split(labels, labels)
        found = np.bincount(numbers[labels == label], minlength=5)
        expected = [np.sum(labels[dev] == label) for _, dev in split]
        assert sorted(found) == sorted(expected)
    order = np.random.default_rng(1).permutation(101)
    again = folds.assign_folds([examples[row] for row in order], 5)
    np.testing.assert_array_equal(again, numbers[order])
    assert (folds.assign_folds(examples, 5, seed=1) != numbers).any()
    twice = folds.assign_folds([*examples, *examples], 5)
    np.testing.assert_array_equal(twice[:101], twice[101:])


@pytest.mark.parametrize("long_text", ["truncate", "windows"])
def test_the_rows_of_a_fold_are_those_of_its_texts(place, long_text):
    task = classify_task(str(place / "train.csv"), long_text=long_text)
    examples = folds.read_all(task)
    preprocess = splits.load_preprocessor(place / "init", 8)
    is_kept = np.random.default_rng(0).random(len(examples)) < 0.4
    found = folds.select(task.encode(examples, preprocess), is_kept)
    kept = [e for e, is_one in zip(examples, is_kept, strict=True) if is_one]
    expected = task.encode(kept, preprocess)
    for name, rows in expected.inputs.items():
        assert found.inputs[name].to_list() == rows.to_list()
    assert (expected.weights is None) == (long_text == "truncate")
    for one, other in (
        (found.targets, expected.targets),
        (found.weights, expected.weights),
        (found.cut, expected.cut),
        (found.notes.get("text"), expected.notes.get("text")),
    ):
        np.testing.assert_array_equal(one, other)


def test_a_class_may_have_one_row(tmp_path):
    rows = [(f"text {i}", "xy"[i % 2]) for i in range(10)] + [("last", "z")]
    task = classify_task(str(write_csv(tmp_path / "rows.csv", rows)))
    examples = folds.read_all(task)
    assert [example.text for example in examples] == [text for text, _ in rows]
    assert not any("dev" in note for note in examples.notes)


def test_the_labels_that_look_wrong_are_those_of_cleanlab():
    random = np.random.default_rng(7)
    truth = random.integers(0, 3, 24)
    labels = truth.copy()
    labels[::5] = (labels[::5] + 1) % 3
    probabilities = random.dirichlet(np.ones(3) * 0.8, 24) * 0.5
    probabilities[np.arange(24), truth] += 0.5
    probabilities = probabilities.round(3)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    # Recorded from cleanlab 2.9: find_label_issues(
    # filter_by="confident_learning",
    # return_indices_ranked_by="self_confidence")
    expected = [0, 5, 15, 20, 10]
    found = folds.find_wrong_labels(probabilities, labels)
    assert found.tolist() == expected


def test_a_killed_call_resumes_by_fold(place, tmp_path, monkeypatch, eagerly):
    rows = [(text, ("bad", "good")[label]) for text, label in sentences(60)]
    task = classify_task(str(write_csv(tmp_path / "rows.csv", rows)))
    run, init = tmp_path / "run", place / "init"
    arguments = {**QUICK, "epochs": 1}
    train, ran = finetuning.run, []

    def fail_in_the_second(*words, **named):
        ran.append(named["settings"]["fold"])
        if ran == ["fold-1", "fold-2"]:
            raise KeyboardInterrupt
        return train(*words, **named)

    monkeypatch.setattr(finetuning, "run", fail_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        folds.cross_validate(task, init, run, 2, **arguments)
    first = run / "runs/fold-1/model/model.safetensors"
    changed = first.stat().st_mtime_ns
    results = folds.cross_validate(task, init, run, 2, **arguments)
    assert first.stat().st_mtime_ns == changed
    assert folds.cross_validate(task, init, run, 2, **arguments) == results
    each = [
        json.loads((run / f"runs/fold-{n}/results.json").read_text())
        for n in (1, 2)
    ]
    assert sum(one["dev_rows"] for one in each) == 60
    accuracies = [one["accuracy"] for one in each]
    written = json.loads((run / "results.json").read_text())
    assert written["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert written["deviation"]["accuracy"] == pytest.approx(
        np.std(accuracies, ddof=1)
    )
    with open(run / "predictions/predictions.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(x["text"], x["label"]) for x in lines] == rows
    accuracy = np.mean([x["label"] == x["predicted"] for x in lines])
    assert results["accuracy"] == pytest.approx(accuracy)
    assert "Cross-validation" in (run / "report.html").read_text()
    # Each row is predicted by the run that was not trained on it.
    probabilities = np.zeros((60, 2))
    for number in (1, 2):
        chosen = [i for i, x in enumerate(lines) if x["fold"] == str(number)]
        texts = [(lines[i]["text"], "bad") for i in chosen]
        path = write_csv(tmp_path / f"{number}.csv", texts)
        model = run / f"runs/fold-{number}"
        examples, logits = scoring.predict_split(
            classify_task(dev=str(path)), [model], "dev"
        )
        assert len(examples) == each[number - 1]["dev_rows"]
        probabilities[chosen] = softmax(logits, axis=-1)
    labels = np.array([x["label"] == "good" for x in lines]).astype(int)
    np.testing.assert_allclose(
        [float(x["label_probability"]) for x in lines],
        probabilities[np.arange(60), labels],
        atol=2e-4,
    )
    expected = folds.find_wrong_labels(probabilities, labels)
    found = [i for i, x in enumerate(lines) if x["looks_wrong"] == "1"]
    assert found == sorted(expected)
    assert len(found) == results["wrong_labels"]


def test_a_fold_that_fails_leaves_the_scores_of_the_others(
    place, tmp_path, monkeypatch, eagerly
):
    rows = [(text, ("bad", "good")[label]) for text, label in sentences(60)]
    task = classify_task(str(write_csv(tmp_path / "rows.csv", rows)))
    train, failing = finetuning.run, {"fold-2", "fold-3"}

    def run(*words, **named):
        if named["settings"]["fold"] in failing:
            raise DivergedError("not finite")
        return train(*words, **named)

    def cross_validate():
        arguments = {**QUICK, "epochs": 1}
        return folds.cross_validate(
            task, place / "init", tmp_path / "run", 3, **arguments
        )

    monkeypatch.setattr(finetuning, "run", run)
    with pytest.raises(DivergedError, match="2 of 3 runs failed"):
        cross_validate()
    failing.remove("fold-3")
    for _ in range(2):
        results = cross_validate()
        assert results["errors"] == {"fold-2": "not finite"}
        assert results["runs"].keys() == {"fold-1", "fold-3"}
    with open(tmp_path / "run/predictions/predictions.csv") as file:
        lines = list(csv.DictReader(file))
    assert {line["fold"] for line in lines} == {"1", "3"}
    texts = {line["text"]: line["label"] for line in lines}
    assert texts.items() <= dict(rows).items()
    accuracy = np.mean([x["label"] == x["predicted"] for x in lines])
    assert results["accuracy"] == pytest.approx(accuracy)
    failing.clear()  # as if the folder of the fold was removed
    assert cross_validate()["runs"].keys() == {"fold-1", "fold-2", "fold-3"}


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (classify_task, {"folds": 1}, "expected 2 or more"),
        (classify_task, {"folds": 99}, "different texts"),
        (classify_task, {"tune_thresholds": True}, "or `folds` out"),
        (classify_task, {"min_precision": 0.9}, "`min_precision` would choose"),
        (tags_task, {}, "does not predict a class or .* `folds` out"),
        (
            lambda train: classify_task(train, train),
            {},
            "`dev` file would not be",
        ),
    ],
)
def test_arguments_that_do_not_fit_folds_are_refused(
    place, tmp_path, make, arguments, message
):
    arguments = {"folds": 3, **arguments}
    with pytest.raises(InputError, match=message):
        folds.cross_validate(
            make(train=str(place / "train.csv")),
            place / "init",
            tmp_path / "run",
            **arguments,
        )
