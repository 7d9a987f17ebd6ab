"""Examples drawn from a token store: a window's pairs, a batch's masks."""

import numpy as np

from bert_keras.data.laws import Laws, generator
from bert_keras.data.masks import mask_rows
from bert_keras.data.pairs import Pairs, draw_pairs, gather, join_pairs
from bert_keras.data.store import TokenStore
from bert_keras.data.windows import Windows

# Tell the random numbers of one purpose from those of another.
_PAIRS, _MASKS = 2, 3


class DrawnExamples:
    """Examples of a store, drawn anew in each epoch.

    An epoch has as many examples as the store's tokens fill sequences (or as
    it has sentences, if these are fewer). The pair law gives some more, as
    text that a random next sentence displaced is used again; of each
    window's pairs a random part is kept.

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

    def load(self, epoch: int, window: int) -> Pairs:
        """A window's pairs, shuffled, as many as `windows` says."""
        units, starts = self.windows.epoch(epoch)
        size = int(starts[window + 1] - starts[window])
        pairs = self.draw(epoch, window, 0)
        attempt = 1
        while len(pairs.labels) < size:
            more = self.draw(epoch, window, attempt)
            pairs = join_pairs([pairs, more])
            attempt += 1
        return pairs[slice(size)]

    def draw(self, epoch: int, window: int, attempt: int = 0) -> Pairs:
        """All pairs that the law gives for a window, shuffled."""
        units = self.windows.epoch(epoch)[0][window]
        rng = generator(self.seed, _PAIRS, epoch, window, attempt)
        blocks = self.store.blocks
        parts = [
            self._draw_block(*blocks[unit : unit + 2].tolist(), rng)
            for unit in units.tolist()
        ]
        pairs = join_pairs(parts)
        return pairs[rng.permutation(len(pairs.labels))]

    def _draw_block(self, first: int, last: int, rng) -> Pairs:
        pairs = draw_pairs(self.store, first, last, self.laws, rng)
        self.store.release()
        return pairs

    def rows(self, pairs: Pairs, *key: int) -> dict:
        """The rows of pairs, masked by random numbers of the key."""
        store = self.store
        rows = gather(store.tokens, pairs, self.laws, store.pieces)
        store.release()
        rng = generator(self.seed, _MASKS, *key)
        return mask_rows(rows, self.laws, store.pieces, rng)

    def join(self, parts: list[Pairs], step: int) -> dict:
        """The rows of a step's parts of windows."""
        return self.rows(join_pairs(parts), step)


def block_sizes(store: TokenStore, laws: Laws) -> np.ndarray:
    """The number of examples that each block gives to an epoch."""
    sentence = store.documents[store.blocks]
    tokens = np.diff(store.sentences[sentence])
    filled = -(-tokens // (laws.sequence_length - 3))
    return np.minimum(filled, np.diff(sentence))
