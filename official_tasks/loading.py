"""Prepares the import of TensorFlow: fast, and with fewer messages.

The variable TF_CPP_MIN_LOG_LEVEL cannot hide three of the lines in `HIDDEN`,
because TensorFlow 2.21 writes them before it reads the variable.
"""

import atexit
import contextlib
import gc
import glob
import importlib.abc
import importlib.util
import os
import platform
import subprocess
import sys

from absl import logging

from bert_keras.training import GPU_FILES

DEVICE_FILES = [
    *GPU_FILES,
    "/dev/kfd",  # AMD
    *("/dev/accel*", "/dev/vfio/[0-9]*"),  # TPU
]
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Lines of TensorFlow that do not matter on a machine without an accelerator.
HIDDEN = (
    "All log messages before absl::InitializeLog() is called",
    "oneDNN custom operations are on",
    "Could not find cuda drivers on your machine",
    "failed call to cuInit",
)


def prepare():
    """Prepare this process for the import of TensorFlow, if it follows.

    TensorFlow's messages below warnings are hidden, unless TF_CPP_MIN_LOG_LEVEL
    is set. The lines in `HIDDEN` are hidden too, unless this variable is 0, the
    machine has an accelerator, or TensorFlow is already imported. See also
    `note_bytecode`.
    """
    # By default, Python's garbage collector searches TensorFlow's objects for
    # 2 s during the import and 2 s at the exit, and finds no garbage.
    gc.set_threshold(20_000)
    atexit.register(gc.freeze)
    if platform.machine() in ("x86_64", "AMD64"):
        # On processors that have only AVX2, TensorFlow turns oneDNN off,
        # although oneDNN is faster there too (docs/serving.md).
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    level = os.environ.setdefault(LEVEL, "1")
    has_device = any(map(glob.glob, DEVICE_FILES))
    sys.meta_path.insert(0, _Finder(hides=not has_device and level != "0"))


def note_bytecode(spec):
    """Return a note if Python compiles TensorFlow at each start; else None.

    Args:
        spec: TensorFlow's `ModuleSpec`.
    """
    cached = spec.cached
    if cached is None or os.path.exists(cached):
        return None
    folder = os.path.dirname(cached)
    while not os.path.isdir(folder):  # Python would make it
        folder = os.path.dirname(folder)
    can_write = os.access(folder, os.W_OK) and not sys.dont_write_bytecode
    if can_write:
        return None
    packages = os.path.dirname(os.path.dirname(spec.origin))
    return (
        "TensorFlow's bytecode is not compiled, and Python may not write it, "
        "so each start takes many seconds longer. Compile it once, as a user "
        f"who may write there: {sys.executable} -m compileall -q {packages}"
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that acts when TensorFlow and Keras start.

    Keras does not find scikit-learn. TensorFlow prints the note of
    `note_bytecode`, and with `hides`, no line in `HIDDEN`.
    """

    def __init__(self, hides):
        self.hides = hides

    def find_spec(self, name, path=None, target=None):
        contexts = {
            "tensorflow": self._start_tensorflow,
            "keras": _hide_sklearn,
        }
        if name not in contexts:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_prepared(module):
            with contexts[name](module):
                execute(module)

        spec.loader.exec_module = execute_prepared
        return spec

    @contextlib.contextmanager
    def _start_tensorflow(self, module):
        if note := note_bytecode(module.__spec__):
            logging.warning(note)
        if not self.hides:
            yield
            return
        with _hide_lines():
            yield
            # Call CUDA now, to hide its line "failed call to cuInit".
            module.config.list_physical_devices()


@contextlib.contextmanager
def _hide_sklearn(_):
    """Make scikit-learn look not installed, unless it is imported already.

    Its import takes 0.6 s or more, with pandas 0.9, and Keras uses it only in
    `keras.wrappers`, which no script needs. They stay without it.
    """
    if "sklearn" in sys.modules:
        yield
        return
    sys.modules["sklearn"] = None  # an import raises `ModuleNotFoundError`
    try:
        yield
    finally:
        del sys.modules["sklearn"]


@contextlib.contextmanager
def _hide_lines():
    """Send standard error through `grep` during a `with` block.

    grep is a separate process, so the message of an abort in C++ still appears.
    """
    patterns = [word for text in HIDDEN for word in ("-e", text)]
    command = ["grep", "--line-buffered", "-vF", *patterns]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,  # so that Ctrl-C does not end grep
        )
    except OSError:  # the machine has no grep
        yield
        return
    stderr = os.dup(2)
    os.dup2(process.stdin.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        process.stdin.close()
        # Wait for one second only: if the import started a process that still
        # has the pipe open, grep does not end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
