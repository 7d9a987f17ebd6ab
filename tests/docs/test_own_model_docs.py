"""The commands and the Python of docs/own_model.md run, at toy size."""

import contextlib
import json
import re

import pytest
from glue_samples import write_glue
from page_commands import commands, script_of
from run_script import ROOT, call_script
from toy_pretraining import documents

PAGE = "docs/own_model.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)
# By the end of a script's name, what is appended so that it takes seconds.
SMALLER = {
    "clean_corpus.py": "",
    "train_vocabulary.py": "--workers=1",
    "create_pretraining_data.py": "--workers=1",
    "pretrain": "--sequence_length=16 --max_predictions=3 --batch_size=4 "
    "--steps=4 --phase_2_steps=2 --phase_2_sequence_length=24 "
    "--phase_2_max_predictions=4 --phase_2_batch_size=4 --evaluations=2 "
    "--evaluation_steps=2 --dtype=float32",
    "pack_preset.py": "--output=packed --batches=2",
}
SMALL_MODEL = ["--num_layers=1", "--hidden_dim=8", "--num_heads=1"]


def write_corpus(folder):
    """Sixteen books by someone, eight by Jane Austen."""
    (folder / "classics").mkdir(parents=True)
    for number, document in enumerate(documents()):
        author = "Jane_Austen" if number % 3 == 0 else "Some_One"
        path = folder / "classics" / f"{author}_{number}.txt"
        lines = [f"Of book {number}: {line}" for line in document.paragraphs]
        path.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The folder after all commands, and what they printed."""
    folder, printed = tmp_path_factory.mktemp("own_model"), []
    write_corpus(folder / "corpus")
    write_glue(folder / "DATA" / "glue")
    for command in commands(PAGE):
        if "--init=runs/mini_tiled" in command:
            with contextlib.chdir(folder):
                exec(PYTHON[1], {})
        script = script_of(command)
        (name,) = [n for n in SMALLER if str(script[-1]).endswith(n)]
        words = [*script, *command[len(script) :], *SMALLER[name].split()]
        if "--size=mini" in words:
            words += SMALL_MODEL
        finished = call_script(*words, folder=folder)
        assert finished.returncode == 0, (command, finished.stderr[-3000:])
        printed.append((name, finished.stdout))
    return folder, printed


@pytest.mark.long
def test_every_kind_of_command_ran(done):
    _, printed = done
    assert {name for name, _ in printed} == set(SMALLER)


@pytest.mark.long
def test_the_authors_that_are_held_out_are_not_trained_on(done):
    folder, _ = done
    tokens = folder / "runs/mini_data/tokens"
    held_out = json.loads((tokens / "held_out" / "store.json").read_text())
    train = json.loads((tokens / "train" / "store.json").read_text())
    assert (train["documents"], held_out["documents"]) == (16, 8)


@pytest.mark.long
def test_each_run_goes_on_from_the_one_before_and_the_last_is_packed(done):
    folder, _ = done
    first, *later = (
        json.loads((folder / f"runs/{name}/results.json").read_text())
        for name in (
            "mini_short",
            "mini",
            "mini_long",
            "mini_512",
            "mini_longer",
            "mini_longer_512",
        )
    )
    for results in later:
        assert results["parameters"] == first["parameters"]
        assert results["before"] is not None
    packed = json.loads((folder / "packed/config.json").read_text())
    assert packed["num_hidden_layers"] == 1


def test_the_python_of_the_page_runs():
    names = {}
    exec(PYTHON[0], names)
    assert names["vectors"].shape == (1, 128, 256)
