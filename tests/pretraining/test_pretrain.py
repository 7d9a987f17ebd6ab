"""The pre-training script: phases, resuming, planning, flags."""

import os
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import InputError, files
from bert_keras.data.batches import check_source
from bert_keras.training import checkpoint, strategy
from bert_keras.training.strategy import describe_devices, make_strategy
from official_tasks import pretrain
from official_tasks.engine import training
from official_tasks.options import list_defaults
from official_tasks.pretraining import runner, source
from official_tasks.pretraining.model import new_model
from official_tasks.pretraining.objectives import OBJECTIVES
from official_tasks.pretraining.plan import count_parameters, estimate_memory
from official_tasks.pretraining.settings import (
    Execution,
    Settings,
    check_settings,
    model_sizes,
    note_masks,
    phases,
    prepare,
    tokens_until,
)
from tests.support.remote_folder import object_store
from tests.support.script_flags import parse_flags
from tests.support.toy_pretraining import (
    PIECES,
    SMALLEST,
    read_lines,
    write_data,
)

pytestmark = pytest.mark.heavy


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
    with pytest.raises(InputError, match="Phase 1: .* by 3 replicas"):
        check_settings(Settings(**SMALLEST), 3)
    for wrong in (9, -1, -0.3, float("nan")):
        with pytest.raises(InputError, match=f"`phase_2_steps` is {wrong}"):
            phases(Settings(steps=8, phase_2_steps=wrong))
    with pytest.raises(InputError, match="one length"):
        phases(Settings(records=True, steps=8, phase_2_steps=2))
    assert len(phases(Settings(records=True))) == 1


def test_both_phases_are_trained_in_one_schedule_and_logged(finished):
    folder, results = finished
    lines = read_lines(folder / "metrics.jsonl")
    assert lines == results["curve"]
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert [line["tokens"] for line in lines] == [256, 512, 512 + 4 * 4 * 24]
    rates = [line["learning_rate"] for line in lines]
    expected = [1e-2 * 8 / 12, 1e-2 * 4 / 12, 0]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    for line in lines:
        assert line["gradient_norm"] > 0
        assert line["tokens_per_second"] > 0
    assert results["mlm_accuracy"] == lines[-1]["val_mlm_accuracy"]
    assert 0 < results["mlm_unigram_baseline"] < 0.5
    assert 0.5 <= results["nsp_majority_baseline"] < 1
    assert results["mlm_perplexity"] == pytest.approx(
        np.exp(lines[-1]["val_loss"] - lines[-1]["val_nsp_loss"]), rel=1e-5
    )


def test_tensorboard_has_curves_and_guesses_by_step(finished):
    values = {}
    for path in (finished[0] / "logs").rglob("events.out*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                values.setdefault(value.tag, []).append((event.step, value))
    assert [step for step, _ in values["mlm_accuracy"]] == [4, 8, 12]
    text = (
        tf.make_ndarray(values["predictions/0"][-1][1].tensor).item().decode()
    )
    assert "[MASK]" in text and "%" in text


def test_the_report_shows_the_figures(finished):
    folder, results = finished
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 4
    assert f"{results['mlm_accuracy']:.1%}" in html
    settings = Settings(**SMALLEST, objectives="left_to_right")
    assert "predictions per token" in html
    assert "predictions per token" not in runner.render(results, settings)
    assert not re.search(r"<(script|link|img|iframe)\b", html)


def test_the_checkpoints_have_settings_and_versions(finished):
    _, manifest = checkpoint.read_newest(finished[0] / "state")
    assert manifest["step"] == 12
    assert manifest["settings"]["phase_2_steps"] == 4
    assert set(manifest["versions"]) >= {"bert_keras", "keras", "python"}


def test_callbacks_are_told_of_batches_and_figures(finished, watch):
    _, results = finished
    assert len(watch.batches) == 12 and watch.began == 2  # phases
    told = [figures["val_mlm_accuracy"] for figures in watch.figures]
    assert told == [line["val_mlm_accuracy"] for line in results["curve"]]


def test_signs_of_a_fault_are_noted(finished):
    _, results = finished
    sound = {
        **results,
        "mlm_accuracy": 0.9,
        "data": {**results["data"], "unknown": 0.0},
        "curve": [{"loss": 1.0, "val_loss": 1.5, "skipped_steps": 0.0}],
    }
    assert runner.find_notes(sound) == []
    for fault, words in (
        ({"data": {"unknown": 0.02}}, "2.0% of the tokens are [UNK]"),
        ({"mlm_accuracy": results["mlm_unigram_baseline"]}, "no better"),
        ({"curve": [{"loss": 1.0, "val_loss": 3.0}]}, "2.00 above"),
        ({"curve": [{"val_loss": 3.0, "skipped_steps": 3.0}]}, "3 steps"),
    ):
        (note,) = runner.find_notes({**sound, **fault})
        assert words in note
    noted = runner.render({**results, "notes": [note]}, Settings())
    assert note in noted


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


def interrupt_at(step, monkeypatch):
    def end(self, batch, logs=None):
        if self.meter.step == step:
            raise Interrupted

    monkeypatch.setattr(training.Board, "on_train_batch_end", end)


def interrupt_evaluation(step, monkeypatch):
    evaluate = runner.Run.evaluate

    def evaluate_until(self, now):
        if now == step:
            raise Interrupted
        return evaluate(self, now)

    monkeypatch.setattr(runner.Run, "evaluate", evaluate_until)


def test_a_run_interrupted_in_both_phases_ends_with_the_same_bits(
    finished, data, tmp_path, monkeypatch, capsys
):
    settings = {**SMALLEST, "save_every": 1}
    capsys.readouterr()
    for stop, step in (
        (interrupt_at, 8),  # at the end of phase 1
        (interrupt_at, 11),
        (interrupt_evaluation, 12),  # saved but not evaluated
    ):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            stop(step, patch)
            runner.run(data, tmp_path, **settings)
    results = runner.run(data, tmp_path, **settings)
    ours = (tmp_path / "model" / "model.safetensors").read_bytes()
    theirs = (finished[0] / "model" / "model.safetensors").read_bytes()
    assert ours == theirs
    assert logged(results) == logged(finished[1])
    printed = re.findall(
        r"resumed after step (\d+) of 12", capsys.readouterr().out
    )
    assert printed == ["7", "10", "12"]


def test_a_folder_that_is_renamed_while_it_trains_is_not_made_again(
    finished, data, tmp_path
):
    run, moved = tmp_path / "run", tmp_path / "moved"
    settings = {**SMALLEST, "save_every": 1}

    def rename(batch, logs):
        if os.path.isdir(run / "state"):
            run.rename(moved)

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=rename)
    with pytest.raises(InputError, match="run was renamed or removed"):
        runner.run(data, run, callbacks=[watch], **settings)
    assert os.listdir(tmp_path) == ["moved"]
    results = runner.run(data, moved, **settings)
    assert logged(results) == logged(finished[1])


