"""Python processes that start fast, with TensorFlow already imported.

For each test worker, one process imports TensorFlow and Keras and uses neither.
`run` and `start` fork this process, so each fork is like a new interpreter
after these imports. A test of imports, of their cost or of another backend
uses `subprocess`.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import resource
import runpy
import subprocess
import sys
import sysconfig
import tempfile
import types
from unittest import mock

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["keras"])  # which imports TensorFlow
_UNLIMITED = resource.RLIM_INFINITY


def start(words, cwd=None, env=None, largest_file=_UNLIMITED):
    """Start `python WORDS` like `subprocess.Popen` with pipes for text.

    Args:
        words: list of a script (its path, "-m" and a module, or "-c" and a
            program), then the arguments.
        cwd, env: as in `Popen`.
        largest_file: maximum bytes of a file; the system refuses more.
    """
    return _Started(list(map(str, words)), cwd, env, largest_file)


def run(command, cwd=None, env=None, largest_file=_UNLIMITED, **_):
    """Run `[sys.executable, ...]` like `subprocess.run` with text output."""
    process = start(command[1:], cwd, env, largest_file)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(
        command, process.returncode, output, errors
    )


class _Started:
    def __init__(self, words, cwd, env, largest_file):
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [f"{self._folder.name}/{name}" for name in ("out", "err")]
        arguments = [words, self._paths, cwd or os.getcwd()]
        arguments += [dict(env or os.environ), largest_file]
        # TensorFlow's messages about the machine should not repeat in forks.
        with mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"):
            multiprocessing.forkserver.ensure_running()
        self._process = _CONTEXT.Process(target=_become, args=arguments)
        # Otherwise the fork first imports the main program of this process.
        # During `call_script`, that program is the script.
        nothing = types.ModuleType("__main__")
        with mock.patch.dict(sys.modules, {"__main__": nothing}):
            self._process.start()

    @property
    def returncode(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def communicate(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python", timeout)
        texts = []
        for path in self._paths:
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return tuple(texts)


def _become(words, paths, folder, environment, largest_file):
    """Set up the fork as an interpreter does, and run the program."""
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # `bert_keras.data.workers` may have started the fork server and imported
    # bert_keras into it. The program must import bert_keras itself.
    for name in [n for n in sys.modules if n.split(".")[0] == "bert_keras"]:
        del sys.modules[name]
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, most))
    places = tuple({*sysconfig.get_paths().values()})
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [p for p in given if p] + [
        p for p in sys.path if p.startswith(places) or p.endswith(".zip")
    ]
    first, *rest = words
    if first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = words
        runpy.run_path(first, run_name="__main__")
