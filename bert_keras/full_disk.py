"""Errors of a full disk, which name the file and the space."""

import contextlib
import errno
import os
import shutil

CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MESSAGES = [os.strerror(code) for code in CODES]


def find_reason(error):
    """Return the system's message if a full disk caused `error`, else None.

    TensorFlow and safetensors raise their own error types with this message.
    """
    while error is not None:
        if getattr(error, "errno", None) in CODES:
            return error.strerror
        for message in MESSAGES:
            if message in str(error):
                return message
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def name_file(path, partial=None, needed=None):
    """Add a file and its size to the error of a full disk.

    The system's error of a write names no file.

    Args:
        path: file or folder to name.
        partial: temporary path that is written; None if it is `path`.
        needed: size of the complete file in bytes, if it is known.

    Raises:
        OSError: the disk is full. The error has the attribute `needed`.
    """
    try:
        yield
    except Exception as error:
        reason = find_reason(error)
        if reason is None:
            raise
        reason = reason.partition(": ")[0]
        written = os.fspath(partial or path)
        needed = getattr(error, "needed", needed)
        sizes = f"{_size(written):,} bytes of it were written"
        if needed is not None:
            sizes = f"it needs {needed:,} bytes"
        free = shutil.disk_usage(os.path.dirname(written) or ".").free
        full = OSError(
            getattr(error, "errno", None) or errno.ENOSPC,
            f"{reason}: {sizes}, and {free:,} bytes are free",
            os.fspath(path),
        )
        full.needed = needed
        raise full from error


def _size(path):
    if not os.path.isdir(path):
        return os.path.getsize(path) if os.path.isfile(path) else 0
    below = (os.path.join(path, name) for name in os.listdir(path))
    return sum(map(_size, below))
