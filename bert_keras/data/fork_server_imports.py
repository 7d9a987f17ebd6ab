"""Import libraries in the process from which workers are forked.

See `fork_server`, which is imported first. The imports take seconds. If the
parent ends during the imports, the process also ends. Messages of the imports
are discarded, because the parent prints the same messages.
"""

import contextlib
import os
import threading

from bert_keras.data.workers import without_stderr

_CHECK_SECONDS = 0.2


def _end_with_parent(parent, is_ready):
    while not is_ready.wait(_CHECK_SECONDS):
        if os.getppid() != parent:
            os._exit(1)


def _import_libraries():
    is_ready = threading.Event()
    thread = threading.Thread(
        target=_end_with_parent, args=(os.getppid(), is_ready), daemon=True
    )
    thread.start()
    with without_stderr(), contextlib.suppress(ImportError):
        import keras  # noqa: F401
        import tensorflow_text  # noqa: F401
    is_ready.set()
    thread.join()  # a process with threads must not be forked


_import_libraries()
