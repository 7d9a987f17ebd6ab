"""Toy data and an uninterrupted run that the tests of this room share."""

import pytest
from toy_pretraining import SMALLEST, write_data

from official_tasks.pretraining import runner


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "toy")


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory):
    """The folder of a run with both phases, and what it returned."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, runner.run(data, folder, **SMALLEST)
