"""Tokenizer in TensorFlow's core ops that returns the ids of `WordPiece`.

normalizer.py splits text into words. This file splits each word from left to
right into the longest tokens of the vocabulary. It also finds the start and end
of each token in the text.
"""

import collections

import numpy as np
import tensorflow as tf

from bert_keras.text.normalizer import (
    FIRST_STAND_IN,
    Normalizer,
    close_rows,
    make_table,
)
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN

# The vocabulary's trie has two roots: one for a word's first token, one for
# "##" tokens.
WORD_ROOT, REST_ROOT = 0, 1
NO_SYMBOL = 0  # for a word's end, and for characters that no token has

Tokens = collections.namedtuple("Tokens", "ids words starts lengths")
Tokens.__doc__ = """The concatenated tokens of several words.

    ids: the id of each token, `int32 (P,)`.
    words: the index of each token's word, `int64 (P,)`.
    starts: the index of each token's first character in its word, `int64 (P,)`.
    lengths: the number of its word's characters that each token covers,
        `int64 (P,)`.
    """


class ExactText:
    """Tokenizer that returns the same ids as `WordPiece` for all strings.

    `FastText` uses `ExactText` for strings whose ids may otherwise be wrong.

    The vocabulary is a trie. Node 0 is the root of tokens that begin a word,
    node 1 the root of "##" tokens. An edge is a pair (node, symbol); a symbol
    is the number of a character. The edges are a sorted vector, and edge i
    leads to node i + 2. A search finds the longest token that begins at each
    character of each distinct word. A word's tokens are the token at its start,
    the token that begins where that token ends, and so on.

    Args:
        settings: a `WordPiece` with the vocabulary and the settings to use.
    """

    def __init__(self, settings):
        keeps = settings.keep_special_tokens
        self._normalize = Normalizer(
            settings.lowercase, settings.strip_accents, keeps
        )
        self._max_word_length = settings.max_word_length
        self._unknown = settings.vocabulary.index(UNKNOWN)
        bodies = {token: i for i, token in enumerate(settings.vocabulary)}
        for number, token in enumerate(SPECIAL_TOKENS if keeps else ()):
            if token in bodies:
                bodies[chr(FIRST_STAND_IN + number)] = bodies[token]
        characters = sorted({c for token in bodies for c in token})
        symbols = {ord(c): i for i, c in enumerate(characters, NO_SYMBOL + 1)}
        self._symbols = make_table(symbols, NO_SYMBOL)
        self._count = len(symbols) + 1
        self._edges, self._ids, self._depths = _build_trie(bodies, symbols)

    def ids(self, strings):
        """Return flat ids, int32, and row splits, int64, of strings `(B,)`."""
        words = self._normalize(strings)
        tokens = self._tokenize(words)
        return [tokens.ids, _make_row_splits(words, tokens, strings)]

    def spans(self, strings, unit):
        """Return the flat ids, starts and ends, int32, and row splits, int64.

        Args:
            strings: strings `(B,)`.
            unit: unit of starts and ends, "characters" or "bytes".
        """
        words = self._normalize(strings)
        tokens = self._tokenize(words)
        starts, ends = _find_spans(words, tokens, strings, unit)
        return [
            tokens.ids,
            starts,
            ends,
            _make_row_splits(words, tokens, strings),
        ]

    def _tokenize(self, words):
        ends = tf.concat(
            [words.starts, [tf.size(words.code_points, tf.int64)]], 0
        )
        lengths = ends[1:] - words.starts
        distinct, index = _find_distinct(words, ends)
        tokens = self._tokenize_distinct(
            words.code_points,
            tf.gather(words.starts, distinct),
            tf.gather(lengths, distinct),
        )
        return _expand_to_all_words(tokens, index, tf.size(distinct))

    def _tokenize_distinct(self, code_points, starts, lengths):
        too_long = lengths > self._max_word_length
        count = lengths * tf.cast(~too_long, lengths.dtype)
        # A word has one position for each character and one for its end. A word
        # that is too long has only the end position.
        # `word`, `inside`, `node`, `depth`, `reached` and `ids`: (positions,).
        word = tf.repeat(tf.range(tf.size(starts, tf.int64)), count + 1)
        first = tf.cumsum(count + 1, exclusive=True)  # (words,)
        inside = tf.range(tf.size(word, tf.int64)) - tf.gather(first, word)
        is_start, is_end = inside == 0, inside == tf.gather(count, word)
        # Without padding, the last word's end position may be out of range.
        code_points = tf.pad(code_points, [[0, 1]])
        symbols = self._symbols(
            tf.gather(code_points, tf.gather(starts, word) + inside)
        )
        node = self._find_longest(
            tf.where(is_end, NO_SYMBOL, symbols), is_start
        )
        depth = tf.gather(tf.constant(self._depths), node)  # token's length
        reached = _follow_tokens(is_start, depth)
        # If no token begins at a reached position, the word is unknown.
        stuck = tf.where(reached & (depth == 0) & ~is_end)
        unknown = tf.tensor_scatter_nd_update(  # (words,)
            too_long,
            tf.gather_nd(word, stuck)[:, tf.newaxis],
            tf.ones_like(stuck[:, 0], tf.bool),
        )
        is_unknown = tf.gather(unknown, word)
        # Keep the first position of each token and of each unknown word.
        kept = tf.where(is_unknown, is_start, reached & ~is_end)
        ids = tf.gather(tf.constant(self._ids), node)
        ids = tf.where(is_unknown, self._unknown, ids)
        length = tf.where(is_unknown, tf.gather(lengths, word), depth)
        kept = tf.where(kept)
        return Tokens(
            *(
                tf.gather_nd(values, kept)
                for values in (ids, word, inside, length)
            )
        )

    def _find_longest(self, symbols, is_start):
        """Return the trie node of each position's longest token; 0 if none."""
        edges, ids = tf.constant(self._edges), tf.constant(self._ids)
        symbols = tf.cast(symbols, tf.int64)

        def step(ahead, positions, nodes, longest):
            key = nodes * self._count + tf.gather(symbols, positions + ahead)
            edge = tf.searchsorted(edges, key, out_type=tf.int64)
            exists = tf.where(tf.gather(edges, edge) == key)
            positions, nodes = (
                tf.gather_nd(positions, exists),
                tf.gather_nd(edge, exists),
            )
            # Nodes 0 and 1 are the roots, so edge i leads to node i + 2.
            nodes += REST_ROOT + 1
            is_token = tf.where(tf.gather(ids, nodes) >= 0)
            longest = tf.tensor_scatter_nd_update(
                longest,
                tf.gather_nd(positions, is_token)[:, tf.newaxis],
                tf.gather_nd(nodes, is_token),
            )
            return ahead + 1, positions, nodes, longest

        # Each step keeps only the positions where a longer token may begin.
        positions = tf.where(symbols != NO_SYMBOL)[:, 0]
        roots = tf.where(is_start, WORD_ROOT, REST_ROOT)
        nodes = tf.gather(tf.cast(roots, tf.int64), positions)
        longest = tf.zeros_like(symbols)
        vector = tf.TensorShape([None])
        *_, longest = tf.while_loop(
            lambda ahead, positions, *_: tf.size(positions) > 0,
            step,
            (tf.constant(0, tf.int64), positions, nodes, longest),
            shape_invariants=(tf.TensorShape([]), vector, vector, vector),
        )
        return longest


