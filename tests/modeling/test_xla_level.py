"""XLA at its default optimization level; conftest.py sets level 0."""

import os
import subprocess
import sys

import pytest

from tests.support.run_script import ROOT

FILES = ["modeling/test_kernels.py", "training/test_optimizers.py"]


@pytest.mark.release
def test_gelu_loss_and_adam_hold_at_the_default_level():
    words = ["-m", "pytest", "-k", "xla", "-p", "no:cacheprovider"]
    # A new interpreter is needed: XLA reads its flags once in a process.
    done = subprocess.run(
        [sys.executable, *words, *(ROOT / "tests" / name for name in FILES)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "11 passed" in done.stdout
