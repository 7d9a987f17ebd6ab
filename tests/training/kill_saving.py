"""Kills a process at each operation of a save in turn; for test_state.py.

Prints, for each operation, the step of the checkpoint that then loads: 1
stood there before, 2 is the one whose save was killed. A save ends with taking
away the one before. After each kill another save is tried.

    python kill_saving.py FOLDER
"""

import builtins
import os
import signal
import sys

import numpy as np

from bert_keras.training import checkpoint

OPERATIONS = (
    "mkdir",
    "fsync",
    "rename",
    "replace",
    "open",
    "unlink",
    "rmdir",
)


class Deadly:
    """Kills this process before its operation of a number."""

    def __init__(self, number):
        self.left = number

    def wrapped(self, function):
        def call(*arguments, **named):
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return function(*arguments, **named)

        return call

    def wrapped_file(self, function):
        def call(*arguments, **named):
            file = function(*arguments, **named)
            return File(file, self.wrapped(file.write))

        return call


class File:
    """A file with another `write`, each piece of which reaches the disk."""

    def __init__(self, file, write):
        self._file, self._write = file, write

    def write(self, data):
        # Half of it, so that the kill comes in the middle.
        half = len(data) // 2
        written = self._file.write(data[:half])
        self._file.flush()
        return written + self._write(data[half:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def save(folder, step):
    groups = {
        name: {"a": np.full(1000, step), "b": np.full((), step)}
        for name in ("model", "optimizer")
    }
    checkpoint.write(folder, step, groups, {"notes": {"some": 1}})
    checkpoint.prune(folder, step, 1)


def killed_at(folder, number):
    """Whether a save of step 2 came to its operation of that number."""
    child = os.fork()
    if child == 0:
        deadly = Deadly(number)
        builtins.open = deadly.wrapped_file(deadly.wrapped(open))
        for name in OPERATIONS:
            setattr(os, name, deadly.wrapped(getattr(os, name)))
        save(folder, 2)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def main(folder):
    number, killed = 0, True
    while killed:
        place = os.path.join(folder, str(number))
        save(place, 1)
        killed = killed_at(place, number)
        groups, manifest = checkpoint.read_newest(place)
        for tensors in groups.values():
            assert all((t == manifest["step"]).all() for t in tensors.values())
        print(manifest["step"])
        save(place, 3)
        assert checkpoint.steps(place) == [3]
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
