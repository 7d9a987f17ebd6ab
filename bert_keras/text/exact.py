"""The exact path: any bytes to ids in a graph, of TensorFlow's core operations
alone.
"""

import collections

import numpy as np
import tensorflow as tf

from bert_keras.text import unicode_tables as unicode
from bert_keras.text.tables import (
    FIRST_STAND_IN,
    KINDS,
    ORDERED,
    SEVERAL,
    table_of,
    tables_for,
)
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN

# Text to words in a graph, of TensorFlow's core operations alone. Equals
# `WordPiece.words` on any bytes, in time linear in them. Rows are decoded to
# one long vector of code points, each row closed by a line feed, and every step
# of the law is an operation on that vector.

Words = collections.namedtuple(
    "Words", "code_points starts rows sources ends row_splits"
)
Words.__doc__ = """The words of some rows, one after another.

    code_points: their characters, `int32 (C,)`.
    starts: where in these each word begins, `int64 (W,)`.
    rows: the row of each word, `int64 (W,)`.
    sources: the decoded character that each character is of, `int64 (C,)`.
    ends: the decoded character behind it and its accents, `int64 (C,)`.
    row_splits: where in the decoded characters each row begins, `(B + 1,)`.
    """


class Normalizer:
    """Strings to normalised words, as the law makes them.

    Args:
        lowercase, strip_accents, keep_special_tokens: as of `WordPiece`.

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
        decoded = tf.strings.unicode_decode(closed(strings), "UTF-8", "ignore")
        codes = decoded.values
        if self._keep_special_tokens:
            codes = _with_stand_ins(codes)
        if self._lowercase:
            (codes,) = _if_any(
                codes == ord(unicode.CAPITAL_SIGMA), self._final_sigmas, codes
            )
        codes, kinds, sources = self._mapped(codes)
        if self._strip_accents:
            codes, kinds, sources = _if_any(
                kinds == ORDERED, self._in_order, codes, kinds, sources
            )
        words = _words(codes, kinds, sources, decoded.row_splits)
        return _past_tokens(words) if self._keep_special_tokens else words

    def _final_sigmas(self, codes):
        """The code points with a final sigma for each capital that ends."""
        roles = self._tables.roles(codes)
        places = tf.where(roles != unicode.IGNORED)  # (stops, 1)
        roles = tf.gather_nd(roles, places)
        before = tf.concat([[unicode.STOPS], roles[:-1]], axis=0)
        after = tf.concat([roles[1:], [unicode.STOPS]], axis=0)
        is_final = (
            (tf.gather_nd(codes, places) == ord(unicode.CAPITAL_SIGMA))
            & (before == unicode.CASED)
            & (after != unicode.CASED)
        )
        places = tf.boolean_mask(places, is_final)
        final = tf.fill(tf.shape(places)[:1], ord(unicode.FINAL_SIGMA))
        return (tf.tensor_scatter_nd_update(codes, places, final),)

    def _mapped(self, codes):
        """Lower-cased, decomposed: code points, kinds, sources."""
        entries = self._tables.characters(codes)
        codes += tf.bitwise.right_shift(entries, 3)
        kinds = tf.bitwise.bitwise_and(entries, KINDS - 1)
        sources = tf.range(tf.size(codes, tf.int64))
        return _if_any(codes >= SEVERAL, self._expanded, codes, kinds, sources)

    def _expanded(self, codes, kinds, sources):
        """As `_mapped`, with room for results of several characters."""
        starts, lengths, results = map(tf.constant, self._tables.several)
        several = codes >= SEVERAL
        number = tf.where(several, codes - SEVERAL, 0)
        length = tf.where(several, tf.gather(lengths, number), [1])
        sources = tf.repeat(sources, length)
        # Place in its result, for a character that is of one; else whatever.
        offset = tf.gather(starts, number) - tf.cumsum(length, exclusive=True)
        place = tf.range(tf.size(sources, tf.int64)) + tf.gather(
            offset, sources
        )
        entry = tf.gather(
            results, tf.where(tf.gather(several, sources), place, [0])
        )
        several = tf.gather(several, sources)
        codes, kinds = tf.gather(codes, sources), tf.gather(kinds, sources)
        return (
            tf.where(several, tf.bitwise.right_shift(entry, 3), codes),
            tf.where(several, tf.bitwise.bitwise_and(entry, KINDS - 1), kinds),
            sources,
        )

    def _in_order(self, codes, kinds, sources):
        """With each run of marks sorted by combining class."""
        there = kinds != unicode.DROPPED
        classes = tf.cast(self._tables.classes(codes), tf.int64)
        places = tf.where(there & (classes > 0))  # (marks, 1)
        run = tf.cumsum(tf.cast(there & (classes == 0), tf.int64))
        key = tf.gather_nd(run * 256 + classes, places)
        origin = tf.gather(places, tf.argsort(key, stable=True))
        return tuple(
            tf.tensor_scatter_nd_update(
                values, places, tf.gather_nd(values, origin)
            )
            for values in (codes, kinds, sources)
        )


def closed(strings):
    """The strings, each with a line feed behind it, a stop for any look."""
    return tf.strings.join([strings, "\n"])


def _if_any(mask, function, *values):
    """`function(*values)` where any of the mask is true, else the values."""
    return tf.cond(
        tf.reduce_any(mask), lambda: function(*values), lambda: values
    )


def _words(codes, kinds, sources, row_splits):
    """`Words` from characters, without those that have had their effect."""
    is_mark = kinds == unicode.MARK
    seen = tf.where((kinds != unicode.DROPPED) & ~is_mark)[:, 0]
    ends = tf.gather(_ends(sources, is_mark), seen)
    kinds = tf.gather(kinds, seen)
    is_space = kinds == unicode.SPACE
    is_word = (kinds == unicode.PUNCTUATION) | (kinds == unicode.IDEOGRAPH)
    after_end = tf.concat([[True], (is_space | is_word)[:-1]], axis=0)
    letters = tf.where(~is_space)[:, 0]
    starts = tf.where(tf.gather(is_word | after_end, letters))[:, 0]
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


def _ends(sources, is_mark):
    """The decoded character behind each one and the accents that follow it."""
    bases = tf.gather(sources, tf.where(~is_mark)[:, 0])
    number = tf.cumsum(tf.cast(~is_mark, tf.int32))
    following = tf.gather(tf.concat([bases, sources[-1:] + 1], 0), number)
    return tf.maximum(sources + 1, following)


def _with_stand_ins(codes):
    """One stand-in for each special token, and none for other characters."""
    count = len(SPECIAL_TOKENS)
    is_stand_in = (codes >= FIRST_STAND_IN) & (codes < FIRST_STAND_IN + count)
    codes = tf.where(is_stand_in, 0, codes)
    for number, token in enumerate(SPECIAL_TOKENS):
        ahead = tf.pad(codes, [[0, len(token)]])
        here = tf.ones_like(codes, tf.bool)
        for offset, character in enumerate(token):
            here &= ahead[offset : tf.size(codes) + offset] == ord(character)
        for offset in range(1, len(token)):
            codes = tf.where(tf.roll(here, offset, axis=0), 0, codes)
        codes = tf.where(here, FIRST_STAND_IN + number, codes)
    return codes


def _past_tokens(words):
    """`Words` in which a stand-in ends where its token does."""
    more = [0] * FIRST_STAND_IN + [len(token) - 1 for token in SPECIAL_TOKENS]
    codes = words.code_points
    number = tf.where(codes < len(more), codes, 0)
    more = tf.gather(tf.constant(more, words.ends.dtype), number)
    return words._replace(ends=words.ends + more)


# Words to pieces in a graph: greedy longest match, core operations alone.

# The first two nodes of the trie: before any piece, and behind "##".
WORD_ROOT, REST_ROOT = 0, 1
NO_SYMBOL = 0  # a character that no piece has, and the end of a word

Pieces = collections.namedtuple("Pieces", "ids words starts lengths")
Pieces.__doc__ = """The pieces of some words, one after another.

    ids: `int32 (P,)`.
    words: the word of each, `int64 (P,)`.
    starts, lengths: its characters in that word, `int64 (P,)`.
    """


class LongestMatch:
    """Words to ids, as the law covers them.

    The pieces form a trie, numbered from its roots so that a sorted vector of
    (node, symbol) has at place i the way to node i + 2. It is walked from all
    characters of all distinct words at once, which tells the longest piece
    that begins at each; then those pieces are kept that a word's beginning
    leads to, one behind the other.

    Args:
        vocabulary: pieces in the order of their ids.
        max_word_length: words of more characters become "[UNK]".
        keep_special_tokens: know the stand-ins for special tokens.

    Call arguments:
        words: `Words`.

    Returns:
        `Pieces`.
    """

    def __init__(self, vocabulary, max_word_length, keep_special_tokens=False):
        self._max_word_length = max_word_length
        self._unknown = vocabulary.index(UNKNOWN)
        bodies = {piece: i for i, piece in enumerate(vocabulary)}
        if keep_special_tokens:
            for number, token in enumerate(SPECIAL_TOKENS):
                if token in bodies:
                    stand_in = chr(FIRST_STAND_IN + number)
                    bodies[stand_in] = bodies[token]
        characters = sorted({c for piece in bodies for c in piece})
        symbols = {ord(c): i for i, c in enumerate(characters, NO_SYMBOL + 1)}
        self._symbols = table_of(symbols, NO_SYMBOL)
        self._count = len(symbols) + 1
        self._ways, self._ids, self._depths = _trie(bodies, symbols)

    def __call__(self, words):
        end = tf.size(words.code_points, tf.int64)
        lengths = _differences(words.starts, end)
        distinct, index = _distinct(words, lengths)
        pieces = self._cover(
            words.code_points,
            tf.gather(words.starts, distinct),
            tf.gather(lengths, distinct),
        )
        return _repeated(pieces, index, tf.size(distinct))

    def _cover(self, code_points, starts, lengths):
        """`Pieces` of the words that begin and are as long as given."""
        too_long = lengths > self._max_word_length
        count = lengths * tf.cast(~too_long, lengths.dtype)
        word = tf.repeat(tf.range(tf.size(starts, tf.int64)), count + 1)
        # Characters of each word, then one place for its end.
        first = tf.cumsum(count + 1, exclusive=True)
        inside = tf.range(tf.size(word, tf.int64)) - tf.gather(first, word)
        is_start, is_end = inside == 0, inside == tf.gather(count, word)
        code_points = tf.pad(code_points, [[0, 1]])
        symbols = self._symbols(
            tf.gather(code_points, tf.gather(starts, word) + inside)
        )
        node = self._longest(tf.where(is_end, NO_SYMBOL, symbols), is_start)
        depth = tf.gather(tf.constant(self._depths), node)
        reached = _reached(is_start, depth)
        stuck = tf.where(reached & (depth == 0) & ~is_end)
        unknown = tf.tensor_scatter_nd_update(
            too_long,
            tf.gather_nd(word, stuck)[:, tf.newaxis],
            tf.ones_like(stuck[:, 0], tf.bool),
        )
        is_unknown = tf.gather(unknown, word)
        kept = tf.where(is_unknown, is_start, reached & ~is_end)
        ids = tf.gather(tf.constant(self._ids), node)
        ids = tf.where(is_unknown, self._unknown, ids)
        length = tf.where(is_unknown, tf.gather(lengths, word), depth)
        kept = tf.where(kept)
        return Pieces(
            *(
                tf.gather_nd(values, kept)
                for values in (ids, word, inside, length)
            )
        )

    def _longest(self, symbols, is_start):
        """The trie's node of the longest piece that begins at each place."""
        ways, ids = tf.constant(self._ways), tf.constant(self._ids)
        symbols = tf.cast(symbols, tf.int64)

        def step(ahead, places, nodes, longest):
            key = nodes * self._count + tf.gather(symbols, places + ahead)
            way = tf.searchsorted(ways, key, out_type=tf.int64)
            found = tf.where(tf.gather(ways, way) == key)
            places, nodes = (
                tf.gather_nd(places, found),
                tf.gather_nd(way, found),
            )
            nodes += REST_ROOT + 1
            is_piece = tf.where(tf.gather(ids, nodes) >= 0)
            longest = tf.tensor_scatter_nd_update(
                longest,
                tf.gather_nd(places, is_piece)[:, tf.newaxis],
                tf.gather_nd(nodes, is_piece),
            )
            return ahead + 1, places, nodes, longest

        places = tf.where(symbols != NO_SYMBOL)[:, 0]
        roots = tf.where(is_start, WORD_ROOT, REST_ROOT)
        nodes = tf.gather(tf.cast(roots, tf.int64), places)
        longest = tf.zeros_like(symbols)
        vector = tf.TensorShape([None])
        *_, longest = tf.while_loop(
            lambda ahead, places, *_: tf.size(places) > 0,
            step,
            (tf.constant(0, tf.int64), places, nodes, longest),
            shape_invariants=(tf.TensorShape([]), vector, vector, vector),
        )
        return longest


