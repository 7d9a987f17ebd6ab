"""Turn text into normalised words with TensorFlow's core operations.

The words equal those of `WordPiece.words`, for any bytes. All rows are decoded
to one vector of code points, with a line feed after each row. Every step of
`WordPiece.words` is an operation on this vector, or a look-up in the `Tables`.
"""

import collections
import functools

import numpy as np
import tensorflow as tf

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.wordpiece import SPECIAL_TOKENS

# Control character FIRST_STAND_IN + i is the stand-in for SPECIAL_TOKENS[i].
# These control characters are first dropped from the text, as in `WordPiece`.
FIRST_STAND_IN = 1

# Kind of a combining mark (combining class above 0) that is not in category Mn.
# It is no accent, so it is kept, but canonical ordering can move it.
ORDERED = 6
# The character table maps a code point to KINDS * offset + kind. The code point
# plus `offset` is the normalised character, and `kind` is ORDERED or a kind in
# `unicode_tables`. If code point plus `offset` is SEVERAL + i, the result is
# several characters, which `Tables.several` has at index i.
KINDS, SEVERAL = 8, 0x200000

Words = collections.namedtuple(
    "Words", "code_points starts rows sources ends row_splits"
)
Words.__doc__ = """The concatenated words of several rows.

    code_points: the characters of all words, `int32 (C,)`.
    starts: index in `code_points` of each word's first character, `int64 (W,)`.
    rows: the row of each word, `int64 (W,)`.
    sources: index of the decoded character from which each character was made,
        `int64 (C,)`.
    ends: index after the source character and its accents, `int64 (C,)`.
    row_splits: row splits of the decoded characters, `int64 (B + 1,)`.
    """


class Normalizer:
    """Function that splits strings into the normalised words of `WordPiece`.

    Args:
        lowercase, strip_accents, keep_special_tokens: see `WordPiece`.

    Call arguments:
        strings: `(B,)`, any bytes.

    Returns:
        `Words`.
    """

    def __init__(self, lowercase, strip_accents, keep_special_tokens=False):
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._keep_special_tokens = keep_special_tokens
        self._tables = tables_for(lowercase, strip_accents, keep_special_tokens)

    def __call__(self, strings):
        decoded = tf.strings.unicode_decode(
            close_rows(strings), "UTF-8", "ignore"
        )
        codes = decoded.values  # 1-D, the characters of all rows
        if self._keep_special_tokens:
            codes = _insert_stand_ins(codes)
        if self._lowercase:
            (codes,) = _apply_if_any(
                codes == ord(unicode.CAPITAL_SIGMA),
                self._replace_final_sigmas,
                codes,
            )
        # From here on, vectors have an entry for each normalised character.
        codes, kinds, sources = self._map_characters(codes)
        if self._strip_accents:
            codes, kinds, sources = _apply_if_any(
                kinds == ORDERED, self._sort_marks, codes, kinds, sources
            )
        words = _split_words(codes, kinds, sources, decoded.row_splits)
        return _set_token_ends(words) if self._keep_special_tokens else words

    def _replace_final_sigmas(self, codes):
        roles = self._tables.roles(codes)
        # (N, 1), the indices of the N characters that are not ignored.
        positions = tf.where(roles != unicode.IGNORED)
        roles = tf.gather_nd(roles, positions)
        # Roles of the previous and the next character, without ignored ones.
        before = tf.concat([[unicode.STOPS], roles[:-1]], axis=0)
        after = tf.concat([roles[1:], [unicode.STOPS]], axis=0)
        is_final = (
            (tf.gather_nd(codes, positions) == ord(unicode.CAPITAL_SIGMA))
            & (before == unicode.CASED)
            & (after != unicode.CASED)
        )
        positions = tf.boolean_mask(positions, is_final)
        final = tf.fill(tf.shape(positions)[:1], ord(unicode.FINAL_SIGMA))
        return (tf.tensor_scatter_nd_update(codes, positions, final),)

    def _map_characters(self, codes):
        """Return code points, kinds and `Words.sources` of the normalised text.

        All are vectors with an entry for each normalised character.
        """
        entries = self._tables.characters(codes)
        # An entry is KINDS * offset + kind, and KINDS is 2 ** 3.
        codes += tf.bitwise.right_shift(entries, 3)
        kinds = tf.bitwise.bitwise_and(entries, KINDS - 1)
        sources = tf.range(tf.size(codes, tf.int64))
        return _apply_if_any(
            codes >= SEVERAL, self._expand, codes, kinds, sources
        )

    def _expand(self, codes, kinds, sources):
        """Replace each character that becomes several characters."""
        starts, lengths, results = map(tf.constant, self._tables.several)
        several = codes >= SEVERAL
        # Indices in `starts` and `lengths`; 0 where `several` is False.
        number = tf.where(several, codes - SEVERAL, 0)
        length = tf.where(several, tf.gather(lengths, number), [1])
        # Each new character has the source of the character that it replaces.
        sources = tf.repeat(sources, length)
        # `position`: indices in `results`, used only where `several` is True.
        offset = tf.gather(starts, number) - tf.cumsum(length, exclusive=True)
        position = tf.range(tf.size(sources, tf.int64)) + tf.gather(
            offset, sources
        )
        entry = tf.gather(
            results, tf.where(tf.gather(several, sources), position, [0])
        )
        several = tf.gather(several, sources)
        codes, kinds = tf.gather(codes, sources), tf.gather(kinds, sources)
        return (
            tf.where(several, tf.bitwise.right_shift(entry, 3), codes),
            tf.where(several, tf.bitwise.bitwise_and(entry, KINDS - 1), kinds),
            sources,
        )

    def _sort_marks(self, codes, kinds, sources):
        is_kept = kinds != unicode.DROPPED
        classes = tf.cast(self._tables.classes(codes), tf.int64)
        positions = tf.where(is_kept & (classes > 0))  # (marks, 1)
        run = tf.cumsum(tf.cast(is_kept & (classes == 0), tf.int64))
        # Combining classes are below 256, so the key sorts by run, then class.
        key = tf.gather_nd(run * 256 + classes, positions)
        # (marks, 1): the old index of the mark that moves to each position.
        origin = tf.gather(positions, tf.argsort(key, stable=True))
        return tuple(
            tf.tensor_scatter_nd_update(
                values, positions, tf.gather_nd(values, origin)
            )
            for values in (codes, kinds, sources)
        )


