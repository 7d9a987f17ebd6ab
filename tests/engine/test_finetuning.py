"""Fine-tuning: resuming to the bit, defaults, units, plain answers."""

import json
import os
import re
import shutil
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from run_script import run_script
from safetensors.numpy import load_file
from task_samples import (
    GOOD,
    QUICK,
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)
from test_devices import finish, start, tf_configs

from bert_keras import BertClassifier, BertPreprocessor, InputError
from bert_keras.training.state import TrainingState
from bert_keras.training.strategy import Strategy
from official_tasks.engine import (
    batches,
    finetuning,
    models,
    notes,
    training,
)
from official_tasks.engine.models import average_outputs, load_model
from official_tasks.tasks.base import Defaults
from official_tasks.tasks.custom import custom_task


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    "stop_after", [pytest.param(4, marks=pytest.mark.long), 23]
)
def test_an_interrupted_run_ends_with_the_same_bits(
    place, task, whole, tmp_path, monkeypatch, stop_after
):
    left = [stop_after]
    on_batch = TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        on_batch(self, batch, logs)
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    run = tmp_path / "run"
    monkeypatch.setattr(finetuning, "SAVE_EVERY", 5)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "on_train_batch_end", stop)
        with pytest.raises(Stopped):
            finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    # The rule of TensorBoard's callback, which points to write, has ended.
    writer = tf.summary.create_file_writer(str(tmp_path / "other"))
    with writer.as_default(step=1):
        assert tf.summary.should_record_summaries()
    again = finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert left[0] <= 0 and again["best_step"] == whole["best_step"]
    for name in ("model/model.safetensors", "predictions/predictions.csv"):
        expected = (place / "whole" / name).read_bytes()
        assert (run / name).read_bytes() == expected
    assert again["curve"] == whole["curve"]


def test_gradients_that_stay_broken_end_the_run_with_advice(
    place, task, tmp_path, monkeypatch
):
    loss = keras.losses.SparseCategoricalCrossentropy

    class Broken(loss):
        def call(self, y_true, y_pred):
            return super().call(y_true, y_pred) * float("nan")

    monkeypatch.setattr(
        type(task), "loss", lambda self: Broken(from_logits=True)
    )
    with pytest.raises(InputError, match="not finite; .* lower learning rate"):
        finetuning.run(
            task, place / "init", tmp_path / "run", epochs=6, **QUICK
        )


@pytest.mark.parametrize("epochs", [0, float("nan"), float("inf")])
def test_no_epochs_are_refused(task, place, tmp_path, epochs):
    with pytest.raises(InputError, match="epochs is .* expected a number"):
        finetuning.run(task, place / "init", tmp_path / "run", epochs=epochs)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_trained_again(
    place, task, whole, monkeypatch, capsys
):
    monkeypatch.setattr(training, "train", None)
    run = place / "whole"
    again = finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert again["accuracy"] == whole["accuracy"]
    output = capsys.readouterr().out
    assert "finished before; nothing trained" in output
    assert "missing" not in output
    assert not (run / "state").exists()
    report = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert "report.html is missing" in capsys.readouterr().out
    (run / "report.html").write_bytes(report)
    with pytest.raises(InputError, match="epochs was 3 and is now 4"):
        finetuning.run(task, place / "init", run, epochs=4, **QUICK)


DAMAGES = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "changed": lambda path: path.write_bytes(
        path.read_bytes().replace(b"1", b"2").replace(b"s", b"t")
    ),
    "deleted": os.remove,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        "model/vocab.txt",
        "model/config.json",
        "model/model.safetensors",
        "predictions/predictions.csv",
        "metrics.jsonl",
        "best.json",
        "results.json",
        "stages/finetune.json",
        "run.json",
    ],
)
def test_a_finished_run_that_was_damaged_is_not_called_finished(
    place, task, whole, tmp_path, monkeypatch, name, damage
):
    run = shutil.copytree(place / "whole", tmp_path / "run")
    DAMAGES[damage](run / name)
    trained = []
    monkeypatch.setattr(finetuning, "_Run", lambda *_, **__: trained.append(1))
    if damage == "deleted" and name.startswith("stages"):
        return  # no record: the stage is run again
    with pytest.raises(InputError, match=name):
        finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert not trained


