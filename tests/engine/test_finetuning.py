"""Fine-tuning runs: resuming, damaged folders, defaults, units of targets."""

import json
import math
import os
import re
import shutil
import signal
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_keras import (
    BertClassifier,
    BertEncoder,
    BertPreprocessor,
    InputError,
)
from bert_keras.training.state import Preempted, TrainingState
from bert_keras.training.strategy import Strategy
from official_tasks.engine import finetuning, models, notes, training
from official_tasks.engine.best_weights import Rescale
from official_tasks.engine.scoring import average_outputs
from official_tasks.tasks.base import Defaults, Example, Metric
from official_tasks.tasks.own_tasks import classify_task, regress_task
from tests.support.device_processes import finish, start, tf_configs
from tests.support.run_script import run_script
from tests.support.task_samples import (
    GOOD,
    QUICK,
    eager_functions,
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)

pytestmark = pytest.mark.heavy


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("stop_after", "saved"),
    [pytest.param(4, 0, marks=pytest.mark.long), (23, 20)],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    place, task, whole, tmp_path, monkeypatch, stop_after, saved
):
    left = [stop_after]
    on_batch = TrainingState.on_train_batch_end

    def stop(self, batch, logs=None):
        on_batch(self, batch, logs)
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    run = tmp_path / "run"
    monkeypatch.setattr(TrainingState, "on_train_batch_end", stop)
    with pytest.raises(Stopped):
        finetuning.run(
            task, place / "init", run, epochs=3, save_every=5, **QUICK
        )
    # Keras's TensorBoard callback leaves `record_if` active after an
    # interrupted `fit`. `Board` must not.
    writer = tf.summary.create_file_writer(str(tmp_path / "other"))
    with writer.as_default(step=1):
        assert tf.summary.should_record_summaries()
    again = finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert -left[0] == 30 - saved  # 3 epochs of 10 steps
    folder, results = whole
    assert again["best_step"] == results["best_step"]
    for name in ("model/model.safetensors", "predictions/predictions.csv"):
        expected = (folder / name).read_bytes()
        assert (run / name).read_bytes() == expected
    assert again["curve"] == results["curve"]


def test_a_folder_that_is_renamed_while_it_trains_is_not_made_again(
    place, task, tmp_path, eagerly
):
    run, moved = tmp_path / "run", tmp_path / "moved"

    def rename(batch, logs):
        if batch == 8 and not moved.exists():
            run.rename(moved)

    watch = keras.callbacks.LambdaCallback(on_train_batch_end=rename)
    arguments = {"epochs": 2, **QUICK}
    with pytest.raises(InputError, match="run was renamed or removed"):
        finetuning.run(
            task, place / "init", run, callbacks=[watch], **arguments
        )
    assert os.listdir(tmp_path) == ["moved"]
    assert finetuning.run(task, place / "init", moved, **arguments)["curve"]


