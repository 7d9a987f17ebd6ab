"""Identity of processes, and the folders that this process holds."""

import functools
import hashlib
import os
import socket
import uuid

# Local folder -> function, for each folder of which this process has the lock.
# It is called before a file or folder is made there. It raises `InputError` if
# the folder was renamed or removed, so that it is not made again.
held: dict = {}


def check_held(path):
    """Raise `InputError` if `path` is in a folder that was renamed or removed.

    Args:
        path: absolute path.
    """
    for folder, check in tuple(held.items()):
        if path.startswith(os.path.join(folder, "")):
            check()


@functools.cache
def process_space() -> str:
    """Return an identifier of the machine's current boot and PID namespace.

    On systems other than Linux, the identifier is made from the host name and
    the hardware address. A process ID is unique only among the processes with
    the same identifier.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            name = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        name = f"{socket.gethostname()} {uuid.getnode()}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def is_running(pid: int) -> bool:
    """Return True if a process with this ID runs in this PID namespace."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True
