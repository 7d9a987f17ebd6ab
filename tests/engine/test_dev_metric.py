"""The dev metric that selects weights: its value, and its effect in runs."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, matthews_corrcoef

from bert_keras import InputError
from bert_keras.modeling.task_models import span_losses
from official_tasks.engine import finetuning, runs, scoring
from official_tasks.engine.dev_metric import choose_metric, compute_loss
from official_tasks.tasks import glue
from official_tasks.tasks.answers import Answer
from official_tasks.tasks.base import Encoded, Example
from official_tasks.tasks.conll import TaggedText
from official_tasks.tasks.embedding import Query, Ranking, embed_task
from official_tasks.tasks.multiple_choice import (
    SWAG,
    ChoiceExample,
    choice_task,
)
from official_tasks.tasks.own_tasks import (
    classify_task,
    multilabel_task,
    regress_task,
)
from official_tasks.tasks.pairs import Pair
from official_tasks.tasks.retrieval import rank_task
from official_tasks.tasks.spans import Question
from official_tasks.tasks.squad import SQUAD_1, SQUAD_2, squad_task
from official_tasks.tasks.tagging import Tags, tag_task
from tests.support.task_samples import QUICK, write_csv

LOGITS = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
CLASSES = np.array([0, 1, 2, 3, 0, 1, 2, 3, 3], np.int32)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BINARY = keras.losses.BinaryCrossentropy(from_logits=True)
LENGTHS = [2, 3, 4]


HALVES = {"start": 0.5, "end": 0.5}


def loss_with(losses, outputs, targets, weights=None, loss_weights=HALVES):
    """Return the result of `compute_loss` for a task with these losses."""
    task = SimpleNamespace(loss=lambda: losses, loss_weights=loss_weights)
    return compute_loss(task, Encoded({}, targets, weights), outputs)


def test_the_loss_of_dev_is_that_of_scikit_learn():
    expected = log_loss(CLASSES, softmax(LOGITS, axis=1))
    assert loss_with(CROSS_ENTROPY, LOGITS, CLASSES) == pytest.approx(expected)
    weights = np.arange(9, dtype="float32")
    expected = log_loss(CLASSES, softmax(LOGITS, axis=1), sample_weight=weights)
    value = loss_with(CROSS_ENTROPY, LOGITS, CLASSES, weights)
    assert value == pytest.approx(expected)
    several = (LOGITS > 0.3).astype("float32")
    expected = np.mean(
        [log_loss(several[:, i], expit(LOGITS[:, i])) for i in range(4)]
    )
    assert loss_with(BINARY, -LOGITS, several) != pytest.approx(expected)
    assert loss_with(BINARY, LOGITS, several) == pytest.approx(expected)
    # A label for each token: rows of different lengths, some weights 0.
    rows = np.split(LOGITS, np.cumsum(LENGTHS)[:-1])
    counts = np.array([0, 1, 1, 0, 1, 0, 1, 1, 0], "float32")
    ragged = tf.RaggedTensor.from_row_lengths
    expected = log_loss(CLASSES, softmax(LOGITS, axis=1), sample_weight=counts)
    value = loss_with(
        CROSS_ENTROPY, rows, ragged(CLASSES, LENGTHS), ragged(counts, LENGTHS)
    )
    assert value == pytest.approx(expected)
    # Start and end token of an answer: softmax over each row's tokens.
    spans = [LOGITS[i, :n] for i, n in enumerate(LENGTHS)]
    first, last = np.array([1, 0, 3]), np.array([1, 2, 3])
    entropies = [
        -np.log(softmax(row)[i] * softmax(row)[j]) / 2
        for row, i, j in zip(spans, first, last, strict=True)
    ]
    outputs = dict.fromkeys(HALVES, spans)
    targets = {"start": first, "end": last}
    value = loss_with(span_losses(), outputs, targets)
    assert value == pytest.approx(np.mean(entropies), rel=1e-5)
    # Without `loss_weights`, Keras adds the losses of all outputs.
    value = loss_with(span_losses(), outputs, targets, loss_weights=None)
    assert value == pytest.approx(2 * np.mean(entropies), rel=1e-5)


@pytest.fixture(scope="module")
def imbalanced(place, tmp_path_factory):
    """A task with few training rows of the class "good"."""
    folder = tmp_path_factory.mktemp("imbalanced")
    task = classify_task(str(place / "train.csv"), str(place / "dev.csv"))
    rows = [(e.text, task.labels[e.label]) for e in task.read("train")]
    rows = [r for i, r in enumerate(rows) if r[1] == "bad" or i % 10 == 1]
    path = write_csv(folder / "train.csv", rows)
    return classify_task(path, str(place / "dev.csv"))


def test_the_metric_chooses_the_weights_and_the_end(
    place, imbalanced, tmp_path
):
    results = runs.run(
        imbalanced,
        place / "init",
        tmp_path / "run",
        metric="loss",
        early_stopping=1,
        epochs=12,
        **{**QUICK, "learning_rate": 5e-2},
    )
    losses = [line["val_loss"] for line in results["curve"]]
    assert len(losses) < 12 and losses[-1] >= min(losses)
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    best = results["curve"][int(np.argmin(losses))]
    assert results["best_step"] == best["step"]
    assert results["loss"] == pytest.approx(best["val_loss"], rel=1e-6)
    assert "majority_baseline" not in results  # the baseline is an accuracy


def test_a_metric_ranks_by_its_direction(task):
    names = ("macro_f1", "matthews", "loss", "ece")
    metrics = [choose_metric(task, name) for name in names]
    metrics.append(choose_metric(regress_task(), "mean_squared_error"))
    better = [
        metric.name
        for metric in metrics
        if metric.rank({metric.name: 0.2}) > metric.rank({metric.name: 0.1})
    ]
    assert better == ["macro_f1", "matthews"]
    for metric in metrics:
        worst = metric.rank({metric.name: np.nan})
        assert worst < metric.rank({metric.name: 9.0})


def test_matthews_of_classes_is_scikit_learns(task, random):
    dev = task.read("dev")
    outputs = random.normal(size=(len(dev), 2))
    expected = matthews_corrcoef([e.label for e in dev], outputs.argmax(-1))
    assert task.score(dev, outputs)["matthews"] == pytest.approx(expected)


def test_a_metric_that_a_task_lacks_is_refused_before_training(
    place, task, tmp_path
):
    with pytest.raises(InputError, match="--metric=mcc .* matthews, loss"):
        finetuning.run(
            task, place / "init", tmp_path / "run", metric="mcc", **QUICK
        )
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="--metric=ece needs `calibrate`"):
        finetuning.run(task, place / "init", None, metric="ece", **QUICK)
    with pytest.raises(InputError, match="--metric=coverage needs `min_pr"):
        finetuning.run(task, place / "init", None, metric="coverage", **QUICK)
    with pytest.raises(InputError, match="=loss is .* mrr, recall_at_1, .*10$"):
        choose_metric(embed_task(), "loss")


@pytest.mark.parametrize("name", ["temperature", "best_f1_threshold"])
def test_a_score_that_measures_no_quality_is_no_metric(task, name):
    with pytest.raises(InputError, match="one of accuracy, .*matthews, loss$"):
        choose_metric(task, name)


def test_dev_is_not_predicted_before_training(place, task, monkeypatch):
    def predict(*_, **__):
        raise AssertionError("dev is predicted")

    monkeypatch.setattr(scoring.Predictor, "__call__", predict)
    several = multilabel_task(str(place / "train.csv"), str(place / "dev.csv"))
    init = place / "init"
    for each, settings in (
        (task, {"metric": "matthews"}),
        (task, {"metric": "ece", "calibrate": True}),
        (task, {"min_precision": 0.9, "metric": "coverage"}),
        (several, {"tune_thresholds": True, "metric": "macro_f1"}),
    ):
        finetuning.run(each, init, None, **settings, **QUICK)
    with pytest.raises(InputError, match="has no threshold to choose"):
        finetuning.run(task, init, None, tune_thresholds=True, **QUICK)


def score_rows(task, labels, parts=(0,)):
    """Return the scores of predictions of rows with these labels."""
    rows = [Example("x", "y", x, part=part) for part in parts for x in labels]
    columns = len(task.labels) if task.labels else 1
    return task.score(rows, LOGITS[: len(rows), :columns])


def score_choices(task):
    rows = [ChoiceExample("p", ("a", "b", "c", "d"), i) for i in range(4)]
    return task.score(rows, LOGITS[:4])


def score_words(task):
    text = TaggedText(("Ada", "ran"), ("B-PER", "O"))
    return task.score([text], [Tags(["B-PER", "O"])])


def score_answers(task):
    questions = [
        Question("1", "Who?", "Ada ran.", ("Ada",), 0),
        Question("2", "Why?", "Ada ran.", (), None),
    ]
    questions = questions[: 1 + task.may_be_none]
    odds = 0.0 if task.may_be_none else None
    return task.score(questions, [Answer("Ada", odds)] * len(questions))


def score_search(task):
    passages = [f"p{i}" for i in range(12)]
    queries = [Query("q", {3: 1.0}, passages)]
    return task.score(queries, Ranking.best(LOGITS[:3].reshape(1, 12), 12))


def score_pairs(task):
    pairs = [Pair(("q", f"p{i}"), float(i == 3)) for i in range(12)]
    return task.score(pairs, expit(LOGITS[:3].ravel()))


def named(make, labels):
    task = make()
    task.labels = labels
    return task


TASKS = {
    "classify": (named(classify_task, ["a", "b"]), score_rows, [0, 1]),
    "multilabel": (named(multilabel_task, ["a", "b"]), score_rows, [{0}, {1}]),
    "regress": (regress_task(), score_rows, [0.5, 1.0]),
    **{
        row.name: (
            glue.glue_task(row),
            score_rows,
            [0, 1],
            (0, 1) if row is glue.MNLI else (0,),
        )
        for row in glue.ROWS
    },
    "choices": (choice_task(SWAG), score_choices),
    "tags": (tag_task(), score_words),
    "squad1": (squad_task(SQUAD_1), score_answers),
    "squad2": (squad_task(SQUAD_2), score_answers),
    "embed": (embed_task(), score_search),
    "embed scores": (embed_task(label="label"), score_pairs),
    "rank": (rank_task(), score_pairs),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_names_the_metrics_that_it_scores(name):
    task, score, *arguments = TASKS[name]
    scores = score(task, *arguments)
    names = [metric.name for metric in task.metrics]
    assert names[0] in scores and len(set(names)) == len(names)
    assert {*names} - {*scores} <= {"coverage"}  # needs min_precision
    # All other numbers are counts, a baseline or a threshold.
    others = {n for n, x in scores.items() if isinstance(x, float)} - {*names}
    assert all(n.endswith(("_baseline", "_threshold")) for n in others)
    errors = [m.name for m in task.metrics if not m.higher_is_better]
    assert errors == ["mean_squared_error"] * (name == "regress")
