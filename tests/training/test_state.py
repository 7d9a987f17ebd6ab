"""Every bit that the next step depends on is saved and restored."""

import os
import random
import shutil
import signal
import threading

import keras
import numpy as np
import pytest

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interrupts import EXIT_CODE
from bert_keras.training import checkpoint
from bert_keras.training import state as state_module
from bert_keras.training.state import Preempted, TrainingState
from tests.support import forks
from tests.support.remote_folder import object_store

PROGRAM = "tests.support.kill_training"


class NestedDropout(keras.layers.Layer):
    """Layer with seed generators in nested lists, which a save must find."""

    def __init__(self):
        super().__init__()
        self.blocks = [[keras.layers.Dropout(0.2)], keras.layers.Dropout(0.3)]
        self.noise = keras.random.SeedGenerator(7)

    def call(self, x, training=None):
        if training:
            x = x + keras.random.normal(keras.ops.shape(x), seed=self.noise)
        x = self.blocks[0][0](x, training=training)
        return self.blocks[1](x, training=training)


def small_model(width=3, seed=1, dtype=None, **arguments):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(width, dtype=dtype),
            NestedDropout(),
            keras.layers.Dense(1),
        ]
    )
    # A graph gives the same bits, but tracing it takes longer than the steps.
    arguments = {"run_eagerly": True} | arguments
    model.compile(keras.optimizers.AdamW(1e-2), "mse", **arguments)
    return model


def data(steps, first=0):
    x = np.random.default_rng(0).normal(size=(steps, 2, 4)).astype("float32")
    x = x[first:].reshape(-1, 4)
    return x, x.sum(-1, keepdims=True)


def fit(model, state, steps, first=0, **arguments):
    x, y = data(steps, first)
    arguments = {"shuffle": False, "verbose": 0, "batch_size": 2} | arguments
    callbacks = [state, *arguments.pop("callbacks", [])]
    return model.fit(x, y, callbacks=callbacks, **arguments)


def everything(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(v) for v in variables]


def assert_same_bits(left, right):
    left, right = everything(left), everything(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def test_every_seed_generator_is_among_the_saved_tensors(tmp_path):
    model = small_model()
    fit(model, TrainingState(tmp_path, every=4), steps=3)
    groups, _ = checkpoint.read_newest(tmp_path)
    saved = [tensor.tobytes() for tensor in groups["model"].values()]
    layer = model.layers[1]
    dropouts = layer.blocks[0][0], layer.blocks[1]
    for generator in (layer.noise, *(d.seed_generator for d in dropouts)):
        state = keras.ops.convert_to_numpy(generator.state)
        assert state.tobytes() in saved


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16"])
def test_other_dtypes_come_back_bit_for_bit(tmp_path, dtype):
    model = small_model(dtype=dtype)
    fit(model, TrainingState(tmp_path), steps=2)
    copy = small_model(seed=2, dtype=dtype)
    assert TrainingState(tmp_path).restore(copy) == 2
    assert_same_bits(copy, model)


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("tiny", 1),
        pytest.param("tiny", 20, marks=pytest.mark.long),
        pytest.param("bert", 20, marks=pytest.mark.long),
    ],
)
def test_kills_at_random_instants_change_no_bit(tmp_path, name, kills):
    seed = random.SystemRandom().randrange(1000)
    done = forks.start(["-m", PROGRAM, tmp_path, kills, seed, name])
    printed, errors = done.communicate(timeout=7200)
    assert done.returncode == 0, (seed, errors[-3000:])
    inside_saves, *codes = (int(word) for word in printed.split())
    print(f"{name}: {kills} kills, {inside_saves} inside a save, seed {seed}")
    assert codes == [0] + kills * [-signal.SIGKILL] + [EXIT_CODE, 0]
    whole, cut = tmp_path / "uninterrupted", tmp_path / "interrupted"
    steps = checkpoint.steps(whole)
    assert checkpoint.steps(cut) == steps and len(steps) == 2
    for step in steps:
        expected, found = (
            checkpoint.read(folder, step)[1] for folder in (whole, cut)
        )
        is_last = step == steps[-1]
        assert len(expected["lines"]) == step // 7 + is_last
        for name in ("files", "lines"):
            assert found[name] == expected[name], (seed, step)
    written = (cut / "metrics.jsonl").read_bytes()
    assert written == (whole / "metrics.jsonl").read_bytes()
    assert not [name for name in os.listdir(cut) if files.is_partial(name)]


