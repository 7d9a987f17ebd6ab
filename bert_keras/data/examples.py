"""Draw, mask and pack examples of a token store.

Equal seeds and steps give equal batches.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_keras.data.sampling import (
    Pairs,
    SamplingRules,
    draw_pairs,
    gather,
)
from bert_keras.data.token_store import TokenStore
from bert_keras.errors import InputError
from bert_keras.text.masking import generator, mask_rows

# Approximate number of examples in a window. A window has only whole units; see
# `EpochWindows`. At length 128, the int32 token ids of a window need 16 MB.
CAPACITY = 32_768
# `DrawnExamples.rows` groups examples by these maximum lengths, in tokens.
_WIDTHS = (32, 64, 128, 256)
_PER_TOKEN = ("token_ids", "segment_ids", "padding_mask")
# Keys of the random generators, one for each purpose.
_ORDER, _PAIRS, _MASKS, _PACKING = 1, 2, 3, 6


class EpochWindows:
    """Order of the examples of an endless, shuffled run.

    A unit is a block of a store or a part of a shard. Each epoch shuffles the
    units and groups them, in the new order, into windows of about 32,768
    examples. The examples of a window are shuffled when the window is loaded.
    The order depends only on seed and epoch, so a run can begin at any step.

    Args:
        sizes: int `(U,)`, the number of examples of each unit.
        seed: seed of the order, at least 0.

    Raises:
        InputError: the seed is negative.
    """

    def __init__(self, sizes, seed: int):
        if seed < 0:
            raise InputError(f"`seed` is {seed}; expected 0 or more.")
        self._sizes = np.asarray(sizes, np.int64)
        self._seed = seed
        self.epoch_size = int(self._sizes.sum())
        self._last = (None, None)

    def epoch(self, number: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Return each window's units and the index of its first example.

        Returns:
            `(units, starts)` for W windows. `units` is a list of W arrays, the
            indices of each window's units. `starts` is int64 `(W + 1,)`: the
            index of each window's first example, then the size of the epoch.
        """
        last = self._last  # another thread may replace `self._last` meanwhile
        if last[0] != number:
            self._last = last = (number, self._cut(number))
        return last[1]

    def _cut(self, number: int):
        rng = generator(self._seed, _ORDER, number)
        order = rng.permutation(len(self._sizes))
        ends = np.cumsum(self._sizes[order])
        starts = ends - self._sizes[order]
        window = starts // CAPACITY
        first = np.flatnonzero(np.diff(window, prepend=-1))
        units = np.split(order, first[1:])
        return units, np.append(starts[first], self.epoch_size)

    def span(self, first: int, count: int):
        """Return the slices of windows that form a batch of `count` examples.

        `first` is the number of examples in the run before this batch.

        Returns:
            A list of (epoch, window, begin, end), in the order of the run. A
            slice has the window's examples `begin` to `end` (excluded).
        """
        parts = []
        while count > 0:
            epoch, position = divmod(first, self.epoch_size)
            _, starts = self.epoch(epoch)
            window = int(np.searchsorted(starts, position, "right")) - 1
            begin = position - int(starts[window])
            end = min(begin + count, int(starts[window + 1] - starts[window]))
            parts.append((epoch, window, begin, end))
            first += end - begin
            count -= end - begin
        return parts


def fill_rows(lengths, width: int, most: int, rng):
    """Pack examples into rows by best fit, the longest example first.

    Args:
        lengths: int `(N,)`, number of tokens of each example, at most `width`.
        width: number of tokens of a row.
        most: maximum number of examples in a row.
        rng: NumPy generator that shuffles the rows and each row's examples.

    Returns:
        `(order, rows, count)`. `order` is int64 `(N,)`, the indices of the
        examples, sorted by row. `rows` is int64 `(N,)`, the row of each example
        in this order. `count` is the number of rows.
    """
    rows, count = _pack_best_fit(np.asarray(lengths), width, most)
    rows = rng.permutation(count)[rows]
    order = np.lexsort([rng.random(len(rows)), rows])
    return order, rows[order], count


def _pack_best_fit(lengths, width: int, most: int):
    open_rows = [[] for _ in range(width + 1)]  # number of free tokens -> rows
    rooms = 0  # bit r is set if `open_rows[r]` is not empty
    counts = []  # the number of examples in each row
    rows = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    for example, length in zip(
        order.tolist(), lengths[order].tolist(), strict=True
    ):
        fitting = rooms >> length
        if fitting:
            # The lowest set bit gives the row with the fewest free tokens.
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row = width, len(counts)
            counts.append(0)
        rows[example] = row
        counts[row] += 1
        room -= length
        if room and counts[row] < most:
            open_rows[room].append(row)
            rooms |= 1 << room
    return rows, len(counts)


