"""A checkpoint is sound or reported as damaged after any interruption."""

import contextlib
import errno
import json
import os
import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.safetensors_files import write_safetensors
from bert_keras.training import checkpoint
from bert_keras.training.checkpoint import read_tensors
from tests.support.remote_folder import DOWN, KILLED, Killed, object_store

pytestmark = pytest.mark.fast

REMOTE = "ram://checkpoints/state"
# Functions of `os` with which a save changes the disk.
OPERATIONS = ("mkdir", "fsync", "rename", "replace", "open", "unlink", "rmdir")


def write(folder, step):
    groups = {
        name: {"a": np.full(9, step), "b": np.full((), step, "float32")}
        for name in ("model", "optimizer")
    }
    metadata = {"lines": [{"step": 1, "loss": 0.5}], "settings": {"some": 1}}
    checkpoint.write(folder, step, groups, metadata)


def test_tensors_come_back_with_names_shapes_and_dtypes(tmp_path):
    random = np.random.default_rng(0)
    dtypes = "float32 float64 float16 int64 int8 uint32 bool".split()
    tensors = {
        f"{dtype}/{shape}": random.integers(0, 2, shape).astype(dtype)
        for dtype in (*dtypes, ml_dtypes.bfloat16)
        for shape in ((), (3,), (2, 0), (5, 7))
    }
    path = tmp_path / "t.safetensors"
    lazy = {
        name: (array.dtype, array.shape, lambda array=array: array)
        for name, array in tensors.items()
    }
    assert write_safetensors(path, lazy) == {
        "bytes": os.path.getsize(path),
        "sha256": files.sha256(path),
    }
    # `load_file` of safetensors is the second opinion.
    for found in (read_tensors(path), load_file(path)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            np.testing.assert_array_equal(found[name], tensor)


@pytest.mark.parametrize(
    "count", [12, pytest.param(10**6, marks=pytest.mark.long)]
)
def test_a_flipped_bit_anywhere_is_found(tmp_path, count):
    write(tmp_path, 2)
    for path in sorted((tmp_path / "step-00000002").iterdir()):
        content = path.read_bytes()
        for index in range(0, len(content), max(1, len(content) // count)):
            flipped = bytearray(content)
            flipped[index] ^= 1 << index % 8
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
        {"files": {"model.safetensors": 5}},
        {"files": {"../x": {"bytes": 1, "sha256": ""}}},
        {"files": {"\ud800": {"bytes": 1, "sha256": ""}}},
        {"lines": [{"loss": 0.5}]},
        {"lines": None},
        {"settings": json.loads("[" * 99 + "]" * 99)},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_manifest_that_lies_under_its_own_hash_is_damaged(tmp_path, lie):
    write(tmp_path, 2)
    path = tmp_path / "step-00000002" / "manifest.json"
    manifest = {**json_files.read_json(path), **lie}
    del manifest["sha256"]
    manifest["sha256"] = json_files.json_hash(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(checkpoint.DamagedError):
        checkpoint.read(tmp_path, 2)


@pytest.mark.parametrize("name", ["model", "manifest"])
@pytest.mark.parametrize("harm", ["flip", "cut", "missing", "empty"])
def test_a_damaged_newest_is_named_and_the_one_before_used(
    tmp_path, caplog, name, harm
):
    for step in (2, 4):
        write(tmp_path, step)
    newest = pathlib.Path(checkpoint.step_path(tmp_path, 4))
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


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_checkpoint_that_cannot_be_read_now_is_not_called_damaged(
    tmp_path, monkeypatch, name
):
    for step in (1, 2):
        write(tmp_path, step)
    check_file = files.check_file

    def fail(path, *args, **options):
        if str(path).endswith(f"step-00000002/{name}"):
            raise OSError(errno.EIO, "Input/output error", path)
        return check_file(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "check_file", fail)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoint.read_newest(str(tmp_path))
    assert checkpoint.read_newest(str(tmp_path))[1]["step"] == 2


@pytest.mark.parametrize("version", [1, 3])
def test_another_format_is_refused_not_taken_for_damage(
    tmp_path, monkeypatch, version
):
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", version)
    write(tmp_path, 1)
    monkeypatch.undo()
    path = tmp_path / "step-00000001" / "manifest.json"
    manifest = json_files.read_json(path)
    del manifest["lines"], manifest["sha256"]  # as the first format lacks them
    json_files.write_json(
        {**manifest, "sha256": json_files.json_hash(manifest)}, path
    )
    with pytest.raises(InputError, match=f"has format version {version}"):
        checkpoint.read_newest(tmp_path)


class HalfWritten:
    """A file whose `write` may fail after half of the data is on disk."""

    def __init__(self, file, check):
        self._file, self._check = file, check

    def write(self, data):
        half = len(data) // 2
        written = self._file.write(data[:half])
        self._file.flush()
        self._check()
        return written + self._file.write(data[half:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


def fail_at(number, error, monkeypatch, work):
    """Make operation `number` of `work` fail; return True if it was reached."""
    count = iter(range(1000))

    def check():
        if next(count) == number:
            raise error

    def checked(function):
        def call(*arguments, **named):
            check()
            return function(*arguments, **named)

        return call

    def opened(*arguments, open=open, **named):
        if str(arguments[0]).startswith("/proc/"):  # not on disk
            return open(*arguments, **named)
        check()
        return HalfWritten(open(*arguments, **named), check)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", opened)
        for name in OPERATIONS:
            patch.setattr(os, name, checked(getattr(os, name)))
        if isinstance(error, KeyboardInterrupt):  # a kill skips cleanup
            patch.setattr(files, "remove", lambda path: None)
        with contextlib.suppress(type(error)):
            work()
    return next(count) > number


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_an_error_or_a_kill_at_any_operation_leaves_a_sound_one(
    tmp_path, error, monkeypatch
):
    newest = []
    for number in range(200):
        folder = tmp_path / str(number)
        write(folder, 1)

        def save(folder=folder):
            write(folder, 2)
            checkpoint.prune(folder, 2, 1)

        failed = fail_at(number, error, monkeypatch, save)
        groups, manifest = checkpoint.read_newest(folder)
        for tensors in groups.values():
            assert all((t == manifest["step"]).all() for t in tensors.values())
        newest.append(manifest["step"])
        write(folder, 3)  # a later save works despite leftovers
        checkpoint.prune(folder, 3, 1)
        assert checkpoint.steps(folder) == [3]
        if not failed:
            break
    assert len(newest) > 40
    assert newest[1:30] == 29 * [1] and newest[-1] == 2


@pytest.mark.parametrize("error", [KILLED, DOWN], ids=["killed", "down"])
def test_a_failure_at_any_change_of_a_remote_save_leaves_a_sound_one(
    error, monkeypatch
):
    newest = []
    for number in range(20):
        with object_store(monkeypatch):
            write(REMOTE, 1)
            write(REMOTE, 2)
        with (
            object_store(monkeypatch, number, error) as changes,
            contextlib.suppress(Killed, OSError),
        ):
            write(REMOTE, 3)
            checkpoint.prune(REMOTE, 3, 1)
        groups, manifest = checkpoint.read_newest(REMOTE)
        assert (groups["model"]["a"] == manifest["step"]).all()
        newest.append(manifest["step"])
        files.remove(REMOTE)
        if len(changes) <= number:
            break
    assert newest[0] == 2 and newest[-1] == 3
    assert len(newest) > 5


def test_the_first_checkpoint_at_or_after_each_multiple_is_kept(tmp_path):
    for step in (512, 1008, 1504, 2000, 2512, 3008, 3504, 4000):
        (tmp_path / f"step-{step:08d}").mkdir()
        checkpoint.prune(tmp_path, step, keep=1, keep_every=1000)
    assert checkpoint.steps(tmp_path) == [1008, 2000, 3008, 4000]