def test_a_signal_while_dev_is_scored_saves_the_step(
    place, task, tmp_path, monkeypatch, eagerly
):
    arguments = {"epochs": 2, "ema": 0.9, **QUICK}
    whole = finetuning.run(task, place / "init", tmp_path / "a", **arguments)
    score, run = finetuning._Run._predict_and_score, tmp_path / "run"

    def signalled(self, **arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return score(self, **arguments)

    with monkeypatch.context() as patch, pytest.raises(Preempted) as raised:
        patch.setattr(finetuning._Run, "_predict_and_score", signalled)
        finetuning.run(task, place / "init", run, **arguments)
    assert raised.value.step == 10
    again = finetuning.run(task, place / "init", run, **arguments)
    assert again["curve"] == whole["curve"]


@pytest.mark.parametrize("best_epoch", [1, 2])
def test_dev_is_scored_once_an_epoch_and_again_after_a_restart(
    place, task, tmp_path, monkeypatch, eagerly, best_epoch
):
    score, calls = finetuning._Run._predict_and_score, []

    def counted(self, **arguments):
        calls.append(self)
        return score(self, **arguments)

    def rank(metric, scores):
        return -float(abs(len(calls) - best_epoch))

    def interrupt(*_):
        raise Stopped

    monkeypatch.setattr(finetuning._Run, "_predict_and_score", counted)
    monkeypatch.setattr(Metric, "rank", rank)
    arguments = {"epochs": 2, **QUICK}
    first, again = tmp_path / "a", tmp_path / "b"
    results = finetuning.run(task, place / "init", first, **arguments)
    assert len(calls) == 2
    calls.clear()
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(finetuning._Run, "_score_best", interrupt)
        finetuning.run(task, place / "init", again, **arguments)
    expected = finetuning.run(task, place / "init", again, **arguments)
    assert len(calls) == 3
    assert results == expected
    assert results["best_step"] == 10 * best_epoch
    for name in ("results.json", "predictions/predictions.csv"):
        assert (first / name).read_bytes() == (again / name).read_bytes()


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
    run = tmp_path / "run"
    with pytest.raises(InputError, match="not finite; .* lower learning rate"):
        finetuning.run(task, place / "init", run, epochs=1, **QUICK)
    assert not (run / "results.json").exists()
    # The same command would fail again, so it does not train again.
    monkeypatch.setattr(training, "train", None)
    with pytest.raises(training.DivergedError, match="failed before"):
        finetuning.run(task, place / "init", run, epochs=1, **QUICK)


def test_a_run_whose_steps_were_mostly_skipped_is_refused(monkeypatch):
    folder = types.SimpleNamespace(file=lambda name: name)
    state = types.SimpleNamespace(step=0, writes=False)

    def train(skipped):
        curve = [{"skipped_steps": 0.0}, {"skipped_steps": skipped}]
        monkeypatch.setattr(training.loop, "fit", lambda *_, **__: curve)
        return training.train(
            folder,
            None,
            None,
            state,
            steps=9,
            epoch_ends=[5],
            validation=None,
            title="Training",
        )

    assert len(train(4.0)) == 2
    with pytest.raises(InputError, match="5 of 9 steps were skipped"):
        train(5.0)


@pytest.mark.parametrize("epochs", [0, float("nan"), float("inf")])
def test_no_epochs_are_refused(task, place, tmp_path, epochs):
    with pytest.raises(InputError, match="`epochs` is .* expected a number"):
        finetuning.run(task, place / "init", tmp_path / "run", epochs=epochs)
    with pytest.raises(
        InputError, match="`batch_size` is 0; expected 1 or more"
    ):
        finetuning.run(task, place / "init", tmp_path / "run", batch_size=0)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_trained_again(
    place, task, whole, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(training, "train", None)
    run = shutil.copytree(whole[0], tmp_path / "run")
    again = finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert again["accuracy"] == whole[1]["accuracy"]
    output = capsys.readouterr().out
    assert "already finished; nothing was trained" in output
    assert "missing" not in output
    assert not (run / "state").exists()
    with pytest.raises(InputError) as refused:
        finetuning.run(task, place / "init", run, epochs=5, **QUICK)
    for words in ("epochs was 3", "train a finished model further", "init=RUN"):
        assert words in str(refused.value)
    with pytest.raises(InputError) as refused:  # other advice would be wrong
        finetuning.run(task, place / "init", run, epochs=3, seed=1, **QUICK)
    assert "init=RUN" not in str(refused.value)
    (run / "report.html").unlink()
    finetuning.run(task, place / "init", run, epochs=3, **QUICK)
    assert "report.html is missing" in capsys.readouterr().out
    monkeypatch.setattr(finetuning, "choose_dtype", lambda dtype, _: dtype)
    finetuning.run(task, place / "init", run, epochs=3, dtype="auto", **QUICK)
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


# Each file is compared with its hash, so one file gets every damage.
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("results.json", damage) for damage in DAMAGES),
        ("model/vocab.txt", "changed"),
        ("model/config.json", "deleted"),
        ("model/model.safetensors", "cut"),
        ("predictions/predictions.csv", "emptied"),
        ("metrics.jsonl", "changed"),
        ("best.json", "cut"),
        ("stages/finetune.json", "changed"),
        ("stages/finetune.json", "deleted"),
        ("run.json", "changed"),
        ("run.json", "deleted"),
    ],
)
def test_a_finished_run_that_was_damaged_is_not_called_finished(
    place, task, whole, tmp_path, monkeypatch, name, damage
):
    run = shutil.copytree(whole[0], tmp_path / "run")
    DAMAGES[damage](run / name)
    monkeypatch.setattr(finetuning, "_Run", mock.Mock(side_effect=Stopped))
    # A stage without a record runs again.
    is_unknown = damage == "deleted" and name.startswith("stages")
    expected = (Stopped, None) if is_unknown else (InputError, name)
    with pytest.raises(expected[0], match=expected[1]):
        finetuning.run(task, place / "init", run, epochs=3, **QUICK)