def _distinct(words, lengths):
    """The first of each distinct word, and which of these each word is."""
    ends = tf.concat([words.starts, [tf.size(words.code_points, tf.int64)]], 0)
    strings = tf.strings.unicode_encode(
        tf.RaggedTensor.from_row_splits(
            words.code_points, ends, validate=False
        ),
        "UTF-8",
    )
    distinct, index = tf.unique(strings)
    first = tf.math.unsorted_segment_min(
        tf.range(tf.size(index, tf.int64)), index, tf.size(distinct)
    )
    return first, index


def _reached(is_start, depth):
    """The places that pieces, one behind the other, lead to from a start.

    In each round, all that are reached jump, and jumps grow twice as long.
    """

    def jump_all(_, reached, jump):
        to = tf.gather_nd(jump, tf.where(reached))[:, tf.newaxis]
        after = tf.tensor_scatter_nd_update(
            reached, to, tf.ones_like(to[:, 0], tf.bool)
        )
        return tf.reduce_any(after != reached), after, tf.gather(jump, jump)

    jump = tf.range(tf.size(depth, tf.int64)) + depth
    _, reached, _ = tf.while_loop(
        lambda goes_on, *_: goes_on,
        jump_all,
        (tf.constant(True), is_start, jump),
    )
    return reached


