import pytest

from bert_keras.data.corpus import Document
from bert_keras.data.sentences import document_sentences, split_sentences
from tests.support.shared_data import shared

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", "We stayed in.", "Why not?", "Go!"],
        ["Dr. Ito met Mrs. Gray at St. Paul's.", "They talked."],
        ["He was born at 3.15 a.m. on Sept. 5.", "It was 1.5 m of snow."],
        ["J. R. R. Tolkien wrote it.", "It is by J. S. Bach, no. 5."],
        ["They live in the U.S. and Canada.", "She moved to the U.S."],
        ["He works for Smith & Co. in York.", "He left Smith Co.", "The end."],
        ["See Fig. 3 and pp. 4-6.", "Cf. e.g. the first one, i.e. this."],
        ["1. Open the box.", "2. Look inside."],
        ["In 1990.", "Then came 1991."],
        ["He said no.", "She said yes."],
        ["“Go!” he said.", "“No.”", "She stayed."],
        ['"Is it?" she asked.', '"It is."', "He (the elder) left."],
        ["(It was late.)", "[He slept.]", "Then... silence?!", "So be it."],
        ["Wait… what?", "He waited…", "Then he left."],
        ["Use tf.data or example.com/a.b today.", "Version 2.1.3 is out."],
        ["What is vitamin C?", "It is I.", "Plan B.", "The other one."],
        ["¿Qué hora es?", "¡Son las dos!", "Él no sabe."],
        ["Он пришёл.", "Она ушла?", "Да!"],
        ["გამარჯობა მე მქვია.", "ის წავიდა."],
        ["यह एक वाक्य है।", "यह दूसरा है।"],
        ["هل جاء؟", "نعم جاء.", "ثم ذهب."],
        ["یہ ایک جملہ ہے۔", "یہ دوسرا ہے۔"],
        ["Սա նախադասություն է։", "Սա էլ։"],
    ],
    ids=lambda sentences: sentences[0],
)
def test_sentences_are_found_in_a_paragraph(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["私は学生です。", "「行くぞ！」", "彼は言った。", "本当？"],
        ["他来了。", "她走了！", "圆周率是３．１４。"],
        ["ሰው፡ነው።፡", "እኩል፡ነው።"],
        ["នេះជាប្រយោគ។", "នេះទៀត។"],
        ["ka\U000111c5", "kha\U000111c5"],
    ],
    ids=["Japanese", "Chinese", "Ethiopic", "Khmer", "Sharada"],
)
def test_scripts_without_spaces_between_sentences(sentences):
    assert split_sentences("".join(sentences)) == sentences


def test_white_space_and_empty_text_give_no_sentence():
    assert split_sentences("") == split_sentences(" \n\t ") == []
    assert split_sentences("  One.\n  Two.  ") == ["One.", "Two."]


def test_text_without_punctuation_is_one_sentence_until_it_is_too_long():
    short = "no mark at all " * 20
    assert split_sentences(short) == [short.strip()]
    pieces = split_sentences("word " * 1_000)
    assert max(map(len, pieces)) <= 1_000 and len(pieces) == 5
    assert " ".join(pieces).split() == ["word"] * 1_000
    assert list(map(len, split_sentences("x" * 2_500))) == [1000, 1000, 500]


def test_a_long_sentence_is_cut_behind_a_clause():
    clause = "a clause of some words that goes on and on, " * 40
    pieces = split_sentences(clause)
    assert all(piece.endswith(",") for piece in pieces)


def test_every_character_stays_in_order():
    files = sorted(shared("udhr").glob("*.txt"))
    assert len(files) > 300
    for file in files:
        text = file.read_text(encoding="utf-8")
        joined = "".join(split_sentences(text))
        assert "".join(joined.split()) == "".join(text.split()), file


def test_long_runs_of_one_mark_end_soon():
    """With a quadratic search, this test would take hours."""
    for text in ("." * 200_000, "a. " * 70_000, "A" * 200_000, '."' * 100_000):
        found = "".join(split_sentences(text))
        assert found.replace(" ", "") == text.replace(" ", "")


class Counted(str):
    """A string that counts the characters of all its slices."""

    copied = 0

    def __getitem__(self, part):
        found = Counted(super().__getitem__(part))
        Counted.copied += len(found)
        return found

    def strip(self):
        return Counted(super().strip())


def test_a_line_without_marks_is_copied_once_not_once_a_piece():
    line = Counted("word " * 20_000)
    assert len(split_sentences(line)) == 100
    assert Counted.copied < 5 * len(line)


def test_given_sentences_are_not_split():
    given = Document("a", ["One. Two.", "Three."], sentences_given=True)
    assert document_sentences(given) == ["One. Two.", "Three."]
    other = Document("a", ["One. Two.", "Three."])
    assert document_sentences(other) == ["One.", "Two.", "Three."]
