"""A lock that lets one process at a time write to a folder."""

import contextlib
import errno
import json
import os
import socket
import stat
import threading
import time
import uuid

import filelock

from bert_keras import files, json_files, processes
from bert_keras.errors import InputError

LOCK = ".lock"
SETTLED_AFTER = 0.5  # seconds from writing a marker to reading it again
MAX_MARKER_BYTES = 4096
RENEWED_AFTER = 60  # seconds from writing a marker to writing it again
# Seconds without renewal after which a marker is free. Clocks of two machines
# may differ by minutes.
FREE_AFTER = 600
# Errors of network disks without locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class FolderLock:
    """A lock on a folder, taken by the constructor and held until `release`.

    On a local disk, the operating system frees the lock when the process ends,
    even after a kill. Remote file systems and some mounted disks have no locks.
    There, a marker file names the process that holds the folder, and a thread
    renews the marker every minute. If two processes write markers within half a
    second, the later marker wins. A marker is replaced if its process:
    - has ended, and had the same `processes.process_space`;
    - ran on a host of the same name before its reboot or in another container;
    - has not renewed the marker for ten minutes.
    If it runs after all, its next `check` raises `InputError`.

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
            "space": processes.process_space(),
            "token": uuid.uuid4().hex,
        }
        self._lock = self._renewer = None
        self._released = threading.Event()
        if files.is_remote(self.path):
            self._take_marker()
        else:
            self._take_lock()

    def check(self):
        """Raise `InputError` if another process may have taken the folder.

        A lock file that cannot be read now proves nothing, so nothing is
        raised.
        """
        try:
            if self.is_held():
                return
        except OSError:
            return
        if not files.exists(self.folder):
            raise InputError(
                f"{self.folder} was renamed or removed. This process stops, "
                "and makes no file there. Start it again with the folder's "
                "new name."
            )
        raise InputError(
            f"{self.folder} may have been taken over by "
            f"{_name(_read_holder(self.path))}, because {self.path} was "
            "removed or replaced. This process stops. Start it again when no "
            "other process uses the folder."
        )

    def is_held(self):
        """Return False if the lock file was removed or replaced."""
        if self._lock is None:
            holder = _read_marker(self.path)
            # A damaged marker, {}, may be one of ours, half written.
            return holder == {} or (
                holder is not None
                and holder.get("token") == self._marker["token"]
            )
        try:
            return os.stat(self.path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def release(self):
        """Free the folder for the next process."""
        self._released.set()
        if self._lock is not None:
            if processes.held.get(self.folder) == self.check:
                del processes.held[self.folder]
            self._lock.release()
            return
        if self._renewer is not None:
            self._renewer.join(RENEWED_AFTER)  # it must not write after this
        # A marker that cannot be removed now is free after `FREE_AFTER`.
        with contextlib.suppress(OSError):
            if self.is_held():
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
            self._refuse(_read_holder(self.path))
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
        processes.held[self.folder] = self.check

    def _take_marker(self):
        holder = _read_marker(self.path)
        if holder is not None and not self._is_stale(holder):
            self._refuse(
                holder,
                ". If it has ended, start again when its marker is "
                f"{FREE_AFTER // 60} minutes old, or remove {self.path}",
            )
        self._write_marker()
        time.sleep(SETTLED_AFTER)
        if not self.is_held():
            self._refuse(_read_holder(self.path))
        self._renewer = threading.Thread(target=self._renew, daemon=True)
        self._renewer.start()

    def _is_stale(self, holder):
        if holder.get("space") == self._marker["space"]:
            return not processes.is_running(holder["pid"])
        # Some file systems have no modification time, so the marker has it.
        renewed = holder.get("renewed")
        if type(renewed) is int and renewed < time.time() - FREE_AFTER:
            return True
        return holder.get("host") == self._marker["host"]

    def _write_marker(self):
        with files.atomic_output(self.path) as partial:
            marker = {**self._marker, "renewed": int(time.time())}
            json_files.write_json(marker, partial)

    def _renew(self):
        while not self._released.wait(RENEWED_AFTER):
            # After an error, try again a minute later.
            with contextlib.suppress(OSError, InputError):
                if not self.is_held():
                    return
                self._write_marker()

    def _refuse(self, holder, fix=""):
        raise InputError(
            f"{self.folder} is in use by {_name(holder)}. Wait until "
            f"that process ends, stop it, or name another output{fix}."
        )


def _name(holder):
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on host {holder.get('host')}"


def _read_holder(path):
    """Return the marker for a message; {} if it cannot be read."""
    with contextlib.suppress(OSError):
        return _read_marker(path) or {}
    return {}


def _read_marker(path):
    """Return the marker in a file; {} if damaged, None if missing or empty.

    On a disk without locks, `filelock` leaves an empty file.

    Raises:
        OSError: the file cannot be read, so its content is unknown.
    """
    try:
        content = files.read_bytes(path, MAX_MARKER_BYTES)
        if not content:
            return None
        holder = json_files.parse_json(content)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, ValueError):  # InputError is a ValueError
        return {}
    is_marker = isinstance(holder, dict) and type(holder.get("pid")) is int
    return holder if is_marker else {}
