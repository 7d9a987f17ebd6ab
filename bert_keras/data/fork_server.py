"""Imports of the process that workers are forks of; see `workers.forks`.

The process ignores Ctrl-C and ends with its parent during the imports too,
which take seconds. It prints nothing: the parent imported the same before.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading

_CHECK_SECONDS = 0.2


def _end_with_parent(parent, is_ready):
    while not is_ready.wait(_CHECK_SECONDS):
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def _without_stderr():
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _show_error(kind, error, trace):
    """Print an error, unless the parent ended while it started a worker."""
    if not issubclass(kind, (pickle.UnpicklingError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def _import_libraries():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.excepthook = _show_error
    is_ready = threading.Event()
    thread = threading.Thread(
        target=_end_with_parent, args=(os.getppid(), is_ready), daemon=True
    )
    thread.start()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # workers leave GPUs alone
    with _without_stderr(), contextlib.suppress(ImportError):
        import keras  # noqa: F401
        import tensorflow as tf
        import tensorflow_text  # noqa: F401

        tf.config.list_physical_devices()  # prints what a worker would
    is_ready.set()
    thread.join()  # a fork keeps no thread


_import_libraries()
