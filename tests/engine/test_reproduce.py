"""The commands and scores of the paper's tables, and a toy run."""

import json
import re
import types
from pathlib import Path

import pytest

from official_tasks import cli, reproduce
from official_tasks.pretraining.settings import (
    SIZE_FIELDS,
    Settings,
    model_sizes,
)
from tests.support.glue_samples import write_glue
from tests.support.page_commands import flags_of
from tests.support.run_script import ROOT, call_script
from tests.support.toy_pretraining import PIECES, RULES, write_data

TINY = (
    "--num_layers=1 --hidden_dim=16 --num_heads=2 --sequence_length=16 "
    "--max_predictions=3 --batch_size=4 --steps=4 --phase_2_steps=2 "
    "--phase_2_sequence_length=24 --phase_2_max_predictions=4 "
    "--phase_2_batch_size=4 "
    "--evaluations=1 --evaluation_steps=1 --dtype=float32"
)
DEFAULTS = dict(
    word.removeprefix("--").split("=")
    for word in [*reproduce.SIZE_AND_STEPS.split(), reproduce.DEFAULT_MASKS]
)
# Table -> number of commands for two seeds: paper scale, small scale.
COUNTS = {
    "1": (32, 0),
    "2": (8, 0),
    "4": (4, 0),
    "5": (46, 30),  # two rows share their pre-training
    "6": (48, 48),
    "7": (14, 0),
    "8": (48, 48),
    "figure5": (32, 48),
}


def values(table, scale="paper", **given):
    pretrains = table in ("5", "6", "8", "figure5")
    return types.SimpleNamespace(
        **{
            "table": table,
            "scale": scale,
            "seeds": 2,
            "output": "runs",
            "data": "data" if pretrains else None,
            "task_flag": [],
            "tasks": None,
            "dry_run": False,
            "pretrain_flags": "",
            "finetune_flags": "",
            **given,
        }
    )


def list_commands(given):
    """Return dict: run folder -> words of its command, without the module."""
    return {run.folder: run.words for run in reproduce.list_runs(given)}


@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("table", reproduce.make_tables(False))
def test_every_command_has_flags_of_its_script(table, scale):
    count = COUNTS[table][scale == "small"]
    if count == 0:
        with pytest.raises(reproduce.InputError, match="scale"):
            reproduce.list_runs(values(table, scale))
        return
    found = list_commands(values(table, scale))
    assert len(found) == count  # fewer if two commands share a folder
    for name, *words in found.values():
        known = flags_of("-m", name)
        assert {word[2:].partition("=")[0] for word in words} <= known
    # No two commands differ only in --output.
    plans = {
        tuple(word for word in words if "--output" not in word)
        for words in found.values()
    }
    assert len(plans) == count
    outputs = [w for words in found.values() for w in words if "output=" in w]
    assert outputs == [f"--output={folder}" for folder in found]


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_tables_share_equal_runs(scale):
    folders, settings = {}, {}
    for table in ("5", "6", "8", "figure5"):
        given = values(table, scale, seeds=1)
        for folder, (name, *words) in list_commands(given).items():
            # Like absl, let the last value of a flag win.
            found = dict(w[2:].split("=") for w in words if "=" in w)
            if name.endswith("pretrain"):
                found = DEFAULTS | found
            del found["output"]
            folders.setdefault(name, set()).add(folder)
            same = settings.setdefault(name, {})
            assert (
                same.setdefault(tuple(sorted(found.items())), folder) == folder
            )
    assert len(folders["official_tasks.pretrain"]) == 19
    # Without sharing, each scale would have 64.
    count = {"paper": 58, "small": 55}[scale]
    assert len(folders["official_tasks.finetune"]) == count
    assert {name: set(same.values()) for name, same in settings.items()} == (
        folders
    )


def test_runs_of_an_earlier_version_are_not_run_again(tmp_path):
    (tmp_path / "table4").mkdir()
    with pytest.raises(reproduce.InputError, match="table4 .* Move it away"):
        reproduce.main(values("4", output=str(tmp_path), dry_run=True))


def test_the_defaults_that_tables_leave_out_are_those_of_pretrain():
    mix = ",".join(map(str, Settings().mask_mix))
    sizes = model_sizes(Settings())
    expected = {k: str(sizes[k]) for k in SIZE_FIELDS}
    expected |= {"steps": str(Settings().steps), "mask_mix": mix}
    assert expected == DEFAULTS


