"""Fine-tuning: going on to the bit, defaults, several runs, plain answers."""

import functools
import json
import os
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from run_script import run_script
from safetensors.numpy import load_file
from task_samples import (
    GOOD,
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)
from test_devices import finish, start, tf_configs

from bert_keras import BertClassifier, BertPreprocessor, InputError
from official_tasks import evaluate
from official_tasks.engine import callbacks, finetuning, grid, leaderboard
from official_tasks.engine.models import ensemble_outputs, load_model
from official_tasks.tasks.base import Defaults, Example
from official_tasks.tasks.custom import CustomTask

QUICK = {"batch_size": 8, "learning_rate": 1e-2, "sequence_length": 24}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    write_reviews(folder / "train.csv", 80)
    write_reviews(folder / "dev.csv", 30, seed=1)
    save_toy_model(folder / "init", dropout=0.1)
    return folder


@pytest.fixture(scope="module")
def task(place):
    return CustomTask(str(place / "train.csv"), str(place / "dev.csv"))


@pytest.fixture(scope="module")
def whole(place, task):
    run = place / "whole"
    return finetuning.run(task, place / "init", run, epochs=6, **QUICK)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("stop_after", [4, 23, 59])
def test_a_run_that_was_broken_off_ends_with_the_same_bits(
    place, task, whole, tmp_path, monkeypatch, stop_after
):
    from bert_keras.training.state import TrainingState

    left = [stop_after]
    on_batch = TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        on_batch(self, batch, logs)
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    monkeypatch.setattr(finetuning, "SAVE_EVERY", 5)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingState, "on_train_batch_end", stop)
        with pytest.raises(Stopped):
            finetuning.run(
                task, place / "init", tmp_path / "run", epochs=6, **QUICK
            )
    again = finetuning.run(
        task, place / "init", tmp_path / "run", epochs=6, **QUICK
    )
    assert left[0] <= 0 and again["best_step"] == whole["best_step"]
    for name in ("model/model.safetensors", "predictions/predictions.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (
            place / "whole" / name
        ).read_bytes()
    assert again["curve"] == whole["curve"]


def test_a_run_that_was_broken_off_leaves_other_summaries_alone(
    place, task, tmp_path, monkeypatch
):
    def stop(self, batch, logs=None):
        raise Stopped

    monkeypatch.setattr(callbacks.Board, "on_train_batch_end", stop)
    with pytest.raises(Stopped):
        finetuning.run(task, place / "init", tmp_path / "run", **QUICK)
    assert (tmp_path / "run" / "logs" / "train").is_dir()
    writer = tf.summary.create_file_writer(str(tmp_path / "other"))
    with writer.as_default(step=1):
        assert tf.summary.should_record_summaries()


def test_gradients_that_stay_broken_end_the_run_with_advice(
    place, task, tmp_path, monkeypatch
):
    loss = keras.losses.SparseCategoricalCrossentropy

    class Broken(loss):
        def call(self, y_true, y_pred):
            return super().call(y_true, y_pred) * float("nan")

    monkeypatch.setattr(type(task), "loss", lambda self: Broken())
    with pytest.raises(InputError, match="not finite; .* lower learning rate"):
        finetuning.run(
            task, place / "init", tmp_path / "run", epochs=6, **QUICK
        )


@pytest.mark.parametrize("epochs", [0, -1.0, float("nan"), float("inf")])
def test_no_epochs_are_refused(task, place, tmp_path, epochs):
    with pytest.raises(InputError, match="epochs is .* expected a number"):
        finetuning.run(task, place / "init", tmp_path / "run", epochs=epochs)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_trained_again(place, task, whole, monkeypatch):
    monkeypatch.setattr(finetuning, "train", None)
    run = place / "whole"
    again = finetuning.run(task, place / "init", run, epochs=6, **QUICK)
    assert again["accuracy"] == whole["accuracy"]
    assert not (run / "state").exists()
    with pytest.raises(InputError, match="epochs was 6 and is now 4"):
        finetuning.run(task, place / "init", run, epochs=4, **QUICK)


