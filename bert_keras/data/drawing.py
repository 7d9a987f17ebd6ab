"""Examples drawn from a token store: a window's pairs, a batch's masks."""

import numpy as np

from bert_keras.data.filling import fill_rows
from bert_keras.data.laws import Laws, generator
from bert_keras.data.masks import mask_rows
from bert_keras.data.packed import PackedPairs, join_packed, masked_rows
from bert_keras.data.pairs import Pairs, draw_pairs, gather, join_pairs
from bert_keras.data.store import TokenStore
from bert_keras.data.windows import Windows

# Tell the random numbers of one purpose from those of another.
_PAIRS, _MASKS, _PACKING = 2, 3, 6


class DrawnExamples:
    """Examples of a store, drawn anew in each epoch.

    An epoch has as many examples as the store's tokens fill sequences (or as
    it has sentences, if these are fewer). The pair law gives some more, as
    text that a random next sentence displaced is used again; of each
    window's pairs a random part is kept. Where the laws say so, examples are
    packed, each window's by itself, and what is said of examples holds of
    rows.

    Args:
        store: a `TokenStore`.
        laws: `Laws`.
        seed: int; everything is a function of it and the place in the run.
    """

    def __init__(self, store: TokenStore, laws: Laws, seed: int):
        self.store = store
        self.laws = laws
        self.seed = seed
        self.windows = Windows(block_sizes(store, laws), seed)

    def load(self, epoch: int, window: int) -> Pairs | PackedPairs:
        """A window's pairs, shuffled, as many as `windows` says."""
        units, starts = self.windows.epoch(epoch)
        size = int(starts[window + 1] - starts[window])
        parts = [self.draw(epoch, window, 0)]
        while sum(map(count_rows, parts)) < size:
            parts.append(self.draw(epoch, window, len(parts)))
        return self._join(parts)[slice(size)]

    def draw(
        self, epoch: int, window: int, attempt: int = 0
    ) -> Pairs | PackedPairs:
        """All pairs that the law gives for a window, shuffled."""
        units = self.windows.epoch(epoch)[0][window]
        rng = generator(self.seed, _PAIRS, epoch, window, attempt)
        blocks = self.store.blocks
        parts = [
            self._draw_block(*blocks[unit : unit + 2].tolist(), rng)
            for unit in units.tolist()
        ]
        pairs = join_pairs(parts)
        if self.laws.packed:
            return self._pack(pairs, epoch, window, attempt)
        return pairs[rng.permutation(len(pairs.labels))]

    def _pack(self, pairs: Pairs, *key: int) -> PackedPairs:
        rng = generator(self.seed, _PACKING, *key)
        most = self.laws.examples_per_row
        length = self.laws.sequence_length
        order, rows, count = fill_rows(pairs.lengths, length, most, rng)
        return PackedPairs(pairs[order], rows, count)

    def _draw_block(self, first: int, last: int, rng) -> Pairs:
        pairs = draw_pairs(self.store, first, last, self.laws, rng)
        self.store.release()
        return pairs

    def rows(self, pairs: Pairs | PackedPairs, *key: int) -> dict:
        """The rows of pairs, masked by random numbers of the key."""
        rng = generator(self.seed, _MASKS, *key)
        laws, pieces = self.laws, self.store.pieces
        if not laws.packed:
            rows = self._gather(pairs, laws.sequence_length)
            return mask_rows(rows, laws, pieces, rng)
        pairs, rows, count = pairs
        return masked_rows(
            pairs.lengths,
            rows,
            count,
            lambda some, width: self._gather(pairs[some], width),
            laws,
            pieces,
            rng,
        )

    def _gather(self, pairs: Pairs, length: int) -> dict:
        rows = gather(self.store.tokens, pairs, length, self.store.pieces)
        self.store.release()
        return rows

    def join(self, parts: list, step: int) -> dict:
        """The rows of a step's parts of windows."""
        return self.rows(self._join(parts), step)

    def _join(self, parts: list):
        return (join_packed if self.laws.packed else join_pairs)(parts)


def count_rows(pairs: Pairs | PackedPairs) -> int:
    """The number of rows that the pairs fill."""
    if isinstance(pairs, PackedPairs):
        return pairs.count
    return len(pairs.labels)


def block_sizes(store: TokenStore, laws: Laws) -> np.ndarray:
    """The number of examples that each block gives to an epoch."""
    sentence = store.documents[store.blocks]
    tokens = np.diff(store.sentences[sentence])
    filled = -(-tokens // (laws.sequence_length - 3))
    return np.minimum(filled, np.diff(sentence))