def _repeated(pieces, index, count):
    """`Pieces` of all words from those of the distinct ones."""
    of_word = tf.math.unsorted_segment_sum(
        tf.ones_like(pieces.words), pieces.words, count
    )
    first = tf.gather(tf.cumsum(of_word, exclusive=True), index)
    number = tf.gather(of_word, index)
    words = tf.repeat(tf.range(tf.size(index, tf.int64)), number)
    before = tf.gather(tf.cumsum(number, exclusive=True) - first, words)
    place = tf.range(tf.size(words, tf.int64)) - before
    return Pieces(
        tf.gather(pieces.ids, place),
        words,
        tf.gather(pieces.starts, place),
        tf.gather(pieces.lengths, place),
    )


def _differences(starts, end):
    """Lengths of stretches that begin at `starts`, the last up to `end`."""
    ends = tf.concat([starts[1:], [end]], axis=0)
    return ends[: tf.size(starts)] - starts


def _trie(bodies, symbols):
    """Ways, and the piece's id (or -1) and the depth of each node.

    Args:
        bodies: piece -> id, "##" before those that go on with a word.
        symbols: code point -> number from 1.
    """
    rest = np.array([piece.startswith("##") for piece in bodies])
    numbers = [
        [symbols[ord(c)] for c in piece.removeprefix("##")] for piece in bodies
    ]
    piece_ids = np.array(list(bodies.values()))
    lengths = np.array([len(body) for body in numbers])
    padded = np.zeros((len(numbers), lengths.max()), np.int64)
    for row, body in zip(padded, numbers, strict=True):
        row[: len(body)] = body
    node = np.where(rest, REST_ROOT, WORD_ROOT)
    ways, ids, depths = [], [np.array([-1, -1])], [np.array([0, 0])]
    total = REST_ROOT + 1
    for depth in range(padded.shape[1]):
        alive = lengths > depth
        keys = node[alive] * (len(symbols) + 1) + padded[alive, depth]
        distinct, place = np.unique(keys, return_inverse=True)
        node[alive] = total + place
        ends = lengths == depth + 1
        level_ids = np.full(len(distinct), -1)
        level_ids[node[ends] - total] = piece_ids[ends]
        ways.append(distinct)
        ids.append(level_ids)
        depths.append(np.full(len(distinct), depth + 1))
        total += len(distinct)
    beyond = [np.array([np.iinfo(np.int64).max])]
    return (
        np.concatenate(ways + beyond),
        np.concatenate(ids + [np.array([-1])]).astype(np.int32),
        np.concatenate(depths).astype(np.int64),
    )


