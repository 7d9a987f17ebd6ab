import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.training import checkpoint
from bert_keras.training.state import EXIT_CODE, Preempted, TrainingState


class NestedDropout(keras.layers.Layer):
    """Seed generators where a careless save would miss them."""

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


def seed_states(model):
    """Every seed generator's state, found by walking, not by Keras's list."""
    found, todo, seen = [], [model], set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, keras.random.SeedGenerator):
            found.append(item.state)
        elif isinstance(item, (list, tuple)):
            todo.extend(item)
        elif isinstance(item, keras.layers.Layer):
            todo.extend(vars(item).values())
    return found


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path):
    whole = small_model()
    fit(whole, TrainingState(tmp_path / "whole", every=4), steps=10)
    first = small_model()
    fit(first, TrainingState(tmp_path / "cut", every=4), steps=7)
    second = small_model(seed=99)  # other weights and seeds: all are restored
    state = TrainingState(tmp_path / "cut", every=4)
    assert state.restore(second) == 7
    fit(second, state, steps=10, first=7)
    assert_same_bits(second, whole)


def test_every_seed_generator_is_among_the_saved_tensors(tmp_path):
    model = small_model()
    fit(model, TrainingState(tmp_path, every=4), steps=3)
    groups, _ = checkpoint.read_newest(tmp_path)
    saved = [tensor.tobytes() for tensor in groups["model"].values()]
    states = seed_states(model)
    assert len(states) == 3
    for state in states:
        assert keras.ops.convert_to_numpy(state).tobytes() in saved


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16"])
def test_other_dtypes_come_back_bit_for_bit(tmp_path, dtype):
    model = small_model(dtype=dtype)
    fit(model, TrainingState(tmp_path), steps=2)
    copy = small_model(seed=2, dtype=dtype)
    assert TrainingState(tmp_path).restore(copy) == 2
    assert_same_bits(copy, model)


def test_kills_at_random_instants_change_no_bit(tmp_path):
    script = pathlib.Path(__file__).with_name("kill_training.py")
    seed = random.SystemRandom().randrange(1000)
    kills = 50 if os.environ.get("BERT_KERAS_LONG") else 5
    command = [sys.executable, script, tmp_path, str(kills), str(seed)]
    root = str(script.parent.parent)
    environment = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (seed, done.stderr[-3000:])
    codes = [int(word) for word in done.stdout.split()]
    assert codes == [0] + kills * [-signal.SIGKILL] + [EXIT_CODE, 0]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for step in (297, 300):
        manifests = [
            files.read_json(
                os.path.join(checkpoint.path_of(folder, step), "manifest.json")
            )
            for folder in (whole, cut)
        ]
        assert manifests[0]["files"] == manifests[1]["files"], (seed, step)
    assert not [name for name in os.listdir(cut) if files.is_partial(name)]


def test_the_last_ones_and_every_kth_are_kept(tmp_path):
    state = TrainingState(tmp_path, every=2, keep=2, keep_every=4)
    fit(small_model(), state, steps=11)
    assert checkpoint.steps(tmp_path) == [4, 8, 10, 11]


