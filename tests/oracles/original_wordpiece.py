"""The original BERT's rules for text, restated; shares nothing with ours.

The rules are those of tokenization.py as published in 2018 and 2019, told by
categories that `unicodedata` gives: run it under Python 3.11, whose Unicode
is the 14.0 that our tables are pinned to.
"""

import functools
import unicodedata

IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
ASCII_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def words(text, lowercase=True, strip_accents=None):
    """Normalised words; `strip_accents` goes with `lowercase` by default."""
    if strip_accents is None:
        strip_accents = lowercase
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="ignore")
    found = []
    for word in "".join(map(cleaned, text)).split():
        if lowercase:
            word = word.lower()
        if strip_accents:
            parts = unicodedata.normalize("NFD", word)
            word = "".join(c for c in parts if category(c) != "Mn")
        found += "".join(map(set_apart, word)).split()
    return found


def pieces(word, vocabulary, max_word_length=200):
    """Greedy pieces of one word; `vocabulary` is a set."""
    if len(word) > max_word_length:
        return ["[UNK]"]
    found, rest = [], word
    while rest:
        prefix = "##" if found else ""
        fitting = [
            rest[:length]
            for length in range(len(rest), 0, -1)
            if prefix + rest[:length] in vocabulary
        ]
        if not fitting:
            return ["[UNK]"]
        found.append(prefix + fitting[0])
        rest = rest[len(fitting[0]) :]
    return found


@functools.cache
def category(character):
    return unicodedata.category(character)


@functools.cache
def cleaned(character):
    if character in "\t\n\r" or category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or category(character) in ("Cc", "Cf"):
        return ""
    if any(low <= ord(character) <= high for low, high in IDEOGRAPHS):
        return f" {character} "
    return character


@functools.cache
def set_apart(character):
    is_punctuation = character in ASCII_PUNCTUATION
    if is_punctuation or category(character).startswith("P"):
        return f" {character} "
    return character
