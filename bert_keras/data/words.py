"""Random choices of pieces, of whole words, and of runs of words."""

import numpy as np


def choose_pieces(word, count, rng):
    """`count` random words of each row, or all where there are fewer.

    Args:
        word: bool `(B, T)`, what may be chosen.
        count: int `(B,)`, 1 at least.

    Returns:
        bool `(B, T)`.
    """
    keys = rng.random(word.shape, np.float32)
    keys[~word] = 2
    most = int(count.max(initial=1))
    # (B, M): the columns of the smallest keys, smallest first.
    columns = np.argpartition(keys, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(keys, columns, 1), axis=1)
    columns = np.take_along_axis(columns, order, 1)
    count = np.minimum(count, word.sum(1))
    row, rank = np.nonzero(np.arange(most) < count[:, None])
    chosen = np.zeros_like(word)
    chosen[row, columns[row, rank]] = True
    return chosen


def choose_words(word, starts, count, max_ngram, rng):
    """Whole words of each row, at most `count` pieces.

    The words of a row are taken in random order, each with so many that
    follow it as to make a run of 1 to `max_ngram` (n with a probability
    proportional to 1/n) in its segment. A run that holds a chosen word or
    would be too much is left out; single words fill up the rest. Where no
    word is short enough, single pieces are chosen.

    Args:
        word: bool `(B, T)`, what may be chosen.
        starts: bool `(B, T)`, the first piece of each word.
        count: int `(B,)`, 1 at least.

    Returns:
        bool `(B, T)`.
    """
    words = _Words(word, starts, count)
    order = np.argsort(rng.random(words.first.shape, np.float32), axis=1)
    if max_ngram > 1:
        weights = 1 / np.arange(1, max_ngram + 1)
        weights /= weights.sum()
        sizes = rng.choice(max_ngram, order.shape, p=weights) + 1
        words.take_in_turn(order, sizes)
    words.take_in_turn(order, np.ones_like(order))
    chosen = words.pieces()
    none = ~chosen.any(1)
    chosen[none] = choose_pieces(word[none], count[none], rng)
    return chosen


class _Words:
    """The words of some rows `(B, W)`, and which of them are taken."""

    def __init__(self, word, starts, count):
        self._word = word
        self._count = count
        self._used = np.zeros(len(word), np.int64)
        # The number of the word that each column belongs to, or is behind.
        self._number = np.cumsum(starts, axis=1) - 1
        goes_on = np.zeros_like(word)
        goes_on[:, :-1] = (word & ~starts)[:, 1:]
        shape = len(word), int(starts.sum(1).max(initial=1))
        self.first = self._place(starts, shape)
        self._last = self._place(word & ~goes_on, shape)
        # Counts [CLS], [SEP] and padding up to each word; -1 for no word.
        breaks = np.take_along_axis(np.cumsum(~word, axis=1), self.first, 1)
        real = np.arange(shape[1]) < starts.sum(1)[:, None]
        self._segment = np.where(real, breaks, -1)
        self._taken = np.zeros(shape, bool)

    def _place(self, where, shape):
        """The column of each word at which `where` is true."""
        row, column = np.nonzero(where)
        table = np.zeros(shape, np.int64)
        table[row, self._number[row, column]] = column
        return table

    def take_in_turn(self, order, sizes):
        """Takes runs of words in a random order until there are enough."""
        for start, size in zip(order.T, sizes.T, strict=True):
            row = np.flatnonzero(self._used < self._count)
            if not len(row):
                return
            self._take(row, start[row], start[row] + size[row] - 1)

    def _take(self, row, start, stop):
        """Takes the words `start` to `stop` of each row, if that may be."""
        inside = stop < self.first.shape[1]
        row, start, stop = row[inside], start[inside], stop[inside]
        segment = self._segment[row, start]
        size = self._last[row, stop] - self.first[row, start] + 1
        free = (segment == self._segment[row, stop]) & (segment >= 0)
        free &= self._used[row] + size <= self._count[row]
        run = range(int((stop - start).max(initial=0)) + 1)
        for offset in run:
            free &= ~self._taken[row, np.minimum(start + offset, stop)]
        row, start, stop = row[free], start[free], stop[free]
        self._used[row] += size[free]
        for offset in run:
            self._taken[row, np.minimum(start + offset, stop)] = True

    def pieces(self):
        """The pieces of the words that are taken, bool `(B, T)`."""
        number = np.maximum(self._number, 0)
        return self._word & np.take_along_axis(self._taken, number, 1)
