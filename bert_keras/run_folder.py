"""The folder of one run or of one build of data, with one writer at a time."""

import contextlib
import json
import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.folder_lock import LOCK, FolderLock
from bert_keras.json_files import NATURAL, OBJECT, TEXT
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    check_same_settings,
    describe_file,
    read_manifest,
    write_manifest,
)

SETTINGS = "run.json"
STAGES = "stages"
LENGTHS = ("epochs", "steps")  # settings that say how long a run trains


class RunFolder:
    """The folder of one run, which can resume after an interruption.

    The folder must be new or empty, or hold a run with the same settings. That
    run then resumes. Only one process at a time can write to the folder. A
    build of data is a run whose settings are needed until the data have a
    manifest; see `forget`.

    Args:
        path: local or remote folder; it is made if it is missing.
        settings: JSON dict of everything that determines the results.
        inputs: paths of the files that the run reads. Size, modification time
            and hash of each file are recorded when the run begins. When the run
            resumes, the size must be the same. If the modification time
            differs, the hash must be the same. Missing files are skipped.
            Call `check_inputs` after reading them. Relative paths, also those
            in `settings`, mean the same files when the run resumes from another
            current folder.
        writes: False in worker processes, which only read the folder.
        weights: paths of further inputs, which may have moved when the run
            resumes, as the packages of another environment have.
        allows_files: True if a new run may begin in a folder that has files,
            or a damaged record.
        advice: end of the message that refuses other settings.

    Attributes:
        is_new: True if the run did not resume.

    Raises:
        InputError: the folder is not writable, is not a run folder, has
            other settings or inputs, or is in use.

    Examples:
        >>> with RunFolder("runs/mine", {"seed": 1}) as run:
        ...     results = run.read_results("corpus")
        ...     if results is None:
        ...         with run.output("corpus.txt") as path:
        ...             results = write_corpus(path)
        ...         run.finish("corpus", results, outputs=["corpus.txt"])
    """

    def __init__(
        self,
        path,
        settings,
        inputs=(),
        writes=True,
        weights=(),
        allows_files=False,
        advice="",
    ):
        self.path = files.absolute(path)
        self.is_new = False
        self._allows_files, self._advice = allows_files, advice
        self._lock = None
        self._inputs: dict = {}
        self._gone: list = []  # inputs that the run had when it began
        if not writes:
            return
        files.check_name(path)
        settings = json.loads(json.dumps(settings))
        self._made = files.make_folder(self.path)
        if not allows_files:
            self._refuse_foreign()
        # A command with other settings must not take the folder from a run.
        if old := self._read():
            self._check_same(old, settings)
        self._lock = FolderLock(self.path)
        try:
            self._take(settings, list(map(str, inputs)), list(weights))
        except BaseException:
            self._lock.release()
            raise

    def file(self, *names):
        """Return the path of a file in the run's folder."""
        return os.path.join(self.path, *names)

    def output(self, name):
        """Return `files.atomic_output` for a file or folder of the run."""
        return files.atomic_output(self.file(name))

    def read_results(self, stage):
        """Return the results of a stage, or None if the stage is not finished.

        Raises:
            InputError: the stage's record is damaged, or a file that the stage
                wrote was changed or is missing.
        """
        path = self.file(STAGES, f"{stage}.json")
        if not files.is_file(path):
            return None
        fix = (
            "Restore the files that the run wrote, or remove "
            f"{path} to run this stage again."
        )
        try:
            record = read_manifest(
                path, f"stage {stage!r}", _check_record, most=None
            )
        except InputError as error:
            raise InputError(f"{error} {fix}") from None
        check_files(self.path, record["outputs"], fix)
        return record["results"]

    def finish(self, stage, results, outputs=()):
        """Record that a stage is finished, with its results and its outputs.

        Do nothing if the run folder was opened with `writes=False`.

        Args:
            stage: name of the stage.
            results: JSON value.
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
            {"results": results, "outputs": entries},
        )

    def check(self):
        """Raise `InputError` if another process may have taken the folder."""
        if self._lock is not None:
            self._lock.check()

    def check_inputs(self, versions=()):
        """Raise `InputError` if the run read other bytes than it recorded.

        Args:
            versions: dict of absolute path -> `files.describe_version` at the
                time of reading. Other inputs were read just before this call.
        """
        versions = dict(versions)
        known = {files.absolute(name) for name in self._inputs}
        # A folder of texts may have other files than when the run began.
        if others := [*self._gone, *sorted(versions.keys() - known)]:
            raise InputError(
                f"The run in {self.path} was started with other files: "
                f"{', '.join(others[:3])} came or went since then. Name "
                "another folder for the current files, or put the original "
                "files back."
            )
        names = [
            name
            for name, entry in self._inputs.items()
            if _differs(name, entry, versions.get(files.absolute(name)))
        ]
        if names:
            raise InputError(
                f"{', '.join(names)} changed while the run read its files. Run "
                "the command again when no program writes to them."
            )

    def forget(self):
        """Close the run; remove its settings and its lock file.

        Call this when a manifest of the finished files has the settings.
        """
        self.check()
        files.remove(self.file(SETTINGS))
        self._lock.remove()

    def close(self):
        """Free the folder for the next process."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        is_mistake = kind is not None and issubclass(kind, InputError)
        if is_mistake and self.is_new and self._lock.is_held():
            # After an invalid argument, the next call may have other settings.
            self._remove_settings()
        else:
            self.close()

    def _remove_settings(self):
        """Close the run; remove its settings if it wrote no other file.

        In that case, remove the local folder and parents that the run made.
        """
        if not files.is_remote(self.path):
            # Remove empty folders, which a run in a subfolder may have left.
            for path in map(self.file, os.listdir(self.path)):
                if path not in self._before:
                    with contextlib.suppress(OSError):
                        os.rmdir(path)
        if not self._before.issuperset(files.walk(self.path)):
            self.close()
            return
        self.forget()
        if not files.is_remote(self.path):
            files.remove_made(self._made)

    def _read(self):
        """Return the record of the run in the folder, or None."""
        try:
            return _read_run(self.path)
        except InputError:
            if not self._allows_files:
                raise
            return None  # of a build: what it made is made again

    def _refuse_foreign(self):
        try:
            names = set(files.list_folder(self.path))
        except OSError as error:
            raise InputError(
                f"The folder {self.path} cannot be read ({error.strerror}). "
                "Name another folder."
            ) from None
        strangers = sorted(n for n in names - {LOCK} if not files.is_partial(n))
        if strangers and SETTINGS not in names:
            raise InputError(
                f"The folder {self.path} is not empty "
                f"({', '.join(strangers[:3])}) and holds no run: {SETTINGS} "
                "is missing. Name a new or empty folder."
            )

    def _take(self, settings, inputs, weights):
        files.remove_partials(self.path)
        # Skip missing files. The run raises an error when it reads them.
        inputs = list(filter(files.is_file, [*inputs, *weights]))
        if old := self._read():
            self._check_same(old, settings)
            self._check_inputs(old, inputs, weights)
            return
        self._before = {self.file(SETTINGS), self.file(LOCK)}
        self._before.update(files.walk(self.path))
        if not files.is_remote(self.path):
            self._before.update(map(self.file, os.listdir(self.path)))
        self._inputs = {name: _describe_input(name) for name in inputs}
        record = {"settings": settings, "inputs": self._inputs}
        if not files.is_remote(self.path):
            # Relative, so that a project can be moved with its runs.
            current = os.path.realpath(os.getcwd())
            record["folder"] = os.path.relpath(
                current, os.path.realpath(self.path)
            )
        write_manifest(self.file(SETTINGS), record)
        self.is_new = True

    def _check_same(self, old, settings):
        base = find_base(old, self.path)
        settings = _keep_same_paths(old["settings"], settings, base)
        old, advice = old["settings"], self._advice
        is_finished = files.is_file(self.file("results.json"))
        if is_finished and any(
            old.get(name) != settings.get(name) for name in LENGTHS
        ):
            advice = (
                " To train a finished model further, name another folder and "
                "give `init=RUN`, where RUN is this folder."
            )
        check_same_settings(old, settings, self.path, advice)

    def _check_inputs(self, old, inputs, weights):
        base = find_base(old, self.path)
        old = {
            absolute_paths(name, base): entry
            for name, entry in old["inputs"].items()
        }
        self._inputs = {
            name: old[files.absolute(name)]
            for name in inputs
            if files.absolute(name) in old
        }
        present = {files.absolute(name) for name in inputs}
        self._gone = sorted(old.keys() - present)
        for path in sorted({*map(files.absolute, weights)} - old.keys()):
            for gone in self._gone:
                is_named_so = os.path.basename(gone) == os.path.basename(path)
                if is_named_so and not _differs(path, old[gone]):
                    self._inputs[path] = old[gone]
                    self._gone.remove(gone)
                    break
        if changed := find_changed(old, inputs):
            raise InputError(
                f"The run in {self.path} was started with other files: "
                f"{', '.join(changed)} changed since then. Name another folder "
                "for the current files, or put the original files back."
            )


