"""An interrupted run ends with the same bits as an uninterrupted run."""

import contextlib
import shutil
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.data.tf_data import disable_tuning
from bert_keras.training import checkpoint
from bert_keras.training.loop import averaged_weights, fit
from bert_keras.training.state import TrainingState
from bert_keras.training.strategy import make_strategy
from tests.support.toy_pretraining import read_lines

pytestmark = pytest.mark.heavy

STEPS, EPOCH_ENDS = 20, (6, 12, 18)


def batches(first_step):
    """Return a dataset of (x, y) that depends on the step alone."""

    def batch(step):
        seed = tf.stack([step, 7])
        x = tf.random.stateless_normal((4, 3), seed)
        return x, tf.reduce_sum(x, axis=-1, keepdims=True)

    steps = tf.data.Dataset.range(first_step, STEPS)
    return disable_tuning(steps.map(batch))


class Stop(keras.callbacks.Callback):
    """A callback that interrupts after `after` steps, or never if it is 0."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def train(
    folder,
    stop_after=0,
    at_once=1,
    distribution="off",
    optimizer="adam",
    callbacks=(),
    epoch_ends=EPOCH_ENDS,
    boundaries=(),
):
    """Start or resume a run; return the weights and the history."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dropout(0.3)]
    with make_strategy(distribution).scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(
            optimizer,
            "mse",
            metrics=["mae"],
            steps_per_execution=at_once,
            # Eager if possible, because tracing takes longer than the run.
            run_eagerly=at_once == 1 and distribution == "off",
        )
    state = TrainingState(folder / "state", every=2)
    history = fit(
        model,
        batches,
        STEPS,
        epoch_ends,
        state,
        folder / "metrics.jsonl",
        lambda step: model.evaluate(
            batches(STEPS - 2), callbacks=[state], verbose=0, return_dict=True
        ),
        [*callbacks, Stop(stop_after)],
        boundaries,
    )
    return [np.array(w) for w in model.get_weights()], history


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return *train(folder), folder


def test_each_epoch_is_evaluated_and_the_last_may_be_short(uninterrupted):
    assert [line["step"] for line in uninterrupted[1]] == [6, 12, 18, 20]
    assert all("val_loss" in line for line in uninterrupted[1])


# A run that stops after 9 steps resumes 2 steps into an epoch. After 7 or 19
# steps, it resumes from the end of an epoch, before the evaluation.
@pytest.mark.parametrize("stop_after", [7, 9, 19])
def test_an_interrupted_run_ends_with_the_same_bits(
    uninterrupted, tmp_path, stop_after
):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop_after)
    assert signal.getsignal(signal.SIGTERM) is handler
    weights, history = train(tmp_path)
    for one, other in zip(weights, uninterrupted[0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert [line["step"] for line in history] == [6, 12, 18, 20]
    # The training metrics are equal too: their means are over whole epochs.
    assert history == uninterrupted[1]
    assert [x["step"] for x in read_lines(tmp_path / "metrics.jsonl")] == [
        line["step"] for line in history
    ]


def test_epochs_of_any_length_resume_and_cross_a_boundary_to_the_bit(tmp_path):
    plan = {"epoch_ends": (4, 8, 12, 15, 18), "boundaries": (8, 20)}
    lengths, began = [], []
    watch = keras.callbacks.LambdaCallback(
        on_train_begin=lambda _: lengths.append(watch.params["steps"]),
        on_epoch_begin=lambda epoch, _: began.append(epoch),
    )
    whole = train(tmp_path / "whole", callbacks=[watch], **plan)
    steps = [4, 8, 12, 15, 18, 20]
    assert [line["step"] for line in whole[1]] == steps
    # One `fit` for the epochs of equal length on one side of a boundary.
    assert lengths == [4, 4, 3, 2] and began == [0, 1, 2, 3, 4, 5]
    for stop_after in (3, 9, 13):
        folder = tmp_path / f"{stop_after}"
        with pytest.raises(KeyboardInterrupt):
            train(folder, stop_after, **plan)
        weights, history = train(folder, **plan)
        assert history == whole[1]
        for one, other in zip(weights, whole[0], strict=True):
            np.testing.assert_array_equal(one, other)


class Average(keras.callbacks.Callback):
    """A callback that keeps the moving average of the weights."""

    def __init__(self, momentum):
        super().__init__()
        self.momentum, self.average = momentum, None

    def on_train_batch_end(self, batch, logs=None):
        weights = np.concatenate([w.ravel() for w in self.model.get_weights()])
        old = weights if self.average is None else self.average
        self.average = self.momentum * old + (1 - self.momentum) * weights


def test_averages_are_in_the_model_for_a_block_and_resume_to_the_bit(tmp_path):
    def averaging():
        return keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.8)

    whole = train(tmp_path / "whole", optimizer=averaging())
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 9, optimizer=averaging())
    weights, history = train(tmp_path / "cut", optimizer=averaging())
    assert history == whole[1]
    for one, other in zip(weights, whole[0], strict=True):
        np.testing.assert_array_equal(one, other)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(averaging(), "mse", run_eagerly=True)
    average, means = Average(0.8), []

    def evaluate(step):
        before = model.get_weights()
        with averaged_weights(model):
            means.append([w.ravel() for w in model.get_weights()])
        for one, other in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        found = np.concatenate(means[-1])
        np.testing.assert_allclose(found, average.average, rtol=1e-5)
        return {}

    state = TrainingState(tmp_path / "state")
    history = tmp_path / "metrics.jsonl"
    fit(model, batches, STEPS, EPOCH_ENDS, state, history, evaluate, [average])
    assert len(means) == 4
    # Afterwards, Keras's own `fit` takes the averages again.
    data = batches(STEPS - 2)
    model.fit(data, callbacks=[average], shuffle=False, verbose=0)
    found = np.concatenate([w.ravel() for w in model.get_weights()])
    np.testing.assert_allclose(found, average.average, rtol=1e-5)


