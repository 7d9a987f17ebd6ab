"""A folder of one run or build: its one writer, its settings, its progress."""

import contextlib
import io
import json
import os
import socket
import threading
import time
import uuid

from bert_keras import files
from bert_keras.errors import InputError, cut_middle

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SETTINGS = "run.json"
LEASE = ".lease"
STAGES = "stages"
PROGRESS = "progress.jsonl"  # of every build
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
            time.sleep(SETTLED_AFTER)
            with self._opened() as file:
                if not self._holds(file):
                    self._refuse(_read(file) or {"pid": "?", "host": "?"})
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
                file.seek(0)
                file.truncate()

    def remove(self):
        """Frees the folder and takes the lease's file away."""
        self._ended.set()
        with self._opened() as file:
            if self._holds(file):
                files.remove(self.path)

    def _refuse(self, holder):
        raise InputError(
            f"{os.path.dirname(self.path)} is in use by process "
            f"{holder['pid']} on host {holder['host']}. Wait until it "
            "ends, stop it, or name another folder."
        )

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
        """The file, locked against other processes of this machine."""
        if files.is_remote(self.path):
            with _replaced(self.path) as file:
                yield file
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with open(descriptor, "r+", encoding="utf-8") as file:
            # Some network file systems have no locks: there the token alone
            # says who came last.
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
    current = _process_started(pid)
    # What cannot be read of somebody else's process says nothing about it.
    return current is None or current == started


def _process_started(pid):
    """Start of the process in ticks since boot; None where unknown.

    It differs between a process and a later one of the same number. Of one
    that has ended and that nobody has waited for it is -1.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            state, *fields = file.read().rpartition(")")[2].split()
            return -1 if state in "ZX" else int(fields[18])
    except OSError:
        return None


class RunFolder:
    """A folder that one run owns, and in which the same run resumes.

    A new or empty folder is taken; a run of the same settings resumes in its
    folder; anything else is refused. While it is open no other process gets
    it.

    Args:
        path: the folder, made where it is missing; it may be remote.
        settings: JSON dict of all that decides what the run computes.
        writes: false in the other workers of a run: they read what is there
            and own nothing.

    Raises:
        InputError: not writable, foreign, of other settings, or in use.

    Example:

    >>> with RunFolder("runs/mine", {"seed": 1}) as run:
    ...     figures = run.done("corpus")
    ...     if figures is None:
    ...         with run.output("corpus.txt") as path:
    ...             figures = write_corpus(path)
    ...         run.finish("corpus", figures, outputs=["corpus.txt"])
    """

    def __init__(self, path, settings, writes=True):
        self.path = files.absolute(path)
        self._is_new = False
        self._lease = None
        if not writes:
            return
        settings = json.loads(json.dumps(settings))
        files.make_folder(self.path)
        self._refuse_foreign()
        self._lease = Lease(self.file(LEASE))
        try:
            self._take(settings)
        except BaseException:
            self._lease.release()
            raise

    def file(self, *names):
        """Path of a file in the run's folder."""
        return os.path.join(self.path, *names)

    def output(self, name):
        """A context of a free path; what is written there becomes `name`."""
        return files.written_beside(self.file(name))

    def done(self, stage):
        """The figures of a finished stage whose outputs stand, or None."""
        try:
            record = files.read_json(self.file(STAGES, f"{stage}.json"))
        except FileNotFoundError:
            return None
        if all(files.exists(self.file(o)) for o in record["outputs"]):
            return record["figures"]
        return None

    def finish(self, stage, figures, outputs=()):
        """Records that a stage is done, with its figures and its outputs."""
        if self._lease is None:
            return
        record = {"figures": figures, "outputs": list(outputs)}
        with self.output(os.path.join(STAGES, f"{stage}.json")) as path:
            files.write_json(record, path)

    def check(self):
        """Raises where another process has taken the folder over."""
        if self._lease is not None:
            self._lease.check()

    def close(self):
        if self._lease is not None:
            self._lease.release()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        mistaken = kind is not None and issubclass(kind, InputError)
        if mistaken and self._is_new:
            self._leave_nothing()
        else:
            self.close()

    def _leave_nothing(self):
        """So that after a mistake the folder takes other settings."""
        if not files.is_remote(self.path):
            # Those that runs inside this one were in before they failed.
            for name in os.listdir(self.path):
                with contextlib.suppress(OSError):
                    os.rmdir(self.file(name))
        if not set(files.list_folder(self.path)) <= {SETTINGS, LEASE}:
            self.close()
            return
        files.remove(self.file(SETTINGS))
        self._lease.remove()
        if not files.is_remote(self.path):
            with contextlib.suppress(OSError):
                os.rmdir(self.path)

    def _refuse_foreign(self):
        try:
            names = set(files.list_folder(self.path))
        except OSError as error:
            raise InputError(
                f"The folder {self.path} cannot be read ({error.strerror}). "
                "Name another one."
            ) from None
        strangers = sorted(
            n for n in names - {LEASE} if not files.is_partial(n)
        )
        if strangers and SETTINGS not in names:
            raise InputError(
                f"The folder {self.path} holds something that no run made "
                f"({', '.join(strangers[:3])}). Name a new or empty folder, "
                "or one of an earlier run."
            )

    def _take(self, settings):
        files.remove_partials(self.path)
        path = self.file(SETTINGS)
        if files.is_file(path):
            try:
                old = files.read_json(path)["settings"]
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    f"{path} is not the settings file of a run. Name a new or "
                    "empty folder, or one of an earlier run."
                ) from None
            check_same_settings(old, settings, self.path)
            return
        with self.output(SETTINGS) as partial:
            files.write_json({"settings": settings}, partial)
        self._is_new = True


