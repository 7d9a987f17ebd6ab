"""The tool that fills the results table: subsets, splits, peer, lines."""

import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from run_script import ROOT

from bert_keras.errors import InputError
from official_tasks.tasks.base import Encoded, Example
from official_tasks.tasks.registry import TASKS
from official_tasks.tasks.squad import SQUAD_1, SquadTask
from tools.benchmark import results_table
from tools.benchmark import results_table as results_peer
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


def test_every_plan_is_of_a_task_and_none_comes_twice():
    assert {plan.task for plan in PLANS} <= TASKS.keys()
    assert len({plan.task for plan in PLANS}) == len(PLANS)


def squad(titles):
    def asked(title):
        return {
            "id": title,
            "question": "Who?",
            "answers": [{"text": "Ann", "answer_start": 0}],
        }

    return {
        "data": [
            {
                "title": title,
                "paragraphs": [
                    {"context": f"Ann of {title}.", "qas": [asked(title)]}
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
    own = Plan("squad1", "", files, "title")
    task = planned_task(own, tmp_path)
    train, held_out = (
        {q.title for q in task.read(s)} for s in ("train", "dev")
    )
    assert not train & held_out
    left_out = {"A", "dev 3"} - held_out
    assert train | held_out == {*"ABCDE", *dev} - left_out
    assert {*"BCDE"} <= train and 1 < len(held_out) < 20
    assert type(task) is SquadTask and task.row is SQUAD_1


def record(**fields):
    return json.dumps({"decided": [], "cpu_minutes": 3.2, **fields})


def test_the_table_shows_the_runs_that_are_done(tmp_path):
    ours = {
        "metric": "accuracy",
        "baseline": 0.5,
        "rows": 2490,
        "dev_rows": 277,
    }
    for seed, score in enumerate((0.6, 0.7)):
        (tmp_path / f"toy-{seed}.ours.json").write_text(
            record(**ours, score=score)
        )
    (tmp_path / "toy-0.peer.json").write_text(record(score=0.65))
    text = results_table.table([plan(), plan()._replace(task="b")], tmp_path)
    line = "| toy | 2,490, 277 | accuracy | 0.500 | 0.650 ± 0.071 | 0.650 |"
    assert text.splitlines()[2] == line + "  | 2, 1 | 3.2, 3.2 |"
    assert len(text.splitlines()) == 3
    (tmp_path / "toy-1.peer.json").write_text(record(score=0.9))
    text = results_table.table([plan()], tmp_path)
    assert "| 0.775 ± 0.177 | 0.49 | 2, 2 |" in text


def test_p_is_that_of_scipy():
    random = np.random.default_rng(0)
    for size in (2, 3, 9):
        ours, theirs = random.normal(size=size), random.normal(size=3) + 1
        wanted = scipy.stats.ttest_ind(ours, theirs, equal_var=False).pvalue
        assert results_table.welch(ours, theirs) == pytest.approx(wanted)
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
    with pytest.raises(InputError, match="give another --output"):
        results_table.kept(path, [*plan(rows=5), 1e-4], None)
    with pytest.raises(InputError, match="give another --output"):
        results_table.kept(path, [*plan(), 2e-4], None)


def inputs(ids):
    return {"token_ids": ids, "segment_ids": 0 * ids}


def test_the_rows_that_the_peer_gets_are_the_models_own():
    import tensorflow as tf

    ids = tf.ragged.constant([[2, 5, 3], [2, 3]])
    rows = results_peer.peer_rows(Encoded(inputs(ids), np.array([1, 0])))
    assert rows == [
        {"input_ids": [2, 5, 3], "token_type_ids": [0, 0, 0], "labels": 1},
        {"input_ids": [2, 3], "token_type_ids": [0, 0], "labels": 0},
    ]
    number = np.array([[0.5], [1.5]], np.float32)
    rows = results_peer.peer_rows(Encoded(inputs(ids), number))
    assert [row["labels"] for row in rows] == [0.5, 1.5]
    spans = {"start": np.array([1, 0]), "end": np.array([2, 0])}
    rows = results_peer.peer_rows(Encoded(inputs(ids), spans))
    assert (rows[0]["start_positions"], rows[0]["end_positions"]) == (1, 2)
    tags = tf.ragged.constant([[0, 4, 0], [0, 0]])
    weights = tf.ragged.constant([[0.0, 1.0, 0.0], [0.0, 0.0]])
    rows = results_peer.peer_rows(Encoded(inputs(ids), tags, weights))
    ignored = results_peer.IGNORED
    assert rows[0]["labels"] == [ignored, 4, ignored]


def test_the_peer_gets_the_rows_of_our_batches_in_their_order():
    import tensorflow as tf

    from official_tasks.engine.batches import training_batches

    rows = [[2, *range(5, 5 + n), 3] for n in range(1, 12)]
    encoded = Encoded(inputs(tf.ragged.constant(rows)), np.arange(11))
    order = results_peer.training_order(encoded, 4, seed=1, steps=8)
    wanted = [
        [int(row), inputs["token_ids"].shape[1]]
        for inputs, targets, _ in training_batches(encoded, 4, 1, 8)
        for row in targets
    ]
    assert order == wanted and len(order) == 32
    assert len({width for _, width in order}) > 1


def test_the_peers_outputs_of_tokens_come_back_row_by_row(tmp_path):
    import tensorflow as tf

    encoded = Encoded(inputs(tf.ragged.constant([[2, 5, 3], [2, 3]])))
    path = tmp_path / "outputs-1.npz"
    np.savez(path, start=np.arange(5), end=np.arange(5) + 9)
    found = results_peer.peer_outputs(path, encoded, per_token=True)
    assert [row.tolist() for row in found["start"]] == [[0, 1, 2], [3, 4]]
    np.savez(path, logits=np.eye(2))
    found = results_peer.peer_outputs(path, encoded, per_token=False)
    np.testing.assert_array_equal(found, np.eye(2))


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("mrpc", "SequenceClassification"),
        ("comve", "MultipleChoice"),
        ("wnut17", "TokenClassification"),
        ("squad2", "QuestionAnswering"),
    ],
)
def test_every_family_has_its_model_in_transformers(name, model):
    cls, fixed = TASKS[name]
    assert results_peer.peer_model(cls(**fixed)) == model


def test_a_task_that_the_table_has_not_is_refused():
    assert results_table.chosen(None) == PLANS
    assert [plan.task for plan in results_table.chosen(["rte"])] == ["rte"]
    with pytest.raises(InputError, match="no task 'typo': expected .*rte"):
        results_table.chosen(["rte", "typo"])


def test_the_script_tells_what_it_needs():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "benchmark" / "results_table.py"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "--data" in done.stderr
