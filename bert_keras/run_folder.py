"""A folder of one run or build: its one writer, its settings, its progress."""

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
from bert_keras.errors import InputError, cut_middle
from bert_keras.manifest import (
    check_entries,
    check_fields,
    describe_file,
    find_fault,
    read_manifest,
    write_manifest,
)

SETTINGS = "run.json"
LOCK = ".lock"
STAGES = "stages"
PROGRESS = "progress.jsonl"  # of every build
SETTLED_AFTER = 0.5  # seconds; for two that come to a remote folder at once
MOST_MARKER = 4096  # bytes


class FolderLock:
    """The right to write to a folder, which one process has at a time.

    On a local disk the system frees it when the process ends, however it
    ends. A remote file system has no locks: there a marker file names the
    holder, and of two that come within half a second the later one has it. A
    marker that a killed process of this machine left is replaced; one of
    another machine stays until somebody removes it.

    Args:
        folder: may be remote; is there.

    Raises:
        InputError: another process has it; names the host and the process.
    """

    def __init__(self, folder):
        self.folder = files.absolute(folder)
        self.path = os.path.join(self.folder, LOCK)
        self._marker = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "machine": _machine(),
            "token": uuid.uuid4().hex,
        }
        self._lock = None
        if files.is_remote(self.path):
            self._take_marker()
        else:
            self._take_lock()

    def check(self):
        """Raise where another process has taken the folder."""
        if self._lock is None:
            holder = _read_marker(self.path) or {}
            is_ours = holder.get("token") == self._marker["token"]
        else:
            try:
                is_ours = os.stat(self.path).st_ino == self._inode
            except OSError:
                is_ours, holder = False, {}
            else:
                holder = _read_marker(self.path) or {}
        if not is_ours:
            raise InputError(
                f"{self.folder} was taken over by {_name(holder)}, since "
                f"{self.path} was removed or replaced. This process stops."
            )

    def release(self):
        """Free the folder for the next process."""
        if self._lock is not None:
            self._lock.release()
        elif _read_marker(self.path) == self._marker:
            files.remove(self.path)

    def remove(self):
        """Free the folder and remove the lock's file."""
        if self._lock is not None:
            files.remove(self.path)
        self.release()

    def _take_lock(self):
        if os.path.lexists(self.path) and not stat.S_ISREG(
            os.lstat(self.path).st_mode
        ):
            raise InputError(
                f"{self.path} is not a regular file; expected the lock of a "
                "run. Remove it, or name another folder."
            )
        lock = filelock.FileLock(
            self.path, timeout=0, thread_local=False, fallback_to_soft=False
        )
        try:
            lock.acquire()
        except (filelock.Timeout, RuntimeError):
            self._refuse(_read_marker(self.path) or {})
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            self._take_marker()  # a network disk without locks
            return
        self._lock = lock
        # For messages alone: a full disk does not matter.
        with contextlib.suppress(OSError), open(self.path, "w") as file:
            json.dump(self._marker, file)
        self._inode = os.stat(self.path).st_ino

    def _take_marker(self):
        holder = _read_marker(self.path)
        if holder is not None and not _has_ended(holder):
            self._refuse(holder, f", or remove {self.path} if it has ended")
        with (
            files.atomic_output(self.path) as partial,
            open(partial, "w", encoding="utf-8") as file,
        ):
            json.dump(self._marker, file)
        time.sleep(SETTLED_AFTER)
        holder = _read_marker(self.path)
        if holder != self._marker:
            self._refuse(holder or {})

    def _refuse(self, holder, fix=""):
        raise InputError(
            f"{self.folder} is in use by {_name(holder)}. Wait until it ends, "
            f"stop it, or name another folder{fix}."
        )


def _name(holder):
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on host {holder.get('host')}"


def _read_marker(path):
    """Return what the lock's file says; {} where it says nothing clear."""
    try:
        holder = json_files.parse_json(files.read_bytes(path, MOST_MARKER))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):  # InputError is one
        return {}
    is_marker = isinstance(holder, dict) and type(holder.get("pid")) is int
    return holder if is_marker else {}