def check_same_settings(old, new, folder):
    """Refuses other settings than those that `folder` was begun with."""
    new = json.loads(json.dumps(new))
    if old != new:
        raise InputError(
            f"{folder} was begun with other settings: "
            f"{'; '.join(_changes(old, new))}. Give the same settings to go "
            "on with it, or name another folder."
        )


def _changes(old, new):
    """A sentence for each setting that differs, also of dicts within."""
    for name in sorted(old.keys() | new.keys()):
        values = old.get(name), new.get(name)
        if all(isinstance(value, dict) for value in values):
            yield from _changes(*values)
            continue
        was, now = (
            json.dumps(settings[name]) if name in settings else "not set"
            for settings in (old, new)
        )
        if was != now:
            yield cut_middle(f"{name} was {was} and is now {now}", 300)


class Journal:
    """What a long build has done so far, so that it can resume after a kill.

    A file of a JSON value and its hash a line; the first holds the settings. A
    line that a kill left half-written is dropped.

    Args:
        path: of the file; made where it is missing.
        settings: dict of JSON values, of which the work is a function.

    Raises:
        InputError: work was done with other settings; names them.
    """

    def __init__(self, path: str, settings: dict):
        self._path, self._settings = path, settings
        lines = _whole_lines(path)
        if len(lines) > 1:
            check_same_settings(lines[0], settings, os.path.dirname(path))
        self.entries = lines[1:]
        if not self.entries:
            self.clear()

    def clear(self):
        """Forget what was done: the work starts again."""
        self.entries = []
        files.remove(self._path)
        self._append(self._settings)

    def remove(self):
        """Deletes the file."""
        files.remove(self._path)

    def add(self, entry):
        """Appends what is done, flushed to the disk."""
        self._append(entry)
        self.entries.append(entry)

    def _append(self, value):
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps([value, files.json_hash(value)]) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _whole_lines(path: str) -> list:
    """The values of the lines; what is after the last whole one is cut."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb+") as file:
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        file.truncate(len(whole))
    try:
        lines = [files.parse_json(line) for line in whole.splitlines()]
        for number, (value, stated) in enumerate(lines, 1):
            if files.json_hash(value) != stated:
                raise ValueError(f"line {number} does not match its hash")
        return [value for value, _ in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}). Delete the folder that it lies in "
            "and build again."
        ) from error
