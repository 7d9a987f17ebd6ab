"""Run folders: settings, inputs, finished stages, and the writer's lock."""

import os
from unittest import mock

import pytest

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.manifest import write_manifest
from bert_keras.run_folder import RunFolder
from tests.support.run_script import waiting_process

SETTINGS = {"seed": 1, "corpus": "a.txt", "sizes": (1, 2)}


def test_other_settings_are_refused_and_named(tmp_path):
    RunFolder(tmp_path, SETTINGS).close()
    other = {"seed": 2, "sizes": [1, 2], "steps": 5}
    with pytest.raises(InputError) as raised:
        RunFolder(tmp_path, other)
    message = str(raised.value)
    assert "seed was 1 and is now 2" in message
    assert 'corpus was "a.txt" and is now not set' in message
    assert "steps was not set and is now 5" in message
    assert "sizes" not in message
    RunFolder(tmp_path, SETTINGS).close()  # the refusal released the lock


def test_a_foreign_folder_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="thesis.txt"):
        RunFolder(tmp_path, SETTINGS)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_refused_build_removes_only_its_own_folders(tmp_path):
    (tmp_path / "mine").mkdir()
    with (
        pytest.raises(InputError, match="few"),
        RunFolder(tmp_path, SETTINGS, allows_files=True) as run,
    ):
        os.mkdir(run.file("own"))
        raise InputError("few")
    assert os.listdir(tmp_path) == ["mine"]


def test_a_build_may_begin_among_files_and_forgets_its_settings(tmp_path):
    (tmp_path / "notes.txt").write_text("kept")

    def open_build(settings=SETTINGS):
        return RunFolder(tmp_path, settings, allows_files=True)

    with pytest.raises(InputError, match="mistake"), open_build() as build:
        assert build.is_new
        raise InputError("mistake")
    assert os.listdir(tmp_path) == ["notes.txt"]
    open_build().close()  # as if interrupted
    with pytest.raises(InputError, match="seed was 1 and is now 2"):
        open_build({**SETTINGS, "seed": 2})
    with open_build() as build:
        assert not build.is_new
        build.forget()
    assert os.listdir(tmp_path) == ["notes.txt"]
    with open_build({"seed": 2}) as build:
        assert build.is_new


def test_a_mistake_inside_an_inner_run_leaves_the_outer_folder_free(tmp_path):
    with (
        pytest.raises(InputError, match="513"),
        RunFolder(tmp_path / "run", SETTINGS) as run,
        RunFolder(run.file("runs", "seed_0"), SETTINGS),
    ):
        raise InputError("513")
    RunFolder(tmp_path / "run", {"other": 1}).close()


def test_a_mistake_leaves_a_folder_that_was_there(tmp_path):
    (tmp_path / "mine").mkdir()
    for name, is_left in (("mine", True), ("made/run", False)):
        with (
            pytest.raises(InputError, match="513"),
            RunFolder(tmp_path / name, SETTINGS),
        ):
            raise InputError("513")
        assert (tmp_path / name.split("/")[0]).exists() == is_left
    assert os.listdir(tmp_path / "mine") == []


def test_a_folder_that_cannot_be_used_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run", SETTINGS)
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text("[1]")
    with pytest.raises(InputError, match="run.json"):
        RunFolder(other, SETTINGS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="not writable"):
        RunFolder(tmp_path / "new", SETTINGS)


def test_a_kill_while_the_folder_was_made_does_not_make_it_foreign(tmp_path):
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".run.json.partial-12").write_text("{")
    RunFolder(tmp_path, SETTINGS).close()
    assert sorted(os.listdir(tmp_path)) == [".lock", "run.json"]


