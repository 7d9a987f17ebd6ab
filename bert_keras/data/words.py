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
    proportional to 1/n, among those that its segment has room for). A run
    that would be too much is cut at its end by as many words as need be; one
    that holds a chosen word is left out. This is the original's law of whole
    words, and ALBERT's of runs, but that no run goes on from one segment to
    the other, and that single words fill up what runs leave. Where no word is
    short enough, single pieces are chosen.

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
        words.take_in_turn(order, words.draw_runs(max_ngram, rng))
    words.take_in_turn(order)
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

    def draw_runs(self, max_ngram, rng):
        """How many words the run that begins at each word has `(B, W)`."""
        width = self.first.shape[1]
        ends = np.diff(self._segment, axis=1, append=-2) != 0
        last = np.where(ends, np.arange(width), width)[:, ::-1]
        last = np.minimum.accumulate(last, axis=1)[:, ::-1]
        room = np.minimum(last - np.arange(width) + 1, max_ngram)
        weights = np.cumsum(1 / np.arange(1, max_ngram + 1))
        drawn = rng.random(room.shape) * weights[room - 1]
        return np.searchsorted(weights, drawn, "right") + 1

    def take_in_turn(self, order, sizes=None):
        """Takes runs of words, or single ones, in a random order until there
        are enough."""
        for start in order.T:
            row = np.flatnonzero(self._used < self._count)
            if not len(row):
                return
            start = start[row]
            more = 0 if sizes is None else sizes[row, start] - 1
            self._take(row, start, start + more)

    def _take(self, row, start, stop):
        """Takes the words `start` to `stop` of each row, if that may be."""
        room = self._count[row] - self._used[row]
        size = self._last[row, stop] - self.first[row, start] + 1
        while ((size > room) & (stop > start)).any():
            stop = np.where(size > room, np.maximum(stop - 1, start), stop)
            size = self._last[row, stop] - self.first[row, start] + 1
        free = (self._segment[row, start] >= 0) & (size <= room)
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
