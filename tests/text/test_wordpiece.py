"""The reference tokenizer follows the original BERT on all Python versions."""

import hashlib
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_keras.errors import InputError
from bert_keras.text import unicode_tables
from bert_keras.text.wordpiece import WordPiece, lower, strip_accents
from tests.support import original_wordpiece
from tests.support.strange_strings import strange_strings

pytestmark = pytest.mark.fast

CHARACTERS = list(map(chr, range(unicode_tables.CODE_POINTS)))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Version of Unicode -> number of characters that it has and 14.0 lacks, from
# the announcements of these versions.
NEWER = {"14.0.0": 0, "15.0.0": 4_489, "15.1.0": 4_489 + 627}


def reference(*pieces, **settings):
    return WordPiece([*PIECES, *pieces], **settings)


def test_the_longest_piece_is_taken_from_the_left():
    wordpiece = reference("un", "##aff", "##able", "una", "##ffable")
    assert wordpiece.pieces("unaffable") == ["una", "##ffable"]
    assert reference("un", "##aff", "##able").ids("Unaffable") == [5, 6, 7]


def test_a_word_that_cannot_be_covered_is_one_unknown():
    assert reference("a", "##b").pieces("abc ab") == ["[UNK]", "a", "##b"]


def test_an_over_long_word_is_unknown():
    assert reference("a", "##a").pieces("a" * 200) == ["a"] + ["##a"] * 199
    assert reference("a", "##a").pieces("a" * 201) == ["[UNK]"]
    assert reference("a", "##a", max_word_length=2).pieces("aaa aa") == [
        *("[UNK]", "a", "##a")
    ]


def test_characters_that_mean_nothing_vanish_inside_a_word():
    assert reference().words("a\0b\ufffdc\u200dd\x07e\u00adf") == ["abcdef"]


def test_only_white_space_separates_words():
    text = "a\tb\nc\rd\u00a0e\u3000f\u2028g\u2029h\u1680i\x0bj\x85k"
    assert reference().words(text) == [*"abcdefgh", "ijk"]


def test_punctuation_and_ideographs_stand_alone():
    assert reference().words("it's $5—ok?中文a") == [
        *("it", "'", "s", "$", "5", "—", "ok", "?", "中", "文", "a")
    ]


def test_lower_case_is_that_of_words_not_case_folding():
    assert reference(strip_accents=False).words("ΟΔΟΣ ΣΑΣ. Σ ẞ STRAßE İ") == [
        *("οδος", "σας", ".", "σ", "ß", "straße", "i̇")
    ]


def test_accents_go_with_lower_case_unless_set():
    assert reference().words("Ça ñ") == ["ca", "n"]
    assert reference(lowercase=False).words("Ça") == ["Ça"]
    assert reference(lowercase=False, strip_accents=True).words("Ça") == ["Ca"]
    assert reference(strip_accents=False).words("Ça") == ["ça"]


def test_marks_that_stay_are_in_canonical_order():
    # `strip_accents` keeps category Mc. The combining classes are 216 and 6.
    late, early = "\U0001d165", "\U00016ff0"
    assert strip_accents(f"x{late}\u0301{early}") == f"x{early}{late}"
    # U+034F has combining class 0, so no mark moves across it.
    assert strip_accents(f"x{late}\u034f{early}") == f"x{late}{early}"


def test_special_tokens_are_text_unless_kept():
    assert reference("[").words("a [MASK]") == ["a", "[", "mask", "]"]
    kept = reference("a", keep_special_tokens=True)
    assert kept.pieces("A[MASK]a [mask]") == [
        *("a", "[MASK]", "a", "[UNK]", "[UNK]", "[UNK]")
    ]


def test_bytes_that_are_not_utf8_are_dropped():
    assert reference().words(b"a\xffb\xe2\x82c\xed\xa0\x80d") == ["abcd"]


def test_a_vocabulary_needs_the_unknown_token():
    with pytest.raises(InputError, match=r"no \[UNK\]"):
        WordPiece(["a"])


def test_words_are_the_same_under_every_python():
    wordpiece = reference()
    found = [wordpiece.words(text) for text in strange_strings(1000, seed=3)]
    joined = "\n".join(" ".join(words) for words in found)
    # The expected hash is that of `original_wordpiece` under Unicode 14.0.
    digest = hashlib.sha256(joined.encode("utf-8", "surrogatepass"))
    assert digest.hexdigest()[:16] == "1c0cff5797b3d507"
    # Unicode 15 and 16 added these three characters: a punctuation mark, a
    # nonspacing mark and a capital letter.
    new = "a\U00011f43\U00010efd\ua7cb"
    assert wordpiece.words(new) == [new]


def test_the_original_leaves_out_characters_that_are_newer():
    newer = [
        character
        for character in CHARACTERS
        if unicodedata.category(character) != "Cn"
        and not original_wordpiece.ASSIGNED.match(character)
    ]
    assert len(newer) == NEWER[unicodedata.unidata_version]


def test_the_tables_are_those_of_unicode_14():
    kinds = unicode_tables.kinds()
    classes = unicode_tables.combining_classes()
    lower_case = unicode_tables.lower_case()
    decompositions = unicode_tables.decompositions()
    for code, character in enumerate(CHARACTERS):
        if not original_wordpiece.ASSIGNED.match(character):
            assert kinds[code] != unicode_tables.MARK and classes[code] == 0
            assert code not in decompositions and code not in lower_case
            continue
        is_mark = unicodedata.category(character) == "Mn"
        assert (kinds[code] == unicode_tables.MARK) == is_mark
        assert classes[code] == unicodedata.combining(character)
        expected = unicodedata.normalize("NFD", character)
        assert decompositions.get(code, character) == expected
        assert lower_case.get(code, character) == character.lower()


@settings(deadline=None)
@given(st.text("ΣΑσa.'\u0301ʰ1中\u00ad", max_size=6))
def test_words_in_lower_case_are_those_of_python(word):
    assert lower(word) == word.lower()


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_words_are_those_of_the_original(lowercase, strip):
    wordpiece = reference(lowercase=lowercase, strip_accents=strip)
    texts = strange_strings(4000, seed=1)
    texts += [f"a{chr(code)}b" for code in range(0, 0x110000, 97)]
    for text in texts:
        expected = original_wordpiece.words(text, lowercase, strip)
        assert wordpiece.words(text) == expected, text


_BODIES = st.frozensets(st.text("ab", min_size=1, max_size=4), max_size=12)


@settings(deadline=None)
@given(_BODIES, _BODIES, st.text("aabbc", min_size=1, max_size=14))
def test_pieces_are_those_of_the_original(first, rest, word):
    vocabulary = first | {f"##{body}" for body in rest}
    wordpiece = reference(*sorted(vocabulary), max_word_length=12)
    expected = original_wordpiece.pieces(word, vocabulary, 12)
    assert wordpiece.pieces(word) == expected
