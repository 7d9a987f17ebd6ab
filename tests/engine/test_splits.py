"""The files of a run and the hashes that it records."""

import functools
from collections import Counter

import pytest

from bert_keras import InputError
from official_tasks.engine import finetuning, splits
from official_tasks.tasks.base import Example, Examples
from official_tasks.tasks.glue import RTE, glue_task
from official_tasks.tasks.own_tasks import classify_task
from tests.support.glue_samples import write_glue
from tests.support.task_samples import QUICK, write_reviews


@pytest.mark.parametrize("name", ["train.csv", "dev.csv"])
@pytest.mark.parametrize("moment", ["before the run", "while it reads"])
def test_a_run_never_reports_rows_under_the_hash_of_other_rows(
    place, tmp_path, monkeypatch, name, moment
):
    for part, seed in (("train.csv", 0), ("dev.csv", 1)):
        write_reviews(tmp_path / part, 16, seed=seed)
    task = classify_task(str(tmp_path / "train.csv"), str(tmp_path / "dev.csv"))
    read = splits.encode_splits

    def replace(*arguments):
        write_reviews(tmp_path / name, 20, seed=5)
        return read(*arguments)

    if moment == "before the run":  # the task keeps the rows that it has read
        task.read("train"), task.read("dev")
        write_reviews(tmp_path / name, 20, seed=5)
    else:
        monkeypatch.setattr(splits, "encode_splits", replace)
    with pytest.raises(InputError, match=f"{name} changed while the run"):
        finetuning.run(task, place / "init", tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_drawn_rows_are_whole_groups_in_order_and_grow_with_the_number():
    rows = [Example(f"text {n // 3}", None, n) for n in range(60)]
    examples = Examples(rows, ["a note"])
    assert splits.draw_rows(examples, 60, "dev") is examples
    few, many = (
        [e.label for e in splits.draw_rows(examples, most, "dev")]
        for most in (10, 31)
    )
    assert len(few) == 10 and len(many) == 31 and {*few} < {*many}
    assert few == sorted(few) and few != [*range(10)]
    counts = Counter(number // 3 for number in few)
    assert sorted(counts.values()) == [1, 3, 3, 3]
    drawn = splits.draw_rows(examples, 10, "dev")
    assert drawn.notes[0] == "a note" and "50 of the 60" in drawn.notes[1]
    # A user's own examples need no groups.
    assert len(splits.draw_rows([[1], [2], [3]], 2, "dev")) == 2


def test_a_later_run_of_a_set_never_reports_the_rows_of_changed_files(
    place, tmp_path, eagerly
):
    data = write_glue(tmp_path / "glue")
    task = glue_task(RTE, data_dir=str(data))
    load = functools.partial(splits.load, task, place / "init")
    load, arguments = functools.cache(load), {**QUICK, "epochs": 0.1}
    first, second = tmp_path / "first", tmp_path / "second"
    finetuning.run(task, place / "init", first, load=load, **arguments)
    path = data / "RTE" / "dev.tsv"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows, rows[-1]]) + "\n")
    with pytest.raises(InputError, match=r"dev.tsv changed while the run"):
        finetuning.run(task, place / "init", second, load=load, **arguments)
    assert not second.exists()
