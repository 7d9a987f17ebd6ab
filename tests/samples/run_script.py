"""Runs a script of the checkout, in a process of its own or in this one."""

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

import forks

ROOT = Path(__file__).parent.parent.parent
# The beginning of a program in which TensorFlow is not installed.
WITHOUT_TENSORFLOW = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_script(*command, folder, largest_file=resource.RLIM_INFINITY):
    """`python COMMAND` in `folder`; returns the finished process.

    Beyond `largest_file` bytes the system refuses to write, as on a full disk.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # The scripts choose what TensorFlow logs.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return forks.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        largest_file=largest_file,
    )


@contextlib.contextmanager
def waiting_process(program, folder, line):
    """A Python program, given `folder`, that has printed this first line.

    It ends when it is killed, at the end of the block.
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
    """What a script printed, also where it closes its output."""

    def close(self):
        pass


def call_script(*command, folder):
    """As `run_script`, in this process: TensorFlow is not started again."""
    from absl import flags

    from official_tasks import progress, script, stopping

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
            mock.patch.object(script, "_limits", []),
            mock.patch.object(script, "_groups", {}),
            mock.patch.object(script, "_choices", []),
            mock.patch.object(stopping, "install", lambda: None),
            # predict has lines for people go to the other output.
            mock.patch.object(progress.console, "stderr", False),
        ):
            # A test may have imported the script as a module before.
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
            if not module.startswith("absl"):  # absl defines its own once
                delattr(flags.FLAGS, name)
        flags.FLAGS.unparse_flags()
    return subprocess.CompletedProcess(
        words, code, output.getvalue(), errors.getvalue()
    )