# The run learns nothing and ends early, after epoch 3 of 6.
NOTHING = {**QUICK, "learning_rate": 1e-12, "epochs": 6, "early_stopping": 2}


@pytest.fixture(scope="module")
def interrupted(place, task, tmp_path_factory):
    """The folder and the `_Run` of a run that stopped after its last step."""
    folder, runs = tmp_path_factory.mktemp("interrupted") / "run", []

    def stop(self, step, curve):
        runs.append(self)
        raise Stopped

    with (
        eager_functions(),
        mock.patch.object(finetuning._Run, "_score_best", stop),
        pytest.raises(Stopped),
    ):
        finetuning.run(task, place / "init", folder, **NOTHING)
    return folder, runs[0]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("best.json", damage) for damage in DAMAGES),
        ("model/vocab.txt", "deleted"),
        ("model/config.json", "emptied"),
        ("model/model.safetensors", "changed"),
        ("model/model.safetensors", "cut"),
    ],
)
def test_an_interrupted_run_that_was_damaged_is_refused(
    place, task, interrupted, tmp_path, monkeypatch, name, damage
):
    folder, run = interrupted
    copy = shutil.copytree(folder, tmp_path / "run")
    DAMAGES[damage](copy / name)

    def made_before(_, folder, *__, **___):
        run.folder = folder
        return run

    monkeypatch.setattr(finetuning, "_Run", made_before)
    with pytest.raises(InputError, match=name):
        finetuning.run(task, place / "init", copy, **NOTHING)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_learned_nothing_ends_early_also_when_resumed(
    place, task, interrupted, tmp_path, capsys, damage
):
    run = shutil.copytree(interrupted[0], tmp_path / "run")
    # The lines are in the checkpoint, so this file is written again.
    curve = (run / "metrics.jsonl").read_bytes()
    DAMAGES[damage](run / "metrics.jsonl")
    steps = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(batch)
    )
    results = finetuning.run(
        task, place / "init", run, callbacks=[watch], **NOTHING
    )
    assert steps == []
    assert (run / "metrics.jsonl").read_bytes() == curve
    assert [line["step"] for line in results["curve"]] == [10, 20, 30]
    assert results["best_step"] == 10
    assert results["accuracy"] <= results["majority_baseline"]
    note = results["notes"][-1]
    assert "no better than the best constant prediction" in note
    assert note in " ".join(capsys.readouterr().out.split())


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
    f1 = Metric("f1", higher_is_better=True)
    (note,) = notes.note_results(f1, results, 9, 5e-5)
    # The note counts labels, not rows, because a row may have several labels.
    assert (
        "29% of the labels of dev are 'missed', with a recall of 0.03" in note
    )
    assert "learning_rate` of 0.0001" in note
    assert notes.note_results(f1, {"f1": 0.9}, 9, 5e-5) == []
    loss = Metric("loss", higher_is_better=False)
    (note,) = notes.note_results(loss, {"loss": math.inf}, 9, 5e-5)
    assert note == "loss on dev is inf. Try a `learning_rate` of 3e-05"
    failed = {"f1": 0.5, "majority_baseline": 0.5}
    for steps, rows, words in (
        (1, 1, "more than 1 step or on more than 1 row."),
        (2000, 3, "more than 2,000 steps or on more than 3 rows."),
    ):
        (note,) = notes.note_results(f1, {**failed, "rows": rows}, steps, 5e-5)
        assert words in note


def test_the_most_frequent_labels_are_counted():
    def count(labels, *rows):
        examples = [Example("", None, row) for row in rows]
        return notes.count_labels(labels, examples)

    assert count(["a", "b", "c"], 1, 1, 0) == " (b 2, a 1)"
    assert count(["a", "b"], {0, 1}, {1}, set()) == " (b 2, a 1)"
    assert count(["O", "B-X"], ("O", "B-X", "O"), ("I-X",)) == " (O 2, B-X 1)"
    assert count((), 0.5) == count((), 1) == count(["a"], None) == ""
    names = [f"c{n:02}" for n in range(21)]
    assert count(names, *range(21)).endswith(", c19 1, ...)")


