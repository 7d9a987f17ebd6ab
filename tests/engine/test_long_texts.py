"""Training, evaluation and serving split long texts into the same windows."""

import json

import keras
import numpy as np
import pytest
from scipy.special import expit, softmax

from bert_keras import BertPreprocessor, InputError
from official_tasks import evaluate
from official_tasks.engine import finetuning, splits
from official_tasks.engine.balance import BalancedLabels, balance
from official_tasks.engine.dev_metric import compute_loss
from official_tasks.engine.models import load_model, load_trained
from official_tasks.engine.scoring import predict_split
from official_tasks.tasks import registry
from official_tasks.tasks.own_tasks import (
    classify_task,
    multilabel_task,
    regress_task,
)
from tests.support.model_samples import fill
from tests.support.script_flags import parse_flags
from tests.support.served_samples import live_answer
from tests.support.task_samples import (
    QUICK,
    eager_functions,
    read_csv,
    sentences,
    write_csv,
)

ROOM = 10  # tokens in a window
MAKE = {
    "single": classify_task,
    "multi": multilabel_task,
    "regression": regress_task,
}
LABELS = {
    "single": lambda is_good: ("bad", "good")[is_good],
    "multi": lambda is_good: ",".join(["film"] + ["good"] * is_good),
    "regression": lambda is_good: 10 + is_good,
}
ACTIVATIONS = {
    "single": lambda logits: softmax(logits, axis=-1),
    "multi": expit,
    "regression": lambda values: values,
}


def write_long(path, problem, count, seed):
    """Write texts with the decisive word near their end, and an empty text."""
    random = np.random.default_rng(seed)
    filling = "film book a the is was one two three cat dog".split()
    rows = [
        (
            " ".join([*random.choice(filling, random.integers(0, 30)), text]),
            LABELS[problem](label),
        )
        for text, label in sentences(count, seed)
    ]
    return str(write_csv(path, [*rows, ("", LABELS[problem](1))]))


def mean_answers(model, preprocess, texts, problem):
    """Return each text's mean answer over windows, weighted by length."""
    tokenizer, answers = preprocess.tokenizer, []
    for text in texts:
        ids = list(tokenizer([text]).to_list()[0])
        starts, stride = [0], int(0.75 * ROOM)
        while starts[-1] + ROOM < len(ids):
            starts.append(starts[-1] + stride)
        windows = [ids[start : start + ROOM] for start in starts]
        values = [
            np.array(
                model(np.array([[tokenizer.cls_id, *w, tokenizer.sep_id]]))
            )[0]
            for w in windows
        ]
        values = ACTIVATIONS[problem](np.array(values, np.float64))
        weights = [max(len(w), 1) for w in windows]
        answers.append(np.average(values, axis=0, weights=weights))
    return np.array(answers)


@pytest.mark.parametrize("problem", LABELS)
def test_evaluate_and_the_export_read_the_windows_of_training(
    place, tmp_path, problem
):
    train, dev = (
        write_long(tmp_path / name, problem, count, seed)
        for name, count, seed in (("train.csv", 48, 0), ("dev.csv", 10, 1))
    )
    task = MAKE[problem](train, dev, long_text="windows")
    run, results = tmp_path / "run", {}
    # To save time, train one problem: all problems split texts in the same way.
    if problem == "single":
        quick = {**QUICK, "sequence_length": ROOM + 2, "epochs": 0.5}
        with eager_functions():
            results = finetuning.run(task, place / "init", run, **quick)
        assert results["rows"] > 2 * 49 and results["dev_rows"] == 11
        assert results["cut"] == 0
    else:
        preprocess = splits.load_preprocessor(place / "init", ROOM + 2)
        model = fill(load_model(task, place / "init"))
        model.save_preset(run / "model", preprocess)
    # The saved model states that it reads windows.
    again = MAKE[problem](train, dev)
    examples, predictions = predict_split(again, [run], "dev")
    texts = [example.text for example in examples]
    model, preprocess = load_trained(again, run)
    expected = mean_answers(model, preprocess, texts, problem)
    np.testing.assert_allclose(
        ACTIVATIONS[problem](predictions), expected, atol=1e-5
    )
    answers = live_answer(model, preprocess, texts)
    if problem == "regression":
        np.testing.assert_allclose(answers["score"], expected[:, 0], rtol=1e-5)
        return
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-5)
    if problem == "single":
        score = again.score(examples, predictions)["accuracy"]
        assert score == pytest.approx(results["accuracy"], abs=1e-5)
        written = read_csv(run / "predictions" / "predictions.csv")
        labels = answers["label"].astype(str).tolist()
        assert [row["predicted"] for row in written] == labels