def _make_row_splits(words, tokens, strings):
    return tf.searchsorted(
        # (P,), ascending: the row of each token.
        tf.gather(words.rows, tokens.words),
        tf.range(tf.size(strings, tf.int64) + 1),
        out_type=tf.int64,
    )


def _find_distinct(words, ends):
    """Return two vectors of indices, `int64 (distinct,)` and `int32 (words,)`.

    The first vector has the index of each distinct word's first occurrence.
    The second vector has the index of each word among the distinct words.
    """
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


def _follow_tokens(is_start, depth):
    """Return a mask of the positions where a word's tokens begin or end.

    Each round also marks the positions one jump after the marked positions. A
    jump spans 1 token in the first round, 2 in the second, then 4, and so on.
    So about log2(tokens) rounds are enough.

    Args:
        is_start: bool, True at the first position of each word.
        depth: length of the longest token that begins at a position, or 0.
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


def _expand_to_all_words(tokens, index, count):
    of_word = tf.math.unsorted_segment_sum(
        tf.ones_like(tokens.words), tokens.words, count
    )
    # For each word, the index of its first token in `tokens`, and its number of
    # tokens. Both have the shape (words,).
    first = tf.gather(tf.cumsum(of_word, exclusive=True), index)
    number = tf.gather(of_word, index)
    words = tf.repeat(tf.range(tf.size(index, tf.int64)), number)
    before = tf.gather(tf.cumsum(number, exclusive=True) - first, words)
    # (P,): for each token of all words, its index in `tokens`.
    position = tf.range(tf.size(words, tf.int64)) - before
    return Tokens(
        tf.gather(tokens.ids, position),
        words,
        tf.gather(tokens.starts, position),
        tf.gather(tokens.lengths, position),
    )


def _build_trie(bodies, symbols):
    """Return the edges, and each node's token id (-1 if none) and depth.

    `bodies` maps tokens to ids. `symbols` maps code points to symbols. An edge
    is the integer `node * (len(symbols) + 1) + symbol`.
    """
    rest = np.array([token.startswith("##") for token in bodies])
    numbers = [
        [symbols[ord(c)] for c in token.removeprefix("##")] for token in bodies
    ]
    token_ids = np.array(list(bodies.values()))
    lengths = np.array([len(body) for body in numbers])
    padded = np.zeros((len(numbers), lengths.max()), np.int64)
    for row, body in zip(padded, numbers, strict=True):
        row[: len(body)] = body
    node = np.where(rest, REST_ROOT, WORD_ROOT)
    edges, ids, depths = [], [np.array([-1, -1])], [np.array([0, 0])]
    total = REST_ROOT + 1
    for depth in range(padded.shape[1]):
        alive = lengths > depth
        # Nodes are numbered level by level, so the edges are sorted.
        keys = node[alive] * (len(symbols) + 1) + padded[alive, depth]
        distinct, inverse = np.unique(keys, return_inverse=True)
        node[alive] = total + inverse
        ends = lengths == depth + 1
        level_ids = np.full(len(distinct), -1)
        level_ids[node[ends] - total] = token_ids[ends]
        edges.append(distinct)
        ids.append(level_ids)
        depths.append(np.full(len(distinct), depth + 1))
        total += len(distinct)
    # For a key above all edges, `searchsorted` returns the index of this entry.
    beyond = [np.array([np.iinfo(np.int64).max])]
    return (
        np.concatenate(edges + beyond),
        np.concatenate(ids + [np.array([-1])]).astype(np.int32),
        np.concatenate(depths).astype(np.int64),
    )


def _find_spans(words, tokens, strings, unit):
    """Return each token's start and end in its string, both `int32 (P,)`."""
    start = tf.gather(words.starts, tokens.words) + tokens.starts
    # `token` and `position` have an entry for each character of each token.
    token = tf.repeat(tf.range(tf.size(start)), tokens.lengths)
    before = tf.cumsum(tokens.lengths, exclusive=True) - start
    position = tf.range(tf.size(token, tf.int64)) - tf.gather(before, token)
    # (P,): a token's decoded characters begin at `first` and end before `last`.
    # The normalizer may have reordered combining marks, so take the minimum and
    # the maximum over all characters of the token.
    first = tf.math.segment_min(tf.gather(words.sources, position), token)
    last = tf.math.segment_max(tf.gather(words.ends, position), token)
    if unit == "characters":
        row = tf.gather(words.rows, tokens.words)
        origin = tf.gather(words.row_splits, row)
        return tf.cast(first - origin, tf.int32), tf.cast(
            last - origin, tf.int32
        )
    characters, begins = tf.strings.unicode_decode_with_offsets(
        close_rows(strings), "UTF-8", errors="ignore"
    )
    start, end = (tf.gather(begins.values, x) for x in (first, last - 1))
    code_point = tf.gather(characters.values, last - 1)
    # `end` is the index of the first byte of a token's last character. Add the
    # number of bytes of this character.
    end += 1 + sum(
        tf.cast(code_point >= bound, tf.int64)
        for bound in (0x80, 0x800, 0x10000)
    )
    return tf.cast(start, tf.int32), tf.cast(end, tf.int32)