def test_a_check_says_what_would_be_trained(place, task, whole, capsys):
    assert finetuning.run(task, place / "init", None, epochs=3, **QUICK) == {}
    said = capsys.readouterr().out
    _, results = whole
    steps = results["curve"][-1]["step"]
    for line in (
        f"rows: {results['rows']} to train on, {results['dev_rows']} to score",
        "classes: 2 (bad ",
        f"steps: {steps} of {QUICK['batch_size']} rows",
    ):
        assert line in said
    with pytest.raises(InputError, match="gpu"):
        finetuning.run(task, place / "init", None, distribution="gpu")


def test_defaults_are_the_tasks_and_changed_files_are_refused(
    place, tmp_path, monkeypatch
):
    train = write_reviews(tmp_path / "train.csv", 16)
    dev = write_reviews(tmp_path / "dev.csv", 10, seed=1)
    task = classify_task(str(train), str(dev))
    task.defaults = Defaults(8, 1.0, 1e-3, 12)
    init = shutil.copytree(place / "init", tmp_path / "init")
    run = tmp_path / "run"
    monkeypatch.setattr(finetuning, "_Run", mock.Mock(side_effect=Stopped))
    with pytest.raises(Stopped):
        finetuning.run(task, init, run)
    decided = json.loads((run / "run.json").read_text())["settings"]
    assert [decided[name] for name in Defaults._fields] == [8, 1.0, 1e-3, 12]
    write_reviews(dev, 10, seed=2)
    with open(init / "model.safetensors", "ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="other files: .*dev.csv") as error:
        finetuning.run(task, init, run)
    assert "init/model.safetensors changed since" in str(error.value)
    assert "train.csv" not in str(error.value)


def test_from_scratch_takes_no_weight_and_a_tpu_gets_rows_of_one_length(
    place, task, prepared, monkeypatch
):
    monkeypatch.setattr(finetuning, "make_strategy", lambda *_: Strategy("tpu"))
    init = BertEncoder.from_preset(place / "init")
    table = init.embeddings.token.embeddings
    for from_scratch in (False, True):
        run = prepared(task, place / "init", from_scratch=from_scratch, **QUICK)
        made = run.model.encoder
        assert made.count_params() == init.count_params()
        is_kept = np.array_equal(made.embeddings.token.embeddings, table)
        assert is_kept != from_scratch
    shapes = {x["token_ids"].shape for x, *_ in run._batches(0)}
    assert shapes == {(8, 24)}


AGAIN = """
import json
import os
import sys
from official_tasks.engine import finetuning
from official_tasks.tasks.own_tasks import classify_task

place = sys.argv[1]
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
task = classify_task(f"{place}/train.csv", f"{place}/dev.csv")
for name in sys.argv[2]:
    results = finetuning.run(
        task, f"{place}/init", f"{place}/{name}",
        epochs=0.5, batch_size=8, distribution="multi_worker",
    )
    assert bool(results) == is_chief
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
from official_tasks.engine import finetuning
from official_tasks.tasks.own_tasks import classify_task

for name in ("off", "mirrored"):
    results = finetuning.run(
        classify_task("train.csv", "dev.csv"), "sure", f"{sys.argv[1]}/{name}",
        epochs=1, batch_size=8, learning_rate=1e-2, sequence_length=24,
        distribution=name,
    )
    print("loss", results["curve"][-1]["loss"])
"""


@pytest.mark.long
def test_two_replicas_end_where_one_does(place, tmp_path):
    folder = shutil.copytree(place, tmp_path / "place")
    save_toy_model(folder / "sure", dropout=0.0)
    (folder / "two.py").write_text(TWO_REPLICAS)
    done = run_script("two.py", tmp_path, folder=folder)
    lines = [x for x in done.stdout.splitlines() if x.startswith("loss")]
    one, two = (float(line.split()[1]) for line in lines)
    assert one == pytest.approx(two, rel=1e-5), done.stderr[-2000:]


def test_the_report_is_one_page_with_every_part(whole):
    page = (whole[0] / "report.html").read_text()
    for part in ("Learning", "Classes", "Confusion", "Settings", "macro f1"):
        assert part in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"url\((?!#)|(src|href)\s*=\s*.?https?:", page)


