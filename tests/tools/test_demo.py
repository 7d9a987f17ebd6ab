"""The demo on a toy corpus: every stage, the scores, and resuming."""

import re

import pytest
from run_script import ROOT, run_script

from tools import demo

pytestmark = pytest.mark.long
WORDS = "wind rain snow storm cloud river stone field tower candle".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(40):
        lines = [
            f"In book {number} the {a} met the {b} near the {c} and {d} slept."
            for a in WORDS[number % 2 :: 2]
            for b in WORDS[::3]
            for c in WORDS
            for d in WORDS[:4]
        ]
        (corpus / f"{number}.txt").write_text("\n".join(lines))
    return folder


def run(folder, **options):
    command = [ROOT / "tools" / "demo.py", "--quick", "--corpus=corpus"]
    command += ["--output=run", "--seed=3"]
    return run_script(*command, folder=folder, **options)


@pytest.fixture(scope="module")
def done(folder):
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return done


def test_the_scores_the_answers_and_the_next_command_are_printed(done):
    assert re.search(
        r"masked tokens: [\d.]+% right; .* one: [\d.]+%", done.stdout
    )
    assert "sources of 600 sentences: " in done.stdout
    for text in demo.TYPED:
        assert f"{text} -> " in done.stdout
    assert "official_tasks.finetune --task=custom" in done.stdout


def test_the_same_command_resumes_and_another_corpus_is_refused(folder, done):
    again = run(folder)
    assert again.returncode == 0 and "Learning pieces" not in again.stdout
    assert "masked tokens: " in again.stdout
    text = (folder / "corpus" / "7.txt").read_text()
    (folder / "corpus" / "7.txt").write_text(text.replace("slept", "ran"))
    refused = run(folder)
    assert refused.returncode == 2 and "7.txt changed since" in refused.stderr
