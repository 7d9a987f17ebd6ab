"""What the scripts share: the help, and the flags that it shows."""

import re

import pytest
from run_script import run_script

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