def logged(results):
    """Return the lines of a run's curve without `tokens_per_second`."""
    return [
        {k: v for k, v in line.items() if k != "tokens_per_second"}
        for line in results["curve"]
    ]


@pytest.mark.long
def test_a_remote_run_on_remote_data_is_resumed_with_the_same_bits(
    finished, data, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))  # keeps a copy of the data
    settings = {**SMALLEST, "save_every": 1}
    remote, output = "ram://runs/data", "ram://runs/pretrain"
    for path in files.walk(data):
        files.upload(path, f"{remote}/{os.path.relpath(path, data)}")
    with object_store(monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            interrupt_at(11, patch)
            runner.run(remote, output, **settings)
        results = runner.run(remote, output, **settings)
        assert "resumed after step 10 of 12" in capsys.readouterr().out
        assert runner.run(remote, output, **settings) == results
        weights = files.open_file(f"{output}/model/model.safetensors").read()
        assert files.is_file(f"{output}/report.html")
    local = finished[0] / "model" / "model.safetensors"
    assert weights == local.read_bytes()
    assert logged(results) == logged(finished[1])


def test_a_run_is_resumed_with_its_settings_and_data_alone(tmp_path):
    data, folder = write_data(tmp_path / "data"), tmp_path / "run"
    results = runner.run(data, folder, **SMALLEST)
    with pytest.raises(InputError, match="phase_2_steps was 4 and is now 5"):
        runner.run(data, folder, **{**SMALLEST, "phase_2_steps": 5})
    longer = {**SMALLEST, "steps": SMALLEST["steps"] + 1}
    with pytest.raises(InputError, match="steps was 12 .* give `init=RUN"):
        runner.run(data, folder, **longer)
    pieces = [*PIECES[:-2], "##ker", "tin"]  # same size, two swapped
    for changes in ({"held_out_share": 0.4}, {"pieces": pieces}):
        shutil.rmtree(data)
        write_data(data, **changes)
        with pytest.raises(InputError, match="other files: .*store.json"):
            runner.run(data, folder, **SMALLEST)
    shutil.rmtree(data)
    write_data(data)  # the same bytes with new modification times
    assert runner.run(data, folder, **SMALLEST) == results


def test_a_resumed_run_keeps_its_dtype(finished, data, monkeypatch):
    monkeypatch.setattr(
        strategy,
        "choose_dtype",
        lambda dtype, _: "mixed_bfloat16" if dtype == "auto" else dtype,
    )
    auto = {**SMALLEST, "dtype": "auto"}
    assert prepare(auto)[0].dtype == "mixed_bfloat16"
    folder, results = finished
    assert runner.run(data, folder, **auto) == results  # float32


def test_a_resumed_run_reads_all_bytes_of_changed_files_alone(
    data, tmp_path, monkeypatch
):
    place = shutil.copytree(data, tmp_path / "data")
    monkeypatch.setattr(runner.Run, "train", interrupt)
    checks = []
    monkeypatch.setattr(
        source, "check_source", lambda *a: checks.append(a) or check_source(*a)
    )

    def start():
        with pytest.raises(Interrupted):
            runner.run(str(place), tmp_path / "run", **SMALLEST)
        return len(checks)

    assert start() == 2
    assert start() == 2
    path = place / "tokens" / "train" / "tokens.bin"
    path.write_bytes(path.read_bytes())
    assert start() == 4
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(InputError, match="tokens.bin is damaged"):
        runner.run(str(place), tmp_path / "run", **SMALLEST)


@pytest.mark.parametrize("packed", [False, True])
def test_a_dry_run_prints_the_plan(data, packed, capsys):
    pretrain.print_plan(data, **SMALLEST, packed=packed)
    printed = capsys.readouterr().out
    assert "Phase 1: 8 steps of 4 sequences of 16, 512 tokens" in printed
    assert "Phase 2: 4 steps of 4 sequences of 24" in printed
    assert f"vocabulary of {len(PIECES)}" in printed
    devices, _ = describe_devices(make_strategy("off"), "float32")
    assert f"Devices: {devices}" in printed


def test_a_plan_allocates_no_memory_for_the_model(data, capsys):
    pretrain.print_plan(data, **{**SMALLEST, "num_layers": 10**6})
    pretrain.print_plan(data, **{**SMALLEST, "hidden_dim": 10**6})
    assert capsys.readouterr().out.count("memory of a device: about") == 4


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_parameters_are_counted_as_the_model_has_them(objective):
    settings = Settings(**SMALLEST)
    model = new_model(settings, OBJECTIVES[objective], len(PIECES))
    sizes = {"vocabulary_size": len(PIECES), "max_sequence_length": 512}
    sizes |= model_sizes(settings)
    counted = count_parameters(sizes, objective.startswith("mlm"))
    assert counted == model.count_params()


@pytest.mark.parametrize(
    ("size", "parameters", "batch"),
    # Parameters: BertForPreTraining of transformers. Batch: rows of 512 tokens
    # that NVIDIA trains on one A100 of 80 GB in half precision.
    [("base", 110_106_428, None), ("large", 336_226_108, 40)],
)
def test_the_plan_of_a_published_size_is_as_published(size, parameters, batch):
    settings = Settings(size=size, dtype="mixed_float16")
    sizes = {"vocabulary_size": 30522, "max_sequence_length": 512}
    sizes |= model_sizes(settings)
    assert count_parameters(sizes) == parameters
    if batch:
        long = phases(settings)[1]
        need = estimate_memory(sizes, parameters, long, settings, batch)
        assert 80e9 / 2.5 < need < 80e9


def test_activations_need_the_bytes_of_the_published_formula():
    """Equation 1 of Korthikanti et al. 2022 is for 16-bit activations."""
    sizes = {"num_layers": 24, "hidden_dim": 1024, "num_heads": 16}
    sizes["vocabulary_size"] = 0
    s, b, h, a = 512, 7, 1024, 16  # the letters of the paper
    expected = 24 * s * b * h * (34 + 5 * a * s / h)
    for dtype, factor in (
        ("mixed_float16", 1),
        ("mixed_bfloat16", 1),
        ("float32", 2),
    ):
        settings = Settings(dtype=dtype)
        long = phases(settings)[1]
        found = estimate_memory(sizes, 0, long, settings, b)
        assert found == factor * expected


def test_layers_that_are_computed_again_take_less_memory(data, tmp_path):
    settings = Settings(**SMALLEST, rematerialize=True)
    model = new_model(settings, OBJECTIVES["mlm"], len(PIECES))
    assert all(x.rematerialize for x in model.encoder.transformer_layers)
    phase = phases(settings)[0]
    sizes = {**model_sizes(settings), "num_layers": 12}
    sizes["vocabulary_size"] = len(PIECES)
    less, more = (
        estimate_memory(sizes, 0, phase, each, 8)
        for each in (settings, Settings(**SMALLEST))
    )
    assert less < more / 6


def test_a_rate_has_room_for_all_its_masks_and_less_is_noted():
    for phase in phases(Settings(mask_rate=0.3)):
        assert (
            phase.max_predictions == {128: 39, 512: 154}[phase.sequence_length]
        )
    assert note_masks(Settings()) == []
    (note,) = note_masks(Settings(mask_rate=0.3, max_predictions=20))
    assert "at most 20 of the 39" in note and "leave `max_pred" in note
    (note,) = note_masks(Settings(phase_2_max_predictions=20))
    assert "leave `phase_2_max_predictions` out" in note
    assert not note_masks(
        Settings(max_predictions=9, objectives="left_to_right")
    )


@pytest.fixture
def parse():
    """Function that parses flags of the script; returns their values."""
    return lambda *words: parse_flags(
        pretrain.Options, ["--data=d", "--output=o", *words]
    )


def test_every_setting_has_a_flag_with_its_default(parse):
    values = parse()
    fields = {**list_defaults(Settings), **list_defaults(Execution)}
    fields["mask_mix"] = ["80", "10", "10"]
    assert {name: values[name].default for name in fields} == fields


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_a_size_together_with_weights_is_refused(parse, tmp_path, size):
    values = parse("--init=w", f"--size={size}", f"--output={tmp_path}/o")
    with pytest.raises(InputError, match="--size and --init exclude"):
        pretrain.main(values)
    assert not os.listdir(tmp_path)
