"""Several jobs at once, each in a process of its own with its share of cores.

A step of a small model gains little from a second core: two runs of a core
each beat two runs of two cores, one after the other.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal

from bert_keras.data.workers import forks
from official_tasks import stopping
from official_tasks.progress import console

THREADS = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)


def in_a_process(work, *arguments, jobs=1, quiet=False):
    """What `work(*arguments)` returns, done by a process of its own.

    Each begins in the same memory, however many there are.

    Args:
        work: picklable, as are the arguments.
        jobs: how many run at once; each takes its share of the cores.
        quiet: no progress bars, so that several do not write over each other.
    """
    share = max(1, (os.cpu_count() or 1) // jobs)
    cores = dict.fromkeys(THREADS, str(share)) if jobs > 1 else {}
    pool = concurrent.futures.ProcessPoolExecutor(
        1, forks(), _begin, (quiet, cores)
    )
    with pool, _stopping_children():
        return pool.submit(work, *arguments).result()


def _begin(quiet, cores):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on
    os.environ |= cores  # TensorFlow reads them with its first operation
    console.quiet = quiet


@contextlib.contextmanager
def _stopping_children():
    """End the child processes by SIGTERM where this one is asked to stop."""
    try:
        yield
    except stopping.Stopped:
        for child in multiprocessing.active_children():
            child.terminate()
        raise


@contextlib.contextmanager
def workers(jobs):
    """Yields `start(work, *arguments, **options)`, which returns a `Future`.

    Up to `jobs` run at once, in threads, in the order in which they were
    started; one at a time runs here, before `start` returns. Where the block
    ends by an error, those that have not begun never do. Where this process is
    asked to stop, the others get SIGTERM and save what they have.
    """
    if jobs == 1:
        yield _now
        return
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        with _stopping_children():
            yield pool.submit
    finally:
        pool.shutdown(cancel_futures=True)


def _now(work, *arguments, **options):
    future = concurrent.futures.Future()
    future.set_result(work(*arguments, **options))
    return future
