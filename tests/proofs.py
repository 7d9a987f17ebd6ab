"""Notes each finished long test, skips it when resumed, prints one table.

Registered by `conftest.py` where pytest is called with `-m long`. A proof is
one test function with all of its cases. The notes are of one state of the
code: after a change every proof is run again.
"""

import hashlib
import json
import pathlib
import subprocess

import pytest
from baselines.turns import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTES = ROOT / "runs" / "proofs.jsonl"  # `runs/` is ignored by git
LONG = pytest.StashKey()  # the long proofs of the files that were read
HEADER = ["proof", "count", "failures", "minutes"]


def proof_of(nodeid):
    """ "tests/a/test_b.py::test_c[d]" -> "tests/a/test_b.py: c"."""
    path, _, name = nodeid.partition("::")
    name = name.split("[")[0].removeprefix("test_").replace("_", " ")
    return f"{path}: {name}"


def state_of_the_code():
    """The commit, and a hash of what is changed since; "" without git."""

    def git(*words):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
        return done.stdout

    commit, changes = git("rev-parse", "--short", "HEAD"), git("diff", "HEAD")
    mark = f"+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else ""
    return commit.decode().strip() + mark


def table(notes):
    """The lines of a Markdown table: a row for each proof, and the sum."""
    rows = {}
    for note in notes:
        row = rows.setdefault(proof_of(note["test"]), [0, 0, 0.0])
        row[0] += note["outcome"] != "skipped"
        row[1] += note["outcome"] == "failed"
        row[2] += note["seconds"] / 60
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    shown = [*sorted(rows.items()), ("together", sums or [0, 0, 0.0])]
    lines = [HEADER, ["---"] * len(HEADER)]
    lines += [
        [name, *map(str, row[:2]), f"{row[2]:.1f}"] for name, row in shown
    ]
    return [f"| {' | '.join(line)} |" for line in lines]


class Proofs:
    """The plugin. `path` is the file of notes, one JSON object a line."""

    def __init__(self, path=NOTES):
        self.path = pathlib.Path(path)
        self.state = state_of_the_code()
        self.notes = {}  # test -> its last note
        self.seconds = {}  # test -> set-up, call and tear-down so far
        self.outcomes = {}

    def pytest_collection_modifyitems(self, config, items):
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                note = json.loads(line)
                if note["state"] == self.state:
                    self.notes[note["test"]] = note
        here = {item.nodeid for item in items}
        self.notes = {t: n for t, n in self.notes.items() if t in here}
        done = {t for t, n in self.notes.items() if n["outcome"] == "passed"}
        config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid in done]
        )
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0) + report.duration
        if report.failed or report.when == "call" or report.skipped:
            earlier = self.outcomes.get(name)
            self.outcomes[name] = (
                "failed" if earlier == "failed" else report.outcome
            )

    def pytest_runtest_logfinish(self, nodeid):
        if nodeid not in self.outcomes:  # interrupted
            return
        self.notes[nodeid] = {
            "test": nodeid,
            "state": self.state,
            "outcome": self.outcomes[nodeid],
            "seconds": round(self.seconds[nodeid], 1),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.notes[nodeid]) + "\n")

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.notes:
            session.exitstatus = pytest.ExitCode.OK  # all have passed before

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        here = machine()
        write(
            f"Proofs at {self.state or 'no commit'}, {here['processor']} "
            f"({here['kind']}):\n"
        )
        for line in table(self.notes.values()):
            write(line)
