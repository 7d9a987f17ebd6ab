"""What the scripts share: the help and its groups of flags."""

import os
import re
import subprocess
import sys

import pytest
from run_script import ROOT, run_script

from official_tasks.tasks.registry import OPTIONS


def test_help_lists_common_flags_first_then_those_of_each_family(tmp_path):
    done = run_script(
        "-m", "official_tasks.finetune", "--help", folder=tmp_path
    )
    text, _, training = done.stdout.partition("\ntraining:\n")
    assert "--lora_rank" in training
    assert "    python -m official_tasks.finetune --task=custom" in text
    assert "--train=reviews.csv \\\n        --text=review" in text
    common, *families = re.split(r"^(--task=.*):$", text, flags=re.MULTILINE)
    flags = {
        title: re.findall(r"^  --(?:\[no\])?(\w+):", part, re.MULTILINE)
        for title, part in zip(families[::2], families[1::2], strict=True)
    }
    assert {title: (names[0], names[-1]) for title, names in flags.items()} == {
        "--task=custom": ("answer", "words"),
        "--task=embedding, ranking": ("drop_unlabelled", "text_pair"),
        "--task=ner, conll2003, wnut17, wikiann": (
            "document_context",
            "recipe",
        ),
        "--task=squad1, squad2, triviaqa": ("null_odds", "stride"),
    }
    own = {name for names in flags.values() for name in names}
    assert sorted(own | {"data_dir", "train", "dev", "test"}) == OPTIONS
    for name in ("init", "data_dir", "train", "epochs", "task"):
        assert f"  --{name}: " in common
    assert not own & set(re.findall(r"^  --(?:\[no\])?(\w+):", common, re.M))


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
