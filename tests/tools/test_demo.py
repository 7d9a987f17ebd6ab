"""tools/demo.py --quick is killed by SIGKILL and run again."""

import os
import random
import signal
import subprocess
import sys

import pytest

from tests.support.run_script import ROOT

# Files that the stages compute; other files contain times.
COMPUTED = """
vocab.txt task/train.csv task/dev.csv pretrain/model/model.safetensors
pretrained/model/model.safetensors scratch/model/model.safetensors
served/variables/variables.data-00000-of-00001 answers.jsonl
""".split()


def start_demo(folder):
    """Start the quick demo in a process group of its own."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, ROOT / "tools/demo.py", "--quick", "--output=demo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.long
def test_a_demo_that_is_killed_at_any_moment_ends_with_the_same_bytes(tmp_path):
    whole = start_demo(tmp_path / "whole")
    _, errors = whole.communicate(timeout=900)
    assert whole.returncode == 0, errors[-2000:]
    seed = random.SystemRandom().randrange(1000)
    chosen = random.Random(seed)
    for _ in range(6):
        killed = start_demo(tmp_path / "killed")
        try:
            killed.communicate(timeout=chosen.uniform(5, 60))
        except subprocess.TimeoutExpired:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.communicate()
        else:
            assert killed.returncode == 0, seed
    again = start_demo(tmp_path / "killed")
    _, errors = again.communicate(timeout=900)
    assert again.returncode == 0, (seed, errors[-2000:])
    for name in COMPUTED:
        expected = (tmp_path / "whole" / "demo" / name).read_bytes()
        found = (tmp_path / "killed" / "demo" / name).read_bytes()
        assert found == expected, (seed, name)
