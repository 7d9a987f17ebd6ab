"""The tool that fills the results table: rows, splits, the peer, lines."""

import json

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from bert_keras.errors import InputError
from official_tasks.engine.batches import training_batches
from official_tasks.tasks.base import Encoded, Example
from official_tasks.tasks.registry import TASKS
from official_tasks.tasks.squad import SQUAD_1, SquadTask
from tools.benchmark import results_table
from tools.benchmark.results_table import (
    PLANS,
    Plan,
    planned_task,
    with_plan,
)


class Toy:
    def read(self, split):
        return [Example(f"{split} {i}", None, i % 2) for i in range(500)]


class OneFile:
    """Train and dev are the same rows, five of each text."""

    def read(self, split):
        return [Example(f"text {i % 100}", str(i), 0) for i in range(500)]


def plan(**arguments):
    return Plan("toy", "toy", **arguments)


def test_what_is_held_out_stands_on_one_side_only():
    task = with_plan(OneFile(), plan(held_out="text"))
    train, dev = task.read("train"), task.read("dev")
    assert len(train) + len(dev) == 500
    assert not {e.text for e in train} & {e.text for e in dev}
    assert 0.7 < len(train) / 500 < 0.9
    again = with_plan(OneFile(), plan(held_out="text"))
    assert again.read("dev") == dev


def test_a_subset_is_drawn_from_all_rows_and_keeps_their_order():
    task = with_plan(Toy(), plan(rows=50))
    rows = task.read("train")
    numbers = [int(row.text.split()[1]) for row in rows]
    assert len(rows) == 50 and numbers == sorted(numbers)
    assert max(numbers) > 400
    assert len(task.read("dev")) == 500
    quick = with_plan(Toy(), plan(quick_rows=40).quick())
    assert (len(quick.read("train")), len(quick.read("dev"))) == (40, 20)


def squad(titles):
    answers = [{"text": "Ann", "answer_start": 0}]
    return {
        "data": [
            {
                "title": title,
                "paragraphs": [
                    {
                        "context": f"Ann of {title}.",
                        "qas": [
                            {
                                "id": title,
                                "question": "Who?",
                                "answers": answers,
                            }
                        ],
                    }
                ],
            }
            for title in titles
        ]
    }


def test_an_article_of_squad_stands_on_one_side_only(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(squad("ABCDE")))
    dev = [f"dev {i}" for i in range(40)]
    (tmp_path / "b.json").write_text(json.dumps(squad(dev)))
    for name, title in (("skip.txt", "A"), ("more.txt", "dev 3")):
        (tmp_path / name).write_text(title + "\n")
    files = {
        "train": "a.json,b.json",
        "dev": "b.json",
        "skip_ids": "skip.txt,more.txt",
    }
    task = planned_task(Plan("squad1", "", files, "title"), tmp_path)
    train, held_out = (
        {q.title for q in task.read(s)} for s in ("train", "dev")
    )
    assert not train & held_out
    left_out = {"A", "dev 3"} - held_out
    assert train | held_out == {*"ABCDE", *dev} - left_out
    assert {*"BCDE"} <= train and 1 < len(held_out) < 20
    assert type(task) is SquadTask and task.row is SQUAD_1


def test_the_table_shows_the_runs_that_are_done(tmp_path):
    def write(name, **fields):
        record = {"decided": [], "cpu_minutes": 3.2, **fields}
        (tmp_path / f"toy-{name}.json").write_text(json.dumps(record))

    ours = {"metric": "accuracy", "baseline": 0.5, "dev_rows": 277}
    for seed, score in enumerate((0.6, 0.7)):
        write(f"{seed}.ours", **ours, rows=2490, score=score)
    write("0.peer", score=0.65)
    text = results_table.table([plan(), plan()._replace(task="b")], tmp_path)
    line = "| toy | 2,490, 277 | accuracy | 0.500 |  | 0.650 ± 0.071 | 0.650 |"
    assert text.splitlines()[2] == line + "  | 2, 1 | 3.2, 3.2 |"
    assert len(text.splitlines()) == 3
    write("1.peer", score=0.9)
    write("0.words", score=0.8)
    text = results_table.table([plan()], tmp_path)
    assert "| 0.775 ± 0.177 | 0.49 | 2, 2 |" in text
    assert "| 0.500 | 0.800 | 0.650" in text


