"""How the slow tests are noted and resumed."""

import json
import re

import proofs
import pytest
from baselines.turns import machine

TESTS = """
import pathlib

def test_it_holds():
    pass

def test_it_fails_at_first():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    seen = mark.exists()
    mark.touch()
    assert seen
"""


def test_what_has_passed_is_not_run_again_until_the_code_changes(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # read each time
    path = tmp_path / "test_of_two.py"
    path.write_text(TESTS)
    notes = tmp_path / "runs" / "notes.jsonl"

    def run(state="abc"):
        plugin = proofs.Proofs(notes)
        plugin.state = state
        options = ["-p", "no:cacheprovider", "-c", "/dev/null"]
        options += [f"--rootdir={tmp_path}", str(path)]
        code = pytest.main(options, plugins=[plugin])
        ran = len(notes.read_text().splitlines())
        return code, ran, capsys.readouterr().out

    code, ran, printed = run()
    assert (code, ran) == (1, 2)
    here = machine()
    assert f"Proofs at abc, {here['processor']} ({here['kind']}):" in printed
    assert re.search(r"^\| together \| 2 \| 1 \| 0\.0 \|$", printed, re.M)
    code, ran, printed = run()
    assert (code, ran) == (0, 3)
    assert re.search(r"^\| together \| 2 \| 0 \| 0\.0 \|$", printed, re.M)
    assert "it fails at first | 1 | 0 |" in printed
    code, ran, _ = run()
    assert (code, ran) == (0, 3)
    code, ran, _ = run("def")
    assert (code, ran) == (0, 5)
    last = json.loads(notes.read_text().splitlines()[-1])
    assert (last["state"], last["outcome"]) == ("def", "passed")


def test_a_proof_is_a_test_with_all_of_its_cases():
    notes = [
        {"test": f"tests/a/test_b.py::test_it_is_so[{case}]"}
        | {"outcome": outcome, "seconds": 30.0}
        for case, outcome in enumerate(("passed", "failed", "skipped"))
    ]
    assert proofs.table(notes) == [
        "| proof | count | failures | minutes |",
        "| --- | --- | --- | --- |",
        "| tests/a/test_b.py: it is so | 2 | 1 | 1.5 |",
        "| together | 2 | 1 | 1.5 |",
    ]