# Where pieces come from in the strings that they were made of.


def piece_spans(words, pieces, strings, unit):
    """Start and end of each piece in its own string, `int32 (P,)` both.

    Args:
        words: `Words` of the strings.
        pieces: `Pieces` of the words.
        strings: `(B,)`.
        unit: "characters" or "bytes".
    """
    first, last = _decoded_spans(words, pieces)
    if unit == "characters":
        row = tf.gather(words.rows, pieces.words)
        origin = tf.gather(words.row_splits, row)
        return tf.cast(first - origin, tf.int32), tf.cast(
            last - origin, tf.int32
        )
    characters, begins = tf.strings.unicode_decode_with_offsets(
        closed(strings), "UTF-8", errors="ignore"
    )
    start = tf.gather(begins.values, first)
    end = tf.gather(begins.values, last - 1) + _width(
        tf.gather(characters.values, last - 1)
    )
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)


def _decoded_spans(words, pieces):
    """First decoded character of each piece and the one behind it, `(P,)`.

    The least and the greatest of its characters, because sorting marks may
    have moved them.
    """
    start = tf.gather(words.starts, pieces.words) + pieces.starts
    piece = tf.repeat(tf.range(tf.size(start)), pieces.lengths)
    before = tf.cumsum(pieces.lengths, exclusive=True) - start
    place = tf.range(tf.size(piece, tf.int64)) - tf.gather(before, piece)
    return (
        tf.math.segment_min(tf.gather(words.sources, place), piece),
        tf.math.segment_max(tf.gather(words.ends, place), piece),
    )


