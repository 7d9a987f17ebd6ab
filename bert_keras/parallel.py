"""Call a function on several items at the same time; keep their order."""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

# Batches that a model answers at the same time. While a small operation of one
# batch uses one core, the other batch uses the others. 8,000 sentences to
# vectors on two cores, after the start: 19 s one batch at a time, 15.5 s two.
AT_ONCE = 2


def answer_at_once(function: Callable, batches: Iterable) -> Iterator[Any]:
    """Yield `function(batch)` for each batch, in order, `AT_ONCE` at a time.

    `function` runs a TensorFlow graph, so other threads of Python can run.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # One more waits, so that no thread does.
        yield from run_ahead(pool, function, batches, AT_ONCE + 1)


def run_ahead(
    pool: Executor, function: Callable, items: Iterable, count: int
) -> Iterator[Any]:
    """Yield `function(item)` for each item, in order.

    At most `count` items are taken before their results are yielded. So memory
    does not grow with the number of items, as in `Executor.map`.
    """
    running: collections.deque = collections.deque()
    for item in items:
        running.append(pool.submit(function, item))
        if len(running) >= count:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()
