"""The pre-training script: phases, objectives, going on, planning."""

import importlib.util
import json
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from remote_folder import object_store
from run_script import ROOT, run_script
from toy_pretraining import PIECES, SMALLEST, read_lines, write_data

from bert_keras import InputError, files
from bert_keras.training import checkpoint
from official_tasks import pretrain
from official_tasks.engine import training
from official_tasks.pretraining import run_doctor, runner
from official_tasks.pretraining.settings import (
    Execution,
    Settings,
    phases,
    tokens_until,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """An uninterrupted run with both phases, and what it returned."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, pretrain.run(data, folder, **SMALLEST)


def test_the_defaults_are_the_papers():
    short, long = phases(Settings())
    assert (short.first, short.last, short.sequence_length) == (0, 900_000, 128)
    assert (long.first, long.last) == (900_000, 1_000_000)
    assert (long.sequence_length, long.max_predictions) == (512, 77)
    assert short.batch_size == long.batch_size == 256
    settings = Settings()
    assert (settings.learning_rate, settings.warmup) == (1e-4, 0.01)
    assert tokens_until(1_000_000, settings) == 256 * (
        900_000 * 128 + 100_000 * 512
    )


@pytest.mark.parametrize(
    ("given", "long"), [(None, 25), (0, 0), (0.5, 125), (0.29, 72), (1, 1)]
)
def test_the_second_phase_is_a_share_of_the_steps_or_their_number(given, long):
    found = phases(Settings(steps=250, phase_2_steps=given))
    assert sum(p.last - p.first for p in found if p.number == 2) == long
    assert found[-1].last == 250


def test_impossible_phases_are_refused():
    for wrong in (9, -1, -0.3, float("nan")):
        with pytest.raises(InputError, match=f"phase_2_steps is {wrong}"):
            phases(Settings(steps=8, phase_2_steps=wrong))
    with pytest.raises(InputError, match="one length"):
        phases(Settings(records=True, steps=8, phase_2_steps=2))
    assert len(phases(Settings(records=True))) == 1


def test_both_phases_are_trained_in_one_schedule_and_told(whole):
    folder, results = whole
    lines = read_lines(folder / "metrics.jsonl")
    assert lines == results["curve"]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert [line["tokens"] for line in lines] == [256, 512, 512 + 4 * 4 * 24]
    rates = [line["learning_rate"] for line in lines]
    wanted = [1e-2 * 8 / 12, 1e-2 * 4 / 12, 0]
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)
    for line in lines:
        assert line["gradient_norm"] > 0
        assert line["tokens_per_second"] > 0
    assert results["mlm_accuracy"] == lines[-1]["val_mlm_accuracy"]
    assert 0 < results["mlm_unigram_baseline"] < 0.5
    assert 0.5 <= results["nsp_majority_baseline"] < 1
    assert results["mlm_perplexity"] == pytest.approx(
        np.exp(lines[-1]["val_loss"] - lines[-1]["val_nsp_loss"]), rel=0.2
    )


def test_without_matplotlib_a_run_has_all_but_its_page(
    data, tmp_path, monkeypatch, capsys
):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "matplotlib" else found(name),
    )
    few = {**SMALLEST, "steps": 2, "phase_2_steps": 0, "evaluations": 1}
    pretrain.run(data, tmp_path / "run", **few)
    written = set(os.listdir(tmp_path / "run"))
    assert {"model", "results.json"} <= written
    assert "report.html" not in written
    assert "no report.html, which needs matplotlib" in capsys.readouterr().out


def test_the_board_has_curves_and_guesses_by_step(whole):
    folder, _ = whole
    found = {}
    for path in (folder / "logs").rglob("events.out*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value))
    assert [step for step, _ in found["mlm_accuracy"]] == [4, 8, 12]
    text = tf.make_ndarray(found["guesses/0"][-1][1].tensor).item().decode()
    assert "[MASK]" in text and "%" in text


def test_the_page_shows_the_figures(whole):
    folder, results = whole
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert f"{results['mlm_accuracy']:.1%}" in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)


class Broken(Exception):
    pass


def test_a_run_that_is_broken_off_in_both_phases_ends_with_the_same_bits(
    whole, data, tmp_path, monkeypatch
):
    settings = {**SMALLEST, "save_every": 1}
    for step in (8, 10):  # at the end of the first, amid the second

        def end(self, batch, logs=None, step=step):
            if self.meter.step == step:
                raise Broken

        with monkeypatch.context() as patch:
            patch.setattr(training.Board, "on_train_batch_end", end)
            with pytest.raises(Broken):
                pretrain.run(data, tmp_path, **settings)

    def evaluate(self, step):
        raise Broken  # the last step is saved, and not yet evaluated

    with monkeypatch.context() as patch:
        patch.setattr(runner.Run, "evaluate", evaluate)
        with pytest.raises(Broken):
            pretrain.run(data, tmp_path, **settings)
    results = pretrain.run(data, tmp_path, **settings)
    ours = (tmp_path / "model" / "model.safetensors").read_bytes()
    theirs = (whole[0] / "model" / "model.safetensors").read_bytes()
    assert ours == theirs
    steps = [line["step"] for line in results["curve"]]
    assert steps == [4, 8, 12]


def test_a_remote_folder_is_gone_on_with_too(data, monkeypatch):
    settings = {**SMALLEST, "steps": 4, "phase_2_steps": 0, "save_every": 1}

    def end(self, batch, logs=None):
        if self.meter.step == 3:
            raise Broken

    output = "ram://runs/pretrain"
    with object_store(monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(training.Board, "on_train_batch_end", end)
            with pytest.raises(Broken):
                pretrain.run(data, output, **settings)
        assert checkpoint.steps(f"{output}/state") == [1, 2]
        results = pretrain.run(data, output, **settings)
        assert pretrain.run(data, output, **settings) == results
    assert [line["step"] for line in results["curve"]] == [1, 2, 3, 4]
    assert files.is_file(f"{output}/model/model.safetensors")


def test_other_settings_are_refused_and_named(whole, data):
    with pytest.raises(InputError, match="phase_2_steps was 4 and is now 5"):
        pretrain.run(data, whole[0], **{**SMALLEST, "phase_2_steps": 5})


def test_a_run_goes_on_with_the_data_that_it_began_with(tmp_path, monkeypatch):
    data, run = tmp_path / "data", tmp_path / "run"
    settings = {**SMALLEST, "steps": 4, "phase_2_steps": 0, "save_every": 1}

    def go(**changes):
        shutil.rmtree(data, ignore_errors=True)
        return pretrain.run(write_data(data, **changes), run, **settings)

    def end(self, batch, logs=None):
        if self.meter.step == 3:
            raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(training.Board, "on_train_batch_end", end)
        with pytest.raises(Broken):
            go()
    pieces = [*PIECES[:-2], "##ker", "tin"]  # as many, two in other places
    for changes in ({"held_out_share": 0.4}, {"pieces": pieces}):
        with pytest.raises(InputError, match="other files: .*store.json"):
            go(**changes)
    (run / "stages" / "files.json").unlink()  # as of before it was noted
    assert len(go()["curve"]) == 4  # the same bytes, made anew
    with pytest.raises(InputError, match="other files: .*store.json"):
        go(held_out_share=0.4)


def test_a_dry_run_tells_the_plan_and_checks_the_data(data, capsys):
    pretrain.tell_plan(data, **{**SMALLEST, "keep_every": 4})
    told = capsys.readouterr().out
    assert "Phase 1: 8 steps of 4 sequences of 16, 4 a replica" in told
    assert "Phase 2: 4 steps of 4 sequences of 24" in told
    assert "epochs over the data" in told and "as records" in told
    pieces = len(PIECES)
    assert f"{pieces} pieces" in told


def test_a_dry_run_tells_the_plan_of_packed_rows(data, capsys):
    pretrain.tell_plan(data, **{**SMALLEST, "packed": True})
    told = capsys.readouterr().out
    assert "as records" in told and "drawn anew" in told


def test_a_dry_run_names_damaged_data(tmp_path):
    data = write_data(tmp_path / "data")
    path = pathlib.Path(data) / "tokens" / "train" / "tokens.bin"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="tokens.bin is damaged"):
        pretrain.tell_plan(data, **SMALLEST)


def test_the_checkpoints_say_settings_versions_and_best_figures(whole):
    folder, results = whole
    _, manifest = checkpoint.read_newest(folder / "state")
    assert manifest["step"] == 12
    assert manifest["settings"]["phase_2_steps"] == 4
    assert set(manifest["versions"]) >= {"bert_keras", "keras", "python"}
    best = manifest["notes"]["best"]["val_mlm_accuracy"]
    accuracies = [line["val_mlm_accuracy"] for line in results["curve"]]
    assert best["value"] == max(accuracies)


def test_the_doctor_reads_the_run(whole):
    lines = run_doctor.report(whole[0])
    assert lines[0].startswith("Step 12 of 12, 896 tokens: held out")
    assert "too early" in lines[1]


def test_the_commands_of_the_page_have_flags_that_exist(tmp_path):
    page = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
    commands = re.findall(r"python -m official_tasks.pretrain ([^;\n]*)", page)
    assert len(commands) == 5
    program = (
        "import shlex; from absl import flags;"
        "from official_tasks import pretrain; pretrain.define_flags()\n"
        f"for command in {commands}:\n"
        "    assert not flags.FLAGS(['x', *shlex.split(command)])[1:]\n"
    )
    done = run_script("-c", program, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    flags_named = set(re.findall(r"`--(\w+)", page)) - {"data", "output"}
    fields = {*Settings._fields, *Execution._fields, "dry_run"}
    assert flags_named - {"output"} <= fields


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_a_size_beside_weights_is_refused(tmp_path, size):
    command = ["x", "--data=d", "--output=o", "--init=w", f"--size={size}"]
    program = (
        "from absl import flags; from official_tasks import pretrain;"
        f"pretrain.define_flags(); flags.FLAGS({command});"
        "pretrain.main(flags.FLAGS)"
    )
    done = run_script("-c", program, folder=tmp_path)
    assert "InputError: --size is given beside --init" in done.stderr
    assert not (tmp_path / "o").exists()


def test_every_setting_has_a_flag_with_its_default(tmp_path):
    fields = {**Settings._field_defaults, **Execution._field_defaults}
    program = (
        "import json, sys; from absl import flags;"
        "from official_tasks import pretrain; pretrain.define_flags();"
        "print(json.dumps({name: flags.FLAGS[name].default for name in "
        f"{list(fields)}}}))"
    )
    done = run_script("-c", program, folder=tmp_path)
    fields["mask_mix"] = ["80", "10", "10"]
    assert json.loads(done.stdout) == fields, done.stderr
