"""Toy data, toy weights and one finished run for all tests of the engine."""

import pytest

from official_tasks.engine import finetuning
from official_tasks.tasks.own_tasks import classify_task
from tests.support.task_samples import (
    QUICK,
    eager_functions,
    save_toy_model,
    write_reviews,
)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """Folder with train.csv, dev.csv and the toy model init/."""
    folder = tmp_path_factory.mktemp("tasks")
    write_reviews(folder / "train.csv", 80)
    write_reviews(folder / "dev.csv", 30, seed=1)
    save_toy_model(folder / "init", dropout=0.1)
    return folder


@pytest.fixture(scope="session")
def task(place):
    return classify_task(str(place / "train.csv"), str(place / "dev.csv"))


@pytest.fixture(scope="session")
def whole(place, task, tmp_path_factory):
    """The folder and the results of a run of three epochs."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, finetuning.run(task, place / "init", run, epochs=3, **QUICK)


@pytest.fixture
def eagerly():
    with eager_functions():
        yield


@pytest.fixture
def prepared(monkeypatch):
    """Function that returns the `_Run` which `finetuning.run` would train."""

    def prepare(task, init, **arguments):
        runs = []
        with monkeypatch.context() as patch:
            patch.setattr(
                finetuning._Run, "describe", lambda run: runs.append(run)
            )
            finetuning.run(task, init, None, **arguments)
        return runs[0]

    return prepare
