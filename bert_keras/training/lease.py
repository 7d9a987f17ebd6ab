"""One writer to a folder: a lease that dies with its holder."""

import contextlib
import json
import os
import socket
import threading
import time
import uuid

from bert_keras.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

RENEWED_EVERY = 30.0  # seconds
VOID_AFTER = 180.0  # seconds: six renewals missed


class Lease:
    """Holds a file that says who writes; refuses while another holds it.

    A thread renews it. It is void three minutes after the last renewal, and
    at once where its holder was a process of this host that has ended.
    """

    def __init__(self, path):
        self.path = os.path.abspath(path)
        self._token = uuid.uuid4().hex
        self._ended = threading.Event()
        with self._opened() as file:
            holder = _read(file)
            if holder and _alive(holder):
                raise InputError(
                    f"{os.path.dirname(self.path)} is in use by process "
                    f"{holder['pid']} on host {holder['host']}. Wait until it "
                    "ends, stop it, or name another folder."
                )
            self._write(file)
        threading.Thread(target=self._renew, daemon=True).start()

    def check(self):
        """Raises where another process has taken the lease over."""
        with self._opened() as file:
            holder = _read(file) or {}
        if holder.get("token") != self._token:
            raise InputError(
                f"{os.path.dirname(self.path)} was taken over by process "
                f"{holder.get('pid')} on host {holder.get('host')}, since this "
                f"process did not answer for {VOID_AFTER:.0f} seconds. This "
                "one stops here."
            )

    def release(self):
        """Frees the folder for the next."""
        self._ended.set()
        with self._opened() as file:
            if (_read(file) or {}).get("token") == self._token:
                file.truncate(0)

    def remove(self):
        """Frees the folder and takes the lease's file away."""
        self._ended.set()
        with self._opened() as file:
            if (_read(file) or {}).get("token") == self._token:
                os.remove(self.path)

    def _renew(self):
        while not self._ended.wait(RENEWED_EVERY):
            # A renewal that fails is tried again; six may fail.
            with contextlib.suppress(OSError), self._opened() as file:
                if (_read(file) or {}).get("token") != self._token:
                    return
                self._write(file)

    @contextlib.contextmanager
    def _opened(self):
        """The file, for one process at a time."""
        with open(self.path, "a+", encoding="utf-8") as file:
            # Some network file systems have no locks: there the token alone
            # tells who came last.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()

    def _write(self, file):
        file.truncate(0)
        json.dump(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_started": _process_started(os.getpid()),
                "renewed": time.time(),
                "token": self._token,
            },
            file,
        )


def _read(file):
    file.seek(0)
    try:
        holder = json.load(file)
        return holder if {"host", "pid", "renewed"} <= holder.keys() else None
    except (ValueError, AttributeError):
        return None  # empty: released; or cut by a kill: its holder is dead


def _alive(holder):
    if holder["host"] == socket.gethostname():
        return _process_lives(holder["pid"], holder["process_started"])
    return time.time() - holder["renewed"] < VOID_AFTER


def _process_lives(pid, started):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives, under another user
    return _process_started(pid) == started


def _process_started(pid):
    """Start of the process in ticks since boot; None where unknown.

    It tells a process from a later one that was given the same number.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return None
