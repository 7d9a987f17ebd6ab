"""Apply a function to many items in several processes; keep their order.

`Executor.map` reads all items first. `Pool.imap` reads ahead without a limit.
`in_order` reads only a few items ahead, so memory does not grow with the size
of the corpus.
"""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

from bert_keras.errors import InputError

# Minimum number of items for which workers are started. The start of workers
# takes seconds, an item only tenths of a second.
MIN_ITEMS = 32


def in_order(
    function: Callable,
    items: Iterable,
    workers: int = 1,
    min_items: int = MIN_ITEMS,
) -> Iterator:
    """Yield `function(item)` for each item, in the order of the items.

    Args:
        function: must be picklable if there are several workers. Each worker
            gets one copy and keeps it for all its calls.
        items: iterable, read lazily, at most `min_items` or `2 * workers` items
            ahead, whichever is more.
        workers: number of processes; 1 uses this process only, as does
            Windows.
        min_items: minimum number of items to start workers. With fewer items,
            this process does all the work.

    Raises:
        InputError: a worker process was killed.
    """
    items = iter(items)
    can_fork = "forkserver" in multiprocessing.get_all_start_methods()
    is_pool = workers > 1 and can_fork  # Windows cannot
    first = list(itertools.islice(items, min_items)) if is_pool else []
    items = itertools.chain(first, items)
    if len(first) < min_items:
        yield from map(function, items)
        return
    with concurrent.futures.ProcessPoolExecutor(
        workers, forks(), initializer=_begin, initargs=(function,)
    ) as pool:
        try:
            yield from _run_ahead(pool, items, 2 * workers)
        except concurrent.futures.process.BrokenProcessPool as error:
            raise InputError(
                "A worker process was killed, probably because the machine ran "
                "out of memory. Use fewer workers."
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def forks():
    """Return a multiprocessing context that starts workers quickly.

    The import of TensorFlow takes seconds, but a fork takes tenths of a second.
    So workers are forks of one process that imported it (see `fork_server`).
    They inherit the environment variables with which that process started. If
    this process has not imported TensorFlow, its workers do not need it.
    """
    modules = ["bert_keras.data.fork_server"]
    if "tensorflow" in sys.modules:
        modules.append("bert_keras.data.fork_server_imports")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(modules)
    return context


def _run_ahead(pool, items: Iterator, count: int) -> Iterator:
    running = collections.deque()
    for item in items:
        running.append(pool.submit(_call, item))
        if len(running) >= count:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def hide_gpus():
    """Hide the GPUs from this process, without messages of TensorFlow.

    `fork_server` does not hide GPUs, because other forks may need GPUs.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if "tensorflow" in sys.modules:
        with without_stderr():
            sys.modules["tensorflow"].config.list_physical_devices()


@contextlib.contextmanager
def without_stderr():
    """Discard this process's output to stderr, including from native code."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


_function = None


def _begin(function: Callable):
    """Prepare a worker: set its function, hide GPUs, watch the parent."""
    global _function
    _function = function
    hide_gpus()
    # Ctrl-C reaches all processes of a terminal. Only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    """End this process when its parent has ended, even by kill -9.

    Without this, the process would wait for its next item for ever, because the
    other workers keep the queue open.
    """
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _call(item):
    return _function(item)
