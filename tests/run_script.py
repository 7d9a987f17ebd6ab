"""Runs a script of the checkout in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run_script(*command, folder):
    """`python COMMAND` in `folder`; returns the finished process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