def test_a_damaged_newer_one_takes_no_whole_ones_place(tmp_path):
    fit(small_model(), TrainingState(tmp_path, every=3, keep=9), steps=6)
    (tmp_path / "step-00000006" / "model.safetensors").write_bytes(b"")
    model, state = small_model(), TrainingState(tmp_path, every=2, keep=1)
    assert state.restore(model) == 3
    fit(model, state, steps=5, first=3)
    assert checkpoint.steps(tmp_path) == [5, 6]
    assert TrainingState(tmp_path).restore(small_model(seed=3)) == 5


def test_a_second_fit_continues_a_first_one_that_saved_nothing(tmp_path):
    model, state = small_model(), TrainingState(tmp_path / "state", every=99)
    assert state.restore(model) == 0
    state.progress.step = 2  # of a `fit` that was interrupted
    assert state.restore(model) == 2


def test_steps_are_counted_over_epochs_and_grouped_executions(tmp_path):
    state = TrainingState(tmp_path, every=2, keep=2, keep_every=6)
    model = small_model(steps_per_execution=3, run_eagerly=False)
    fit(model, state, steps=6, epochs=3)
    assert state.progress.step == 18
    assert checkpoint.steps(tmp_path) == [6, 12, 15, 18]


def test_the_last_execution_of_an_epoch_may_have_fewer_steps(tmp_path):
    state = TrainingState(tmp_path, every=100)
    model = small_model(steps_per_execution=4, run_eagerly=False)
    fit(model, state, steps=6, epochs=2)
    assert state.progress.step == int(model.optimizer.iterations) == 12


