"""Pre-training runs that resume on other devices, or with two workers."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_keras.training import checkpoint
from tests.support.device_processes import finish, start, tf_configs
from tests.support.toy_pretraining import read_lines

SCRIPT = ["-m", "tests.support.pretrain_on_devices"]


def stopped(*processes):
    """Wait for processes; check that they end with exit code 75."""
    for process in processes:
        out, errors = process.communicate(timeout=7200)
        assert process.returncode == 75, (out + errors)[-4000:]


def weights(folder):
    return load_file(os.path.join(folder, "model", "model.safetensors"))


def assert_same_weights(ours, theirs, error=1e-6):
    ours, theirs = weights(ours), weights(theirs)
    assert ours.keys() == theirs.keys()
    apart = sum(((ours[k] - theirs[k]) ** 2).sum() for k in theirs)
    length = sum((theirs[k] ** 2).sum() for k in theirs)
    assert np.sqrt(apart / length) <= error


def test_replicas_are_given_the_rows_of_the_whole_batches(toy_data):
    finish(start(SCRIPT, "4", toy_data, "rows", "0"))


@pytest.fixture(scope="module")
def whole(toy_data, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("whole") / "run")
    finish(start(SCRIPT, "1", toy_data, folder, "0"))
    return folder


@pytest.mark.long
def test_a_run_resumes_with_one_two_and_four_replicas(
    toy_data, whole, tmp_path
):
    folder = str(tmp_path / "run")
    stopped(start(SCRIPT, "1", toy_data, folder, "4"))
    stopped(start(SCRIPT, "2", toy_data, folder, "7"))
    stopped(start(SCRIPT, "1", toy_data, folder, "9"))
    finish(start(SCRIPT, "4", toy_data, folder, "0"))
    assert_same_weights(folder, whole)
    lines, expected = (
        read_lines(tmp_path / place / "metrics.jsonl")
        for place in ("run", whole)
    )
    assert [line["step"] for line in lines] == [4, 8, 12]
    for ours, theirs in zip(lines, expected, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-5)


def workers(data, folder, *stops):
    """Start two workers; return their processes.

    Each worker sends itself SIGTERM at its step in `stops`; 0 means never.
    """
    return [
        start(SCRIPT, "worker/1", data, folder, stop, TF_CONFIG=config)
        for stop, config in zip(stops, tf_configs(), strict=True)
    ]


@pytest.fixture(scope="module")
def whole_of_two_workers(toy_data, tmp_path_factory):
    """Folder of a two-worker run; its weights equal those of two replicas."""
    folder = str(tmp_path_factory.mktemp("workers") / "run")
    replicas = str(tmp_path_factory.mktemp("replicas") / "run")
    finish(*workers(toy_data, folder, *"00"))
    finish(start(SCRIPT, "2", toy_data, replicas, "0"))
    assert_same_weights(folder, replicas, 0)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("stops", ["50", "05", "55"])
def test_sigterm_to_any_worker_saves_and_stops_all(
    toy_data, whole_of_two_workers, tmp_path, stops
):
    folder = str(tmp_path / "run")
    stopped(*workers(toy_data, folder, *stops))
    assert checkpoint.steps(os.path.join(folder, "state"))[-1] == 5
    finish(*workers(toy_data, folder, *"00"))
    assert_same_weights(folder, whole_of_two_workers, 0)