@pytest.fixture(scope="module")
def interrupted(place, task, tmp_path_factory):
    """A run of three epochs that was stopped after all of its steps."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    with (
        mock.patch.object(finetuning._Run, "_take_best", side_effect=Stopped),
        pytest.raises(Stopped),
    ):
        finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    return run


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        "best.json",
        "metrics.jsonl",
        "model/vocab.txt",
        "model/config.json",
        "model/model.safetensors",
    ],
)
def test_an_interrupted_run_that_was_damaged_is_refused(
    place, task, interrupted, tmp_path, name, damage
):
    run = shutil.copytree(interrupted, tmp_path / "run")
    DAMAGES[damage](run / name)
    with pytest.raises(InputError, match=name):
        finetuning.run(task, place / "init", run, epochs=3, **QUICK)


@pytest.mark.parametrize(
    ("hidden_dim", "rate", "expected"),
    [
        (128, 5e-5, 3e-4),
        (256, 5e-5, 3e-4),
        (384, 5e-5, 1e-4),
        (512, 2e-5, 4e-5),
        (768, 5e-5, 5e-5),
        (1024, 2e-5, 2e-5),
        (128, 1e-3, 1e-3),
    ],
)
def test_the_default_rate_follows_from_the_size(
    monkeypatch, hidden_dim, rate, expected
):
    encoder = {"hidden_dim": hidden_dim}
    checkpoint = types.SimpleNamespace(encoder=encoder)
    monkeypatch.setattr(models, "open_checkpoint", lambda _: checkpoint)
    assert models.scale_rate(rate, "x") == expected


def test_a_frequent_class_that_is_never_predicted_is_noted():
    def classes(**rows):
        return {
            name: {"support": support, "recall": recall}
            for name, (support, recall) in rows.items()
        }

    found = classes(a=(60, 0.9), missed=(29, 0.03), rare=(5, 0.0), b=(6, 0.1))
    results = {"f1": 0.9, "classes": found}
    (note,) = notes.note_results("f1", results, 9, 5e-5)
    assert "'missed' has 29% of the dev rows and a recall of 0.03" in note
    assert "learning_rate of 0.0001" in note
    assert notes.note_results("f1", {"f1": 0.9}, 9, 5e-5) == []


def test_a_run_whose_steps_were_mostly_skipped_is_refused(
    place, task, tmp_path
):
    quick = {**QUICK, "learning_rate": 1e30}
    with pytest.raises(InputError, match="not finite"):
        finetuning.run(task, place / "init", tmp_path, epochs=1, **quick)
    assert not (tmp_path / "results.json").exists()


def test_a_check_says_what_would_be_trained(place, task, whole, capsys):
    assert finetuning.run(task, place / "init", None, epochs=3, **QUICK) == {}
    said = capsys.readouterr().out
    steps = whole["curve"][-1]["step"]
    for line in (
        f"rows: {whole['rows']} to train on, {whole['dev_rows']} to score on",
        "classes: 2",
        f"steps: {steps} of {QUICK['batch_size']} rows",
    ):
        assert line in said


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"metric": "bleu"}, "bleu"),
        ({"tune_thresholds": True}, "tune_thresholds"),
        ({"lora_rank": 2, "lora_targets": ("keys",)}, "keys"),
        ({"distribution": "gpu"}, "gpu"),
    ],
)
def test_a_check_refuses_what_a_start_refuses(place, task, arguments, word):
    with pytest.raises(InputError, match=word):
        finetuning.run(task, place / "init", None, **QUICK, **arguments)


def test_defaults_are_the_tasks_and_changed_files_are_refused(place, tmp_path):
    train = write_reviews(tmp_path / "train.csv", 16)
    dev = write_reviews(tmp_path / "dev.csv", 10, seed=1)
    task = custom_task(str(train), str(dev))
    task.defaults = Defaults(8, 1.0, 1e-3, 12)
    init = shutil.copytree(place / "init", tmp_path / "init")
    run = tmp_path / "run"
    results = finetuning.run(task, init, run)
    decided = json.loads((run / "run.json").read_text())["settings"]
    assert [decided[name] for name in Defaults._fields] == [8, 1.0, 1e-3, 12]
    assert results["curve"][-1]["step"] == 2
    write_reviews(dev, 10, seed=2)
    with open(init / "model.safetensors", "ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="other files: .*dev.csv") as error:
        finetuning.run(task, init, run)
    assert "init/model.safetensors changed since" in str(error.value)
    assert "train.csv" not in str(error.value)


def test_from_scratch_takes_no_weight_and_a_tpu_gets_rows_of_one_length(
    place, task, whole, tmp_path, monkeypatch
):
    shapes, plain = [], batches.training_batches

    def watched(*arguments, **named):
        made = plain(*arguments, **named)
        shapes.extend(x["token_ids"].shape for x, *_ in made.take(3))
        return made

    monkeypatch.setattr(batches, "training_batches", watched)
    monkeypatch.setattr(finetuning, "make_strategy", lambda *_: Strategy("tpu"))
    results = finetuning.run(
        task,
        place / "init",
        tmp_path / "run",
        from_scratch=True,
        epochs=0.2,
        **{**QUICK, "learning_rate": 1e-12},
    )
    assert results["rows"] == whole["rows"] and len(results["curve"]) == 1
    assert shapes and {length for _, length in shapes} == {24}
    init, trained = (
        load_model(task, folder).encoder
        for folder in (place / "init", tmp_path / "run")
    )
    assert init.count_params() == trained.count_params()
    assert not np.allclose(
        init.embeddings.token.embeddings, trained.embeddings.token.embeddings
    )


def test_a_run_that_learned_nothing_says_what_that_means(
    place, task, tmp_path, capsys
):
    nothing = {**QUICK, "learning_rate": 1e-12, "epochs": 1}
    results = finetuning.run(task, place / "init", tmp_path / "run", **nothing)
    assert results["accuracy"] <= results["majority_baseline"]
    assert "no better than the best constant prediction" in results["notes"][-1]
    assert "another" in " ".join(capsys.readouterr().out.split())
    init, trained = (
        load_model(task, folder).encoder.embeddings.token.embeddings.numpy()
        for folder in (place / "init", tmp_path / "run")
    )
    np.testing.assert_allclose(init, trained, atol=1e-6)


AGAIN = """
import sys
from official_tasks.engine import finetuning
from official_tasks.tasks.custom import custom_task

