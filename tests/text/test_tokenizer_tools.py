"""The proof and the benchmark of the tokenizer do what they say."""

import json
import types
import unicodedata

import pytest
import tokenizer_proof

from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS, WordPiece
from tools.benchmark import tokenizer

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]
TEXTS = ["An hour. Ça\nun b…".encode()]
needs_unicode_14 = pytest.mark.skipif(
    unicodedata.unidata_version != "14.0.0",
    reason="the proof needs the Unicode 14.0 of Python 3.11",
)


@pytest.fixture
def vocabulary(tmp_path):
    write_vocabulary(PIECES, tmp_path / "vocab.txt")
    return tmp_path / "vocab.txt"


def first_parts(vocabulary):
    """Mismatches and comparisons of the first two parts."""
    parts = tokenizer_proof.parts_of_proof([vocabulary], TEXTS, 40, step=20011)
    for _, (_, tally, steps, total) in zip(range(2), parts, strict=False):
        for _ in steps:
            pass
        yield tally.differing, tally.compared, total


@needs_unicode_14
def test_the_proof_compares_everything_and_finds_nothing(vocabulary):
    differing, compared, total = zip(*first_parts(vocabulary), strict=True)
    assert differing == (0, 0)
    assert compared == total


@needs_unicode_14
def test_the_proof_finds_a_reference_that_is_broken(vocabulary, monkeypatch):
    monkeypatch.setattr(WordPiece, "words", lambda self, text: ["un"])
    assert all(differing for differing, *_ in first_parts(vocabulary))


def test_the_benchmark_leaves_out_lines_with_other_ids(vocabulary, tmp_path):
    makers = tokenizer.make_tokenizers(str(vocabulary))
    lines = ["an hour", "[MASK]", "un…", "a b"]  # to `tokenizers` a token
    assert tokenizer.compare_ids(makers, lines) == ["an hour", "un…", "a b"]
    (tmp_path / "text.txt").write_text("an hour\n\nun able\n\na b\n")
    values = types.SimpleNamespace(
        vocabulary=str(vocabulary),
        input=str(tmp_path / "text.txt"),
        output=str(tmp_path / "speed.json"),
        overwrite=False,
        megabytes=1,
        batch=1,
        turns=1,
    )
    tokenizer.main(values)
    report = json.loads((tmp_path / "speed.json").read_text())
    assert report["lines"] == 3 and report["lines left out"] == 0
    assert len(report["ms a megabyte"]) == 3
    for row in report["ms a line"].values():
        assert 0 < row["least"] <= row["most"]
