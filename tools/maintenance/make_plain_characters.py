"""Writes which characters tensorflow-text treats as the law does.

In: the installed tensorflow-text, asked about every character that Unicode
3.2 already had (newer ones may differ with its ICU). Out: a module of data
that bert_keras/text/fast.py reads. Takes seconds; the tests ask again.

    python3.11 tools/maintenance/make_plain_characters.py plain_characters.py
"""

import sys
import unicodedata

import tensorflow_text as tf_text
from make_unicode_tables import (
    assignment,
    differences,
)

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.wordpiece import WordPiece

HEADER = '''"""Characters that tensorflow-text treats as the law does: data.

Generated: python3.11 tools/maintenance/make_plain_characters.py THIS_FILE
Base85 of zlib of 32-bit little-endian integers: where a stretch of such
characters begins, where it ends, and so on, each less the one before it.
"""
'''


def long_known():
    """The characters of Unicode 3.2."""
    category = unicodedata.ucd_3_2_0.category
    every = map(chr, range(unicode.CODE_POINTS))
    return [c for c in every if category(c) not in ("Cn", "Co", "Cs")]


def agreeing(characters, lowercase):
    """Code points of those that become the same words inside a word."""
    characters = [c for c in characters if not may_move(c, lowercase)]
    law = WordPiece(["[UNK]"], lowercase)
    texts = [f"a{character}a" for character in characters]
    words = tensorflow_words(texts, lowercase)
    return {
        ord(character)
        for character, text, found in zip(characters, texts, words, strict=True)
        if found == law.words(text)
    }


def may_move(character, lowercase):
    """Whether what the character becomes depends on its neighbours."""
    code = ord(character)
    is_mark = unicode.combining_classes()[code] > 0
    is_accent = unicode.kinds()[code] == unicode.MARK
    is_sigma = character == unicode.CAPITAL_SIGMA
    return lowercase and (is_sigma or (is_mark and not is_accent))


def tensorflow_words(texts, lowercase):
    """Words that tensorflow-text finds: its normaliser, then its splitter."""
    normalizer = tf_text.FastBertNormalizer(lowercase)
    normalized = normalizer.normalize(texts)
    characters = {c for text in normalized.numpy() for c in text.decode()}
    visible = [c for c in sorted(characters) if c not in " \0"]
    # With every character a piece, where a word begins can be read off.
    vocabulary = ["[UNK]", *visible, *("##" + c for c in visible)]
    splitter = tf_text.FastWordpieceTokenizer(vocabulary, token_out_type=str)
    return [
        joined(piece.decode() for piece in pieces)
        for pieces in splitter.tokenize(normalized).to_list()
    ]


def joined(pieces):
    words = []
    for piece in pieces:
        if len(piece) > 2 and piece.startswith("##"):
            words[-1] += piece[2:]
        else:
            words.append(piece)
    return words


def borders(codes):
    """Where stretches of `codes` begin and end, each less the one before."""
    ends = range(unicode.CODE_POINTS + 1)
    return differences([c for c in ends if (c in codes) != (c - 1 in codes)])


def main(path):
    known = long_known()
    tables = {"UNCASED": agreeing(known, True), "CASED": agreeing(known, False)}
    body = [assignment(name, borders(codes)) for name, codes in tables.items()]
    with open(path, "w", encoding="ascii") as file:
        file.write(HEADER + "\n" + "\n".join(body))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
