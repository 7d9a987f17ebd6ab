"""Runs a script of the checkout in a process of its own."""

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run_script(*command, folder, largest_file=resource.RLIM_INFINITY):
    """`python COMMAND` in `folder`; returns the finished process.

    Beyond `largest_file` bytes the system refuses to write, as on a full disk.
    """

    def limit():
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, most))

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
