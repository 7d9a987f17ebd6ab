"""The proof and the benchmark of the tokenizer do what they say."""

import pytest
import tokenizer_proof

from bert_keras.text.vocabulary import write_vocabulary
from bert_keras.text.wordpiece import SPECIAL_TOKENS, WordPiece
from official_tasks.tools import benchmark_tokenizer

PIECES = [*SPECIAL_TOKENS, *"abehlnopru.", "##able", "un", "##b", "hear"]
TEXTS = ["An hour. Ça\nun b…".encode()]


@pytest.fixture
def vocabulary(tmp_path):
    write_vocabulary(PIECES, tmp_path / "vocab.txt")
    return tmp_path / "vocab.txt"


def first_parts(vocabulary):
    """Mismatches of "law = original" and "graph = law", and comparisons."""
    parts = tokenizer_proof.parts_of_proof([vocabulary], TEXTS, 40, step=20011)
    for _, (_, tally, steps, total) in zip(range(2), parts, strict=False):
        for _ in steps:
            pass
        yield tally.differing, tally.compared, total


def test_the_proof_compares_everything_and_finds_nothing(vocabulary):
    for differing, compared, total in first_parts(vocabulary):
        assert differing == 0
        assert compared == total


def test_the_proof_finds_a_law_that_is_broken(vocabulary, monkeypatch):
    monkeypatch.setattr(WordPiece, "words", lambda self, text: ["un"])
    assert all(differing for differing, *_ in first_parts(vocabulary))


def test_the_benchmark_times_only_what_all_tokenise_alike(vocabulary):
    makers = benchmark_tokenizer._tokenizers(str(vocabulary))
    lines = ["an hour", "un…", "a b"]
    kept, different = benchmark_tokenizer._agreeing(makers, lines)
    assert (kept, different) == (["an hour", "a b"], 1)
    for make in makers.values():
        assert benchmark_tokenizer._timed(make(kept, 1)) > 0
