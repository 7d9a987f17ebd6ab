"""A pytest plugin that deselects slow tests that passed, and prints a table.

`conftest.py` registers it under `-m long`. The plugin notes the outcome of each
test. A note is valid until one of these changes: the packages, the test's file,
conftest.py, or a helper that these files name, also through other helpers.
"""

import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from baselines.turns import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "runs" / "proofs.jsonl"  # `runs/` is ignored by git
PACKAGES = ("bert_keras", "official_tasks", "tools")
HEADER = ["test", "count", "failures", "skipped", "minutes", "commit"]
LIMIT = 1800  # seconds per test
# Slow tests that need one of these are skipped where it is missing.
MODULES = "apache_beam distributed jax keras_tuner mkdocs nbclient onnxruntime"
PROGRAMS = "gcc tensorflow_model_server"
VARIABLE = "BERT_KERAS_DATA"


def missing_prerequisites():
    """Return the names of the prerequisites that this machine lacks."""
    lacking = [
        n for n in MODULES.split() if importlib.util.find_spec(n) is None
    ]
    lacking += [n for n in PROGRAMS.split() if shutil.which(n) is None]
    return lacking + [VARIABLE] * (VARIABLE not in os.environ)


def current_commit():
    """Return the short commit hash, with "+" if tracked files have changed."""

    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
        return done.stdout.decode().strip()

    return git("rev-parse", "--short", "HEAD") + "+" * bool(git("diff", "HEAD"))


@functools.cache
def _packages_hash():
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.digest()


@functools.cache
def _helpers():
    """Return module name -> path of the tests' Python files."""
    return {path.stem: path for path in (ROOT / "tests").rglob("*.py")}


@functools.cache
def key_of(path):
    """Return a hash of the packages, the test, conftest.py and helpers."""
    waiting, seen = [ROOT / path, ROOT / "tests" / "conftest.py"], {}
    while waiting:
        file = waiting.pop()
        if file not in seen and file.exists():
            seen[file] = file.read_bytes()
            words = set(re.findall(r"\w+", seen[file].decode()))
            waiting += [f for name, f in _helpers().items() if name in words]
    digest = hashlib.sha256(_packages_hash())
    for file in sorted(seen):
        digest.update(seen[file])
    return digest.hexdigest()[:16]


def read_notes(path):
    """Return test -> its last note, if the note is still valid."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    notes = {note["test"]: note for note in map(json.loads, lines)}
    return {
        test: note
        for test, note in notes.items()
        if note.get("key") == key_of(test.partition("::")[0])
    }


def table(notes):
    """Return lines of a Markdown table: one row per function, and a total."""
    rows = {}
    for note in notes:
        row = rows.setdefault(note["test"].split("[")[0], [0, 0, 0, 0.0, set()])
        row[0] += 1
        row[1] += note["outcome"] == "failed"
        row[2] += note["outcome"] == "skipped"
        row[3] += note["seconds"] / 60
        row[4].add(note["commit"])
    total = [sum(row[i] for row in rows.values()) for i in range(4)]
    commits = set().union(*(row[4] for row in rows.values()))
    lines = [HEADER, ["---"] * len(HEADER)]
    for name, row in (*sorted(rows.items()), ("total", [*total, commits])):
        shown = [*map(str, row[:3]), f"{row[3]:.1f}", " ".join(sorted(row[4]))]
        lines.append([name, *shown])
    return [f"| {' | '.join(line)} |" for line in lines]


class Proofs:
    """The plugin. `path` is the JSONL file of notes."""

    def __init__(self, path=NOTES):
        self.path = pathlib.Path(path)
        self.commit = current_commit()
        self.seconds = {}  # test -> sum of set-up, call, tear-down
        self.outcomes = {}
        self.has_passed = False  # True if a chosen test has passed before

    def pytest_report_header(self):
        lacking = ", ".join(missing_prerequisites())
        return f"Not installed or set, so tests skip: {lacking or 'nothing'}"

    @pytest.hookimpl(trylast=True)  # after pytest selects by -k and marks
    def pytest_collection_modifyitems(self, config, items):
        notes = read_notes(self.path)
        done = {t for t, n in notes.items() if n["outcome"] == "passed"}
        passed = [item for item in items if item.nodeid in done]
        config.hook.pytest_deselected(items=passed)
        self.has_passed = bool(passed)
        items[:] = [item for item in items if item.nodeid not in done]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        def stop(*_):
            raise TimeoutError(f"The test takes more than {LIMIT} seconds.")

        signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT)
        try:
            return (yield)
        finally:
            signal.alarm(0)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0) + report.duration
        if report.failed or report.when == "call" or report.skipped:
            earlier = self.outcomes.get(name)
            self.outcomes[name] = (
                "failed" if earlier == "failed" else report.outcome
            )

    def pytest_runtest_logfinish(self, nodeid):
        # Under pytest-xdist, only the controller writes notes.
        if nodeid not in self.outcomes or "PYTEST_XDIST_WORKER" in os.environ:
            return
        note = {
            "test": nodeid,
            "key": key_of(nodeid.partition("::")[0]),
            "commit": self.commit,
            "outcome": self.outcomes[nodeid],
            "seconds": round(self.seconds[nodeid], 1),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        # Under pytest-xdist, only the workers collect tests.
        output = getattr(node, "workeroutput", {})
        self.has_passed |= output.get("has_passed", False)

    def pytest_sessionfinish(self, session, exitstatus):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["has_passed"] = self.has_passed
        is_empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
        if is_empty and self.has_passed:
            session.exitstatus = pytest.ExitCode.OK  # all have passed before

    def pytest_terminal_summary(self, terminalreporter):
        here = machine()
        terminalreporter.write_line(f"{here['processor']} ({here['kind']})\n")
        for line in table(read_notes(self.path).values()):
            terminalreporter.write_line(line)
