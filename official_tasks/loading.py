"""Hides four lines that TensorFlow prints while it starts without a GPU.

The variable TF_CPP_MIN_LOG_LEVEL cannot hide three of these lines, because
TensorFlow 2.21 writes them before it reads the variable. This module filters
the lines, unless the machine has an accelerator or the variable is 0. If the
variable is not set, this module sets the variable to 1.
"""

import contextlib
import glob
import importlib.abc
import importlib.util
import os
import subprocess
import sys

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


def set_log_level():
    """Hide the lines in `HIDDEN`, and TensorFlow's messages below warnings.

    If TF_CPP_MIN_LOG_LEVEL is already set, its value is kept. The lines in
    `HIDDEN` are shown if the value is 0, the machine has an accelerator, or
    TensorFlow is already imported.
    """
    level = os.environ.setdefault(LEVEL, "1")
    has_device = any(map(glob.glob, DEVICE_FILES))
    if not (has_device or level == "0" or "tensorflow" in sys.modules):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that hides the lines in `HIDDEN` while TensorFlow starts."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_hide(module):
                with _hide_lines():
                    execute(module)
                    # Call CUDA now, to hide its line "failed call to cuInit".
                    module.config.list_physical_devices()

            spec.loader.exec_module = execute_and_hide
        return spec


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