def find_base(record, folder) -> str:
    """Return the folder that the relative paths in a run's record are for."""
    relative = record.get("folder")
    if not isinstance(relative, str):  # a remote or an older run
        return os.getcwd()
    return os.path.normpath(os.path.join(os.path.realpath(folder), relative))


def absolute_paths(text, base) -> str:
    """Return a path, or paths separated by commas, as absolute paths.

    Names of files that do not exist are not changed.

    Args:
        text: one setting of a run.
        base: folder of the relative paths, see `find_base`.
    """

    def resolve(name):
        path = name if files.is_remote(name) else os.path.join(base, name)
        return files.absolute(path) if name and files.exists(path) else name

    whole = resolve(text)
    if whole != text:
        return whole
    return ",".join(resolve(name.strip()) for name in text.split(","))


def _keep_same_paths(old, settings, base):
    """Return `settings` with the old spelling of paths to the same files."""

    def is_same(before, value):
        return (
            isinstance(before, str)
            and isinstance(value, str)
            and absolute_paths(before, base)
            == absolute_paths(value, os.getcwd())
        )

    return {
        name: old[name] if is_same(old.get(name), value) else value
        for name, value in settings.items()
    }


def resume_dtype(dtype, folder):
    """Return the dtype of the run in `folder` if `dtype` is "auto".

    Otherwise, or if there is no run, return `dtype`.
    """
    old = _read_run(folder) if dtype == "auto" and folder else None
    return old["settings"].get("dtype", dtype) if old else dtype


