"""A data folder that one process at a time writes to."""

import contextlib
import os
import time
from collections.abc import Callable

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.lease import Lease

LEASE = ".lease"
_CHECKED_EVERY = 10  # seconds


@contextlib.contextmanager
def one_writer(folder: str, progress: Callable | None = None):
    """Holds a folder's lease; yields `progress`, which checks it too.

    After a mistake that left nothing in a new folder, the folder goes.

    Raises:
        InputError: another process holds the lease, or took it over.
    """
    made = _missing(folder)
    files.make_folder(folder)
    lease = Lease(os.path.join(folder, LEASE))
    checked = time.monotonic()

    def checking(*done):
        nonlocal checked
        if time.monotonic() > checked + _CHECKED_EVERY:
            lease.check()
            checked = time.monotonic()
        if progress:
            progress(*done)

    try:
        yield checking
    except InputError:
        if set(files.list_folder(folder)) <= {LEASE}:
            lease.remove()
            _remove_empty(made)
        else:
            lease.release()
        raise
    except BaseException:
        lease.release()
        raise
    lease.release()


def _missing(folder: str) -> list[str]:
    """The folders that making this one makes, the innermost first."""
    found = []
    folder = files.absolute(folder)
    while not files.is_remote(folder) and not os.path.exists(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _remove_empty(folders: list[str]):
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)
