"""Unicode 14.0 by code point, whatever Python, ICU or RE2 is installed.

Published vocabularies were made, and their ids are promised, under one
version of Unicode; these tables pin it. Each is made once; those of bytes
have one for each of the 1,114,112 code points.
"""

import base64
import functools
import zlib

import numpy as np

from bert_keras.text import unicode_14

CODE_POINTS = 0x110000

# What WordPiece does with a character. DROPPED: NUL, U+FFFD, Cc and Cf but
# for tab, line feed and carriage return, which are SPACE with Zs, Zl and Zp.
# PUNCTUATION: Unicode P* and all of ASCII that is neither letter, digit nor
# space. MARK: Mn, the accents. IDEOGRAPH: a word by itself.
OTHER, DROPPED, SPACE, PUNCTUATION, MARK, IDEOGRAPH = range(6)

# What a character is to a capital sigma next to it: the search for a cased
# neighbour passes over it, finds it cased, or stops at it.
STOPS, IGNORED, CASED = range(3)

CAPITAL_SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"


@functools.cache
def kinds():
    """OTHER, DROPPED, SPACE, ... of each code point, as bytes."""
    return _expanded(unicode_14.KINDS)


@functools.cache
def spacing():
    """Code point -> what stands for it before words are parted, where other.

    Nothing for what is dropped, a blank for white space, and blanks about
    each ideograph.
    """
    return {
        code: {DROPPED: "", SPACE: " "}.get(kind, f" {chr(code)} ")
        for code, kind in enumerate(kinds())
        if kind in (DROPPED, SPACE, IDEOGRAPH)
    }


@functools.cache
def sigma_roles():
    """STOPS, IGNORED or CASED of each code point, as bytes."""
    return _expanded(unicode_14.SIGMA_ROLES)


@functools.cache
def combining_classes():
    """Canonical combining class of each code point, as bytes."""
    return _expanded(unicode_14.COMBINING_CLASSES)


@functools.cache
def lower_case():
    """Code point -> its lower case, where they differ.

    Capital sigma is here as if it never stood at a word's end.
    """
    return _mapping(unicode_14.LOWER_CASE)


@functools.cache
def decompositions():
    """Code point -> its full canonical decomposition, where they differ."""
    return {**_mapping(unicode_14.DECOMPOSITIONS), **_hangul()}


def results_of(lowercase, strip_accents):
    """Code point -> the code points that WordPiece makes of it, where others.

    Accents are dropped here already, except those of combining class 0, which
    keep the marks on their two sides apart, and one with nothing before it.
    """
    lower = lower_case() if lowercase else {}
    if not strip_accents:
        return {code: tuple(map(ord, text)) for code, text in lower.items()}
    kind_of, class_of = kinds(), combining_classes()
    results = {}
    for code in {*lower, *decompositions()}:
        text = lower.get(code, chr(code)).translate(decompositions())
        parts = tuple(map(ord, text))
        stays = [c for c in parts if kind_of[c] != MARK or not class_of[c]]
        results[code] = tuple(stays) or parts[:1]
    return results


def integers(text):
    """The numbers that a value of unicode_14 holds."""
    raw = zlib.decompress(base64.b85decode(text))
    return np.frombuffer(raw, "<i4").astype(np.int64)


def _expanded(text):
    lengths, values = np.split(integers(text), 2)
    return np.repeat(values, lengths).astype(np.uint8).tobytes()


def _mapping(text):
    count, *numbers = integers(text).tolist()
    columns = np.array(numbers)
    codes = np.cumsum(columns[:count]).tolist()
    lengths = columns[count : 2 * count].tolist()
    firsts = np.cumsum(columns[2 * count : 3 * count]).tolist()
    rest = iter(np.cumsum(columns[3 * count :]).tolist())
    return {
        code: chr(first) + "".join(chr(next(rest)) for _ in range(length - 1))
        for code, length, first in zip(codes, lengths, firsts, strict=True)
    }


def _hangul():
    """Syllables to letters, by the arithmetic of the Unicode standard."""
    found = {}
    for index in range(11172):
        lead, rest = divmod(index, 21 * 28)
        vowel, tail = divmod(rest, 28)
        letters = chr(0x1100 + lead) + chr(0x1161 + vowel)
        found[0xAC00 + index] = letters + (chr(0x11A7 + tail) if tail else "")
    return found