def test_a_run_goes_on_with_the_files_that_it_began_with(
    place, tmp_path, monkeypatch, capsys
):
    train = write_reviews(tmp_path / "train.csv", 20)
    dev = write_reviews(tmp_path / "dev.csv", 10, seed=1)
    init = shutil.copytree(place / "init", tmp_path / "init")
    run = tmp_path / "run"

    def go():
        task = CustomTask(str(train), str(dev))
        return finetuning.run(task, init, run, epochs=1, **QUICK)

    results = go()
    monkeypatch.setattr(finetuning, "train", None)
    capsys.readouterr()
    assert go()["accuracy"] == results["accuracy"]
    assert "finished before; nothing trained" in capsys.readouterr().out
    write_reviews(dev, 10, seed=2)
    with open(init / "model.safetensors", "ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="other files: .*dev.csv") as error:
        go()
    assert "init/model.safetensors changed since" in str(error.value)
    assert "train.csv" not in str(error.value)
    (run / "stages" / "files.json").unlink()  # as of before it was noted
    assert go()["accuracy"] == results["accuracy"]


def test_the_defaults_are_the_tasks_own(place, tmp_path):
    class Mine(CustomTask):
        defaults = Defaults(16, 1.0, 1e-3, 12)

    task = Mine(str(place / "train.csv"), str(place / "dev.csv"))
    results = finetuning.run(task, place / "init", tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    decided = settings["settings"]
    assert [decided[name] for name in Defaults._fields] == [16, 1.0, 1e-3, 12]
    assert results["curve"][-1]["step"] == 5


def test_the_head_of_another_run_comes_along_where_labels_are_the_same(
    place, task, whole, tmp_path, capsys
):
    stored = BertClassifier.from_preset(place / "whole" / "model")
    kept = load_model(task, place / "whole")
    assert "note: new" not in capsys.readouterr().out
    np.testing.assert_array_equal(
        kept.classifier.kernel, stored.classifier.kernel
    )
    rows = [(text, "xy"[y]) for text, y in sentences(20)]
    other = CustomTask(str(write_csv(tmp_path / "other.csv", rows)))
    new = load_model(other, place / "whole")
    said = "note: new, and random before training: classifier/kernel\n"
    assert capsys.readouterr().out == said
    assert not np.allclose(new.classifier.kernel, stored.classifier.kernel)
    np.testing.assert_array_equal(
        new.encoder.pooler.kernel, stored.encoder.pooler.kernel
    )


def test_random_weights_keep_the_sizes_only(place, task):
    stored = load_model(task, place / "init").encoder
    random = load_model(task, place / "init", from_scratch=True).encoder
    assert stored.count_params() == random.count_params()
    assert not np.allclose(
        stored.embeddings.token.embeddings, random.embeddings.token.embeddings
    )


def test_padding_to_one_length_trains_as_well(
    place, task, whole, tmp_path, monkeypatch
):
    shapes, plain = [], finetuning.training_batches

    def watched(*arguments, **named):
        batches = plain(*arguments, **named)
        shapes.extend(x["token_ids"].shape for x, *_ in batches.take(3))
        return batches

    monkeypatch.setattr(finetuning, "training_batches", watched)
    fixed = finetuning.run(
        task,
        place / "init",
        tmp_path / "run",
        epochs=0.2,
        pad_to_longest=False,
        **QUICK,
    )
    assert fixed["rows"] == whole["rows"]
    assert len(fixed["curve"]) == 1
    assert shapes and {length for _, length in shapes} == {24}


def test_from_scratch_takes_no_weight_along(place, task, tmp_path):
    begun = {
        scratch: finetuning.run(
            task,
            place / "init",
            tmp_path / str(scratch),
            from_scratch=scratch,
            epochs=0.1,
            **{**QUICK, "learning_rate": 1e-12},
        )
        and load_model(task, tmp_path / str(scratch)).encoder
        for scratch in (False, True)
    }
    init = load_model(task, place / "init").encoder
    table = init.embeddings.token.embeddings.numpy()
    for scratch, encoder in begun.items():
        found = encoder.embeddings.token.embeddings.numpy()
        assert np.allclose(found, table, atol=1e-6) != scratch


def test_a_grid_over_seeds_keeps_the_best_run(tmp_path, monkeypatch):
    ran = []

    def pretended(task, init, output, *, learning_rate, seed, **rest):
        """In the place of a training: writes what a run leaves."""
        ran.append((learning_rate, seed))
        assert rest == {"settings": {"train": "a.csv"}, "epochs": 7.0}
        for name in ("model", "predictions"):
            (Path(output) / name).mkdir(parents=True)
            (Path(output) / name / "file").write_text(f"{ran[-1]}")
        (Path(output) / "report.html").write_text("a page")
        return {"accuracy": learning_rate * 1e4 + seed / 10, "rows": 3}

    monkeypatch.setattr(finetuning, "run", pretended)

    class Task:
        name, metric = "toy", "accuracy"

    def run():
        return grid.run(
            Task,
            "init",
            tmp_path / "run",
            learning_rates=(5e-5, 2e-5),
            seeds=2,
            settings={"train": "a.csv"},
            epochs=7.0,
        )

    results = run()
    assert ran == [(5e-5, 0), (5e-5, 1), (2e-5, 0), (2e-5, 1)]
    assert results["best_run"] == "rate-5e-05_seed-1"
    # Over the seeds of 5e-5; the other rate's are no other tries of it.
    assert results["mean"] == pytest.approx(0.55)
    assert results["deviation"] == pytest.approx(np.std([0.5, 0.6], ddof=1))
    kept = tmp_path / "run" / "model" / "file"
    assert kept.read_text() == "(5e-05, 1)"
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written["runs"].keys() == results["runs"].keys()
    with pytest.raises(InputError, match="leave --learning_rate or --grid"):
        grid.run(
            Task, "init", tmp_path, learning_rates=(1, 2), learning_rate=1.0
        )


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Data of one or two steps, and the weights to start from."""
    folder = tmp_path_factory.mktemp("few")
    write_reviews(folder / "train.csv", 16)
    write_reviews(folder / "dev.csv", 8, seed=1)
    save_toy_model(folder / "init")
    return folder


@pytest.mark.parametrize("distribution", ["off", "mirrored"])
@pytest.mark.parametrize("plan", [{"seeds": 2}, {"learning_rates": (1, 2e-4)}])
def test_one_process_trains_twice(few, tmp_path, distribution, plan):
    # Of the strategy, the second `make_strategy` of a process counts.
    task = CustomTask(str(few / "train.csv"), str(few / "dev.csv"))
    results = grid.run(
        task,
        few / "init",
        tmp_path / "run",
        epochs=1.0,
        batch_size=8,
        distribution=distribution,
        **plan,
    )
    assert len(results["runs"]) == 2
    assert (tmp_path / "run" / "model").is_dir()


def test_several_workers_train_twice_in_one_process(few):
    script = [os.path.join(os.path.dirname(__file__), "finetune_twice.py")]
    finish(
        *(start(script, str(few), TF_CONFIG=tf) for tf in tf_configs()),
    )
    weights = [
        load_file(few / run / "model" / "model.safetensors") for run in "ab"
    ]
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name], name)


@pytest.mark.parametrize("distribution", ["multi_worker", "auto"])
def test_runs_in_a_row_are_refused_on_several_hosts(
    task, tmp_path, monkeypatch, distribution
):
    monkeypatch.setenv("TF_CONFIG", tf_configs()[0])
    for run, plan in (
        (functools.partial(grid.run, task), {"seeds": 2}),
        (functools.partial(grid.run, task), {"learning_rates": (1, 2)}),
        (functools.partial(leaderboard.run_glue, None), {}),
    ):
        with pytest.raises(InputError, match="one --task, without --grid"):
            run("init", tmp_path / "run", distribution=distribution, **plan)
    assert not (tmp_path / "run").exists()


def test_runs_that_learned_nothing_are_counted_and_left_out_of_the_mean():
    def ran(accuracy):
        return {"accuracy": accuracy, "majority_baseline": 0.6, "notes": []}

    runs = {"a": ran(0.9), "b": ran(0.6), "c": ran(float("nan")), "d": ran(0.8)}
    results = grid.summary("accuracy", runs)
    assert results["failed"] == ["b", "c"]
    assert results["mean"] == pytest.approx(0.85)
    assert results["deviation"] == pytest.approx(np.std([0.9, 0.8], ddof=1))
    assert results["best_run"] == "a"
    nothing = grid.summary("accuracy", {"b": ran(0.6)})
    assert nothing["mean"] is None and nothing["deviation"] is None
    rates = dict(zip(runs, (5e-5, 4e-5, 3e-5, 2e-5), strict=True))
    alone = grid.summary("accuracy", runs, rates)  # a grid of one seed
    assert alone["mean"] is None and alone["deviation"] is None


def test_the_report_is_one_page_with_every_part(place, whole):
    page = (place / "whole" / "report.html").read_text()
    for part in ("Learning", "Classes", "Confusion", "Settings", "macro f1"):
        assert part in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"url\((?!#)|(src|href)\s*=\s*.?https?:", page)


def test_the_report_shows_the_most_confidently_wrong_first():
    from official_tasks.tasks.text_task import TextTask

    task = TextTask()
    task.labels = ["a", "b"]
    rows = [("sure", 0), ("unsure", 0), ("right", 1)]
    examples = [Example(text, None, label) for text, label in rows]
    wrong = task.mistakes(examples, np.array([[0.0, 5], [0, 1], [0, 2]]))
    assert [row["text"] for row in wrong] == ["sure", "unsure"]
    assert wrong[0]["truth"] == "a" and wrong[0]["predicted"] == "b"
    assert wrong[0]["probability"] == pytest.approx(1 / (1 + np.exp(-5)))


def test_an_ensemble_is_the_mean_of_its_models(place, task, whole, tmp_path):
    preprocess = BertPreprocessor.from_preset(place / "whole" / "model")
    load_model(task, place / "init").save_preset(tmp_path / "b", preprocess)
    assert (
        evaluate.evaluate(task, [place / "whole"])["accuracy"]
        == (whole["accuracy"])
    )
    models = [place / "whole", tmp_path / "b"]
    dev = task.read("dev")
    alone = [ensemble_outputs(task, [model], dev)[1] for model in models]
    both = ensemble_outputs(task, models, dev)[1]
    np.testing.assert_allclose(both, np.mean(alone, axis=0), rtol=1e-6)
    scores = evaluate.evaluate(task, models, output=tmp_path / "both")
    written = json.loads((tmp_path / "both" / "results.json").read_text())
    assert written["accuracy"] == scores["accuracy"]


def test_a_model_brings_its_labels_where_no_training_file_is_given(
    place, whole
):
    alone = CustomTask(dev=str(place / "dev.csv"))
    scores = evaluate.evaluate(alone, [place / "whole"])
    assert scores["accuracy"] == whole["accuracy"]
    assert set(scores["classes"]) == {"bad", "good"}


def test_a_model_of_other_labels_or_of_another_kind_is_refused(
    place, whole, tmp_path
):
    rows = [(text, "xy"[y]) for text, y in sentences(20)]
    other = CustomTask(str(write_csv(tmp_path / "other.csv", rows)))
    with pytest.raises(InputError, match=r"labels \['bad', 'good'\]"):
        evaluate.evaluate(other, [place / "whole"])
    with pytest.raises(InputError, match="is a BertEncoder; the task custom"):
        evaluate.evaluate(other, [place / "init"])


def test_texts_that_are_cut_and_pieces_that_are_unknown_are_told(
    place, tmp_path
):
    rows = [(f"{GOOD[i % 2]} " + "zebra " * 30, i % 2) for i in range(20)]
    task = CustomTask(str(write_csv(tmp_path / "long.csv", rows)))
    results = finetuning.run(
        task, place / "init", tmp_path / "run", sequence_length=12, epochs=1
    )
    notes = " | ".join(results["notes"])
    assert "all texts are longer than 12 pieces" in notes
    assert "sequence_length=33" in notes
    assert "of the pieces are [UNK]" in notes
    assert results["cut"] == 1.0


def test_rows_without_labels_cannot_be_learned_from(place, task, tmp_path):
    class Unlabelled(CustomTask):
        def read(self, split):
            return [e._replace(label=None) for e in super().read(split)]

    wrong = Unlabelled(str(place / "train.csv"))
    with pytest.raises(InputError, match="train split of custom has no labels"):
        finetuning.run(wrong, place / "init", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_labels_a_text_are_trained_and_kept(place, tmp_path):
    rows = [
        (text, ";".join(["good"] * y + ["film"] * ("film" in text)))
        for text, y in sentences(40)
    ]
    labels = CustomTask(
        str(write_csv(tmp_path / "labels.csv", rows)),
        problem="multi",
        label_separator=";",
    )
    found = finetuning.run(
        labels, place / "init", tmp_path / "labels", epochs=1, **QUICK
    )
    assert found["curve"][0]["loss"] == pytest.approx(np.log(2), abs=0.1)
    model = BertClassifier.from_preset(tmp_path / "labels" / "model")
    assert (model.labels, model.problem) == (["film", "good"], "multi")


def test_numbers_are_trained_on_by_their_squared_error(place, tmp_path):
    rows = [(text, 2.0 * y - 1) for text, y in sentences(40)]
    numbers = CustomTask(
        str(write_csv(tmp_path / "numbers.csv", rows)), problem="regression"
    )
    found = finetuning.run(
        numbers, place / "init", tmp_path / "numbers", epochs=1, **QUICK
    )
    assert found["curve"][0]["loss"] == pytest.approx(1, abs=0.2)
    model = BertClassifier.from_preset(tmp_path / "numbers" / "model")
    assert (model.labels, model.problem) == (None, "regression")


TWO_REPLICAS = """
import sys
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
halves = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, halves)
from official_tasks import finetuning
from official_tasks.tasks.custom import CustomTask

for name in ("off", "mirrored"):
    results = finetuning.run(
        CustomTask("train.csv", "dev.csv"), "sure", f"{sys.argv[1]}/{name}",
        epochs=1, batch_size=8, learning_rate=1e-2, sequence_length=24,
        distribution=name,
    )
    print("loss", results["curve"][-1]["loss"])
"""


@pytest.mark.skipif(
    not os.environ.get("BERT_KERAS_LONG"),
    reason="trains twice in a process of its own: BERT_KERAS_LONG=1",
)
def test_two_replicas_end_where_one_does(place, tmp_path):
    save_toy_model(place / "sure", dropout=0.0)
    (place / "two.py").write_text(TWO_REPLICAS)
    done = run_script("two.py", tmp_path, folder=place)
    lines = [x for x in done.stdout.splitlines() if x.startswith("loss")]
    one, two = (float(line.split()[1]) for line in lines)
    assert one == pytest.approx(two, rel=1e-5), done.stderr[-2000:]


def test_numbers_in_any_unit_are_learned_and_answered_in_it(place, tmp_path):
    texts = sentences(120)
    results, outputs = {}, {}
    for unit, shift in ((1, 0), (200, 5000)):
        rows = [(text, unit * y + shift) for text, y in texts]
        path = str(write_csv(tmp_path / f"{unit}.csv", rows))
        task = CustomTask(path, problem="regression")
        run = tmp_path / f"run {unit}"
        results[unit] = finetuning.run(
            task, place / "init", run, epochs=4, **QUICK
        )
        # What is saved answers in the units of the file, with no task at hand.
        dev = task.read("dev")
        _, outputs[unit] = ensemble_outputs(task, [run], dev)
        kept = [row.split(",") for row in _lines(run / "predictions")]
        written = [float(predicted) for *_, predicted in kept]
        np.testing.assert_allclose(outputs[unit][:, 0], written, rtol=1e-4)
        # No worse than the mean of all, which is far from 0.
        squares = task.score(dev, outputs[unit])["mean_squared_error"]
        assert squares < 0.25 * unit**2
    np.testing.assert_allclose(outputs[200], 200 * outputs[1] + 5000, rtol=1e-3)
    assert results[200]["pearson"] == pytest.approx(
        results[1]["pearson"], abs=1e-3
    )
    # A run that begins with such weights begins with what they know.
    task = CustomTask(path, problem="regression")
    more = {**QUICK, "learning_rate": 1e-9, "epochs": 1}
    again = finetuning.run(task, run, tmp_path / "more", **more)
    assert again["mean_squared_error"] == pytest.approx(
        results[200]["mean_squared_error"], rel=1e-3
    )


def _lines(folder):
    return (folder / "predictions.csv").read_text().splitlines()[1:]


def test_a_run_that_learned_nothing_says_what_that_means(
    place, task, tmp_path, capsys
):
    nothing = {**QUICK, "learning_rate": 1e-12, "epochs": 1}
    results = finetuning.run(task, place / "init", tmp_path / "run", **nothing)
    assert results["accuracy"] <= results["majority_baseline"]
    assert "no better than the best constant guess" in results["notes"][-1]
    assert "another" in " ".join(capsys.readouterr().out.split())
