"""The commands and the Python of docs/tokenizer.md run as they stand there."""

import re
import shlex

import pytest
from run_script import ROOT, call_script

from bert_keras.text.vocabulary import read_vocabulary, write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS

PAGE = (ROOT / "docs" / "tokenizer.md").read_text(encoding="utf-8")
# Their parts have tests of their own.
SLOW = ("prove_tokenizer", "tokenizer")
# Appended to the commands, so that they take seconds.
SMALLER = {
    "prove_tokenizer": "--step=50021 --strings=30",
    "tokenizer": "--batch=2 --repeats=1",
    "train_vocabulary": "--size=120 --workers=1",
    "extend_vocabulary": "--words=3 --workers=1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the page's commands have run, in its order but the learning."""
    folder = tmp_path_factory.mktemp("page")
    letters = "abcdefghijklmnopqrstuvwxyz.,!"
    pieces = [*SPECIAL_TOKENS, *letters, *("##" + c for c in letters)]
    for name in ("uncased-vocab.txt", "cased-vocab.txt"):
        write_vocabulary(pieces, folder / name)
    lines = ["The ship sailed.", "A goat, a hill!", "The ship came home."]
    texts = {
        "books": "\n".join(lines * 4),
        "reports": "myositis myositis heals",
        "udhr": "Ça ira.\nАз.",
    }
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "1.txt").write_text(text, encoding="utf-8")
    for name, words in sorted(commands(), key=lambda c: "train" not in c[0]):
        if name in SLOW:
            continue
        done = call_script(ROOT / words[0], *words[1:], folder=folder)
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


def commands():
    """Name and words of each of the page's commands, made smaller."""
    found = re.findall(
        r"^    python tools/((?:\w+/)?(\w+)\.py .*)$", PAGE, re.M
    )
    assert {name for _, name in found} == set(SMALLER)
    for line, name in found:
        words = [*shlex.split(line), *SMALLER[name].split()]
        yield name, ["tools/" + words[0], *words[1:]]


def test_the_commands_leave_what_the_page_says(folder):
    learned = read_vocabulary(folder / "runs" / "vocab.txt")
    assert "ship" in learned
    extended = read_vocabulary(folder / "runs" / "extended.txt")
    assert extended[: len(learned)] == learned
    assert "myositis" in extended


@pytest.mark.long
def test_the_slow_commands_run(folder):
    for name, words in commands():
        if name in SLOW:
            done = call_script(ROOT / words[0], *words[1:], folder=folder)
            assert done.returncode == 0, done.stderr[-3000:]


def test_the_python_of_the_page_runs_and_says_what_it_says(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(block, names)
    (batch,) = names["dataset"]
    assert batch.to_list() == names["tokenizer"](["An hour.", "Two."]).to_list()
    assert "<" in names["slices"] and ">" in names["slices"]
    assert names["larger"].vocabulary_size == len(names["extension"].vocabulary)