def _read_run(folder):
    """Return the record of the run in `folder`, or None if there is no run."""
    path = os.path.join(folder, SETTINGS)
    if not files.is_file(path):
        return None
    try:
        return read_manifest(path, "run", _check_settings)
    except InputError as error:
        raise InputError(
            f"{error} Name a new or empty folder, or the folder of an earlier "
            "run."
        ) from None


def _check_settings(record):
    check_fields(record, {"settings": OBJECT, "inputs": OBJECT})
    for entry in record["inputs"].values():
        check_fields(
            entry, {"bytes": NATURAL, "changed": NATURAL, "sha256": TEXT}
        )


def _check_record(record):
    check_entries(record["outputs"])
    record["results"]


def _describe_input(path):
    size, changed = files.describe_version(path)
    return {"bytes": size, "changed": changed, "sha256": files.sha256(path)}


def find_changed(inputs, paths) -> list[str]:
    """Return the paths whose files changed since a run began.

    Args:
        inputs: dict "inputs" of the run's record.
        paths: list of str; a path that the run did not read is left out.
    """
    # One file may be named by an absolute and by a relative path.
    entries = {os.path.abspath(name): inputs[name] for name in inputs}
    return [
        path
        for path in paths
        if (entry := entries.get(os.path.abspath(path)))
        and _differs(path, entry)
    ]


def _differs(path, entry, version=None):
    """Return True if a file, or `version` of it, is not the recorded one."""
    size, changed = version or files.describe_version(path)
    if size != entry["bytes"]:
        return True
    if changed == entry["changed"]:
        return False
    if version not in (None, files.describe_version(path)):
        return True  # the bytes of that version are gone
    # A copied file has another modification time but the same bytes.
    return files.sha256(path) != entry["sha256"]
