"""The record of figures: equal to the pages, and what makes one stale."""

import json
import subprocess

import pytest
from run_script import ROOT

from tools.maintenance import figures

TABLE = "| what | MB | s |\n|---|---|---|\n| a | 3 | 2.5 |\n| b | **4** | - |\n"
OTHER = "| flag | meaning |\n|---|---|\n| x | many |\n"


@pytest.fixture
def checkout(tmp_path):
    """A page with two tables under one header; the second is on record."""
    (tmp_path / "docs").mkdir()
    text = f"Before.\n\n{TABLE}\nBetween.\n\n{OTHER}\n{TABLE.replace('3', '5')}"
    (tmp_path / "README.md").write_text(f"{text}\nAfter.\n")
    entry = {
        "page": "README.md",
        "header": "| what | MB | s |",
        "number": 1,
        "command": "make demo",
        "commit": None,
        "processor": "one core",
        "date": None,
        "depends": ["code"],
        "rows": ["| a | 5 | 2.5 |", "| b | **4** | - |"],
    }
    return tmp_path, {"tables": [entry], "no_figures": []}


def test_the_tables_of_the_pages_are_those_on_record():
    record = json.loads((ROOT / figures.RECORD).read_text(encoding="utf-8"))
    assert figures.differences(record, ROOT) == []
    assert len(record["tables"]) > 40


def test_a_table_that_is_not_on_record_or_differs_is_named(checkout):
    root, record = checkout
    name = "README.md, table `| what | MB | s |`"
    assert figures.differences(record, root) == [f"{name} is not on record"]
    record["no_figures"] = [["README.md", "| what | MB | s |"]]
    assert figures.differences(record, root) == []
    record["tables"][0]["rows"][0] = "| a | 6 | 2.5 |"
    (found,) = figures.differences(record, root)
    assert found == f"{name} has other rows than docs/figures.json"
    record["tables"][0]["number"] = 2
    assert figures.differences(record, root)[0] == f"{name} is not there"


def test_rows_are_copied_either_way_and_nothing_else(checkout):
    root, record = checkout
    page = root / "README.md"
    before = page.read_text()
    rows = record["tables"][0]["rows"]
    rows[0] = "| a | 6 | 2.5 |"
    figures.copy_rows(record, root, to_pages=True)
    assert page.read_text() == before.replace("| a | 5 |", "| a | 6 |")
    page.write_text(before)
    figures.copy_rows(record, root, to_pages=False)
    assert page.read_text() == before
    written = json.loads((root / figures.RECORD).read_text(encoding="utf-8"))
    assert written["tables"][0]["rows"][0] == "| a | 5 | 2.5 |"


def test_figures_older_than_their_code_or_of_no_origin_are_stale(checkout):
    root, record = checkout
    (entry,) = record["tables"]

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        done = subprocess.run(
            ["git", *identity, *words], cwd=root, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(path):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(path)
        git("add", path)
        git("commit", "-qm", path)
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    assert figures.stale(record, root)[0].endswith("unknown commit, date")
    entry |= {"commit": commit("code/a.py"), "date": "2026-11-23"}
    commit("docs/a.md")
    assert figures.stale(record, root) == []
    commit("code/b.py")
    (found,) = figures.stale(record, root)
    assert found.endswith(f"1 changes of code since {entry['commit']}")
    entry["commit"] = "f" * 40
    (found,) = figures.stale(record, root)
    assert found.endswith("is not known here")
