"""One writer to a folder: a lease that dies with its holder."""

import contextlib
import io
import json
import os
import socket
import threading
import time
import uuid

from bert_keras import files
from bert_keras.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

RENEWED_EVERY = 30.0  # seconds
VOID_AFTER = 180.0  # seconds: six renewals missed
SETTLED_AFTER = 0.5  # seconds; for two that come to a remote folder at once


class Lease:
    """Holds a file that says who writes; refuses while another holds it.

    A thread renews it. It is void three minutes after the last renewal, and
    at once where its holder was a process of this host that has ended. A
    remote file system has no locks: there, of two that come within half a
    second, the one that wrote last holds it.

    Args:
        path: the lease's file, which may be remote; its folder is there.

    Raises:
        InputError: another holds it; names the host and the process.
    """

    def __init__(self, path):
        self.path = files.absolute(path)
        self._token = uuid.uuid4().hex
        self._ended = threading.Event()
        with self._opened() as file:
            holder = _read(file)
            if holder and _alive(holder):
                self._refuse(holder)
            self._write(file)
        if files.is_remote(self.path):
            self._settle()
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
            if self._holds(file):
                _empty(file)

    def remove(self):
        """Frees the folder and takes the lease's file away."""
        self._ended.set()
        with self._opened() as file:
            if self._holds(file):
                files.remove(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def _refuse(self, holder):
        raise InputError(
            f"{os.path.dirname(self.path)} is in use by process "
            f"{holder['pid']} on host {holder['host']}. Wait until it "
            "ends, stop it, or name another folder."
        )

    def _settle(self):
        time.sleep(SETTLED_AFTER)
        with self._opened() as file:
            if not self._holds(file):
                self._refuse(_read(file) or {"pid": "?", "host": "?"})

    def _holds(self, file):
        return (_read(file) or {}).get("token") == self._token

    def _renew(self):
        while not self._ended.wait(RENEWED_EVERY):
            # A renewal that fails is tried again; six may fail.
            with contextlib.suppress(OSError), self._opened() as file:
                if not self._holds(file):
                    return
                self._write(file)

    @contextlib.contextmanager
    def _opened(self):
        """The file, on this machine for one process at a time."""
        if files.is_remote(self.path):
            with _replaced(self.path) as file:
                yield file
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with open(descriptor, "r+", encoding="utf-8") as file:
            # Some network file systems have no locks: there the token alone
            # tells who came last.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()

    def _write(self, file):
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_started": _process_started(os.getpid()),
            "renewed": time.time(),
            "token": self._token,
        }
        # Written over and then cut: a full disk leaves what was there.
        file.seek(0)
        file.write(json.dumps(holder))
        file.truncate()


@contextlib.contextmanager
def _replaced(path):
    """A remote file's text, written back whole where it was changed."""
    try:
        with files.open_file(path, "r") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    file = io.StringIO(text)
    yield file
    if file.getvalue() != text:
        with (
            files.written_beside(path) as partial,
            open(partial, "w", encoding="utf-8") as local,
        ):
            local.write(file.getvalue())


def _empty(file):
    file.seek(0)
    file.truncate()


def _read(file):
    file.seek(0)
    try:
        holder = files.parse_json(file.read())
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
        pass  # it is there, under another user
    found = _process_started(pid)
    # What cannot be read of somebody else's process says nothing about it.
    return found is None or found == started


def _process_started(pid):
    """Start of the process in ticks since boot; None where unknown.

    It tells a process from a later one that was given the same number. Of
    one that has ended and that nobody has waited for it is -1.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            state, *fields = file.read().rpartition(")")[2].split()
            return -1 if state in "ZX" else int(fields[18])
    except OSError:
        return None
