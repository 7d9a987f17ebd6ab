import contextlib
import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from kill_saving import OPERATIONS
from remote_folder import DOWN, KILLED, Killed, object_store
from safetensors.numpy import load_file

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.training import checkpoint
from bert_keras.training.checkpoint import read_tensors, write_tensors

REMOTE = "ram://checkpoints/state"


def write(folder, step):
    groups = {
        name: {"a": np.full(9, step), "b": np.full((), step, "float32")}
        for name in ("model", "optimizer")
    }
    checkpoint.write(folder, step, groups, {"notes": {"some": 1}})


def test_tensors_come_back_with_names_shapes_and_dtypes(tmp_path):
    random = np.random.default_rng(0)
    tensors = {
        f"{dtype}/{shape}": random.integers(0, 2, shape).astype(dtype)
        for dtype in (
            "float32",
            "float64",
            "float16",
            "int64",
            "uint32",
            "bool",
        )
        for shape in ((), (3,), (2, 0), (5, 7))
    }
    tensors["bfloat16"] = random.normal(size=(3, 4)).astype(ml_dtypes.bfloat16)
    told = write_tensors(tensors, tmp_path / "t.safetensors")
    assert told["bytes"] == os.path.getsize(tmp_path / "t.safetensors")
    assert told["sha256"] == files.sha256(tmp_path / "t.safetensors")
    for found in (
        read_tensors(tmp_path / "t.safetensors"),
        load_file(tmp_path / "t.safetensors"),  # safetensors' own reader
    ):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            np.testing.assert_array_equal(found[name], tensor)


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    write(tmp_path, 2)
    for path in sorted((tmp_path / "step-00000002").iterdir()):
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 25)):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            path.write_bytes(flipped)
            with pytest.raises(checkpoint.DamagedError):
                checkpoint.read(tmp_path, 2)
        path.write_bytes(content)
    checkpoint.read(tmp_path, 2)


@pytest.mark.parametrize(
    "lie",
    [
        {"format_version": "1"},
        {"step": None},
        {"files": 5},
        {"files": {"model.safetensors": 5}},
        {"files": {"../x": {"bytes": 1, "sha256": ""}}},
        {"files": {"\ud800": {"bytes": 1, "sha256": ""}}},
        {"notes": "[" * 99 + "]" * 99},
    ],
)
def test_a_manifest_that_lies_under_its_own_hash_is_damaged(tmp_path, lie):
    write(tmp_path, 2)
    path = tmp_path / "step-00000002" / "manifest.json"
    notes = lie.pop("notes", "{}")
    manifest = {**files.read_json(path), **lie, "notes": json.loads(notes)}
    del manifest["sha256"]
    manifest["sha256"] = files.json_hash(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.DamagedError):
        checkpoint.read(tmp_path, 2)


@pytest.mark.parametrize("name", ["model", "optimizer", "manifest"])
@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "empty"])
def test_a_damaged_newest_is_named_and_the_one_before_used(
    tmp_path, caplog, name, harm
):
    for step in (2, 4):
        write(tmp_path, step)
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


def test_a_changed_manifest_is_damage(tmp_path):
    checkpoint.write(tmp_path, 4, {"model": {"a": np.ones(1)}}, {"notes": 1})
    manifest = tmp_path / "step-00000004" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 4', '"step": 5'))
    with pytest.raises(checkpoint.DamagedError, match="its own hash"):
        checkpoint.read(tmp_path, 4)


class CountedFile:
    """A file whose writes count as operations too."""

    def __init__(self, file, counted):
        self._file = file
        self.write = counted(file.write)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


def write_failing_at(folder, number, error, monkeypatch):
    """Writes step 2, failing at one operation; whether it came to that one."""
    count = iter(range(1000))

    def counted(function):
        def call(*arguments, **named):
            if next(count) == number:
                raise error
            return function(*arguments, **named)

        return call

    opened = counted(open)
    with monkeypatch.context() as patch:
        patch.setattr(
            "builtins.open",
            lambda *arguments, **named: CountedFile(
                opened(*arguments, **named), counted
            ),
        )
        for name in OPERATIONS:
            patch.setattr(os, name, counted(getattr(os, name)))
        if isinstance(error, KeyboardInterrupt):  # as a kill: no tidying
            patch.setattr(files, "remove", lambda path: None)
        with contextlib.suppress(type(error)):
            checkpoint.write(folder, 2, {"model": {"a": np.full(9, 2)}}, {})
            checkpoint.prune(folder, 2, 1)
    return next(count) > number


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_an_error_at_any_operation_leaves_a_whole_one(
    tmp_path, error, monkeypatch
):
    found = []
    for number in range(200):
        folder = tmp_path / str(number)
        checkpoint.write(folder, 1, {"model": {"a": np.full(9, 1)}}, {})
        failed = write_failing_at(folder, number, error, monkeypatch)
        groups, manifest = checkpoint.read_newest(folder)
        assert (groups["model"]["a"] == manifest["step"]).all()
        found.append(manifest["step"])
        if not failed:
            break
    assert len(found) > 40
    assert found[1:30] == 29 * [1]
    assert found[-1] == 2


def test_a_kill_at_any_operation_leaves_a_whole_one(tmp_path):
    script = pathlib.Path(__file__).with_name("kill_saving.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    newest = [int(word) for word in done.stdout.split()]
    assert len(newest) > 40
    # The old one up to the rename, the new one from there on.
    assert newest == sorted(newest) and set(newest) == {1, 2}


@pytest.mark.parametrize("error", [KILLED, DOWN])
def test_a_failure_at_any_change_of_a_remote_save_leaves_a_whole_one(
    error, monkeypatch
):
    found = []
    for number in range(20):
        with object_store(monkeypatch):
            for step in (1, 2):
                groups = {"model": {"a": np.full(9, step)}}
                checkpoint.write(REMOTE, step, groups, {})
        with object_store(monkeypatch, number, error) as changes:
            groups = {"model": {"a": np.full(9, 3)}, "optimizer": {}}
            with contextlib.suppress(Killed, OSError):
                checkpoint.write(REMOTE, 3, groups, {})
                checkpoint.prune(REMOTE, 3, 1)
        groups, manifest = checkpoint.read_newest(REMOTE)
        assert (groups["model"]["a"] == manifest["step"]).all()
        found.append(manifest["step"])
        files.remove(REMOTE)
        if len(changes) <= number:
            break
    assert found[0] == 2 and found[-1] == 3
    assert len(found) > 5


def test_a_newer_format_is_refused_not_taken_for_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    checkpoint.write(tmp_path, 1, {"model": {"a": np.ones(1)}}, {})
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 1)
    with pytest.raises(InputError, match="format version 2"):
        checkpoint.read_newest(tmp_path)