def test_inputs_are_compared_by_content_where_their_time_differs(tmp_path):
    data, run = tmp_path / "data.csv", tmp_path / "run"
    data.write_text("a,b")
    missing = tmp_path / "missing.csv"
    RunFolder(run, {}, [data, missing]).close()
    with mock.patch.object(files, "sha256", side_effect=AssertionError):
        RunFolder(run, {}, [data]).close()  # no file is hashed
    os.utime(data, ns=(0, 0))  # as after `touch` or a copy
    RunFolder(run, {}, [data]).close()
    for text in ("a,c", "a,b,c"):
        data.write_text(text)
        with pytest.raises(InputError, match="data.csv changed since"):
            RunFolder(run, {}, [data])
    (run / "metrics.jsonl").touch()
    (run / "run.json").unlink()
    with pytest.raises(InputError, match="holds no run"):
        RunFolder(run, {}, [data])


def test_an_input_that_changes_while_it_is_read_is_named(tmp_path):
    data, run = tmp_path / "data.csv", tmp_path / "run"
    data.write_text("a,b")
    before = {str(data): files.describe_version(data)}
    refused = pytest.raises(InputError, match="data.csv changed while the run")
    with refused, RunFolder(run, {}, [data]) as folder:
        folder.check_inputs()
        os.utime(data, ns=(0, 0))  # the same bytes
        folder.check_inputs()
        data.write_text("a,c")
        folder.check_inputs()
    refused = pytest.raises(InputError, match="data.csv changed while the run")
    with refused, RunFolder(run, {}, [data]) as folder:
        folder.check_inputs()
        folder.check_inputs(before)  # the rows are those of "a,b"
    assert not run.exists()  # so the next command is not refused


@pytest.fixture
def finished(tmp_path):
    """A run folder with a finished stage that wrote a file and a folder."""
    with RunFolder(tmp_path, SETTINGS) as run:
        assert run.read_results("corpus") is None
        with run.output("corpus.txt") as path:
            json_files.write_json("text", path)
            assert not os.path.exists(run.file("corpus.txt"))
        with run.output("model") as path:
            os.makedirs(f"{path}/inner")
            json_files.write_json("weights", f"{path}/inner/weights")
        run.finish("corpus", {"documents": 3}, ["corpus.txt", "model"])
        assert run.read_results("corpus") == {"documents": 3}
    return tmp_path


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def change(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def garble(path):
    path.write_text('{"results": 3, "outputs": []}')


@pytest.mark.parametrize("damage", [cut, empty, change, garble, os.remove])
@pytest.mark.parametrize(
    "name", ["corpus.txt", "model/inner/weights", "stages/corpus.json"]
)
def test_damage_to_a_finished_stage_is_named_with_its_fix(
    finished, name, damage
):
    damage(finished / name)
    record = finished / "stages" / "corpus.json"
    with RunFolder(finished, SETTINGS) as run:
        if record.exists():
            with pytest.raises(InputError, match=name) as raised:
                run.read_results("corpus")
            assert f"remove {record}" in str(raised.value)
            record.unlink()
        assert run.read_results("corpus") is None


def test_a_run_reads_a_record_of_any_size(tmp_path):
    results = {"text": "x" * (json_files.MAX_JSON_BYTES + 1)}
    with RunFolder(tmp_path, SETTINGS) as run:
        run.finish("large", results)
        assert run.read_results("large") == results


def test_a_second_process_is_refused_at_once_with_host_and_pid(tmp_path):
    program = (
        "import sys; from bert_keras.run_folder import RunFolder;"
        "run = RunFolder(sys.argv[1], {}); print('held', flush=True);"
        "sys.stdin.read()"
    )
    with (
        waiting_process(program, tmp_path, "held") as holder,
        pytest.raises(InputError, match=f"process {holder.pid} on host"),
    ):
        RunFolder(tmp_path, {})
    RunFolder(tmp_path, {}).close()  # the lock ends with its process


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": "x"}', "\0" * 9999]
)
def test_the_content_of_a_lock_does_not_matter(tmp_path, content):
    (tmp_path / ".lock").write_text(content)
    with RunFolder(tmp_path, {}):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(InputError, match="in use by another process"):
            RunFolder(tmp_path, {})


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path.parent.parent / "precious"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
)
def test_a_lock_that_is_not_a_file_is_refused(tmp_path, make):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / ".lock")
    with pytest.raises(InputError, match="not a regular file"):
        RunFolder(tmp_path / "run", {})
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_lock_that_was_replaced_is_noticed(tmp_path):
    with RunFolder(tmp_path, {}) as run:
        run.check()
        (tmp_path / ".lock").unlink()
        with (
            RunFolder(tmp_path, {}),
            pytest.raises(InputError, match="taken over by process"),
        ):
            run.check()


