"""One run in a folder: its settings, finished stages, and one writer."""

import fcntl
import json
import os
import socket
import subprocess
import threading
import time

import pytest
from run_script import waiting_process

from bert_keras import files, run_folder
from bert_keras.errors import InputError
from bert_keras.run_folder import RunFolder

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
    RunFolder(tmp_path, SETTINGS).close()  # the refusal let the folder go


def test_a_foreign_folder_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="thesis.txt"):
        RunFolder(tmp_path, SETTINGS)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_mistake_inside_an_inner_run_leaves_the_outer_folder_free(tmp_path):
    with (
        pytest.raises(InputError, match="513"),
        RunFolder(tmp_path / "run", SETTINGS) as run,
        RunFolder(run.file("runs", "seed_0"), SETTINGS),
    ):
        raise InputError("513")
    RunFolder(tmp_path / "run", {"other": 1}).close()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run", SETTINGS)
    other = tmp_path / "other"
    other.mkdir()
    (other / "run.json").write_text("[1]")
    with pytest.raises(InputError, match="not the settings file"):
        RunFolder(other, SETTINGS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="not writable"):
        RunFolder(tmp_path / "new", SETTINGS)


def test_a_kill_while_the_folder_was_made_does_not_make_it_foreign(tmp_path):
    (tmp_path / ".lease").write_text("")
    (tmp_path / ".run.json.partial-12").write_text("{")
    RunFolder(tmp_path, SETTINGS).close()
    assert sorted(os.listdir(tmp_path)) == [".lease", "run.json"]


def test_a_finished_stage_is_remembered_while_its_output_stands(tmp_path):
    with RunFolder(tmp_path, SETTINGS) as run:
        assert run.done("corpus") is None
        with run.output("corpus.txt") as path:
            files.write_json("text", path)
            assert not os.path.exists(run.file("corpus.txt"))
        run.finish("corpus", {"documents": 3}, outputs=["corpus.txt"])
    with RunFolder(tmp_path, SETTINGS) as run:
        assert run.done("corpus") == {"documents": 3}
        os.remove(run.file("corpus.txt"))
        assert run.done("corpus") is None


def held_by(folder, **changes):
    """Rewrites the lease in `folder` as if another held it."""
    with open(folder / ".lease", "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the holder may be writing it
        holder = json.load(file) | changes
        file.seek(0)
        file.truncate()
        json.dump(holder, file)


def test_who_comes_while_the_lease_is_being_written_waits(tmp_path):
    """Else two read at once that it is free, and both write a lease."""
    came = threading.Event()

    def come():
        RunFolder(tmp_path, {}).close()
        came.set()

    with open(tmp_path / ".lease", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Thread(target=come, daemon=True).start()
        assert not came.wait(0.3)
    assert came.wait(60)


def test_a_second_process_is_refused_at_once_with_host_and_pid(tmp_path):
    program = (
        "import sys; from bert_keras.run_folder import RunFolder;"
        "run = RunFolder(sys.argv[1], {}); print('held', flush=True);"
        "sys.stdin.read()"
    )
    with waiting_process(program, tmp_path, "held") as holder:
        began = time.monotonic()
        with pytest.raises(InputError, match=f"process {holder.pid} on host"):
            RunFolder(tmp_path, {})
        assert time.monotonic() - began < 1
    RunFolder(tmp_path, {}).close()  # a dead process frees it at once


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc")
def test_a_dead_process_that_nobody_waited_for_holds_nothing(tmp_path):
    with subprocess.Popen(["sleep", "600"]) as child:
        RunFolder(tmp_path, {}).close()
        held = {"host": socket.gethostname(), "pid": child.pid, "renewed": 0.0}
        started = run_folder._process_started(child.pid)
        held |= {"process_started": started, "token": ""}
        (tmp_path / ".lease").write_text(json.dumps(held))
        with pytest.raises(InputError, match=f"process {child.pid} on"):
            RunFolder(tmp_path, {})
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        RunFolder(tmp_path, {}).close()


def test_a_process_number_counts_with_the_start_of_the_process(
    tmp_path, monkeypatch
):
    run = RunFolder(tmp_path, {})
    held_by(tmp_path, process_started=-1)
    RunFolder(tmp_path, {}).close()
    run.close()
    run = RunFolder(tmp_path, {})  # where it cannot be read, it is alive
    monkeypatch.setattr(run_folder, "_process_started", lambda pid: None)
    with pytest.raises(InputError, match=f"process {os.getpid()} on host"):
        RunFolder(tmp_path, {})
    run.close()


def test_a_lease_of_another_host_is_void_after_three_minutes(tmp_path):
    run = RunFolder(tmp_path, {})
    held_by(tmp_path, host="elsewhere", renewed=time.time() - 170)
    with pytest.raises(InputError, match="on host elsewhere"):
        RunFolder(tmp_path, {})
    held_by(tmp_path, host="elsewhere", renewed=time.time() - 181)
    RunFolder(tmp_path, {}).close()
    run.close()


def test_a_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "RENEWED_EVERY", 0.02)
    with RunFolder(tmp_path, {}) as run:
        held_by(tmp_path, renewed=0.0)
        patience = time.monotonic() + 10
        while (
            json.loads((tmp_path / ".lease").read_text() or "{}").get(
                "renewed", 0
            )
            < time.time() - 5
        ):
            time.sleep(0.01)
            assert time.monotonic() < patience
        run.check()


def test_a_lease_that_was_taken_over_is_noticed(tmp_path):
    with RunFolder(tmp_path, {}) as run:
        held_by(tmp_path, host="elsewhere", token="another")
        with pytest.raises(InputError, match="taken over"):
            run.check()
    # Closing it does not free what the other holds.
    with pytest.raises(InputError, match="on host elsewhere"):
        RunFolder(tmp_path, {})


def test_torn_leases_do_not_lock_for_ever(tmp_path):
    for content in ('{"host": "a", "pi', "[]", "3", '{"host": 1}'):
        (tmp_path / ".lease").write_text(content)
        RunFolder(tmp_path, {}).close()


def test_a_mistake_leaves_the_results_so_far_and_no_empty_folder(tmp_path):
    folder = tmp_path / "run"
    for figures in (None, {"figure": 2}):
        with (
            pytest.raises(InputError, match="mistake"),
            RunFolder(folder, {"a": 1}) as run,
        ):
            if figures:
                run.finish("stage", figures)
            raise InputError("a mistake")
        assert folder.exists() == bool(figures)
    with RunFolder(folder, {"a": 1}) as run:
        assert run.done("stage") == {"figure": 2}
