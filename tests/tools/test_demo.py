"""The demo compares its scores honestly; a killed demo ends like another."""

import os
import random
import signal
import subprocess
import sys

import pytest

from bert_keras.json_files import write_json
from tests.support.run_script import ROOT
from tools.demo import STARTS, list_scores

# Files that the stages compute; other files contain times.
COMPUTED = """
vocab.txt task/train.jsonl task/dev.jsonl pretrain/model/model.safetensors
random/model/model.safetensors pretrained/model/model.safetensors
packaged/model/model.safetensors
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


@pytest.mark.parametrize(
    "scores, quick, verdict",
    [
        (
            (0.35, 0.47, 0.66),
            False,
            "without labels helps",
        ),
        ((0.47, 0.35, 0.66), False, "Here it is not"),
        ((0.35, 0.36, 0.66), False, "Here it is not"),  # by chance
        ((0.35, 0.66, 0.66), False, "Here it is not"),
        ((0.00, 0.10, 0.20), True, "This says nothing"),
    ],
)
def test_a_comparison_that_shows_no_gain_says_so_in_words(
    tmp_path, scores, quick, verdict
):
    for name, f1 in zip(STARTS, scores, strict=True):
        tmp_path.joinpath(name).mkdir()
        write_json({"f1": f1}, tmp_path / name / "results.json")
    tmp_path.joinpath("pretrain").mkdir()
    metrics = "mlm_accuracy mlm_unigram_baseline nsp_accuracy".split()
    results = dict.fromkeys([*metrics, "nsp_majority_baseline"], 0.5)
    write_json(results, tmp_path / "pretrain" / "results.json")
    *lines, last = list_scores(tmp_path, quick)
    assert verdict in last
    assert [line[-5:] for line in lines[-3:]] == [f"{x:5.1%}" for x in scores]


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
