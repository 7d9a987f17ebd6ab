"""The files of a run and the hashes that it records."""

import pytest
from task_samples import QUICK, write_reviews

from bert_keras import InputError
from official_tasks.engine import finetuning, splits
from official_tasks.tasks.own_tasks import classify_task


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
