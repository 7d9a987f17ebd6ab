"""The original BERT's text rules; shares no code with this package.

The rules are those of tokenization.py as published in 2018 and 2019, with the
characters of Unicode 14.0, like this package's tables. Later versions add
characters and do not change the others. So `str.lower` and `unicodedata` serve
under every Python. A character that 14.0 lacks has the category "Cn", and is
neither lower-cased nor decomposed.
"""

import json
import re
import unicodedata
from functools import cache, partial
from pathlib import Path

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
GOLDEN = Path(__file__).parent.parent / "golden" / "unicode_14.json"
UNASSIGNED = [f"{chr(a)}-{chr(b)}" for a, b in json.loads(GOLDEN.read_text())]
ASSIGNED = re.compile(f"[^{''.join(UNASSIGNED)}]+")
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
            word = change(str.lower, word)
        if strip_accents:
            parts = change(partial(unicodedata.normalize, "NFD"), word)
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


def change(function, text):
    """Return `text` with `function` applied to each run of Unicode 14.0.

    An unassigned character ends a word for the rule of the final sigma, and
    no accent is ordered across it.
    """
    return ASSIGNED.sub(lambda run: function(run[0]), text)


@cache
def category(character):
    known = ASSIGNED.match(character)
    return unicodedata.category(character) if known else "Cn"


@cache
def cleaned(character):
    if character in "\t\n\r" or category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or category(character) in ("Cc", "Cf"):
        return ""
    if any(low <= ord(character) <= high for low, high in IDEOGRAPHS):
        return f" {character} "
    return character


@cache
def set_apart(character):
    is_punctuation = character in ASCII_PUNCTUATION
    if is_punctuation or category(character).startswith("P"):
        return f" {character} "
    return character