place = sys.argv[1]
task = custom_task(f"{place}/train.csv", f"{place}/dev.csv")
for name in sys.argv[2]:
    finetuning.run(
        task, f"{place}/init", f"{place}/{name}",
        epochs=0.5, batch_size=8, distribution="multi_worker",
    )
"""


@pytest.mark.long
def test_several_workers_train_again_in_one_process(tmp_path):
    write_reviews(tmp_path / "train.csv", 16)
    write_reviews(tmp_path / "dev.csv", 8, seed=1)
    save_toy_model(tmp_path / "init")
    words = ["-c", AGAIN]
    words += [str(tmp_path), "ab"]
    finish(*(start(words, TF_CONFIG=tf) for tf in tf_configs()))
    first, second = (
        load_file(tmp_path / run / "model" / "model.safetensors")
        for run in "ab"
    )
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], name)


TWO_REPLICAS = """
import sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, halves)
from official_tasks.engine import (
    batches,
    finetuning,
    models,
    notes,
    training,
)
from official_tasks.tasks.custom import custom_task

for name in ("off", "mirrored"):
    results = finetuning.run(
        custom_task("train.csv", "dev.csv"), "sure", f"{sys.argv[1]}/{name}",
        epochs=1, batch_size=8, learning_rate=1e-2, sequence_length=24,
        distribution=name,
    )
    print("loss", results["curve"][-1]["loss"])
