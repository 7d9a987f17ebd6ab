"""The folder of one run: its settings, its one writer, its finished stages."""

import contextlib
import json
import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.lease import Lease

SETTINGS = "run.json"
LEASE = ".lease"
STAGES = "stages"


class RunFolder:
    """A folder that one run owns, and that the same run goes on with.

    A new or empty folder is taken; one of an earlier run with the same
    settings is gone on with; anything else is refused. While it is open no
    other process gets it.

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

    @contextlib.contextmanager
    def output(self, name):
        """Yields a path beside; what is written there becomes `name`."""
        with files.written_beside(self.file(name)) as path:
            yield path

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
            self._remove_empty()
        names = set(files.list_folder(self.path))
        if mistaken and self._is_new and names <= {SETTINGS, LEASE}:
            self._leave_nothing()
        else:
            self.close()

    def _remove_empty(self):
        """The folders that runs inside this one were in before they failed."""
        if files.is_remote(self.path):
            return
        for name in os.listdir(self.path):
            with contextlib.suppress(OSError):
                os.rmdir(self.file(name))

    def _leave_nothing(self):
        """So that after a mistake the folder takes other settings."""
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
            check_same_settings(_read_settings(path), settings, self.path)
            return
        with self.output(SETTINGS) as partial:
            files.write_json({"settings": settings}, partial)
        self._is_new = True


def check_same_settings(old, new, folder):
    """Refuses other settings than those that `folder` was begun with."""
    new = json.loads(json.dumps(new))
    if old == new:
        return
    changes = "; ".join(
        f"{name} was {_shown(old, name)} and is now {_shown(new, name)}"
        for name in sorted(old.keys() | new.keys())
        if _shown(old, name) != _shown(new, name)
    )
    raise InputError(
        f"{folder} was begun with other settings: {changes}. Give the same "
        "settings to go on with it, or name another folder."
    )


def _shown(settings, name):
    return json.dumps(settings[name]) if name in settings else "not set"


def _read_settings(path):
    try:
        return files.read_json(path)["settings"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is not the settings file of a run. Name a new or empty "
            "folder, or one of an earlier run."
        ) from None