def _has_ended(holder):
    """Return True if a marker is of a process of this machine that ended."""
    if holder.get("machine") is None or holder["machine"] != _machine():
        return False
    try:
        os.kill(holder["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # of another user
    return False


def _machine():
    """Return the start of this machine and the namespace of processes.

    Containers on one machine, or with one host name, count their processes
    apart. None where Linux does not say it.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
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
        inputs: paths of the files that the run reads. Their size, time of
            change and hash are recorded when the run begins; a file of
            another time is read again and may not have changed. A path where
            nothing is passes.
        writes: false in the other workers of a run: they read what is there
            and own nothing.

    Raises:
        InputError: not writable, foreign, of other settings or inputs, or in
            use.

    Example:

    >>> with RunFolder("runs/mine", {"seed": 1}) as run:
    ...     figures = run.done("corpus")
    ...     if figures is None:
    ...         with run.output("corpus.txt") as path:
    ...             figures = write_corpus(path)
    ...         run.finish("corpus", figures, outputs=["corpus.txt"])
    """

    def __init__(self, path, settings, inputs=(), writes=True):
        self.path = files.absolute(path)
        self._is_new = False
        self._lock = None
        if not writes:
            return
        settings = json.loads(json.dumps(settings))
        files.make_folder(self.path)
        self._refuse_foreign()
        self._lock = FolderLock(self.path)
        try:
            self._take(settings, list(map(str, inputs)))
        except BaseException:
            self._lock.release()
            raise

    def file(self, *names):
        """Path of a file in the run's folder."""
        return os.path.join(self.path, *names)

    def output(self, name):
        """A context of a free path; what is written there becomes `name`."""
        return files.atomic_output(self.file(name))

    def done(self, stage):
        """Return the results of a finished stage, or None.

        Raises:
            InputError: the record, or a file that the stage wrote, is
                damaged, was changed or is missing.
        """
        path = self.file(STAGES, f"{stage}.json")
        if not files.is_file(path):
            return None
        fix = (
            f"Put back what the run wrote, or remove {path} to run this stage "
            "again."
        )
        try:
            record = read_manifest(
                path, f"stage {stage!r}", _check_record, most=None
            )
        except InputError as error:
            raise InputError(f"{error} {fix}") from None
        for name, entry in record["outputs"].items():
            fault = find_fault(self.file(*name.split("/")), entry)
            if fault:
                raise InputError(f"{self.file(name)} {fault}. {fix}")
        return record["figures"]

    def finish(self, stage, figures, outputs=()):
        """Record that a stage is done, with its results and its outputs.

        Args:
            figures: JSON value.
            outputs: names of files and folders in the run's folder; every
                file in them is recorded with its size and its hash.
        """
        if self._lock is None:
            return
        paths = []
        for output in map(self.file, outputs):
            is_file = files.is_file(output)
            paths += [output] if is_file else files.walk(output)
        root = self.file("")
        entries = {
            path.removeprefix(root).replace(os.sep, "/"): describe_file(path)
            for path in paths
        }
        files.make_folder(self.file(STAGES))
        write_manifest(
            self.file(STAGES, f"{stage}.json"),
            {"figures": figures, "outputs": entries},
        )

    def check(self):
        """Raises where another process has taken the folder over."""
        if self._lock is not None:
            self._lock.check()

    def close(self):
        if self._lock is not None:
            self._lock.release()

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
        if not set(files.list_folder(self.path)) <= {SETTINGS, LOCK}:
            self.close()
            return
        files.remove(self.file(SETTINGS))
        self._lock.remove()
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
        strangers = sorted(n for n in names - {LOCK} if not files.is_partial(n))
        if strangers and SETTINGS not in names:
            raise InputError(
                f"The folder {self.path} holds something that no run made "
                f"({', '.join(strangers[:3])}), and no {SETTINGS}. Name a new "
                "or empty folder, or one of an earlier run."
            )

    def _take(self, settings, inputs):
        files.remove_partials(self.path)
        path = self.file(SETTINGS)
        # What is missing is refused where it is read.
        inputs = list(filter(files.is_file, inputs))
        if files.is_file(path):
            try:
                old = read_manifest(path, "run", _check_settings)
            except InputError as error:
                raise InputError(
                    f"{error} Name a new or empty folder, or one of an earlier "
                    "run."
                ) from None
            check_same_settings(old["settings"], settings, self.path)
            self._check_inputs(old["inputs"], inputs)
            return
        write_manifest(
            path,
            {
                "settings": settings,
                "inputs": {name: _describe_input(name) for name in inputs},
            },
        )
        self._is_new = True

    def _check_inputs(self, old, inputs):
        changed = [p for p in inputs if p in old and _has_changed(p, old[p])]
        if changed:
            raise InputError(
                f"{self.path} was begun with other files: {', '.join(changed)} "
                "changed since. Name another folder for the current files, or "
                "put the original ones back."
            )


def _check_settings(record):
    check_fields(record, {"settings": dict, "inputs": dict})
    for entry in record["inputs"].values():
        check_fields(entry, {"bytes": int, "changed": int, "sha256": str})


def _describe_input(path):
    size, changed = files.describe_version(path)
    return {"bytes": size, "changed": changed, "sha256": files.sha256(path)}


def _has_changed(path, entry):
    size, changed = files.describe_version(path)
    if size != entry["bytes"]:
        return True
    # A copy of the file has another time.
    return changed != entry["changed"] and files.sha256(path) != entry["sha256"]


def _check_record(record):
    check_entries(record["outputs"])
    record["figures"]


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
            file.write(json.dumps([value, json_files.json_hash(value)]) + "\n")
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
        lines = [json_files.parse_json(line) for line in whole.splitlines()]
        for number, (value, stated) in enumerate(lines, 1):
            if json_files.json_hash(value) != stated:
                raise ValueError(f"line {number} does not match its hash")
        return [value for value, _ in lines]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}). Delete the folder that it lies in "
            "and build again."
        ) from error
