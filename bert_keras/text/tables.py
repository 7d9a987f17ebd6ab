"""What WordPiece makes of each character, in tables for a graph."""

import collections
import functools

import numpy as np
import tensorflow as tf

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.unicode_tables import CODE_POINTS
from bert_keras.text.wordpiece import SPECIAL_TOKENS

# Tables by code point in a graph: small, and one look-up each.

BLOCK = 256


class CodePointTable:
    """An integer for each code point, kept once for each distinct block.

    Most of the 4,352 blocks of 256 code points are alike, so that a table of
    a million entries takes some tens of kilobytes of a graph.

    Args:
        values: integers `(1114112,)`.

    Call arguments:
        code_points: `int32` of any shape.

    Returns:
        `int32` of the same shape.
    """

    def __init__(self, values):
        blocks = np.asarray(values, np.int32).reshape(-1, BLOCK)
        numbers = {}  # bytes of a block -> its number among the distinct
        index = [
            numbers.setdefault(block.tobytes(), len(numbers))
            for block in blocks
        ]
        self._starts = np.array(index, np.int32) * BLOCK
        self._values = np.frombuffer(b"".join(numbers), np.int32)

    def __call__(self, code_points):
        block = tf.bitwise.right_shift(code_points, 8)
        inside = tf.bitwise.bitwise_and(code_points, BLOCK - 1)
        return tf.gather(
            tf.constant(self._values),
            tf.gather(tf.constant(self._starts), block) + inside,
        )


def table_of(entries, default):
    """A `CodePointTable` of a dict, with one value for all that it lacks."""
    values = np.full(CODE_POINTS, default, np.int32)
    values[list(entries)] = list(entries.values())
    return CodePointTable(values)


# What the law makes of each character, in tables for a graph.

# A mark that is no accent, so that it stays, but has its place among marks.
ORDERED = 6
# An entry of the character table is KINDS * (what to add to the code point)
# + the kind of the result. A sum from SEVERAL on is the number of a result
# that has several characters.
KINDS, SEVERAL = 8, 0x200000

# Stand-ins for special tokens: characters that the law drops from any text.
FIRST_STAND_IN = 1

Tables = collections.namedtuple("Tables", "characters several roles classes")
Tables.__doc__ = """Tables of characters for some settings.

    characters: `CodePointTable` of entries as above.
    several: of results with several characters, where each starts, how many
        it has, and `KINDS` * code point + kind of all of them.
    roles: `CodePointTable` of what each is to a capital sigma beside it.
    classes: `CodePointTable` of canonical combining classes.
    """


@functools.cache
def tables_for(lowercase, strip_accents, keep_special_tokens):
    """`Tables` for these settings, made once."""
    kinds = np.array(bytearray(unicode.kinds()))
    roles = np.array(bytearray(unicode.sigma_roles()))
    roles[kinds == unicode.DROPPED] = unicode.IGNORED
    if keep_special_tokens:
        stand_ins = slice(FIRST_STAND_IN, FIRST_STAND_IN + len(SPECIAL_TOKENS))
        kinds[stand_ins] = unicode.IDEOGRAPH  # a word by itself
        roles[stand_ins] = unicode.STOPS
    characters, several = _character_table(
        kinds,
        _kinds_after(kinds, strip_accents),
        results_of(lowercase, strip_accents),
    )
    return Tables(
        CodePointTable(characters),
        several,
        CodePointTable(roles),
        CodePointTable(bytearray(unicode.combining_classes())),
    )


def _kinds_after(kinds, strip_accents):
    """What to do with each character when accents have been seen to."""
    after = kinds.copy()
    if strip_accents:
        is_mark = np.array(bytearray(unicode.combining_classes())) > 0
        after[is_mark & (kinds != unicode.MARK)] = ORDERED
    else:
        after[kinds == unicode.MARK] = unicode.OTHER
    return after


def _character_table(kinds, kinds_after, results):
    """Entries of characters, and starts, lengths, entries of long results."""
    table = kinds_after.astype(np.int64)
    entries, starts, lengths = [], [], []
    for code, result in results.items():
        if len(result) == 1:
            added, kind = result[0] - code, kinds_after[result[0]]
        else:
            added, kind = SEVERAL + len(starts) - code, unicode.OTHER
            starts.append(len(entries))
            lengths.append(len(result))
            entries += [KINDS * c + int(kinds_after[c]) for c in result]
        if kinds[code] == unicode.IDEOGRAPH:
            kind = unicode.IDEOGRAPH
        table[code] = KINDS * added + int(kind)
    several = (
        np.array(starts or [0], np.int64),
        np.array(lengths or [1], np.int64),
        np.array(entries or [0], np.int32),
    )
    return table, several


def results_of(lowercase, strip_accents):
    """Code point -> code points of what the law makes of it, where others.

    Accents go here already, but for those of combining class 0, which keep
    marks on their two sides apart, and for one where there is nothing else.
    """
    lower = unicode.lower_case() if lowercase else {}
    if not strip_accents:
        return {code: tuple(map(ord, text)) for code, text in lower.items()}
    kinds, classes = unicode.kinds(), unicode.combining_classes()
    found = {}
    for code in {*lower, *unicode.decompositions()}:
        text = lower.get(code, chr(code)).translate(unicode.decompositions())
        parts = tuple(map(ord, text))
        stays = [c for c in parts if kinds[c] != unicode.MARK or not classes[c]]
        found[code] = tuple(stays) or parts[:1]
    return found
