"""What the scripts share: the help, and the flags that it shows."""

import os
import re
import subprocess
import sys

import pytest
from run_script import ROOT, run_script

RETRIEVAL = {"text", "queries", "recall_at", "separator"}


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        (["finetune"], {"train", "data_dir"}, {"text", "stride", "recipe"}),
        (
            ["finetune", "--task=custom"],
            {"text", "label", "problem", "separator"},
            {"stride", "answer", "pooling"},
        ),
        (
            ["finetune", "--task=custom", "--problem=spans"],
            {"answer", "stride", "train"},
            {"text", "label", "problem"},
        ),
        (["finetune", "--task=squad2"], {"stride"}, {"text", "separator"}),
        (["evaluate", "--task=ranking"], RETRIEVAL, {"objective", "stride"}),
        (["evaluate", "--task=mlm"], {"text", "encoding"}, {"train"}),
        (["predict"], {"separator", "input"}, {"train", "stride"}),
    ],
)
def test_help_shows_the_flags_of_the_task(tmp_path, words, shown, hidden):
    script, *words = words
    done = run_script(
        "-m", f"official_tasks.{script}", *words, "--help", folder=tmp_path
    )
    assert f"    python -m official_tasks.{script} --task=" in done.stdout
    names = re.findall(r"^  --(?:\[no\])?(\w+):", done.stdout, re.MULTILINE)
    assert len(set(names)) == len(names)
    assert shown | {"task", "output"} <= {*names}
    assert not hidden & {*names}
    _, _, training = done.stdout.partition("\ntraining:\n")
    assert ("--lora_rank" in training) == (script == "finetune")


def test_help_on_a_task_that_does_not_exist_names_those_that_do(tmp_path):
    done = run_script(
        *("-m", "official_tasks.finetune", "--task=bert", "--help"),
        folder=tmp_path,
    )
    assert done.returncode == 2 and "sst2" in done.stderr


TENSORFLOW = """
import os
os.write(2, b"WARNING: All log messages before absl::InitializeLog() is\\n")
os.write(2, b"I0000 cudart_stub.cc:31] Could not find cuda drivers\\n")
os.write(2, b"the reason\\n")
os.{end}
"""
PROGRAM = """
from official_tasks import script
script.glob.glob = lambda pattern: {gpus}
script.start(lambda values: None, lambda: None)
"""


@pytest.mark.parametrize("end", ["abort()", "no_such_name"])
@pytest.mark.parametrize("gpus", [[], ["/dev/nvidia0"]])
def test_what_tensorflow_says_is_shown_but_for_noise(tmp_path, end, gpus):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW.format(end=end))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(gpus=gpus)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert done.returncode and "the reason" in lines
    assert not any("absl::InitializeLog" in line for line in lines)
    assert any("cudart_stub.cc" in line for line in lines) == bool(gpus)


def test_importing_tensorflow_prints_nothing_without_a_gpu(tmp_path):
    program = PROGRAM.format(gpus=[])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
