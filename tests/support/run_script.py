"""Runs a script of the checkout, in a new process or in this process."""

import contextlib
import io
import os
import resource
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

from tests.support import forks

ROOT = Path(__file__).parents[2]
# First lines of a program that then cannot import TensorFlow.
WITHOUT_TENSORFLOW = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_script(*command, folder, largest_file=resource.RLIM_INFINITY):
    """Run `python COMMAND` in `folder`; return the finished process.

    A write beyond `largest_file` bytes fails, as on a full disk.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The scripts set TensorFlow's log level only if the variable is not set.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return forks.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        largest_file=largest_file,
    )


@contextlib.contextmanager
def waiting_process(program, folder, line):
    """Yield the process of a Python program that has printed `line`.

    `folder` is the program's argument. The process is killed when the block
    ends.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline().decode() == f"{line}\n"
        yield process
    finally:
        process.kill()
        process.communicate()


class _Output(io.StringIO):
    """Text buffer that keeps its content when a script closes it."""

    def close(self):
        pass


def call_script(*command, folder):
    """Run a script in this process, which does not start TensorFlow again."""
    from absl import flags

    from official_tasks import progress, stopping

    words = list(map(str, command))
    is_module = words[0] == "-m"
    if is_module:
        words = words[1:]
    path = words[0] if is_module else os.path.join(folder, words[0])
    before = set(flags.FLAGS)
    output, errors = _Output(), _Output()
    here = os.getcwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
            mock.patch.object(sys, "argv", [path, *words[1:]]),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(stopping, "install", lambda: None),
            # Some scripts set `stderr` to True; the patch restores it.
            mock.patch.object(progress.console, "stderr", False),
        ):
            # runpy warns if a test has imported the script as a module before.
            warnings.filterwarnings("ignore", ".*found in sys.modules")
            if is_module:
                runpy.run_module(path, run_name="__main__", alter_sys=False)
            else:
                sys.path.insert(0, os.path.dirname(path))
                runpy.run_path(path, run_name="__main__")
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    finally:
        os.chdir(here)
        for name in set(flags.FLAGS) - before:
            module = flags.FLAGS.find_module_defining_flag(name)
            if not module.startswith("absl"):  # absl's own flags stay
                delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()
    return subprocess.CompletedProcess(
        words, code, output.getvalue(), errors.getvalue()
    )
