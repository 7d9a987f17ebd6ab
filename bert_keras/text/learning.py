"""Learns a WordPiece vocabulary from text, the same on every run.

Words are counted first, in bounded memory; then pieces are merged.
"""

import collections
import heapq
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

from bert_keras.errors import InputError
from bert_keras.text.wordpiece import (
    LONGEST_PIECE,
    SPECIAL_TOKENS,
    UNKNOWN,
    WordPiece,
    strip_accents,
    utf8_length,
)

MOST_WORDS = 4_000_000  # distinct ones in memory, about 500 MB
CHARACTERS = 1_000_000  # of text that are counted at once
# Share of the words: half of them [UNK] leaves next to nothing to learn from.
MOST_UNKNOWN = 0.5
# Share of the words with accents. In the Universal Declaration of Human Rights
# it is below 0.001 in English, Dutch or Indonesian, 0.04 or more in Italian,
# Russian, French or Vietnamese, where accents tell words apart.
MANY_ACCENTS = 0.01
BEFORE_UNKNOWN = 99  # unused pieces between "[PAD]" and "[UNK]"


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
    """Pieces for text like `texts`: special tokens, characters, merges.

    Words are counted as `WordPiece` splits them; then, from single
    characters, the commonest pair of neighbouring pieces is merged until
    there are `size` pieces or no pair occurs `min_count` times. Of equally
    common pairs, the one with the earlier pieces is merged; a pair that
    would make a piece of more than 256 bytes is not. Memory grows
    with the distinct words, of which the rarest are given up beyond some
    millions.

    Args:
        texts: iterable of strings, read once.
        size: pieces to learn, special tokens included.
        lowercase, strip_accents: as the tokenizer that will use it.
        min_count: characters and pairs seen less often are not learned.
        unused: pieces `[unused0]`, `[unused1]`, ... to keep free for words
            of a later domain. They stand where the original has them: 994
            of them put `[UNK]` at 100, as in its uncased vocabulary.
        progress: called with (pieces so far, `size`).
        in_order: a `map` that may work in parallel, called with a picklable
            function and the stretches of text that it is to count. The
            result is the same for any.

    Returns:
        A list of at most `size` pieces.

    Raises:
        InputError: for texts without a word, or a size too small for the
            special tokens and the characters of the texts.
    """
    if isinstance(texts, str | bytes):
        raise InputError("texts is one string; expected several, in a list.")
    first = first_pieces(size, unused)
    counts = count_words(texts, lowercase, strip_accents, in_order)
    return learn_pieces(counts, first, size, min_count, progress)


def first_pieces(size, unused=0):
    """Return the special and unused tokens, in the original's order.

    Raises:
        InputError: a vocabulary of `size` has no room for more.
    """
    free = [f"[unused{i}]" for i in range(unused)]
    pad, *others = SPECIAL_TOKENS
    first = [pad, *free[:BEFORE_UNKNOWN], *others, *free[BEFORE_UNKNOWN:]]
    if size <= len(first):
        raise InputError(
            f"A vocabulary of {size} pieces was asked for; special and unused "
            f"tokens alone are {len(first)}. Ask for some thousands."
        )
    return first


def learn_pieces(counts, first, size, min_count=2, progress=None):
    """Return the pieces that `learn_vocabulary` learns from counted words.

    Args:
        counts: dict of word -> count, as of `count_words`.
        first: as of `first_pieces`.
        size, min_count, progress: as of `learn_vocabulary`.
    """
    if not counts:
        raise InputError(
            "The texts to learn a vocabulary from hold no word. Give text."
        )
    symbols = _common_symbols(counts, min_count, size - len(first))
    _refuse_useless(counts, symbols, size)
    merger = _Merger(counts, [*first, *symbols])
    while len(merger.pieces) < size and merger.merge_commonest(min_count):
        if progress and len(merger.pieces) % 100 == 0:
            progress(len(merger.pieces), size)
    if progress:
        progress(len(merger.pieces), size)
    return merger.pieces