@pytest.mark.parametrize("other", [False, True])
def test_a_run_that_was_renamed_makes_nothing_in_its_old_place(tmp_path, other):
    path, moved = tmp_path / "run", tmp_path / "moved"
    before = {}
    with (
        pytest.raises(InputError, match="renamed or removed|taken over"),
        RunFolder(path, {"seed": 1}) as run,
    ):
        path.rename(moved)
        if other:  # another run begins in the old place
            path.mkdir()
            for name in (".lock", "run.json"):
                (path / name).write_text("another run's")
            before = {p: p.read_bytes() for p in path.iterdir()}
        for write in (
            lambda: run.finish("a", 1),
            lambda: write_manifest(run.file("best.json"), {}),
        ):
            with pytest.raises(InputError, match="was renamed|taken over"):
                write()
        with run.output("model/a.txt") as partial:
            pytest.fail(f"{partial} was made")
    assert path.exists() == other
    assert before == {p: p.read_bytes() for p in path.glob("*")}
    assert sorted(p.name for p in moved.iterdir()) == [".lock", "run.json"]
    with RunFolder(moved, {"seed": 1}):
        pass


def test_a_mistake_leaves_the_results_so_far_and_no_empty_folder(tmp_path):
    folder = tmp_path / "run"
    for results in (None, {"loss": 2}):
        with (
            pytest.raises(InputError, match="mistake"),
            RunFolder(folder, {"a": 1}) as run,
        ):
            if results:
                run.finish("stage", results)
            raise InputError("a mistake")
        assert folder.exists() == bool(results)
    with RunFolder(folder, {"a": 1}) as run:
        assert run.read_results("stage") == {"loss": 2}


def test_weights_may_move_but_neither_change_nor_vanish(tmp_path):
    data, run = tmp_path / "data.csv", tmp_path / "run"
    data.write_text("a,b")
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights")

    def resume(folder, inputs=(data,)):
        weights = sorted(map(str, folder.iterdir()))
        with RunFolder(run, {}, inputs, weights=weights) as opened:
            versions = {
                str(path): files.describe_version(path)
                for path in [*inputs, *weights]
            }
            opened.check_inputs(versions)

    resume(old)
    resume(new)
    (new / "model.safetensors").write_text("others!")
    with pytest.raises(InputError, match="old/model.safetensors, .* came"):
        resume(new)
    (new / "model.safetensors").unlink()
    with pytest.raises(InputError, match="old/model.safetensors came"):
        resume(new)
    moved = new / "data.csv"
    data.rename(moved)
    with pytest.raises(InputError, match="data.csv, .*/data.csv came"):
        resume(old, [moved])


def test_a_setting_that_is_none_equals_one_that_is_not_set(tmp_path):
    # Earlier versions stored None as the learning rate of a cross-validation.
    RunFolder(tmp_path, {"seed": 1, "learning_rate": None}).close()
    RunFolder(tmp_path, {"seed": 1}).close()
    RunFolder(tmp_path, {"seed": 1, "warmup": None}).close()
    with pytest.raises(InputError, match="learning_rate was not set and is"):
        RunFolder(tmp_path, {"seed": 1, "learning_rate": 0.1})
