"""The doctor's script says what is wrong and what to do."""

import types

import pytest

from bert_keras.errors import InputError
from bert_keras.text.wordpiece import SPECIAL_TOKENS
from official_tasks.pretraining import run_doctor
from tools import doctor


@pytest.fixture
def examined(tmp_path, capsys):
    """Runs the script on pieces and a text; its exit code and its words."""

    def run(pieces, text=None, lowercase=True, strip_accents=None):
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
        (tmp_path / "text.txt").write_text(text or "")
        values = types.SimpleNamespace(
            vocabulary=str(tmp_path / "vocab.txt"),
            texts=str(tmp_path / "text.txt") if text else None,
            lowercase=lowercase,
            strip_accents=strip_accents,
            run=None,
        )
        return doctor.main(values), capsys.readouterr().out

    return run


PIECES = [*SPECIAL_TOKENS, "a", "##b", "the"]


def test_a_vocabulary_that_fits_its_text_is_sound(examined):
    code, told = examined(PIECES, "The ab the the abb\n")
    assert code == 0
    assert "5 words, 1.600 pieces a word, 0.0000% [UNK]" in told
    assert "most in pieces: abb (1), ab (1)" in told
    assert "Nothing is wrong" in told
    assert "1 sentences; 100.0% up to 5, 0.0% up to 10" in told
    _, told = examined(PIECES, "The ab! The a " + "the " * 8)
    assert "2 sentences; 50.0% up to 5, 50.0% up to 10" in told
    assert "the longest 10" in told
    assert examined([*PIECES, "é"], "É the", strip_accents=False)[0] == 0


@pytest.mark.parametrize(
    ("pieces", "text", "lowercase", "expected"),
    [
        (PIECES, None, False, ["Set lowercase to True"]),
        ([*PIECES, "B"], None, True, ["1 pieces: B", "Set lowercase to False"]),
        (
            [*PIECES, "B"],
            "The ab xyz abbb",
            False,
            [
                *("50.00% of 4 words: The, xyz", "learn one from this text"),
                *("[UNK]: The (1), xyz (1)", "2.00 a word: abbb, ab"),
            ],
        ),
        (
            ["[PAD]", "a", "", "a"],
            "a",
            True,
            ["line 3 is ''", "[line7]", "once. a", "[UNK], [CLS], [SEP]"],
        ),
    ],
)
def test_each_fault_comes_with_advice(
    examined, pieces, text, lowercase, expected
):
    code, told = examined(pieces, text, lowercase)
    assert code == 1
    for words in expected:
        assert words in told


def test_a_run_is_judged_by_its_folder(monkeypatch, capsys):
    monkeypatch.setattr(run_doctor, "report", lambda folder: [f"{folder}: ok"])
    values = types.SimpleNamespace(vocabulary=None, run="runs/a")
    assert doctor.main(values) == 0
    assert capsys.readouterr().out == "runs/a: ok\n"


@pytest.mark.parametrize("given", [None, "both"])
def test_one_thing_is_examined(given):
    values = types.SimpleNamespace(vocabulary=given, run=given)
    with pytest.raises(InputError, match="--vocabulary=FILE or --run=FOLDER"):
        doctor.main(values)