@pytest.mark.parametrize("stop_after", [0, 3])
def test_the_loop_leaves_the_model_as_it_was_compiled(tmp_path, stop_after):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(use_ema=True), "mse", steps_per_execution=4
    )
    before = set(vars(model.optimizer))
    state, history = TrainingState(tmp_path / "state"), tmp_path / "m.jsonl"
    arguments = (batches, STEPS, EPOCH_ENDS, state, history, lambda step: {})
    with (
        pytest.raises(KeyboardInterrupt)
        if stop_after
        else contextlib.nullcontext()
    ):
        fit(model, *arguments, [Stop(stop_after)])
    assert model.steps_per_execution == 4
    added = set(vars(model.optimizer)) - before
    assert "finalize_variable_values" not in added


def test_weights_without_averages_are_not_copied(monkeypatch):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    monkeypatch.setattr(keras.Variable, "numpy", lambda weight: 1 / 0)
    with averaged_weights(model):
        pass


def test_steps_executed_at_once_end_where_an_epoch_does(
    uninterrupted, tmp_path, caplog
):
    weights, history = train(tmp_path, at_once=4)
    assert [line["step"] for line in history] == [6, 12, 18, 20]
    for one, other in zip(weights, uninterrupted[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert "3 steps are executed at once instead of 4" in caplog.text


def test_a_save_that_an_interrupted_fit_left_under_way_is_waited_for(
    uninterrupted, tmp_path, monkeypatch
):
    write = checkpoint.write

    def slowly(*arguments):
        time.sleep(0.3)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 3)
    monkeypatch.setattr(checkpoint, "write", write)
    restored = []
    monkeypatch.setattr(
        TrainingState,
        "restore",
        lambda self, model, restore=TrainingState.restore: (
            restored.append(restore(self, model)) or restored[-1]
        ),
    )
    weights, _ = train(tmp_path)
    assert restored == [2]
    np.testing.assert_array_equal(weights[0], uninterrupted[0][0])


def test_an_interrupted_run_on_devices_ends_with_the_same_bits(tmp_path):
    """This run is traced, as for users; most other runs here are eager."""
    weights, history = train(tmp_path / "whole", distribution="mirrored")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", 9, distribution="mirrored")  # mid-epoch
    again, curve = train(tmp_path / "run", distribution="mirrored")
    assert curve == history
    for left, right in zip(again, weights, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_finished_run_trains_no_further(uninterrupted, tmp_path):
    weights, history, folder = uninterrupted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    again, lines = train(tmp_path, stop_after=1)
    assert lines == history
    np.testing.assert_array_equal(again[0], weights[0])


class StopInEvaluation(keras.callbacks.Callback):
    """A callback that interrupts at the end of epoch 3, counted from 0."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 3:
            raise KeyboardInterrupt


def test_callbacks_begin_before_an_evaluation_that_a_kill_cut_off(
    uninterrupted, tmp_path
):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[StopInEvaluation()])
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    assert train(tmp_path, callbacks=[log])[1] == uninterrupted[1]
    (row,) = (tmp_path / "log.csv").read_text().splitlines()[1:]
    assert row.startswith("3,")


@pytest.mark.parametrize("content", [None, b"", b'{"step": 6}\n', b"\xff{"])
def test_the_history_file_is_only_written(uninterrupted, tmp_path, content):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, 15)
    path = tmp_path / "metrics.jsonl"
    path.unlink() if content is None else path.write_bytes(content)
    assert train(tmp_path)[1] == uninterrupted[1]
    expected = uninterrupted[2] / "metrics.jsonl"
    assert path.read_bytes() == expected.read_bytes()


def test_a_line_is_saved_also_if_a_save_was_due_before_its_evaluation(
    uninterrupted,
):
    """The last step, 20, is a multiple of the steps between saves."""
    _, history, folder = uninterrupted
    _, manifest = checkpoint.read_newest(folder / "state")
    assert (manifest["step"], manifest["lines"]) == (STEPS, history)