@pytest.mark.parametrize("every", [2, 100])
def test_an_epoch_of_unknown_length_ends_with_its_data(tmp_path, every):
    model, state = small_model(), TrainingState(tmp_path, every=every)
    x, y = data(4)
    batches = ((x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2))
    model.fit(batches, callbacks=[state], verbose=0)  # of unknown size
    again = TrainingState(tmp_path)
    assert again.restore(small_model()) == 4
    assert again.progress.metrics == {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder with checkpoints of steps 2 and 4, and the model after step 4."""
    folder, model = tmp_path_factory.mktemp("trained"), small_model()
    state = TrainingState(folder, every=2)
    assert state.restore(model) == 0  # there is no checkpoint yet
    fit(model, state, steps=4)
    return folder, model


def test_a_damaged_checkpoint_is_written_again(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "step-00000004" / "model.safetensors").write_bytes(b"")
    model, state = small_model(), TrainingState(tmp_path, every=2)
    assert state.restore(model) == 2
    fit(model, state, steps=4, first=2)
    assert_same_bits(model, trained[1])
    copy = small_model(seed=3)
    assert TrainingState(tmp_path).restore(copy) == 4
    assert_same_bits(copy, model)


def test_a_failed_write_stops_the_training(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    state = TrainingState(tmp_path, every=2)
    with pytest.raises(OSError, match="No space left"):
        fit(small_model(), state, steps=8)
    # The save at step 2 fails in a thread. If the thread has ended, step 3
    # raises the error. Else the save at step 4 waits for the thread and raises.
    assert state.progress.step in (3, 4)


def test_a_save_waits_for_the_copy_to_host_memory_only(tmp_path, monkeypatch):
    written, in_time = threading.Event(), []

    def slowly(*arguments):
        in_time.append(written.wait(30))

    monkeypatch.setattr(checkpoint, "write", slowly)
    state = TrainingState(tmp_path, every=2)

    class Release(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:  # one step after the save began
                written.set()

    fit(small_model(), state, steps=3, callbacks=[Release()])
    assert state.progress.step == 3
    assert in_time == [True, True]


def test_the_last_save_copies_one_weight_at_a_time(tmp_path, monkeypatch):
    copied = []
    to_host = state_module._to_host

    def count(named):
        copied.append(len(named))
        return to_host(named)

    monkeypatch.setattr(state_module, "_to_host", count)
    model = small_model()
    fit(model, TrainingState(tmp_path, every=100), steps=3)
    assert sum(copied) <= len(model.metrics_variables)
    again = small_model(seed=5)
    assert TrainingState(tmp_path).restore(again) == 3
    assert_same_bits(again, model)


def test_other_workers_read_count_and_write_nothing(trained, tmp_path):
    folder, model = trained
    copy = small_model(seed=5)
    state = TrainingState(folder, every=1, writes=False)
    assert state.restore(copy) == 4
    assert_same_bits(copy, model)
    fit(copy, state, steps=6, first=4)
    assert state.progress.step == 6
    assert checkpoint.steps(folder) == [2, 4]
    empty = TrainingState(tmp_path / "none", writes=False)
    fit(small_model(), empty, steps=2)
    assert not (tmp_path / "none").exists()


def test_all_workers_stop_where_one_was_asked_to(tmp_path):
    flags = []

    def any_worker(flag):
        flags.append(flag)
        return len(flags) == 3  # another worker got the signal

    state = TrainingState(tmp_path, any_worker=any_worker)
    with pytest.raises(Preempted):
        fit(small_model(), state, steps=8)
    assert checkpoint.steps(tmp_path) == [3]
    assert flags == [False] * 3


REMOTE = "ram://checkpoints/state"


def test_remote_checkpoints_are_kept_and_restored_without_rename(monkeypatch):
    with object_store(monkeypatch):
        model = small_model()
        fit(model, TrainingState(REMOTE, every=2, keep=2), steps=7)
        assert checkpoint.steps(REMOTE) == [6, 7]
        copy = small_model(seed=3)
        assert TrainingState(REMOTE).restore(copy) == 7
        assert_same_bits(copy, model)
        files.remove(REMOTE)


class SignalAt(keras.callbacks.Callback):
    def __init__(self, number, step, validation=False):
        super().__init__()
        self.number = number
        self.step, self.validation = step, validation

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.step:
            os.kill(os.getpid(), self.number)

    def on_test_batch_begin(self, batch, logs=None):
        if self.validation:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("where", "number"),
    [("step", signal.SIGINT), ("validation", signal.SIGTERM)],
)
def test_a_signal_saves_after_the_step_and_exits_with_75(
    tmp_path, where, number
):
    before = signal.getsignal(number)
    validation = where == "validation"
    with pytest.raises(Preempted) as raised:
        fit(
            small_model(),
            TrainingState(tmp_path, every=100),
            steps=8,
            validation_data=data(8),
            callbacks=[SignalAt(number, -1 if validation else 3, validation)],
        )
    step = 8 if validation else 4
    assert (raised.value.code, raised.value.step) == (75, step)
    assert checkpoint.steps(tmp_path) == [step]
    assert signal.getsignal(number) is before


def test_other_settings_models_and_uses_are_refused(tmp_path):
    fit(small_model(), TrainingState(tmp_path, settings={"seed": 1}), steps=2)

    def restore(model, **settings):
        return TrainingState(tmp_path, settings=settings).restore(model)

    assert restore(small_model(), seed=1) == 2
    with pytest.raises(InputError, match="seed was 1 and is now 2"):
        restore(small_model(), seed=2)
    with pytest.raises(InputError, match=r"\[4, 3\].*\[4, 5\]"):
        restore(small_model(width=5), seed=1)
    with pytest.raises(InputError, match="restore"):
        fit(small_model(), TrainingState(tmp_path), steps=2)
    with pytest.raises(InputError, match="compile"):
        restore(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(InputError, match="every=0"):
        TrainingState(tmp_path, every=0)
    (tmp_path / "step-00000002" / "manifest.json").write_text("")
    with pytest.raises(InputError, match="Every checkpoint .* is damaged"):
        restore(small_model(), seed=1)


def test_saving_stops_where_the_check_raises(tmp_path):
    def lost():
        raise InputError("taken over")

    with pytest.raises(InputError, match="taken over"):
        fit(small_model(), TrainingState(tmp_path, check=lost), steps=2)
    assert checkpoint.steps(tmp_path) == []
