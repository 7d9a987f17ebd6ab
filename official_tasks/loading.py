"""Hides three lines that TensorFlow prints while its libraries are loaded.

TensorFlow 2.21 writes them before it reads TF_CPP_MIN_LOG_LEVEL. Where a GPU
is in the machine, or that variable is set to less than 3, nothing is hidden.
"""

import contextlib
import glob
import importlib.abc
import importlib.util
import os
import subprocess
import sys

GPU_FILES = ["/dev/nvidia[0-9]*", "/dev/dxg"]  # Linux; Linux on Windows
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
HIDDEN = (
    "All log messages before absl::InitializeLog() is called",
    "oneDNN custom operations are on",
    "Could not find cuda drivers on your machine",
)


def set_log_level():
    """Show warnings and errors of TensorFlow, or only fatal errors.

    Without a GPU its start prints errors that mean nothing, such as a failed
    call of CUDA. TensorFlow raises what concerns a script in Python too.
    """
    has_gpu = any(map(glob.glob, GPU_FILES))
    # A script that another script starts has it in its environment.
    level = os.environ.setdefault(LEVEL, "1" if has_gpu else "3")
    if level == "3" and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Hides the lines while TensorFlow is imported for the first time."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of `tensorflow`, None for other modules."""
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_hide(module):
                with _hide_lines():
                    execute(module)

            spec.loader.exec_module = execute_and_hide
        return spec


@contextlib.contextmanager
def _hide_lines():
    """Send standard error through `grep` for the duration of a block.

    A separate process also passes on the message of a native abort.
    """
    patterns = [word for text in HIDDEN for word in ("-e", text)]
    command = ["grep", "--line-buffered", "-vF", *patterns]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,  # Ctrl-C does not end it
        )
    except OSError:  # no grep
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
        # A process that the import has started may hold the pipe open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