def test_the_small_scale_trains_for_the_epochs_on_the_page():
    page = " ".join((ROOT / "docs" / "paper.md").read_text("utf-8").split())
    pattern = r"takes (\d) epochs for entities.* (\d) epochs for sentiment and"
    entities, others = re.search(pattern, page).groups()
    expected = {"wikiann": entities, "sst2": others, "stsb": others}
    for table in ("5", "6", "8", "figure5"):
        for _, *words in list_commands(values(table, "small")).values():
            flags = dict(w[2:].split("=") for w in words if "=" in w)
            if "task" in flags:
                assert flags["epochs"] == expected[flags["task"]]


def test_flags_of_masks_are_left_out_where_nothing_is_masked():
    more = "--whole_word --mask_rate=0.2 --phase_2_max_predictions=9"
    commands = list_commands(values("5", pretrain_flags=more))
    pretrains = [w for w in commands.values() if "pretrain" in w[0]]
    for words in pretrains:
        is_masked = not any("left_to_right" in word for word in words)
        assert is_masked == ("--whole_word" in words)
        assert is_masked == any("mask_rate" in word for word in words)
    assert len({"--whole_word" in words for words in pretrains}) == 2


def test_a_table_has_mean_and_standard_deviation_of_its_seeds(
    tmp_path, monkeypatch
):
    scores = iter([0.5, 0.7, 0.9, 0.8])
    begun = []

    def run(words):
        begun.append(words)
        (folder,) = [w[9:] for w in words if w.startswith("--output=")]
        path = Path(folder, "results.json")
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"accuracy": next(scores)}))

    def read_rows():
        return (tmp_path / "table4.md").read_text().splitlines()[4:]

    monkeypatch.setattr(reproduce.cli, "run_module", run)
    given = values("4", output=str(tmp_path))
    reproduce.main(given)
    # The runs score 0.5 and 0.9 for base, 0.7 and 0.8 for large. The columns
    # have the paper's score, and the mean and standard deviation of the runs.
    assert read_rows() == [
        "| base | 81.6 | 70.0 ± 28.3 |",
        "| large | 86.6 | 75.0 ± 7.1 |",
    ]
    # Commands of finished runs are called again: each command itself refuses
    # changed flags and damaged files.
    given.finetune_flags = "--epochs=9"
    (path,) = tmp_path.glob("finetune/paper-*-base-uncased-swag-1/*.json")
    path.write_text('{"accuracy": null}')
    reproduce.main(given)
    assert [*begun[0], "--epochs=9"] == begun[4]
    assert read_rows()[0] == "| base | 81.6 | failed |"
    # A run whose training failed ends no other run.
    path.unlink()
    (path.parent / "stages").mkdir()
    (path.parent / "stages" / "failed.json").touch()

    def fail(words):
        if f"--output={path.parent}" in words:
            raise SystemExit(cli.FAILED_RUN)

    monkeypatch.setattr(reproduce.cli, "run_module", fail)
    reproduce.main(given)
    assert read_rows()[0] == "| base | 81.6 | failed |"


def test_the_code_of_a_command_that_failed_is_kept():
    with pytest.raises(SystemExit) as ended:
        reproduce.cli.run_module(["official_tasks.pretrain", "--no_flag"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("table", "given", "word"),
    [
        ("5", {"data": None}, "--data"),
        ("1", {"data": "data"}, "pretrain"),
        ("1", {"pretrain_flags": "--steps=3"}, "pretrain"),
        ("1", {"tasks": ["swag"]}, "swag"),
        ("1", {"task_flag": ["swag.data_dir=x"]}, "swag"),
        ("1", {"task_flag": ["data_dir=x"]}, "data_dir"),
        (
            "1",
            {"task_flag": ["mnli"]},
            "=mnli: expected TASK.FLAG=VALUE",
        ),
    ],
)
def test_what_does_nothing_is_refused(table, given, word):
    with pytest.raises(reproduce.InputError, match=word):
        reproduce.list_runs(values(table, **given))


@pytest.mark.long
def test_a_toy_table_runs_to_its_end(tmp_path):
    write_data(tmp_path / "data", PIECES, RULES)
    write_glue(tmp_path / "glue")
    command = [
        *("-m", "official_tasks.reproduce", "--table=5", "--scale=small"),
        *("--tasks=sst2", "--data=data"),
        "--task_flag=sst2.data_dir=glue/SST-2",
        *("--output=runs", f"--pretrain_flags={TINY}"),
        "--finetune_flags=--epochs=1 --batch_size=8 --sequence_length=16 "
        "--dtype=float32 --learning_rate=1e-3",
    ]
    for _ in range(2):
        done = call_script(*command, folder=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "not run" not in done.stdout
    text = (tmp_path / "runs" / "table5.md").read_text()
    assert text in done.stdout and "| LTR + BiLSTM | 82.1," in text
    (model,) = tmp_path.glob("runs/finetune/*-bilstm-dim-128-sst2-0/model")
    assert '"bilstm_dim": 128' in (model / "config.json").read_text()