def close_rows(strings):
    """Append a line feed to each string, to separate strings in one vector."""
    return tf.strings.join([strings, "\n"])


def _apply_if_any(mask, function, *values):
    return tf.cond(
        tf.reduce_any(mask), lambda: function(*values), lambda: values
    )


def _split_words(codes, kinds, sources, row_splits):
    """Return `Words`, without accents, spaces and dropped characters."""
    is_mark = kinds == unicode.MARK
    seen = tf.where((kinds != unicode.DROPPED) & ~is_mark)[:, 0]
    ends = tf.gather(_find_ends(sources, is_mark), seen)
    kinds = tf.gather(kinds, seen)
    is_space = kinds == unicode.SPACE
    is_word = (kinds == unicode.PUNCTUATION) | (kinds == unicode.IDEOGRAPH)
    after_end = tf.concat([[True], (is_space | is_word)[:-1]], axis=0)
    letters = tf.where(~is_space)[:, 0]
    # Punctuation marks and ideographs are words by themselves. So a word begins
    # at each of them, after each of them, and after a space.
    starts = tf.where(tf.gather(is_word | after_end, letters))[:, 0]  # (W,)
    seen = tf.gather(seen, letters)
    sources = tf.gather(sources, seen)
    rows = tf.searchsorted(
        row_splits[1:],
        tf.gather(sources, starts),
        side="right",
        out_type=tf.int64,
    )
    codes, ends = tf.gather(codes, seen), tf.gather(ends, letters)
    return Words(codes, starts, rows, sources, ends, row_splits)


def _find_ends(sources, is_mark):
    """Return the index after each character's source and its accents."""
    # The sources of the bases, which are the characters that are not accents.
    bases = tf.gather(sources, tf.where(~is_mark)[:, 0])
    # For each character, the index in `bases` of the next base.
    number = tf.cumsum(tf.cast(~is_mark, tf.int32))
    following = tf.gather(tf.concat([bases, sources[-1:] + 1], 0), number)
    return tf.maximum(sources + 1, following)


