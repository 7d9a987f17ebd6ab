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

    A mistake that leaves nothing else in the folder leaves no folder.

    Raises:
        InputError: another process holds the lease, or took it over.
    """
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
            _leave_nothing(folder, lease)
        else:
            lease.release()
        raise
    except BaseException:
        lease.release()
        raise
    lease.release()


def _leave_nothing(folder: str, lease: Lease):
    lease.remove()
    if not files.is_remote(folder):
        with contextlib.suppress(OSError):
            os.removedirs(folder)