def _common_symbols(counts, min_count, room):
    """Single characters, "##" before those inside a word, that are learned.

    The commonest that occur `min_count` times, at most half of `room`.
    """
    totals = collections.Counter()
    for word, count in counts.items():
        for symbol in _symbols_of(word):
            totals[symbol] += count
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    kept = [symbol for symbol, count in ranked if count >= min_count]
    return sorted(kept[: max(1, room // 2)])


def _refuse_useless(counts, symbols, size):
    """Refuses pieces that most words of the texts cannot be written with."""
    known = set(symbols)
    unknown = sum(
        count
        for word, count in counts.items()
        if not known.issuperset(_symbols_of(word))
    )
    share = unknown / sum(counts.values())
    if share > MOST_UNKNOWN:
        raise InputError(
            f"In a vocabulary of {size} pieces {share:.0%} of the words are "
            "[UNK]: it has no room for their characters, or they are too rare. "
            "Ask for some thousands of pieces, or give more text."
        )


def _symbols_of(word):
    return [word[0], *("##" + character for character in word[1:])]


class _Merger:
    """Words as lists of piece ids, and the counts that merging needs.

    `pairs` counts each pair of neighbours, `places` the words it may be in,
    and `heap` has every pair under a count that is at least its present one.
    """

    def __init__(self, counts, pieces):
        self.pieces = list(pieces)
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}
        self.words, self.counts = [], []
        for word in sorted(counts):
            ids = [self.ids.get(symbol) for symbol in _symbols_of(word)]
            if len(ids) > 1 and None not in ids:
                self.words.append(ids)
                self.counts.append(counts[word])
        self.pairs = collections.defaultdict(int)
        self.places = collections.defaultdict(set)
        for index, ids in enumerate(self.words):
            for pair in itertools.pairwise(ids):
                self.pairs[pair] += self.counts[index]
                self.places[pair].add(index)
        self.heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.heap)

    def merge_commonest(self, min_count):
        """Merges one pair everywhere; False where none is common enough."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            now = self.pairs.get(pair, 0)
            if now == -count and now >= min_count:
                if utf8_length(self._merged(pair)) > LONGEST_PIECE:
                    continue  # too long for any vocabulary, such as a rule
                self._merge(pair)
                return True
            if min_count <= now < -count:
                heapq.heappush(self.heap, (-now, pair))
        return False

    def _merge(self, pair):
        piece = self._merged(pair)
        if piece not in self.ids:  # nor has another way led there
            self.ids[piece] = len(self.pieces)
            self.pieces.append(piece)
        merged = self.ids[piece]
        changed = set()
        for index in self.places.pop(pair):
            before = self.words[index]
            after = _with_merged(before, pair, merged)
            if len(after) == len(before):
                continue
            count = self.counts[index]
            for old in itertools.pairwise(before):
                self.pairs[old] -= count
            for new in itertools.pairwise(after):
                self.pairs[new] += count
                if merged in new:
                    self.places[new].add(index)
                    changed.add(new)
            self.words[index] = after
        self.pairs.pop(pair, None)
        for new in changed:
            heapq.heappush(self.heap, (-self.pairs[new], new))

    def _merged(self, pair):
        first, second = (self.pieces[i] for i in pair)
        return first + second.removeprefix("##")


def _with_merged(ids, pair, merged):
    """The ids with each pair of neighbours replaced, from the left."""
    after, index = [], 0
    while index < len(ids):
        if tuple(ids[index : index + 2]) == pair:
            after.append(merged)
            index += 2
        else:
            after.append(ids[index])
            index += 1
    return after


# How often each word occurs in a stream of text, in bounded memory.

_SPACE = re.compile(r"[\t\n\r]")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


def count_words(
    texts, lowercase=True, strip_accents=None, in_order=map, most=MOST_WORDS
):
    """`Counter` of the words of `texts`.

    Where there are more than `most` distinct words, the rarest go, until
    half as many are left; what is given up does not depend on `in_order`.
    """
    counts = collections.Counter()
    counter = _CountWords(lowercase, strip_accents)
    for counted in in_order(counter, _stretches(texts)):
        counts.update(counted)
        if len(counts) > most:
            # Those that are commoner than the one in place `most // 2`.
            bound = sorted(counts.values(), reverse=True)[most // 2]
            kept = {word: n for word, n in counts.items() if n > bound}
            counts = collections.Counter(kept)
    return counts


def accented_fraction(counts):
    """Return the fraction of counted words that `strip_accents` changes."""
    changed = sum(
        n for word, n in counts.items() if strip_accents(word) != word
    )
    return changed / max(1, sum(counts.values()))


def strip_counts(counts):
    """Return the counts of the words without their accents."""
    wordpiece = WordPiece([UNKNOWN], lowercase=False, strip_accents=True)
    stripped = collections.Counter()
    for word, count in counts.items():
        for part in [word] if word.isascii() else wordpiece.words(word):
            if len(part) <= wordpiece.max_word_length:
                stripped[part] += count
    return stripped


class _CountWords:
    """Counts the words of a list of texts, here or in another process.

    What stands between blanks is counted first, so that `WordPiece`, which is
    slow, sees each of these stretches once.
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
            # What `WordPiece` amounts to here, and most text is of this kind.
            stretch = stretch.lower() if self._lowercase else stretch
            return _ASCII_WORD.findall(stretch)
        return self._wordpiece.words(stretch)


def _stretches(texts):
    """Lists of texts that have about `CHARACTERS` together."""
    stretch, size = [], 0
    for text in texts:
        stretch.append(text)
        size += len(text)
        if size >= CHARACTERS:
            yield stretch
            stretch, size = [], 0
    if stretch:
        yield stretch
