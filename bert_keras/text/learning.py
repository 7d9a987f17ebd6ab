"""Learn a WordPiece vocabulary from text, the same one in every run."""

import collections
import heapq
import itertools
import operator
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bert_keras.errors import InputError
from bert_keras.text.wordpiece import (
    MAX_TOKEN_BYTES,
    SPECIAL_TOKENS,
    UNKNOWN,
    WordPiece,
    read_column,
    refuse_value,
    strip_accents,
    utf8_length,
)

MAX_WORDS = 4_000_000  # maximum of distinct words; they need about 500 MB
CHARACTERS = 1_000_000  # texts of about this total length are counted at once
# Learning is refused if more than this fraction of the words would be [UNK].
MAX_UNKNOWN = 0.5
# tools/train_vocabulary.py keeps accents by default if stripping them changes
# more than this fraction of the words. In the Universal Declaration of Human
# Rights, the fraction is below 0.001 in English, Dutch and Indonesian. It is at
# least 0.04 in Italian, Russian, French and Vietnamese.
MANY_ACCENTS = 0.01
BEFORE_UNKNOWN = 99  # maximum number of unused tokens before "[UNK]"
_EDGE = "\0"  # `_Merger`'s character for the id 0, "[PAD]", which no word has


def learn_vocabulary(
    texts: Iterable[str],
    size: int,
    lowercase: bool = True,
    min_count: int = 2,
    strip_accents: bool | None = None,
    unused: int = 0,
    progress: Callable[[int, int], object] | None = None,
    in_order: Callable[..., Iterable[Any]] = map,
) -> list[str]:
    """Learn a vocabulary of special tokens, characters and merged tokens.

    `WordPiece` splits the texts into words, which are counted. The most
    frequent characters become tokens. They take at most half of the ids that
    special and unused tokens leave free. At first, a word's tokens are its
    characters. Each step merges the most frequent pair of adjacent tokens into
    one token. Learning ends when there are `size` tokens, or no pair occurs
    `min_count` times. Of equally frequent pairs, the pair with the lower ids is
    merged first. No token gets more than 256 bytes. If there are more than 4
    million distinct words, the rarest words are dropped to save memory.

    Args:
        texts: iterable of strings, read once.
        size: maximum number of tokens, special tokens included. No more than
            1,114,112 are learned.
        lowercase: setting of the tokenizer that will use the vocabulary.
        strip_accents: setting of the tokenizer; by default `lowercase`.
        min_count: minimum count of the characters and pairs to learn.
        unused: number of tokens `[unused0]`, `[unused1]`, ..., which words of
            another domain can replace later. As in the original uncased
            vocabulary, the first 99 of them stand before `[UNK]`.
        progress: function that gets the number of tokens so far, and `size`.
        in_order: `map`, or a parallel function that returns the same. Its
            arguments are a picklable function and an iterable of lists of
            texts. The learned vocabulary does not depend on `in_order`.

    Returns:
        A list of at most `size` tokens.

    Raises:
        InputError: `texts` is one string, has no words or has a value that is
            not a string; `size` has no room for learned tokens; `min_count` is
            below 1; or most words would be "[UNK]".

    Examples:
        >>> from bert_keras import learn_vocabulary
        >>> learn_vocabulary(["low lower lowest"] * 2, size=40)[-4:]
        ['lowe', '##st', 'lower', 'lowest']
    """
    if isinstance(texts, str | bytes):
        raise InputError("texts is one string; expected a list of strings.")
    if min_count < 1:
        raise InputError(f"`min_count` is {min_count}; expected 1 or more.")
    first = first_pieces(size, unused)
    counts = count_words(texts, lowercase, strip_accents, in_order)
    return learn_pieces(counts, first, size, min_count, progress)


def first_pieces(size, unused=0):
    """Return the special and unused tokens, in the original BERT's order.

    For the arguments, see `learn_vocabulary`.

    Raises:
        InputError: `size` leaves no room for other tokens.
    """
    free = [f"[unused{i}]" for i in range(unused)]
    pad, *others = SPECIAL_TOKENS
    first = [pad, *free[:BEFORE_UNKNOWN], *others, *free[BEFORE_UNKNOWN:]]
    if size <= len(first):
        raise InputError(
            f"`size` is {size}, but there are {len(first)} special and unused "
            "tokens. Set a size that is some thousands larger."
        )
    return first


