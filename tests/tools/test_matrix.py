"""The matrix of Pythons and versions: what it looks for and what it prints."""

import configparser
import re
import subprocess
import sys
from types import SimpleNamespace

from page_commands import flags_of
from run_script import ROOT, call_script

from tools.maintenance import matrix

SETUP = (ROOT / "setup.cfg").read_text(encoding="utf-8")


def test_an_interpreter_is_found_by_what_it_says(monkeypatch, tmp_path):
    here = "{}.{}".format(*sys.version_info)
    path = matrix.find_python(here)
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    done = subprocess.run([path, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == here
    # One that does not run, as a shim of pyenv, is none.
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert matrix.find_python("3.12") is None
    row = matrix.try_one(SimpleNamespace(output=tmp_path), "", "3.12", "newest")
    assert row["outcome"] == "skipped: no python3.12 here"


def test_the_make_target_gives_flags_that_there_are():
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"^\t.*?(tools/\S+matrix.py .*)$", makefile, re.M)
    script, *given = command.split()
    given = {w.split("=")[0][2:] for w in given if w.startswith("--")}
    assert given == {"output"} and given < flags_of(ROOT / script)


def test_versions_are_newest_or_lowest(monkeypatch, tmp_path):
    def run(words, **_):
        return subprocess.CompletedProcess(words, 0, "")

    monkeypatch.setattr(subprocess, "run", run)
    script = ROOT / "tools" / "maintenance" / "matrix.py"
    words = [script, "--output=out", "--python="]  # no Python: no environment
    assert call_script(*words, folder=tmp_path).returncode == 0
    done = call_script(*words, "--versions=oldest", folder=tmp_path)
    assert done.returncode != 0
    assert "expected newest or lowest" in done.stderr


def test_every_dependency_but_one_is_taken_as_a_wheel():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lists = [setup["options"]["install_requires"]]
    lists += setup["options.extras_require"].values()
    lines = [line for text in lists for line in text.split("\n")]
    named = {line.split(">=")[0] for line in lines if line.strip("# ")}
    named = {name for name in named if "[" not in name}
    assert named - set(matrix.compiled(SETUP)) == {"seqeval"}
    assert len(named) > 30


def test_the_table_has_a_row_an_environment():
    rows = [
        {"Python": "3.11", "dependencies": "lowest", "numpy": "2.0.0"},
        {"Python": "3.12", "dependencies": "newest", "outcome": "3 passed"},
    ]
    lines = matrix.table(rows).splitlines()
    assert lines[2] == "| 3.11 | lowest |  |  | 2.0.0 |  |  |"
    assert lines[3] == "| 3.12 | newest |  |  |  | 3 passed |  |"