def _width(code_points):
    """Bytes of each character in UTF-8."""
    return 1 + sum(
        tf.cast(code_points >= bound, tf.int64)
        for bound in (0x80, 0x800, 0x10000)
    )


# The exact road: any bytes to ids, of TensorFlow's core operations alone.


class ExactText:
    """Ids of strings as the law has them, whatever is in the strings.

    Args:
        vocabulary, lowercase, strip_accents, max_word_length,
        keep_special_tokens: as of `WordPiece`.
    """

    def __init__(
        self,
        vocabulary,
        lowercase,
        strip_accents,
        max_word_length,
        keep_special_tokens,
    ):
        self._normalize = Normalizer(
            lowercase, strip_accents, keep_special_tokens
        )
        self._match = LongestMatch(
            vocabulary, max_word_length, keep_special_tokens
        )

    def ids(self, strings):
        """Flat ids and row splits of strings `(B,)`."""
        words = self._normalize(strings)
        pieces = self._match(words)
        return [pieces.ids, _row_splits(words, pieces, strings)]

    def spans(self, strings, unit):
        """Flat ids, their starts and ends, and row splits of strings `(B,)`.

        Args:
            unit: of starts and ends, "characters" or "bytes".
        """
        words = self._normalize(strings)
        pieces = self._match(words)
        starts, ends = piece_spans(words, pieces, strings, unit)
        return [pieces.ids, starts, ends, _row_splits(words, pieces, strings)]


def _row_splits(words, pieces, strings):
    """Where among the pieces each row begins, `int64 (B + 1,)`."""
    return tf.searchsorted(
        tf.gather(words.rows, pieces.words),
        tf.range(tf.size(strings, tf.int64) + 1),
        out_type=tf.int64,
    )