class PackedPairs(NamedTuple):
    """Pairs sorted by row, the row of each pair, and the number of rows."""

    pairs: Pairs
    rows: np.ndarray  # int64 (N,), ascending
    count: int

    def __getitem__(self, span: slice):
        """Return the pairs of the rows in `span`. Row indices restart at 0."""
        begin, end, _ = span.indices(self.count)
        own = slice(*np.searchsorted(self.rows, [begin, end]))
        return PackedPairs(self.pairs[own], self.rows[own] - begin, end - begin)

    @staticmethod
    def join(parts: list["PackedPairs"]) -> "PackedPairs":
        counts = [part.count for part in parts]
        before = np.cumsum(counts) - counts
        rows = [
            part.rows + first for part, first in zip(parts, before, strict=True)
        ]
        pairs = Pairs.join([part.pairs for part in parts])
        return PackedPairs(pairs, np.concatenate(rows), sum(counts))


class _Packed:
    """Packed rows. `put` copies a group of examples into the rows."""

    def __init__(self, lengths, rows, count, rules, vocabulary):
        # (N,): for each example, the index of the first example in its row
        first = np.searchsorted(rows, np.arange(count))[rows]
        self._row = rows
        # (N,): index of each example in its row
        self._number = np.arange(len(rows)) - first
        before = np.cumsum(lengths) - lengths
        # (N,): column of each example's first token in its row
        self._start = before - before[first]
        self._rules = rules
        shape = count, rules.sequence_length  # (R, T)
        self._tokens = {
            name: np.zeros(shape, np.int32)
            for name in (*_PER_TOKEN, "example_ids", "position_ids")
        }
        self._tokens["token_ids"].fill(vocabulary.pad_id)
        per_example = count, rules.examples_per_row  # (R, E)
        self._labels = np.zeros(per_example, np.int32)
        self._weights = np.zeros(per_example, np.float32)
        self._masks = []

    def put(self, some, masked: dict):
        """Copy the masked examples with the indices `some` to the rows."""
        row, start, number = (
            of[some] for of in (self._row, self._start, self._number)
        )
        # (tokens,): each token's example, and its position in the example
        example, inside = np.nonzero(masked["padding_mask"])
        where = row[example], start[example] + inside
        for name in _PER_TOKEN:
            self._tokens[name][where] = masked[name][example, inside]
        self._tokens["example_ids"][where] = number[example] + 1
        self._tokens["position_ids"][where] = inside
        self._labels[row, number] = masked["next_sentence_labels"]
        self._weights[row, number] = 1
        example, slot = np.nonzero(masked["mask_weights"])
        position = start[example] + masked["mask_positions"][example, slot]
        ids = masked["mask_ids"][example, slot]
        self._masks.append((row[example], position, ids))

    def finish(self) -> dict:
        row, position, ids = map(np.concatenate, zip(*self._masks, strict=True))
        order = np.lexsort([position, row])  # by row, then by position
        row = row[order]
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        shape = len(self._labels), self._rules.masks_per_row  # (R, M)
        masks = {
            "mask_positions": np.zeros(shape, np.int32),
            "mask_ids": np.zeros(shape, np.int32),
            "mask_weights": np.zeros(shape, np.float32),
        }
        values = position[order], ids[order], 1
        for column, value in zip(masks.values(), values, strict=True):
            column[row, slot] = value
        return {
            **self._tokens,
            **masks,
            "next_sentence_labels": self._labels,
            "example_weights": self._weights,
        }


