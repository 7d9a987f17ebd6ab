"""The tokenizer is exact; docs/exactness.md has the results of these tests.

BERT_KERAS_STEP=1 compares every code point; the default is one in 31.
"""

import collections
import itertools
import os
import unicodedata
from pathlib import Path

import pytest

from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.vocabulary import read_vocabulary
from bert_keras.text.wordpiece import WordPiece
from tests.support import original_wordpiece
from tests.support.strange_strings import strange_strings

DATA = Path(os.environ.get("BERT_KERAS_DATA", "none"), "data")
STEP = int(os.environ.get("BERT_KERAS_STEP", 31))
# A code point (`_`): alone, in a word, next to punctuation, near a final sigma.
FORMS = ("_", "un_able", "x_. (_Ab", "ΑΣ_ _Σ")
MEGABYTES = [b"un" * 500_000, "…é".encode() * 200_000]  # one word, many words
BATCH = 20_000

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs BERT_KERAS_DATA"),
]


def batches():
    """Yield code points in each form, strange strings, texts and lines."""
    texts = [path.read_bytes() for path in sorted(DATA.glob("udhr/*.txt"))]
    assert len(texts) > 300
    strings = itertools.chain(
        (
            form.replace("_", chr(code)).encode("utf-8", "surrogatepass")
            for code in range(0, 0x110000, STEP)
            for form in FORMS
        ),
        strange_strings(100_000 // STEP, seed=0),
        texts[:20],
        MEGABYTES,
        (line for text in texts for line in text.split(b"\n")),
    )
    while batch := list(itertools.islice(strings, BATCH)):
        yield batch


def vocabulary(case):
    return DATA / "vocab" / f"bert-base-{case}-vocab.txt"


def assert_no_difference(compared, wrong):
    print(f"{compared:,} comparisons, {len(wrong):,} differences")
    assert compared > 50_000 and not wrong, wrong[:20]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_the_reference_equals_the_rules_of_the_original(lowercase, strip):
    reference = WordPiece(["[UNK]"], lowercase, strip)
    compared, wrong = 0, []
    for text in itertools.chain.from_iterable(batches()):
        compared += 1
        if reference.words(text) != original_wordpiece.words(
            text, lowercase, strip
        ):
            wrong.append(ascii(text)[:200])
    assert_no_difference(compared, wrong)


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_both_paths_equal_the_reference(case):
    pieces = read_vocabulary(vocabulary(case))
    for lowercase in (True, False):
        reference = WordPiece(pieces, lowercase)
        tokenizers = [
            WordPieceTokenizer(pieces, lowercase, portable=portable)
            for portable in (False, True)
        ]
        compared, wrong = 0, []
        for batch in batches():
            expected = list(map(reference.ids, batch))
            for tokenizer in tokenizers:
                found = tokenizer(batch).to_list()
                compared += len(batch)
                wrong += [
                    ascii(text)[:200]
                    for text, ids, right in zip(
                        batch, found, expected, strict=True
                    )
                    if ids != right
                ]
        assert_no_difference(compared, wrong)


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_the_reference_equals_tokenizers_where_the_page_says(case):
    import tokenizers as peers

    path, lowercase = vocabulary(case), case == "uncased"
    peer = peers.BertWordPieceTokenizer(str(path), lowercase=lowercase)
    # `tokenizers` limits words to 100 characters and reads "[MASK]" as a token.
    reference = WordPiece(
        read_vocabulary(path),
        lowercase,
        max_word_length=100,
        keep_special_tokens=True,
    )
    differing = find_differing_characters(peer, reference)
    reasons = collections.Counter(map(find_reason, differing))
    # The number depends on the Unicode version of the installed `tokenizers`.
    assert reasons.pop("Unicode version") > 0
    assert reasons == {"private use": 137_468, "extension E": 256}
    left_out = differing | {"Σ"} if lowercase else differing
    compared, wrong = 0, []
    for batch in batches():
        texts = [text.decode("utf-8", "ignore") for text in batch]
        texts = [text for text in texts if left_out.isdisjoint(text)]
        found = peer.encode_batch(texts, add_special_tokens=False)
        compared += len(texts)
        wrong += [
            ascii(text)[:200]
            for text, encoding in zip(texts, found, strict=True)
            if encoding.ids != reference.ids(text)
        ]
    assert_no_difference(compared, wrong)


def find_differing_characters(peer, reference):
    """Return the set of characters that `tokenizers` splits differently."""
    pipeline, found = peer._tokenizer, set()
    # all code points but the surrogates
    for character in map(chr, (*range(0xD800), *range(0xE000, 0x110000))):
        normal = pipeline.normalizer.normalize_str(f"a{character}b")
        split = pipeline.pre_tokenizer.pre_tokenize_str(normal)
        words = reference.words(f"a{character}b")
        if [word for word, _ in split] != words:
            found.add(character)
    return found


def find_reason(character):
    """Return the reason in docs/exactness.md; if none, the character."""
    category = unicodedata.category(character)
    if category == "Co":
        return "private use"
    if "\U0002b820" <= character <= "\U0002b91f":
        return "extension E"
    old = unicodedata.ucd_3_2_0.category(character)
    is_newer = old == "Cn" or old != category
    return "Unicode version" if is_newer else character
