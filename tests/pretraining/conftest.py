"""Toy data and an uninterrupted run that the tests of this folder share."""

import keras
import pytest

from official_tasks.pretraining import runner
from tests.support.toy_pretraining import SMALLEST, write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "toy")


class Watch(keras.callbacks.Callback):
    """A callback that counts phases and records batch losses and epoch logs."""

    def __init__(self):
        super().__init__()
        self.began, self.batches, self.figures = 0, [], []

    def on_train_begin(self, logs=None):
        self.began += 1

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.figures.append(dict(logs))


@pytest.fixture(scope="session")
def watch():
    """The callback of the run `finished`."""
    return Watch()


@pytest.fixture(scope="session")
def finished(data, watch, tmp_path_factory):
    """The folder of a run with both phases, and its return value."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, runner.run(data, folder, callbacks=[watch], **SMALLEST)