class DrawnExamples:
    """Examples of a store, drawn again in each epoch.

    An epoch has one example for each `sequence_length - 3` tokens of a block,
    but at most one for each sentence. `draw_pairs` usually returns more pairs:
    if a random text replaces the next sentences, these sentences begin another
    pair. So `load` keeps a random part of the pairs of a window, which is a
    group of blocks. With `rules.packed`, pairs are packed into rows, and each
    row counts as one example.

    Args:
        store: a `TokenStore`.
        rules: `SamplingRules`.
        seed: int. A pair depends only on the seed and on the pair's position in
            the run. Its masks also depend on the batch size.
    """

    def __init__(self, store: TokenStore, rules: SamplingRules, seed: int):
        self.store = store
        self.rules = rules
        self.seed = seed
        self.windows = EpochWindows(block_sizes(store, rules), seed)

    def load(self, epoch: int, window: int) -> Pairs | PackedPairs:
        """Return a window's shuffled pairs or, if packed, rows of pairs."""
        units, starts = self.windows.epoch(epoch)
        size = int(starts[window + 1] - starts[window])
        parts = [self.draw(epoch, window, 0)]
        while sum(part.count for part in parts) < size:
            parts.append(self.draw(epoch, window, len(parts)))
        return type(parts[0]).join(parts)[slice(size)]

    def draw(
        self, epoch: int, window: int, attempt: int = 0
    ) -> Pairs | PackedPairs:
        """Draw and shuffle the pairs of one window of `EpochWindows`.

        Each `attempt` uses other random numbers. If attempt 0 gives too few
        pairs or rows, `load` adds those of the next attempts.
        """
        units = self.windows.epoch(epoch)[0][window]
        rng = generator(self.seed, _PAIRS, epoch, window, attempt)
        blocks = self.store.blocks
        parts = []
        for unit in units.tolist():
            first, last = blocks[unit : unit + 2].tolist()
            parts.append(draw_pairs(self.store, first, last, self.rules, rng))
            self.store.release()
        pairs = Pairs.join(parts)
        if not self.rules.packed:
            return pairs[rng.permutation(len(pairs.labels))]
        rng = generator(self.seed, _PACKING, epoch, window, attempt)
        most = self.rules.examples_per_row
        length = self.rules.sequence_length
        order, rows, count = fill_rows(pairs.lengths, length, most, rng)
        return PackedPairs(pairs[order], rows, count)

    def rows(self, pairs: Pairs | PackedPairs, *key: int) -> dict:
        """Return masked rows of pairs; `key` and the seed decide the masks.

        Returns:
            The dict of `mask_rows`. If packed, a dict of arrays for R rows of T
            tokens, M masks and E examples:
            - int32 `(R, T)`: token_ids, segment_ids, padding_mask,
              position_ids, example_ids (0 at padding, else from 1).
            - int32 mask_positions and mask_ids `(R, M)`, next_sentence_labels
              `(R, E)`.
            - float32 mask_weights `(R, M)`, example_weights `(R, E)`; 0 at
              padding.
        """
        rng = generator(self.seed, _MASKS, *key)
        rules, vocabulary = self.rules, self.store.masking_vocabulary
        longest = rules.sequence_length
        if not rules.packed:
            rows = self._gather(pairs, longest)
            return mask_rows(rows, rules, vocabulary, rng)
        examples, row_ids, count = pairs
        lengths, lower = examples.lengths, 0
        packed = _Packed(lengths, row_ids, count, rules, vocabulary)
        # Mask each example separately, then copy it into its row.
        for width in (*(w for w in _WIDTHS if w < longest), longest):
            some = np.flatnonzero((lengths > lower) & (lengths <= width))
            lower = width
            if len(some):
                most = min(rules.max_predictions, width)
                narrow = dataclasses.replace(
                    rules, sequence_length=width, max_predictions=most
                )
                group = self._gather(examples[some], width)
                packed.put(some, mask_rows(group, narrow, vocabulary, rng))
        return packed.finish()

    def _gather(self, pairs: Pairs, length: int) -> dict:
        rows = gather(
            self.store.tokens, pairs, length, self.store.masking_vocabulary
        )
        self.store.release()
        return rows

    def join(self, parts: list, step: int) -> dict:
        """Return the rows of a step. `parts` are slices of loaded windows."""
        return self.rows(type(parts[0]).join(parts), step)


def block_sizes(store: TokenStore, rules: SamplingRules) -> np.ndarray:
    """Return the number of examples that an epoch draws from each block.

    Raises:
        InputError: the arrays of the store contradict each other.
    """
    try:
        sentence = store.documents[store.blocks]
        tokens = np.diff(store.sentences[sentence])
    except IndexError:
        tokens = np.zeros(1)
    if (tokens <= 0).any():
        raise InputError(
            f"The store {store.source} is damaged: blocks.bin does not match "
            "documents.bin and sentences.bin. Build the store again."
        )
    filled = -(-tokens // (rules.sequence_length - 3))
    return np.minimum(filled, np.diff(sentence))
