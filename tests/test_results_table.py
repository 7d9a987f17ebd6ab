"""The tool that fills the results table: subsets, splits, lines."""

import json
import subprocess
import sys

import numpy as np
from run_script import ROOT

from official_tasks.task import Example
from tools import results_table


class Toy:
    def read(self, split):
        return [Example(f"{split} {i}", None, i % 2) for i in range(500)]


def plan(**arguments):
    return results_table.Plan("toy", "toy", **arguments)


def test_a_dev_file_is_split_by_what_its_rows_say_and_by_nothing_else():
    task = results_table.with_plan(Toy(), plan(dev_split=True))
    train, dev = task.read("train"), task.read("dev")
    assert len(train) + len(dev) == 500 and not set(train) & set(dev)
    assert 0.7 < len(train) / 500 < 0.9
    again = results_table.with_plan(Toy(), plan(dev_split=True))
    assert again.read("dev") == dev


def test_a_subset_is_drawn_from_all_rows_and_keeps_their_order():
    task = results_table.with_plan(Toy(), plan(train_rows=50))
    rows = task.read("train")
    numbers = [int(row.text.split()[1]) for row in rows]
    assert len(rows) == 50 and numbers == sorted(numbers)
    assert max(numbers) > 400
    assert len(task.read("dev")) == 500


def test_the_table_shows_the_runs_that_are_done(tmp_path):
    ours = {
        "metric": "accuracy",
        "baseline": 0.5,
        "rows": 2490,
        "dev_rows": 277,
        "cpu_minutes": 3.2,
    }
    for seed, score in enumerate((0.6, 0.7)):
        (tmp_path / f"toy-{seed}.ours.json").write_text(
            json.dumps({**ours, "score": score})
        )
    (tmp_path / "toy-0.peer.json").write_text('{"score": 0.65}')
    text = results_table.table([plan(), plan()._replace(task="b")], tmp_path)
    line = "| toy | 2,490, 277 | accuracy | 0.650 ± 0.071 | 0.500 | 0.650 |"
    assert text.splitlines()[2] == line + " 2 | 3 |"
    assert len(text.splitlines()) == 3


def test_the_rows_that_the_peer_gets_are_the_models_own(tmp_path):
    import tensorflow as tf

    from official_tasks.task import Encoded

    ids = tf.ragged.constant([[2, 5, 3], [2, 3]])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids}
    encoded = Encoded(inputs, np.array([1, 0]))
    results_table._write_rows(encoded, tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == {
        "token_ids": [[2, 5, 3], [2, 3]],
        "segment_ids": [[0, 0, 0], [0, 0]],
        "labels": [1, 0],
    }


def test_the_script_tells_what_it_needs():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "results_table.py"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "--data" in done.stderr
