"""How the slow tests are noted and resumed."""

import json
import re

import proofs
import pytest

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


def test_what_has_passed_is_not_run_again_until_its_files_change(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # read each time
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    path = tmp_path / "test_of_two.py"
    path.write_text(TESTS)
    notes = tmp_path / "runs" / "notes.jsonl"

    def run(path=path):
        proofs.key_of.cache_clear()
        plugin = proofs.Proofs(notes)
        plugin.commit = "abc"
        options = ["-p", "no:cacheprovider", "-c", "/dev/null"]
        options += [f"--rootdir={tmp_path}", str(path)]
        code = pytest.main(options, plugins=[plugin])
        ran = len(notes.read_text().splitlines())
        return code, ran, capsys.readouterr().out

    code, ran, printed = run()
    assert (code, ran) == (1, 2)
    assert "so tests skip: " in printed
    assert re.search(
        r"^\| total \| 2 \| 1 \| 0 \| 0\.0 \| abc \|$", printed, re.M
    )
    code, ran, printed = run()
    assert (code, ran) == (0, 3)
    assert "test_it_fails_at_first | 1 | 0 | 0 | 0.0 | abc |" in printed
    code, ran, _ = run()
    assert (code, ran) == (0, 3)
    path.write_text(TESTS + "\n# changed\n")
    code, ran, _ = run()
    assert (code, ran) == (0, 5)
    monkeypatch.setattr(proofs, "LIMIT", 1)
    slow = tmp_path / "test_slow.py"  # a module is imported once
    slow.write_text("import time\ndef test_slow():\n    time.sleep(60)\n")
    code, ran, printed = run(slow)
    assert code == 1 and "more than 1 seconds" in printed
    last = json.loads(notes.read_text().splitlines()[-1])
    assert last["outcome"] == "failed"