def test_steps_are_counted_over_epochs_and_grouped_executions(tmp_path):
    state = TrainingState(tmp_path, every=4, keep=9)
    fit(small_model(steps_per_execution=3), state, steps=6, epochs=2)
    assert state.step == 12
    assert checkpoint.steps(tmp_path) == [6, 9, 12]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the checkpoints of steps 2 and 4, and the last model."""
    folder, model = tmp_path_factory.mktemp("trained"), small_model()
    fit(model, TrainingState(folder, every=2), steps=4)
    return folder, model


@pytest.mark.parametrize("name", ["model", "optimizer", "manifest"])
@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "empty"])
def test_a_damaged_newest_is_named_and_the_one_before_used(
    trained, tmp_path, caplog, name, harm
):
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    newest = pathlib.Path(checkpoint.path_of(tmp_path, 4))
    (path,) = newest.glob(f"{name}.*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    if harm == "missing":
        path.unlink()
    else:
        cut = {"flip": len(content), "cut": len(content) // 2, "empty": 0}
        path.write_bytes(content[: cut[harm]])
    _, manifest = checkpoint.read_newest(tmp_path)
    assert manifest["step"] == 2
    assert "step-00000004 is damaged" in caplog.text


def test_a_damaged_checkpoint_is_written_anew(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "step-00000004" / "model.safetensors").write_bytes(b"")
    model, state = small_model(), TrainingState(tmp_path, every=2)
    assert state.restore(model) == 2
    fit(model, state, steps=4, first=2)
    assert_same_bits(model, trained[1])
    copy = small_model(seed=3)
    assert TrainingState(tmp_path).restore(copy) == 4
    assert_same_bits(copy, model)


def test_a_changed_manifest_is_damage(tmp_path):
    checkpoint.write(tmp_path, 4, {"model": {"a": np.ones(1)}}, {"notes": 1})
    manifest = tmp_path / "step-00000004" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 4', '"step": 5'))
    with pytest.raises(checkpoint.DamagedError, match="its own hash"):
        checkpoint.read(tmp_path, 4)


def write_failing_at(folder, number, error, monkeypatch):
    """Writes step 2, failing at one operation; whether it came to that one."""
    count = iter(range(1000))

    def counted(function):
        def call(*arguments, **named):
            if next(count) == number:
                raise error
            return function(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", counted(open))
        for name in ("mkdir", "fsync", "rename", "replace", "open"):
            patch.setattr(os, name, counted(getattr(os, name)))
        if isinstance(error, KeyboardInterrupt):  # as a kill: no tidying
            patch.setattr(files, "remove", lambda path: None)
        with contextlib.suppress(type(error)):
            checkpoint.write(folder, 2, {"model": {"a": np.full(9, 2)}}, {})
    return next(count) > number


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_an_error_at_any_operation_leaves_a_whole_one(
    tmp_path, error, monkeypatch
):
    found = []
    for number in range(100):
        folder = tmp_path / str(number)
        checkpoint.write(folder, 1, {"model": {"a": np.full(9, 1)}}, {})
        failed = write_failing_at(folder, number, error, monkeypatch)
        groups, manifest = checkpoint.read_newest(folder)
        assert (groups["model"]["a"] == manifest["step"]).all()
        found.append(manifest["step"])
        if not failed:
            break
    assert len(found) > 10
    assert found[1:6] == 5 * [1]
    assert found[-1] == 2


def test_a_failed_write_stops_the_training(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="No space left"):
        fit(small_model(), TrainingState(tmp_path, every=2), steps=6)


class SignalAt(keras.callbacks.Callback):
    def __init__(self, step, validation=False):
        super().__init__()
        self.step, self.validation = step, validation

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_test_batch_begin(self, batch, logs=None):
        if self.validation:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("where", ["step", "validation"])
def test_sigterm_saves_after_the_step_and_exits_with_75(tmp_path, where):
    before = signal.getsignal(signal.SIGTERM)
    validation = where == "validation"
    with pytest.raises(Preempted) as raised:
        fit(
            small_model(),
            TrainingState(tmp_path, every=100),
            steps=8,
            validation_data=data(8),
            callbacks=[SignalAt(-1 if validation else 3, validation)],
        )
    step = 8 if validation else 4
    assert (raised.value.code, raised.value.step) == (75, step)
    assert checkpoint.steps(tmp_path) == [step]
    assert signal.getsignal(signal.SIGTERM) is before


def test_notes_travel_with_the_weights(tmp_path):
    state = TrainingState(tmp_path)
    state.notes["best_accuracy"] = 0.75
    fit(small_model(), state, steps=2)
    restored = TrainingState(tmp_path)
    restored.restore(small_model())
    assert restored.notes == {"best_accuracy": 0.75}


def test_without_a_checkpoint_nothing_changes(tmp_path):
    model, same = small_model(), small_model()
    assert TrainingState(tmp_path / "new").restore(model) == 0
    same.optimizer.build(same.trainable_variables)
    assert_same_bits(model, same)


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


def test_a_newer_format_is_refused_not_taken_for_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    checkpoint.write(tmp_path, 1, {"model": {"a": np.ones(1)}}, {})
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 1)
    with pytest.raises(InputError, match="format version 2"):
        checkpoint.read_newest(tmp_path)


def test_saving_stops_where_the_check_raises(tmp_path):
    def lost():
        raise InputError("taken over")

    with pytest.raises(InputError, match="taken over"):
        fit(small_model(), TrainingState(tmp_path, check=lost), steps=2)
    assert checkpoint.steps(tmp_path) == []