def test_p_is_welchs_also_where_all_seeds_agree():
    # Welch (1947): t and its degrees of freedom from means and their errors.
    ours, theirs = [1.0, 2.0, 3.0], [3.5, 4.5, 7.0, 3.0]
    a, b = np.var(ours, ddof=1) / 3, np.var(theirs, ddof=1) / 4
    t = (np.mean(theirs) - np.mean(ours)) / np.sqrt(a + b)
    degrees = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    expected = 2 * scipy.stats.t.sf(t, degrees)
    assert results_table.welch(ours, theirs) == pytest.approx(expected)
    assert results_table.welch([0.5, 0.5], [0.5, 0.5]) == 1
    assert results_table.welch([0.5, 0.5], [0.6, 0.6]) == 0


def test_a_run_that_is_kept_is_not_run_again_and_must_be_of_the_same_plan(
    tmp_path,
):
    path = tmp_path / "toy-0.ours.json"
    decided = [*plan(), 1e-4]
    results_table.kept(path, decided, lambda: {"score": 1})
    results_table.kept(path, decided, None)
    assert json.loads(path.read_text())["score"] == 1
    for other in ([*plan(rows=5), 1e-4], [*plan(), 2e-4]):
        with pytest.raises(InputError, match="give another --output"):
            results_table.kept(path, other, None)


def inputs(ids):
    return {"token_ids": ids, "segment_ids": 0 * ids}


def test_the_rows_that_the_peer_gets_are_the_models_own():
    ids = inputs(tf.ragged.constant([[2, 5, 3], [2, 3]]))
    rows = results_table.peer_rows(Encoded(ids, np.array([1, 0])))
    assert rows == [
        {"input_ids": [2, 5, 3], "token_type_ids": [0, 0, 0], "labels": 1},
        {"input_ids": [2, 3], "token_type_ids": [0, 0], "labels": 0},
    ]
    number = np.array([[0.5], [1.5]], np.float32)
    rows = results_table.peer_rows(Encoded(ids, number))
    assert [row["labels"] for row in rows] == [0.5, 1.5]
    spans = {"start": np.array([1, 0]), "end": np.array([2, 0])}
    rows = results_table.peer_rows(Encoded(ids, spans))
    assert (rows[0]["start_positions"], rows[0]["end_positions"]) == (1, 2)
    tags = tf.ragged.constant([[0, 4, 0], [0, 0]])
    weights = tf.ragged.constant([[0.0, 1.0, 0.0], [0.0, 0.0]])
    rows = results_table.peer_rows(Encoded(ids, tags, weights))
    ignored = results_table.IGNORED
    assert rows[0]["labels"] == [ignored, 4, ignored]


def test_the_peer_gets_the_rows_of_our_batches_in_their_order():
    rows = [[2, *range(5, 5 + n), 3] for n in range(1, 12)]
    encoded = Encoded(inputs(tf.ragged.constant(rows)), np.arange(11))
    order = results_table.training_order(encoded, 4, seed=1, steps=8)
    expected = [
        [int(row), x["token_ids"].shape[1]]
        for x, targets, _ in training_batches(encoded, 4, 1, 8)
        for row in targets
    ]
    assert order == expected and len(order) == 32
    assert len({width for _, width in order}) > 1


def test_the_peers_outputs_of_tokens_come_back_row_by_row(tmp_path):
    encoded = Encoded(inputs(tf.ragged.constant([[2, 5, 3], [2, 3]])))
    path = tmp_path / "outputs-1.npz"
    np.savez(path, start=np.arange(5), end=np.arange(5) + 9)
    outputs = results_table.peer_outputs(path, encoded, per_token=True)
    assert [row.tolist() for row in outputs["start"]] == [[0, 1, 2], [3, 4]]
    np.savez(path, logits=np.eye(2))
    outputs = results_table.peer_outputs(path, encoded, per_token=False)
    np.testing.assert_array_equal(outputs, np.eye(2))


def test_every_plan_is_of_a_task_that_the_peer_has_a_model_for():
    assert {plan.task for plan in PLANS} <= TASKS.keys()
    assert len({plan.task for plan in PLANS}) == len(PLANS)
    models = {
        name: results_table.peer_model(TASKS[name][0](**TASKS[name][1]))
        for name in ("mrpc", "comve", "wnut17", "squad2")
    }
    assert models == {
        "mrpc": "SequenceClassification",
        "comve": "MultipleChoice",
        "wnut17": "TokenClassification",
        "squad2": "QuestionAnswering",
    }
    assert results_table.chosen(None) == PLANS
    assert [plan.task for plan in results_table.chosen(["rte"])] == ["rte"]
    with pytest.raises(InputError, match="no task 'typo': expected .*rte"):
        results_table.chosen(["rte", "typo"])
