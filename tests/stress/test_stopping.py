"""Ctrl-C and SIGTERM at every stage of a script, and a closed output pipe."""

import ast
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.run_script import ROOT

SIGNALS = [signal.SIGINT, signal.SIGTERM]
# A script that prints that it has reached a stage, then waits in it.
SCRIPT = r"""
import gc, os, sys, time
def reached(seconds=60):
    print("reached", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
stage = sys.argv.pop()
from official_tasks import cli, stopping
stopping.install()
if stage == "import":
    reached()

def main(values):
    if stage == "work":
        reached()
    elif stage == "error":  # a library makes an error of its own of it
        try:
            reached()
        except BaseException:
            raise ImportError("initialization failed") from None
    elif stage in ("collection", "destructor"):
        class Dropping:
            def __del__(self):
                reached(2)
        if stage == "collection":
            gc.callbacks.append(lambda *_: reached(2))
            gc.collect()
            gc.callbacks.clear()
        else:
            Dropping()
        time.sleep(60)
    elif stage == "module":  # one in C++ would abort, as this one does
        open("aborting.py", "w").write('''
import os, time
print("reached", flush=True)
try:
    time.sleep(2)
except BaseException:
    os.abort()
''')
        sys.path.insert(0, ".")
        import aborting
        time.sleep(60)
    elif stage == "swallowed":
        from official_tasks import progress
        with progress.bar("Reading") as update:
            try:
                reached(2)
            except BaseException:
                pass
            update(1)
    elif stage == "tidy":
        from bert_keras import files
        with files.atomic_output("result") as path:
            os.mkdir(path)
            open(path + "/a", "w").close()
            reached()
    elif stage == "module_runs":
        open("saving.py", "w").write('''
import signal, sys, time
def save(*_):
    time.sleep(0.2)
    open("saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("reached", flush=True)
time.sleep(60)
''')
        os.environ["PYTHONPATH"] += os.pathsep + os.getcwd()
        cli.run_module(["saving"])
    elif stage == "ended":
        import atexit
        atexit.register(reached)

cli.start(main)
"""


def start(stage, folder):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, stage],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "stage",
    [
        "import",
        "work",
        "error",
        "collection",
        "destructor",
        "module",
        "swallowed",
    ],
)
def test_a_signal_at_any_stage_gives_one_line_and_75(stage, number, tmp_path):
    process = start(stage, tmp_path)
    assert process.stdout.readline() == "reached\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert len(errors.splitlines()) == 1 and "Stopped" in errors


TOOLS = [
    path
    for path in sorted((ROOT / "tools").rglob("*.py"))
    if "cli.start(" in path.read_text("utf-8")
]


# `official_tasks` installs the signal handlers. Other imports take a second.
# During them, a signal without a handler would print a traceback.
# `python -m official_tasks.NAME` always imports the package first.
@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.stem)
def test_the_first_import_of_a_tool_handles_signals(path):
    first = ast.parse(path.read_text("utf-8")).body[1]
    assert isinstance(first, ast.Import)
    assert [name.name for name in first.names] == ["official_tasks"]


def test_a_signal_during_a_tools_imports_gives_one_line(tmp_path):
    (tmp_path / "absl").mkdir()  # every tool imports absl
    (tmp_path / "absl/__init__.py").write_text(
        'print("reached", flush=True)\nimport time\ntime.sleep(60)\n'
    )
    process = subprocess.Popen(
        [sys.executable, ROOT / "tools/train_vocabulary.py"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "reached\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert len(errors.splitlines()) == 1 and "Stopped" in errors


def test_a_stopped_script_leaves_nothing_half_written(tmp_path):
    process = start("tidy", tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert os.listdir(tmp_path) == []


def test_a_script_waits_until_the_script_that_it_runs_has_saved(tmp_path):
    process = start("module_runs", tmp_path)
    assert process.stdout.readline() == "reached\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert (tmp_path / "saved").exists()


def test_a_signal_after_the_work_changes_nothing(tmp_path):
    process = start("ended", tmp_path)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


def test_a_signal_soon_after_the_first_is_ignored_and_a_later_one_ends():
    program = r"""
import time
from bert_keras.interrupts import StopRequest
request = StopRequest()
request.install()
print("reached", flush=True)
while not request.is_set:
    time.sleep(0.01)
time.sleep(0.2)
print("asked", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    # `timeout` sends SIGTERM twice. Two equal signals may arrive as one, so the
    # second signal here is SIGINT.
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"asked\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT


def test_an_ignored_signal_stays_ignored(tmp_path):
    program = (
        "import signal; signal.signal(2, signal.SIG_IGN);"
        "from official_tasks import stopping; stopping.install();"
        "signal.raise_signal(2); print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert done.stdout == b"alive\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_scripts_outlive_the_reader_of_their_output(unbuffered, tmp_path):
    program = (
        "from official_tasks import cli, progress\n"
        "def main(values):\n"
        "    for i in range(9999): progress.console.print('line', i)\n"
        "    print('text', flush=True)\n"
        "    open('result', 'w').write('whole')\n"
        "cli.start(main)\n"
    )
    (tmp_path / "s.py").write_text(program)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} s.py 2>&1 | head -1; echo $PIPESTATUS",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": unbuffered,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "line 0\n0\n"
    assert (tmp_path / "result").read_text() == "whole"
