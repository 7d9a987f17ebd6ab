"""A lock that lets one process at a time write to a folder."""

import contextlib
import errno
import json
import os
import socket
import stat
import time
import uuid

import filelock

from bert_keras import files, json_files
from bert_keras.errors import InputError

LOCK = ".lock"
SETTLED_AFTER = 0.5  # seconds from writing a marker to reading it again
MAX_MARKER_BYTES = 4096
# Errors of network disks without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderLock:
    """A lock on a folder, taken by the constructor and held until `release`.

    On a local disk, the operating system frees the lock when the process ends,
    even after a kill. Remote file systems and some mounted disks have no locks.
    There, a marker file names the process that holds the folder. If two
    processes write markers within half a second, the later marker wins. If
    the process named in a marker has ended, the next process with the same
    `files.process_space` replaces the marker. A process on another machine, in
    another container or after a reboot cannot know this. It raises `InputError`
    until a user removes the marker.

    Args:
        folder: an existing folder, local or remote.

    Raises:
        InputError: another process, named in the message, holds the lock; or
            the lock file is not a regular file.
    """

    def __init__(self, folder):
        self.folder = files.absolute(folder)
        self.path = os.path.join(self.folder, LOCK)
        self._marker = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "space": files.process_space(),
            "token": uuid.uuid4().hex,
        }
        self._lock = None
        if files.is_remote(self.path):
            self._take_marker()
        else:
            self._take_lock()

    def check(self):
        """Raise `InputError` if another process may have taken the folder."""
        holder = _read_marker(self.path) or {}
        if self._lock is None:
            is_held = holder.get("token") == self._marker["token"]
        else:
            try:
                is_held = os.stat(self.path).st_ino == self._inode
            except OSError:
                is_held = False
        if not is_held:
            raise InputError(
                f"{self.folder} may have been taken over by {_name(holder)}, "
                f"because {self.path} was removed or replaced. This process "
                "stops. Start it again when no other process uses the folder."
            )

    def release(self):
        """Free the folder for the next process."""
        if self._lock is not None:
            self._lock.release()
        elif _read_marker(self.path) == self._marker:
            files.remove(self.path)

    def remove(self):
        """Free the folder and remove the lock file."""
        if self._lock is not None:
            files.remove(self.path)
        self.release()

    def _take_lock(self):
        if os.path.lexists(self.path) and not stat.S_ISREG(
            os.lstat(self.path).st_mode
        ):
            raise InputError(
                f"{self.path} is not a regular file. Expected the lock file of "
                "a run. Remove it, or name another folder."
            )
        lock = filelock.FileLock(
            self.path, timeout=0, thread_local=False, fallback_to_soft=False
        )
        try:
            lock.acquire()
        except (filelock.Timeout, RuntimeError):
            self._refuse(_read_marker(self.path) or {})
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self._take_marker()
            return
        self._lock = lock
        # The lock protects the folder. The marker only tells error messages who
        # holds the lock, so it may be missing, such as on a full disk.
        with contextlib.suppress(OSError), open(self.path, "w") as file:
            json.dump(self._marker, file)
        self._inode = os.stat(self.path).st_ino

    def _take_marker(self):
        holder = _read_marker(self.path)
        if holder is not None and not _is_stale(holder):
            self._refuse(holder, f". If it has ended, remove {self.path}")
        with files.atomic_output(self.path) as partial:
            json_files.write_json(self._marker, partial)
        time.sleep(SETTLED_AFTER)
        holder = _read_marker(self.path)
        if holder != self._marker:
            self._refuse(holder or {})

    def _refuse(self, holder, fix=""):
        raise InputError(
            f"{self.folder} is in use by {_name(holder)}. Wait until "
            f"that process ends, stop it, or name another folder{fix}."
        )


def _name(holder):
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on host {holder.get('host')}"


def _read_marker(path):
    """Return the marker in a file; {} if damaged, None if missing or empty.

    On a disk without locks, `filelock` leaves an empty file.
    """
    try:
        content = files.read_bytes(path, MAX_MARKER_BYTES)
        if not content:
            return None
        holder = json_files.parse_json(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):  # InputError is a ValueError
        return {}
    is_marker = isinstance(holder, dict) and type(holder.get("pid")) is int
    return holder if is_marker else {}


def _is_stale(holder):
    is_ours = holder.get("space") == files.process_space()
    return is_ours and not files.is_running(holder["pid"])
