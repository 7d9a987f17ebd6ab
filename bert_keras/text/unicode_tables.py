"""Tables of Unicode 14.0, independent of the installed Python, ICU and RE2.

Token ids must not depend on the installed Unicode version, so unicode_14.npz
has the tables. tools/maintenance/make_unicode_tables.py writes unicode_14.npz.
`kinds`, `sigma_roles` and `combining_classes` return one byte for each of the
1,114,112 code points.
"""

import functools
import os

import numpy as np

CODE_POINTS = 0x110000

# Kinds of characters for WordPiece, by Unicode's general categories.
# SPACE: tab, line feed, carriage return, Zs, Zl and Zp. DROPPED: U+FFFD, Cf,
# and the rest of Cc. PUNCTUATION: P*, and visible ASCII except letters and
# digits. MARK: Mn, the accents. IDEOGRAPH: Chinese characters, each a word.
OTHER, DROPPED, SPACE, PUNCTUATION, MARK, IDEOGRAPH = range(6)

# A capital sigma is final if the character before it is CASED and the one after
# it is not. IGNORED characters are skipped. All other characters are STOPS.
STOPS, IGNORED, CASED = range(3)

CAPITAL_SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"


def table(name):
    """Return one array of unicode_14.npz."""
    path = os.path.join(os.path.dirname(__file__), "unicode_14.npz")
    with np.load(path) as tables:
        return tables[name]


@functools.cache
def kinds():
    """Return bytes with the kind of each code point: OTHER, DROPPED, ..."""
    return table("kinds").tobytes()


@functools.cache
def spacing():
    """Return a dict of code point -> replacement, for the split into words.

    A dropped character becomes "", white space becomes a blank, and an
    ideograph gets blanks around it. Other characters have no entry.
    """
    return {
        code: {DROPPED: "", SPACE: " "}.get(kind, f" {chr(code)} ")
        for code, kind in enumerate(kinds())
        if kind in (DROPPED, SPACE, IDEOGRAPH)
    }


@functools.cache
def sigma_roles():
    """Return each code point's role in the rule for final sigmas, as bytes."""
    return table("sigma_roles").tobytes()


@functools.cache
def combining_classes():
    """Return the canonical combining class of each code point, as bytes."""
    return table("combining_classes").tobytes()


@functools.cache
def lower_case():
    """Return a dict of code point -> its lower case, if that differs.

    Capital sigma has the lower case that is used inside a word.
    """
    return {ord(one): other for one, other in table("lower_case").tolist()}


@functools.cache
def decompositions():
    """Return a dict of code point -> full canonical decomposition, if any."""
    return {ord(one): other for one, other in table("decompositions").tolist()}


def map_code_points(lowercase, strip_accents):
    """Return a dict of code point -> the code points WordPiece makes of it.

    Code points that do not change have no entry. With `strip_accents`, accents
    of a combining class above 0 are dropped. Accents of class 0 are kept,
    because `Normalizer` must not sort marks across them. If a character
    consists only of accents, at least one is kept. `Normalizer` later drops the
    kept accents.
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
