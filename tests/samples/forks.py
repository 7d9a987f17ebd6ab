"""Python processes that begin with TensorFlow imported, so in no time.

One process a test worker imports TensorFlow and Keras and uses neither; what
`run` and `start` run are forks of it, each as fresh as a new interpreter is
after these imports. A test of what is imported, of what that costs, or of
another backend takes `subprocess`.
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

# For what takes a context of multiprocessing.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["keras"])  # which imports TensorFlow
_UNLIMITED = resource.RLIM_INFINITY


def start(words, cwd=None, env=None, largest_file=_UNLIMITED):
    """`python WORDS`, as `subprocess.Popen` starts it with pipes for text.

    Args:
        words: list; a script's path, "-m" and a module, or "-c" and a program,
            and the arguments.
        cwd, env: as of `Popen`.
        largest_file: bytes beyond which the system refuses to write.
    """
    return _Started(list(map(str, words)), cwd, env, largest_file)


def run(command, cwd=None, env=None, largest_file=_UNLIMITED, **_):
    """`subprocess.run` of [sys.executable, *words], with its output as text."""
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
        # What TensorFlow logs of the machine is said once, not in each fork.
        with mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"):
            multiprocessing.forkserver.ensure_running()
        self._process = CONTEXT.Process(target=_become, args=arguments)
        # A fork would import this process's main program first, which under
        # `call_script` is the script.
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
    """The fork: does what the interpreter does between its start and `main`."""
    for number, path in enumerate(paths, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Of ours, what `bert_keras.data.workers` begins with, if that was first.
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