def test_texts_that_are_cut_and_unknown_pieces_are_noted(place, tmp_path):
    rows = [(f"{GOOD[i % 2]} " + "zebra " * 30, i % 2) for i in range(20)]
    task = classify_task(write_csv(tmp_path / "long.csv", rows))
    preprocess = BertPreprocessor.from_preset(
        place / "init", sequence_length=12, pad_to_longest=True
    )
    encoded = task.encode(task.read("train"), preprocess)
    assert notes.cut_fraction(encoded) == 1.0
    text = " | ".join(notes.note_data({}, encoded, preprocess))
    assert "all texts are longer than 12 tokens" in text
    assert "sequence_length=33` would hold most" in text
    for longest, advice in (
        (12, "the model reads at most 12"),
        (24, "set `sequence_length` to at most 24"),
    ):
        first, *_ = notes.note_data({}, encoded, preprocess, longest)
        assert first.endswith(advice)
    assert "of the tokens are [UNK]" in text
    # With [CLS] and [SEP], one or two of ten tokens. A tenth is not too much.
    for unknown, is_noted in ((1, False), (2, True)):
        words = [*[GOOD[0]] * (8 - unknown), *["zebra"] * unknown]
        rows = [(" ".join(words), label) for label in (0, 1)]
        task = classify_task(write_csv(tmp_path / "short.csv", rows))
        encoded = task.encode(task.read("train"), preprocess)
        assert notes.unknown_fraction(encoded, preprocess) == unknown / 10
        assert bool(notes.note_data({}, encoded, preprocess)) == is_noted


def test_a_remote_output_is_refused_before_training(place, task):
    with pytest.raises(InputError, match="ram://run, which is remote"):
        finetuning.run(task, place / "init", "ram://run")


def test_rows_without_labels_cannot_be_learned_from(
    place, tmp_path, monkeypatch
):
    wrong = classify_task(str(place / "train.csv"))
    rows = [e._replace(label=None) for e in wrong.read("train")]
    monkeypatch.setattr(wrong, "read", lambda split: rows)
    with pytest.raises(
        InputError, match="train split of classify has no labels"
    ):
        finetuning.run(wrong, place / "init", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_in_any_unit_are_learned_and_answered_in_it(
    place, prepared, tmp_path
):
    unit, shift = 200, 5000
    rows = [(text, unit * y + shift) for text, y in sentences(120)]
    task = regress_task(write_csv(tmp_path / "rows.csv", rows))
    run = tmp_path / "run"
    results = finetuning.run(task, place / "init", run, epochs=4, **QUICK)
    # The saved model itself predicts in the units of the file.
    dev = task.read("dev")
    _, outputs = average_outputs(task, [run], dev)
    lines = (run / "predictions/predictions.csv").read_text().splitlines()
    written = [float(line.split(",")[-1]) for line in lines[1:]]
    np.testing.assert_allclose(outputs[:, 0], written, rtol=1e-4)
    # A model that predicts the mean has an error of about 0.25 * unit**2.
    squares = task.score(dev, outputs)["mean_squared_error"]
    assert squares < 0.25 * unit**2
    assert squares == pytest.approx(results["mean_squared_error"], rel=1e-3)
    model = BertClassifier.from_preset(run / "model")
    assert (model.labels, model.problem) == (None, "regression")
    # A run that starts from these weights starts with their score.
    _, again = prepared(task, run, **QUICK)._predict_and_score()
    assert again["mean_squared_error"] == pytest.approx(squares, rel=1e-3)
    # The bias of a new head does not contain the targets' mean.
    new = prepared(task, run, bilstm_dim=4, **QUICK)
    np.testing.assert_array_equal(new.model.classifier.bias, [0])


def test_the_model_learns_the_same_numbers_of_any_unit():
    targets = np.random.default_rng(0).random((9, 1)).astype("float32")
    expected = (targets - targets.mean()) / targets.std()
    for unit, shift in ((1, 0), (200, 5000)):
        values = unit * targets + shift
        found = Rescale.fit(values).undo(values)
        np.testing.assert_allclose(found, expected, atol=2e-4)