"""


@pytest.mark.long
def test_two_replicas_end_where_one_does(place, tmp_path):
    save_toy_model(place / "sure", dropout=0.0)
    (place / "two.py").write_text(TWO_REPLICAS)
    done = run_script("two.py", tmp_path, folder=place)
    lines = [x for x in done.stdout.splitlines() if x.startswith("loss")]
    one, two = (float(line.split()[1]) for line in lines)
    assert one == pytest.approx(two, rel=1e-5), done.stderr[-2000:]


def test_the_report_is_one_page_with_every_part(place, whole):
    page = (place / "whole" / "report.html").read_text()
    for part in ("Learning", "Classes", "Confusion", "Settings", "macro f1"):
        assert part in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"url\((?!#)|(src|href)\s*=\s*.?https?:", page)


def test_texts_that_are_cut_and_unknown_pieces_are_noted(place, tmp_path):
    rows = [(f"{GOOD[i % 2]} " + "zebra " * 30, i % 2) for i in range(20)]
    task = custom_task(write_csv(tmp_path / "long.csv", rows))
    preprocess = BertPreprocessor.from_preset(
        place / "init", sequence_length=12, pad_to_longest=True
    )
    encoded = task.encode(task.read("train"), preprocess)
    assert notes.cut_fraction(encoded) == 1.0
    text = " | ".join(notes.note_data({}, encoded, preprocess))
    assert "all texts are longer than 12 tokens" in text
    assert "sequence_length=33" in text
    assert "of the tokens are [UNK]" in text


def test_rows_without_labels_cannot_be_learned_from(
    place, tmp_path, monkeypatch
):
    wrong = custom_task(str(place / "train.csv"))
    rows = [e._replace(label=None) for e in wrong.read("train")]
    monkeypatch.setattr(wrong, "read", lambda split: rows)
    with pytest.raises(InputError, match="train split of custom has no labels"):
        finetuning.run(wrong, place / "init", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_labels_a_text_are_trained_and_kept(place, tmp_path):
    rows = [
        (text, ";".join(["good"] * y + ["film"] * ("film" in text)))
        for text, y in sentences(40)
    ]
    path = write_csv(tmp_path / "labels.csv", rows)
    task = custom_task(path, problem="multi", label_separator=";")
    results = finetuning.run(
        task, place / "init", tmp_path / "run", epochs=1, **QUICK
    )
    assert results["curve"][0]["loss"] == pytest.approx(np.log(2), abs=0.1)
    model = BertClassifier.from_preset(tmp_path / "run" / "model")
    assert (model.labels, model.problem) == (["film", "good"], "multi")


def test_numbers_in_any_unit_are_learned_and_answered_in_it(place, tmp_path):
    texts = sentences(120)
    results, outputs = {}, {}
    for unit, shift in ((1, 0), (200, 5000)):
        rows = [(text, unit * y + shift) for text, y in texts]
        path = write_csv(tmp_path / f"{unit}.csv", rows)
        task = custom_task(path, problem="regression")
        run = tmp_path / f"run {unit}"
        results[unit] = finetuning.run(
            task, place / "init", run, epochs=4, **QUICK
        )
        # What is saved answers in the units of the file, without the task.
        dev = task.read("dev")
        _, outputs[unit] = average_outputs(task, [run], dev)
        lines = (run / "predictions/predictions.csv").read_text().splitlines()
        written = [float(line.split(",")[-1]) for line in lines[1:]]
        np.testing.assert_allclose(outputs[unit][:, 0], written, rtol=1e-4)
        # No worse than the mean of all, which is far from 0.
        squares = task.score(dev, outputs[unit])["mean_squared_error"]
        assert squares < 0.25 * unit**2
    np.testing.assert_allclose(outputs[200], 200 * outputs[1] + 5000, rtol=1e-3)
    pearson = results[1]["pearson"]
    assert results[200]["pearson"] == pytest.approx(pearson, abs=1e-3)
    model = BertClassifier.from_preset(run / "model")
    assert (model.labels, model.problem) == (None, "regression")
    # A run that begins with such weights begins with what they know.
    more = {**QUICK, "learning_rate": 1e-9, "epochs": 1}
    again = finetuning.run(task, run, tmp_path / "more", **more)
    squares = results[200]["mean_squared_error"]
    assert again["mean_squared_error"] == pytest.approx(squares, rel=1e-3)