def test_what_the_user_says_of_long_texts_replaces_what_models_say(
    place, tmp_path, monkeypatch, eagerly
):
    data = write_long(tmp_path / "data.csv", "single", 24, 0)
    preprocess = BertPreprocessor.from_preset(
        place / "init", sequence_length=ROOM + 2
    )
    models = []
    for way in ("windows", "truncate"):
        keras.utils.set_random_seed(0)
        models.append(tmp_path / way / "model")
        task = classify_task(data, long_text=way)
        load_model(task, place / "init").save_preset(models[-1], preprocess)

    def predict(*models, **options):
        return predict_split(classify_task(dev=data, **options), models, "dev")[
            1
        ]

    mean, cut = predict(models[0]), predict(models[1])
    assert np.abs(mean - cut).max() > 1e-3
    again = predict(models[1], long_text="windows")
    np.testing.assert_allclose(again, mean)
    again = predict(models[0], long_text="truncate")
    np.testing.assert_allclose(again, cut)
    for order in (models, models[::-1]):
        with pytest.raises(InputError, match="has the long_text"):
            predict(*order)
    found = predict(*models[::-1], long_text="windows")
    np.testing.assert_allclose(found, mean, rtol=1e-6)
    # long_text in a model's run.json does not count as set by the user.
    (tmp_path / "windows" / "run.json").write_text(
        json.dumps({"settings": {"task": "classify", "long_text": "windows"}})
    )
    words = (f"--model={tmp_path}/windows", f"--dev={data}")
    for more, expected in ((), ()), (["--long_text=truncate"], ("long_text",)):
        values = parse_flags(evaluate.Options, [*words, *more])
        registry.complete_flags(values)
        assert registry.task_from_flags(values)[0].overrides == expected


@pytest.mark.parametrize("problem", LABELS)
def test_all_windows_of_a_text_weigh_as_one_text(place, tmp_path, problem):
    data = write_long(tmp_path / "data.csv", problem, 24, 0)
    task = MAKE[problem](data, long_text="windows")
    examples = task.read("train")
    preprocess = BertPreprocessor.from_preset(
        place / "init", sequence_length=ROOM + 2
    )
    rows = task.encode(examples, preprocess)
    text = rows.notes["text"]
    counts = np.array([np.sum(text == number) for number in text])
    assert counts.max() > 2
    np.testing.assert_allclose(rows.weights, 1 / counts, rtol=1e-6)
    # The loss is the mean over texts of the mean over their windows.
    size = 1 if problem == "regression" else len(task.labels)
    logits = np.random.default_rng(0).normal(size=(len(text), size))
    logits = logits.astype(np.float32)
    each = np.array(
        [
            float(task.loss()(target[None], row[None]))
            for target, row in zip(rows.targets, logits, strict=True)
        ]
    )
    of_texts = [each[text == number].mean() for number in range(len(examples))]
    loss = compute_loss(task, rows, logits)
    assert loss == pytest.approx(np.mean(of_texts), rel=1e-5)
    if problem == "regression":
        return
    # Classes are balanced over texts, not over windows.
    balanced, loss = balance(task, rows)
    if problem == "multi":
        first = np.array([np.argmax(text == n) for n in range(len(examples))])
        expected = BalancedLabels(rows.targets[first])
        np.testing.assert_allclose(loss.present, expected.present, rtol=1e-5)
        np.testing.assert_allclose(loss.absent, expected.absent, rtol=1e-5)
        return
    totals = np.bincount(rows.targets, balanced.weights)
    np.testing.assert_allclose(totals, len(examples) / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_text": "half"}, "truncate, windows"),
        ({"long_text": "windows", "text_pair": "b"}, "pair of texts"),
    ],
)
def test_pairs_and_unknown_values_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        classify_task("a.csv", **options)