def _insert_stand_ins(codes):
    """Replace each special token by one character, its stand-in."""
    count = len(SPECIAL_TOKENS)
    # Drop control characters of the text that are equal to a stand-in.
    is_stand_in = (codes >= FIRST_STAND_IN) & (codes < FIRST_STAND_IN + count)
    codes = tf.where(is_stand_in, 0, codes)
    for number, token in enumerate(SPECIAL_TOKENS):
        ahead = tf.pad(codes, [[0, len(token)]])  # (C + length,)
        here = tf.ones_like(codes, tf.bool)
        for offset, character in enumerate(token):
            here &= ahead[offset : tf.size(codes) + offset] == ord(character)
        # U+0000 replaces the special token's characters after the first one.
        # WordPiece drops U+0000.
        for offset in range(1, len(token)):
            codes = tf.where(tf.roll(here, offset, axis=0), 0, codes)
        codes = tf.where(here, FIRST_STAND_IN + number, codes)
    return codes


def _set_token_ends(words):
    """Set the end of each stand-in to the end of its special token."""
    more = [0] * FIRST_STAND_IN + [len(token) - 1 for token in SPECIAL_TOKENS]
    codes = words.code_points
    number = tf.where(codes < len(more), codes, 0)
    more = tf.gather(tf.constant(more, words.ends.dtype), number)
    return words._replace(ends=words.ends + more)


Tables = collections.namedtuple("Tables", "characters several roles classes")
Tables.__doc__ = """Tables of all characters, for one set of settings.

    characters: `CodePointTable` of KINDS * offset + kind. `offset` is the
        normalised code point minus the original code point; see `KINDS`.
    several: arrays (starts, lengths, results) for characters that become
        several characters. Character i becomes `lengths[i]` characters, whose
        entries in `results` begin at `starts[i]`. An entry of `results` is
        KINDS * (code point of the new character) + (its kind).
    roles: `CodePointTable` of the roles STOPS, IGNORED and CASED. A role
        helps to decide if a capital sigma is final; see `unicode_tables`.
    classes: `CodePointTable` of canonical combining classes.
    """


@functools.cache
def tables_for(lowercase, strip_accents, keep_special_tokens):
    """Return the `Tables` for these settings."""
    kinds = np.array(bytearray(unicode.kinds()))
    roles = np.array(bytearray(unicode.sigma_roles()))
    roles[kinds == unicode.DROPPED] = unicode.IGNORED
    if keep_special_tokens:
        stand_ins = slice(FIRST_STAND_IN, FIRST_STAND_IN + len(SPECIAL_TOKENS))
        kinds[stand_ins] = unicode.IDEOGRAPH  # a word by itself
        roles[stand_ins] = unicode.STOPS
    classes = np.array(bytearray(unicode.combining_classes()))
    after = kinds.copy()  # kinds after normalisation
    if strip_accents:
        after[(classes > 0) & (kinds != unicode.MARK)] = ORDERED
    else:
        after[kinds == unicode.MARK] = unicode.OTHER
    results = unicode.map_code_points(lowercase, strip_accents)
    characters, several = _make_character_table(kinds, after, results)
    return Tables(
        CodePointTable(characters),
        several,
        CodePointTable(roles),
        CodePointTable(classes),
    )


def _make_character_table(kinds, kinds_after, results):
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


PAGE = 256


class CodePointTable:
    """Table of an integer for each code point.

    The table has 4,352 pages of 256 code points. Equal pages are stored once,
    so a table of a million entries adds only about 100 KB to a graph.

    Args:
        values: integers `(1114112,)`.

    Call arguments:
        code_points: `int32` of any shape.

    Returns:
        `int32` of the same shape.
    """

    def __init__(self, values):
        pages = np.asarray(values, np.int32).reshape(-1, PAGE)  # (4352, 256)
        numbers = {}  # bytes of a page -> its number among distinct pages
        index = [
            numbers.setdefault(page.tobytes(), len(numbers)) for page in pages
        ]
        self._starts = np.array(index, np.int32) * PAGE
        self._values = np.frombuffer(b"".join(numbers), np.int32)

    def __call__(self, code_points):
        page = tf.bitwise.right_shift(code_points, 8)  # divides by PAGE
        inside = tf.bitwise.bitwise_and(code_points, PAGE - 1)
        return tf.gather(
            tf.constant(self._values),
            tf.gather(tf.constant(self._starts), page) + inside,
        )


def make_table(entries, default):
    """Return a `CodePointTable` of a dict; other code points get `default`."""
    values = np.full(unicode.CODE_POINTS, default, np.int32)
    values[list(entries)] = list(entries.values())
    return CodePointTable(values)
