"""The original BERT's text rules; shares no code with this package.

The rules are those of tokenization.py as published in 2018 and 2019. The
categories come from `unicodedata`. Run it under Python 3.11, which has Unicode
14.0, like this package's tables.
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
    """Return normalised words; by default, `strip_accents` is `lowercase`."""
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
    """Return the greedy tokens of one word; `vocabulary` is a set."""
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
