"""Answer several batches at the same time."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import ThreadPool
from typing import Any


def count_at_once() -> int:
    """Return how many batches a model answers at the same time.

    2 if a CPU is the only device: while a small operation of one batch uses one
    core, the other batch uses the other cores. all-MiniLM-L6-v2, 8,000
    sentences to vectors on two idle cores, without the start: 19 s one batch at
    a time, 15.5 s two. Else 1: a GPU's memory may be too small for two, and
    `tf.device` of the caller would not hold in another thread.
    """
    import tensorflow as tf

    return 2 if len(tf.config.list_logical_devices()) == 1 else 1


def answer_at_once(function: Callable, batches: Iterable) -> Iterator[Any]:
    """Yield `function(batch)` for each batch, in order.

    Threads call `function`, which runs a graph of TensorFlow that is traced
    already. They may be ahead of the caller by any number of batches. One batch
    alone is answered in the caller's thread, which saves 2 ms.
    """
    batches = iter(batches)
    first = list(itertools.islice(batches, 2))
    if len(first) < 2 or count_at_once() == 1:
        yield from map(function, itertools.chain(first, batches))
        return
    with ThreadPool(count_at_once()) as pool:
        yield from pool.imap(function, itertools.chain(first, batches))
