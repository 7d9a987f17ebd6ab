r"""Writes the Unicode tables that the tokenizer uses.

    python3.11 tools/maintenance/make_unicode_tables.py \
        bert_keras/text/unicode_14.npz

In: `unicodedata` of Python 3.11, which has Unicode 14.0, and the installed
tensorflow-text. Out: bert_keras/text/unicode_14.npz. Takes seconds. Run the
script only to change which tables the file has. Do not use a newer Unicode,
because it changes the ids of some texts. Published weights need the old ids.
"""

import sys
import unicodedata

import numpy as np

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.wordpiece import WordPiece

VERSION = "14.0.0"
SIGMA = "\u03a3"

# Ranges of the ideographs around which the original BERT inserts spaces.
IDEOGRAPHS = [
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
]
# Ranges of visible ASCII characters, except letters and digits.
ASCII_PUNCTUATION = [
    range(0x21, 0x30),
    range(0x3A, 0x41),
    range(0x5B, 0x61),
    range(0x7B, 0x7F),
]


def kind(character):
    """Return the number of a character's type; see `unicode_tables`."""
    code = ord(character)
    category = unicodedata.category(character)
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return 2
    if code in (0, 0xFFFD) or category in ("Cc", "Cf"):
        return 1
    if category[0] == "P" or any(code in part for part in ASCII_PUNCTUATION):
        return 3
    if category == "Mn":
        return 4
    return 5 if any(code in part for part in IDEOGRAPHS) else 0


def sigma_role(character):
    """Return the role of a character in Unicode's rule for the final sigma.

    The rule chooses between the two lower-case forms of a capital sigma. It
    skips Case_Ignorable characters; their role is 1. The role of other cased
    characters is 2. All other characters have the role 0.
    `unicodedata` lacks these properties, so this function finds the role from
    the result of `str.lower` for a sigma after the character.
    """
    alone = (character + SIGMA).lower()[-1] == "\u03c2"
    after_a_letter = ("a" + character + SIGMA).lower()[-1] == "\u03c2"
    return 2 if alone else int(after_a_letter)


def make_table(function):
    """Return a uint8 array: the result of `function` for every code point."""
    every = map(chr, range(unicode.CODE_POINTS))
    return np.array(list(map(function, every)), np.uint8)


def make_pairs(function):
    """Return str (N, 2): (c, function(c)) for each character that changes."""
    pairs = ((c, function(c)) for c in map(chr, range(unicode.CODE_POINTS)))
    return np.array([pair for pair in pairs if pair[0] != pair[1]])


def find_plain(lowercase):
    """Return a table: 1 for the code points of `plain_among`, else 0.

    Characters that are not in Unicode 3.2 get 0, because their treatment
    depends on the ICU version of tensorflow-text.
    """
    category = unicodedata.ucd_3_2_0.category
    every = map(chr, range(unicode.CODE_POINTS))
    known = [c for c in every if category(c) not in ("Cn", "Co", "Cs")]
    codes = plain_among(known, lowercase)
    return make_table(lambda character: ord(character) in codes)


def plain_among(characters, lowercase):
    """Return code points that tensorflow-text and `WordPiece` split alike.

    Code points for which `depends_on_neighbours` is True are left out.
    """
    characters = [
        c for c in characters if not depends_on_neighbours(c, lowercase)
    ]
    reference = WordPiece(["[UNK]"], lowercase)
    texts = [f"a{character}a" for character in characters]
    words = tensorflow_words(texts, lowercase)
    return {
        ord(character)
        for character, text, found in zip(characters, texts, words, strict=True)
        if found == reference.words(text)
    }


def depends_on_neighbours(character, lowercase):
    """Return True if neighbours change how `character` is normalised."""
    code = ord(character)
    is_mark = unicode.combining_classes()[code] > 0
    is_accent = unicode.kinds()[code] == unicode.MARK
    is_sigma = character == unicode.CAPITAL_SIGMA
    return lowercase and (is_sigma or (is_mark and not is_accent))


def tensorflow_words(texts, lowercase):
    """Split each text into words by tensorflow-text."""
    import tensorflow_text as tf_text

    normalizer = tf_text.FastBertNormalizer(lowercase)
    normalized = normalizer.normalize(texts)
    characters = {c for text in normalized.numpy() for c in text.decode()}
    visible = [c for c in sorted(characters) if c not in " \0"]
    # Each character is two tokens: one begins a word, one ("##") continues it.
    vocabulary = ["[UNK]", *visible, *("##" + c for c in visible)]
    splitter = tf_text.FastWordpieceTokenizer(vocabulary, token_out_type=str)
    return [
        merge_words(piece.decode() for piece in pieces)
        for pieces in splitter.tokenize(normalized).to_list()
    ]


def merge_words(pieces):
    words = []
    for piece in pieces:
        if len(piece) > 2 and piece.startswith("##"):
            words[-1] += piece[2:]
        else:
            words.append(piece)
    return words


def main(path):
    if unicodedata.unidata_version != VERSION:
        raise SystemExit(
            f"The tables are pinned to Unicode {VERSION}; this Python has "
            f"{unicodedata.unidata_version}. Run the script with Python 3.11."
        )
    tables = {
        "kinds": make_table(kind),
        "combining_classes": make_table(unicodedata.combining),
        "sigma_roles": make_table(sigma_role),
        "lower_case": make_pairs(str.lower),
        "decompositions": make_pairs(
            lambda character: unicodedata.normalize("NFD", character)
        ),
    }
    # `find_plain` compares tensorflow-text with `WordPiece`, which must use the
    # new tables.
    unicode.table = tables.__getitem__
    for name, lowercase in (("plain_uncased", True), ("plain_cased", False)):
        tables[name] = find_plain(lowercase)
    np.savez_compressed(path, **tables)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    main(sys.argv[1])