def learn_pieces(counts, first, size, min_count=2, progress=None):
    """Learn a vocabulary from the counts of words.

    Args:
        counts: dict of word -> count, from `count_words`.
        first: first tokens, from `first_pieces`.
        size: see `learn_vocabulary`.
        min_count: see `learn_vocabulary`.
        progress: see `learn_vocabulary`.

    Returns:
        A list of at most `size` tokens.

    Raises:
        InputError: `counts` is empty, or most words would be "[UNK]".
    """
    if not counts:
        raise InputError(
            "The texts have no words. Give texts to learn a vocabulary from."
        )
    size = min(size, sys.maxunicode + 1)  # ids are code points in `_Merger`
    symbols = _select_symbols(counts, min_count, size - len(first))
    _refuse_useless(counts, symbols, size)
    merger = _Merger(counts, [*first, *symbols])
    while len(merger.pieces) < size and merger.merge_most_frequent(min_count):
        if progress and len(merger.pieces) % 100 == 0:
            progress(len(merger.pieces), size)
    if progress:
        progress(len(merger.pieces), size)
    return merger.pieces


def _select_symbols(counts, min_count, room):
    """Return the most frequent characters, with "##" except at a word's start.

    Each occurs at least `min_count` times. There are at most `room // 2`, or
    one if `room` is below 2.
    """
    totals = collections.Counter()
    for word, count in counts.items():
        for symbol in _split_symbols(word):
            totals[symbol] += count
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    kept = [symbol for symbol, count in ranked if count >= min_count]
    return sorted(kept[: max(1, room // 2)])


def _refuse_useless(counts, symbols, size):
    known = set(symbols)
    unknown = sum(
        count
        for word, count in counts.items()
        if not known.issuperset(_split_symbols(word))
    )
    fraction = unknown / sum(counts.values())
    if fraction > MAX_UNKNOWN:
        raise InputError(
            f"With a vocabulary of {size} tokens, {fraction:.0%} of the words "
            f"are [UNK]; expected at most {MAX_UNKNOWN:.0%}. Their characters "
            "are too rare or do not fit into the vocabulary. Set a size of "
            "some thousands, or give more text."
        )


def _split_symbols(word):
    return [word[0], *("##" + character for character in word[1:])]


class _Merger:
    """Words as strings of tokens, and the counts that merging needs.

    In `words`, a token is the character whose code point is the token's id,
    because the methods of strings merge pairs fast. A word begins and ends with
    `_EDGE`. `pairs` has the count of each pair of adjacent tokens. `positions`
    has the indices of the words that may contain each pair. `heap` also has the
    count of each pair, but some of its counts are outdated.
    """

    def __init__(self, counts, pieces):
        self.pieces = list(pieces)
        self.ids = {piece: chr(i) for i, piece in enumerate(self.pieces)}
        self.words, self.counts = [], []
        for word in sorted(counts):
            ids = [self.ids.get(symbol) for symbol in _split_symbols(word)]
            if len(ids) > 1 and None not in ids:
                self.words.append("".join([_EDGE, *ids, _EDGE]))
                self.counts.append(counts[word])
        self.pairs = collections.defaultdict(int)
        self.positions = collections.defaultdict(list)
        for index, word in enumerate(self.words):
            for pair in map(operator.add, word[1:-1], word[2:-1]):
                self.pairs[pair] += self.counts[index]
                self.positions[pair].append(index)
        self.heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.heap)

    def merge_most_frequent(self, min_count):
        """Merge the most frequent pair; return False if none can be merged."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            now = self.pairs.get(pair, 0)
            if now == -count and now >= min_count:
                if utf8_length(self._join(pair)) > MAX_TOKEN_BYTES:
                    continue  # too long for a token, such as a run of emoji
                self._merge(pair)
                return True
            if min_count <= now < -count:
                heapq.heappush(self.heap, (-now, pair))
        return False

    def _merge(self, pair):
        piece = self._join(pair)
        if piece not in self.ids:  # no other pair made this token
            self.ids[piece] = chr(len(self.pieces))
            self.pieces.append(piece)
        merged = self.ids[piece]
        # Neighbour of the pair -> index of the word, once for each occurrence.
        lefts = collections.defaultdict(list)
        rights = collections.defaultdict(list)
        for index in self.positions.pop(pair):
            parts = self.words[index].split(pair)
            self.words[index] = merged.join(parts)
            for left, right in itertools.pairwise(parts):
                lefts[left[-1:]].append(index)
                rights[right[:1]].append(index)
        first, second = pair
        # The part between two pairs without a token between them is "".
        for token, indices in lefts.items():
            old, new = (token or second) + first, (token or merged) + merged
            self._replace(old, new, indices)
        rights.pop("", None)  # also in `lefts`
        for token, indices in rights.items():
            self._replace(second + token, merged + token, indices)
        self.pairs.pop(pair, None)

    def _replace(self, old, new, indices):
        """Count the pair `new` instead of `old` in the words."""
        if _EDGE in new:
            return
        count = sum(map(self.counts.__getitem__, indices))
        self.pairs[old] -= count
        self.pairs[new] += count
        self.positions[new] += indices
        heapq.heappush(self.heap, (-self.pairs[new], new))

    def _join(self, pair):
        first, second = (self.pieces[ord(token)] for token in pair)
        return first + second.removeprefix("##")


_SPACE = re.compile(r"[\t\n\r]")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


def count_words(
    texts, lowercase=True, strip_accents=None, in_order=map, most=MAX_WORDS
):
    """Return a `Counter` of the words of `texts`.

    Whenever there are more than `most` distinct words, only the `most // 2`
    most frequent words are kept. Words over `WordPiece`'s `max_word_length` are
    left out. For the other arguments, see `learn_vocabulary`.
    """
    counts = collections.Counter()
    counter = _CountWords(lowercase, strip_accents)
    for counted in in_order(counter, _group_texts(texts)):
        counts.update(counted)
        if len(counts) > most:
            # `Counter.most_common` needs more memory.
            kept = sorted(counts, key=counts.get, reverse=True)[: most // 2]
            counts = collections.Counter({word: counts[word] for word in kept})
    return counts


def accented_fraction(counts):
    """Return the fraction of counted words that `strip_accents` changes."""
    changed = sum(
        n for word, n in counts.items() if strip_accents(word) != word
    )
    return changed / max(1, sum(counts.values()))


def strip_counts(counts):
    """Strip the accents of counted words; return a `Counter` of the results."""
    wordpiece = WordPiece([UNKNOWN], lowercase=False, strip_accents=True)
    stripped = collections.Counter()
    for word, count in counts.items():
        for part in [word] if word.isascii() else wordpiece.words(word):
            if len(part) <= wordpiece.max_word_length:
                stripped[part] += count
    return stripped


class _CountWords:
    """Picklable function that counts the words of texts.

    A call first counts the strings between blanks, tabs and line breaks. Then
    it splits each distinct string once. A regular expression splits printable
    ASCII. The slower `WordPiece` splits the rest.
    """

    def __init__(self, lowercase, strip_accents):
        self._lowercase = lowercase
        self._wordpiece = WordPiece([UNKNOWN], lowercase, strip_accents)

    def __call__(self, texts):
        stretches = collections.Counter()
        for text in texts:
            stretches.update(_SPACE.sub(" ", text).split(" "))
        counts = collections.Counter()
        for stretch, count in stretches.items():
            for word in self._words(stretch):
                if len(word) <= self._wordpiece.max_word_length:
                    counts[word] += count
        return counts

    def _words(self, stretch):
        if stretch.isascii() and stretch.isprintable():
            # Most text is printable ASCII, in which this fast regular
            # expression finds the same words as `WordPiece`.
            stretch = stretch.lower() if self._lowercase else stretch
            return _ASCII_WORD.findall(stretch)
        return self._wordpiece.words(stretch)


def _group_texts(texts):
    stretch, size = [], 0
    for index, text in enumerate(read_column(texts)):
        if not isinstance(text, str):
            refuse_value(index, text)
        stretch.append(text)
        size += len(text)
        if size >= CHARACTERS:
            yield stretch
            stretch, size = [], 0
    if stretch:
        yield stretch
