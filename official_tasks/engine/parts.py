"""Writes an output in numbered parts, so that an interrupted call resumes."""

import contextlib
import hashlib
import json
import os
import re

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.folder_lock import FolderLock
from bert_keras.run_folder import SETTINGS, STAGES, RunFolder
from official_tasks.outputs import refuse_input_as_output

FINISHED = "output"  # the stage of the run that makes the output
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{12})-([0-9a-f]{12})")
# See `beam_shards.py`.
_SHARD = re.compile(r"\d{6,}-(of|part)-\d{6,}-[0-9a-f]{12}")
FIX = "Name another --output, or add --overwrite to replace it."


def parts_folder(path):
    """Return the path of the folder of an output's parts."""
    return f"{path}.parts"


def refuse_inputs(path, *inputs):
    """Raise `InputError` if an output or its parts would replace an input."""
    refuse_input_as_output(path, *inputs)
    refuse_input_as_output(parts_folder(path), *inputs)


def open_run(path, settings, overwrite=False, model_files=(), outputs=()):
    """Return the `RunFolder` of an output's parts, `PATH.parts`.

    Args:
        path: the output, local or remote.
        settings: JSON dict of everything that the output depends on, except
            the rows.
        overwrite: True to make all parts again, and to replace the output at
            the end.
        model_files: argument `weights` of `RunFolder`.
        outputs: paths of the files that are written, if it is not `path`.

    Raises:
        InputError: another process makes this output, or the parts were made
            with other settings.
    """
    files.refuse_folder(path)
    folder = parts_folder(path)
    if files.is_file(os.path.join(folder, SETTINGS)):
        names = files.list_folder(folder)
        made = [n for n in names if _NAME.fullmatch(n) or _SHARD.fullmatch(n)]
        # An output that was finished and then moved away is no reason to keep.
        record = os.path.join(folder, STAGES, f"{FINISHED}.json")
        is_gone = not any(map(files.exists, outputs or [path]))
        is_finished = files.is_file(record) and not made
        if overwrite or (is_finished and is_gone):
            lock = FolderLock(folder)
            for name in {SETTINGS, STAGES} & {*names} | {*made}:
                files.remove(os.path.join(folder, name))
            lock.release()
    return RunFolder(
        folder,
        settings,
        weights=model_files,
        advice=" Or add --overwrite to replace the output.",
    )


@contextlib.contextmanager
def open_parts(path, settings, overwrite=False, model_files=()):
    """Yield the `Parts` of an output.

    Args:
        path: see `open_run`.
        settings: see `open_run`.
        overwrite: see `open_run`.
        model_files: see `open_run`.

    Raises:
        InputError: `path` exists, is not the output of the same settings, and
            `overwrite` is False; see also `open_run`.
    """
    with open_run(path, settings, overwrite, model_files) as run:
        yield Parts(path, run, overwrite)


class Parts:
    """The parts of an output, each a file that is made from a group of rows.

    A part's name has its number, a hash of all rows so far and a hash of its
    bytes. A part under such a name is complete, so the same call skips it.
    `join` makes the output and removes the parts. The folder then tells the
    same call that the output is finished.

    Attributes:
        rows: number of rows so far.
    """

    def __init__(self, path, run, overwrite):
        self._path, self._run = path, run
        self._rows_hash, self._names = hashlib.sha256(), []
        self._finished = None
        self.rows = 0
        names = filter(_NAME.fullmatch, files.list_folder(run.path))
        self._found = {int(name.split("-")[0]): name for name in names}
        parent, name = os.path.split(files.absolute(path))
        if name in files.list_folder(parent) and not overwrite:
            self._finished = run.read_results(FINISHED)
            known = self._finished and self._finished["sha256"]
            if known != files.sha256(path):
                fault = "was changed by another program" if known else "exists"
                raise InputError(f"{path} {fault}. {FIX}")

    def make(self, groups, make_part):
        """Make the missing parts; yield the number of rows after each.

        Args:
            groups: iterable of lists of rows, which are JSON values.
            make_part: function of a list of rows and the number of rows before
                them; it returns the bytes of their part.

        Raises:
            InputError: a part or the output was made from other rows.
        """
        for number, rows in enumerate(groups):
            before, self.rows = self.rows, self.rows + len(rows)
            self._rows_hash.update(json.dumps(rows).encode())
            rows_hash = self._rows_hash.hexdigest()[:12]
            if self._finished:
                continue
            name = self._found.get(number)
            if name is None:
                content = make_part(rows, before)
                name = f"{number:06}-{rows_hash}-{_hash(content)}"
                self._run.check()
                with self._run.output(name) as path, open(path, "wb") as file:
                    file.write(content)
            elif name.split("-")[1] != rows_hash:
                self._refuse_rows()
            self._names.append(name)
            if number not in self._found:
                yield self.rows
        rows_hash = self._rows_hash.hexdigest()
        if self._finished and self._finished["rows"] != rows_hash:
            self._refuse_rows()

    def _refuse_rows(self):
        holder = self._path if self._finished else self._run.path
        raise InputError(f"{holder} was made from other rows. {FIX}")

    def contents(self):
        """Yield the bytes of each part, in order.

        Raises:
            InputError: a part was changed after it was written.
        """
        for name in self._names:
            content = files.read_bytes(self._run.file(name), None)
            if _hash(content) != name.split("-")[2]:
                raise InputError(
                    f"{self._run.file(name)} was changed after it was written. "
                    "Remove it, and run the command again."
                )
            yield content

    def join(self, write):
        """Make the output from all parts, unless it is finished.

        Args:
            write: function that writes the output to a path from `contents`;
                it returns results, a JSON value.

        Returns:
            the results of the call that finished the output.
        """
        if not self._finished:
            self._run.check()
            with files.atomic_output(self._path) as path:
                self._finished = {
                    "results": write(path),
                    "rows": self._rows_hash.hexdigest(),
                    "sha256": files.sha256(path),
                }
                # Recorded before the output gets its name: after a kill in
                # between, the parts are still there.
                self._run.finish(FINISHED, self._finished)
        for name in {*self._names, *self._found.values()}:
            files.remove(self._run.file(name))
        return self._finished["results"]


def _hash(content):
    return hashlib.sha256(content).hexdigest()[:12]
