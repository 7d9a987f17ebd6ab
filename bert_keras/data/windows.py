"""Which examples each step of an endless, shuffled run sees.

A corpus is many units (blocks of a store, pieces of a shard), each with a
number of examples. Each epoch takes all units in an order of its own and
cuts it into windows of a few ten thousand examples, which are shuffled
within. Everything is a function of (seed, epoch), so that a run can begin at
any step after loading a single window.
"""

import numpy as np

from bert_keras.data.laws import generator

CAPACITY = 32_768  # examples of a window, about: 16 MB at length 128
_ORDER = 1  # tells these random numbers from those of other purposes


class Windows:
    """The windows of every epoch.

    Args:
        sizes: int `(U,)`, the number of examples of each unit.
        seed: int.
        capacity: examples of a window, about, by default `CAPACITY`; a unit
            is never cut.
    """

    def __init__(self, sizes, seed: int, capacity: int | None = None):
        self._sizes = np.asarray(sizes, np.int64)
        self._seed = seed
        self._capacity = capacity or CAPACITY
        self.epoch_size = int(self._sizes.sum())
        self._last = (None, None)

    def epoch(self, number: int) -> tuple[list[np.ndarray], np.ndarray]:
        """The units of each window, and where each begins in the epoch.

        The second, int64 `(W + 1,)`, ends with the size of the epoch.
        """
        last = self._last  # another thread may change it meanwhile
        if last[0] != number:
            self._last = last = (number, self._cut(number))
        return last[1]

    def _cut(self, number: int):
        rng = generator(self._seed, _ORDER, number)
        order = rng.permutation(len(self._sizes))
        ends = np.cumsum(self._sizes[order])
        starts = ends - self._sizes[order]
        window = starts // self._capacity
        first = np.flatnonzero(np.diff(window, prepend=-1))
        units = np.split(order, first[1:])
        return units, np.append(starts[first], self.epoch_size)

    def span(self, first: int, count: int):
        """Where examples `first` to `first + count` of the run are.

        Returns:
            A list of (epoch, window, from, to) in the run's order.
        """
        parts = []
        while count > 0:
            epoch, place = divmod(first, self.epoch_size)
            _, starts = self.epoch(epoch)
            window = int(np.searchsorted(starts, place, "right")) - 1
            begin = place - int(starts[window])
            end = min(begin + count, int(starts[window + 1] - starts[window]))
            parts.append((epoch, window, begin, end))
            first += end - begin
            count -= end - begin
        return parts
