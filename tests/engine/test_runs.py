"""Several runs of one task: the best run is kept, and all are summarized."""

import json
import types
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import classification_report

from bert_keras import InputError
from bert_keras.run_folder import RunFolder
from official_tasks import finetune
from official_tasks.engine import finetuning, leaderboard, runs
from official_tasks.engine.training import DivergedError
from official_tasks.tasks.base import Example, Metric
from official_tasks.tasks.own_tasks import (
    classify_task,
    multilabel_task,
    regress_task,
)
from official_tasks.tasks.registry import read_run_record
from tests.support.device_processes import tf_configs
from tests.support.script_flags import parse_flags
from tests.support.task_samples import (
    save_toy_model,
    sentences,
    write_csv,
    write_reviews,
)


def test_rates_and_seeds_keep_the_best_run(tmp_path, monkeypatch):
    ran = []

    def pretended(task, init, output, *, learning_rate, seed, load, **rest):
        """Write the files of a run instead of training."""
        ran.append((learning_rate, seed))
        assert rest == {"settings": {"train": "a.csv"}, "epochs": 7.0}
        for name in ("model", "predictions", "adapter"):
            (Path(output) / name).mkdir(parents=True)
            (Path(output) / name / "file").write_text(f"{ran[-1]}")
        (Path(output) / "report.html").write_text("a page")
        return {"accuracy": learning_rate * 1e4 + seed / 10, "rows": 3}

    monkeypatch.setattr(finetuning, "run", pretended)

    class Task:
        name, metrics = "toy", (ACCURACY,)

        def data_files():
            return [tmp_path / "a.csv"]

    (tmp_path / "a.csv").write_text("rows")
    results = runs.run(
        Task,
        "init",
        tmp_path / "run",
        learning_rate=(5e-5, 2e-5),
        seeds=2,
        settings={"train": "a.csv"},
        epochs=7.0,
    )
    assert ran == [(5e-5, 0), (5e-5, 1), (2e-5, 0), (2e-5, 1)]
    assert results["best_run"] == "rate-5e-05_seed-1"
    # Mean and std over the two seeds of 5e-5, the best run's learning rate.
    assert results["mean"] == pytest.approx(0.55)
    assert results["deviation"] == pytest.approx(np.std([0.5, 0.6], ddof=1))
    for kept in ("model/file", "predictions/file", "adapter/file"):
        assert (tmp_path / "run" / kept).read_text() == "(5e-05, 1)"
    assert (tmp_path / "run" / "report.html").is_file()
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written["runs"].keys() == results["runs"].keys()
    (inputs,) = read_run_record(tmp_path / "run", "inputs")
    assert inputs == str(tmp_path / "a.csv")


@pytest.mark.parametrize("version", ["present", "earlier"])
def test_rates_in_another_order_are_the_same_set_of_runs(
    tmp_path, monkeypatch, version
):
    monkeypatch.setattr(
        finetuning,
        "run",
        lambda *_, learning_rate, **rest: {"accuracy": 1 / learning_rate},
    )
    task = types.SimpleNamespace(
        name="toy", metrics=(ACCURACY,), data_files=list
    )

    def run(**arguments):
        results = runs.run(task, "init", tmp_path / "run", **arguments)
        return list(results["runs"])

    monkeypatch.setattr(runs, "_copy_best", lambda *_: None)
    monkeypatch.setattr(RunFolder, "finish", lambda *_: None)
    if version == "earlier":
        plan = [[rate, seed] for rate in (5e-5, 2e-5) for seed in (3, 4)]
        record = {"task": "toy", "init": "init", "plan": plan}
        RunFolder(tmp_path / "run", record).close()
    expected = [
        f"rate-{r}_seed-{s}" for r in ("5e-05", "2e-05") for s in (3, 4)
    ]
    for rates in ((5e-5, 2e-5), (2e-5, 5e-5)):
        names = run(learning_rate=rates, seeds=2, seed=3)
        assert sorted(names) == sorted(expected)
    for arguments, message in (
        ({"learning_rate": (5e-5, 3e-5)}, r"learning_rate was \[.*3e-05"),
        ({"learning_rate": 5e-5}, "learning_rate was .* and is now .*5e-05"),
        ({"seeds": 3}, "seeds was 2 and is now 3"),
        ({"seed": 0}, "seed was 3 and is now 0"),
    ):
        given = {"learning_rate": (2e-5, 5e-5), "seeds": 2, "seed": 3}
        with pytest.raises(InputError, match=message) as caught:
            run(**{**given, **arguments})
        assert "plan" not in str(caught.value)


ACCURACY = Metric("accuracy", higher_is_better=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), None),
        (("--learning_rate=3e-5",), 3e-5),
        *(
            (("--learning_rate=3e-5,2e-3", *more), (3e-5, 2e-3))
            for more in (
                (),
                ("--lora_rank=2",),
                ("--recipe=last",),
                ("--recipe=last", "--task=tags"),
                ("--task=glue",),
            )
        ),
    ],
)
def test_the_rates_are_tried_as_they_are_given(
    toy_model, monkeypatch, words, expected
):
    tried = []

    def pretended(task, init, output, *, learning_rate=None, **rest):
        tried.append(learning_rate)
        return {}

    monkeypatch.setattr(runs, "run", pretended)
    monkeypatch.setattr(leaderboard, "run_glue", pretended)
    command = (f"--init={toy_model}", "--output=run", *words)
    finetune.main(parse_flags(finetune.Options, command))
    assert tried == [expected]


def test_a_failed_run_is_a_result_and_ends_no_other(
    tmp_path, monkeypatch, capsys
):
    failing = {1}

    def pretended(task, init, output, *, learning_rate, seed, **rest):
        if seed in failing:
            raise DivergedError("not finite")
        for name in ("model", "predictions"):
            (Path(output) / name).mkdir(parents=True, exist_ok=True)
            (Path(output) / name / "file").write_text(f"{seed}")
        return {"accuracy": seed / 10, "rows": 3}

    monkeypatch.setattr(finetuning, "run", pretended)
    task = classify_task(str(write_reviews(tmp_path / "a.csv", 8)))
    run = tmp_path / "run"
    for _ in range(2):
        results = runs.run(task, "init", run, seeds=3)
        assert results["errors"] == {"seed-1": "not finite"}
        assert results["failed"] == ["seed-1"]
        assert results["best_run"] == "seed-2"
        assert results["mean"] == pytest.approx(0.1)
        said = capsys.readouterr().out
        assert "seed-1 failed. not finite" in said
        assert "seed-1 (failed)" in said and "failed runs: 1" in said
    written = json.loads((run / "results.json").read_text())
    assert written["runs"]["seed-1"] == {"accuracy": None}
    failing.clear()  # as if the run's folder was removed
    assert runs.run(task, "init", run, seeds=3)["errors"] == {}
    written = json.loads((run / "results.json").read_text())
    assert written["runs"]["seed-1"]["accuracy"] == 0.1
    failing |= {0, 1, 2}
    with pytest.raises(DivergedError, match="3 of 3 runs failed.* seed-0: not"):
        runs.run(task, "init", tmp_path / "other", seeds=3)


def test_the_runs_of_a_set_share_their_rows_and_are_equal_to_single_runs(
    place, tmp_path, monkeypatch, eagerly
):
    rows = [(text, y + len(text) / 99) for text, y in sentences(50)]
    task = regress_task(
        write_csv(tmp_path / "train.csv", rows[:40]),
        write_csv(tmp_path / "dev.csv", rows[40:]),
    )
    encoded, encode = [], type(task).encode

    def count(self, examples, preprocess):
        encoded.append(len(examples))
        return encode(self, examples, preprocess)

    monkeypatch.setattr(type(task), "encode", count)
    arguments = {"batch_size": 8, "sequence_length": 24, "epochs": 0.3}
    results = runs.run(
        task,
        place / "init",
        tmp_path / "set",
        learning_rate=[1e-2, 5e-3],
        seeds=2,
        **arguments,
    )
    assert encoded == [40, 10]  # train and dev, for four runs
    alone = finetuning.run(
        task,
        place / "init",
        tmp_path / "alone",
        learning_rate=5e-3,
        seed=1,
        **arguments,
    )
    name = "rate-0.005_seed-1"
    # Each run scales the targets; the rows of the set stay as they are.
    assert results["runs"][name]["pearson"] == alone["pearson"]
    weights = "model/model.safetensors"
    shared = (tmp_path / "set" / "runs" / name / weights).read_bytes()
    assert shared == (tmp_path / "alone" / weights).read_bytes()


def test_errors_have_the_name_of_the_run_or_of_the_set_and_its_run():
    results = {
        "mnli": runs.Failure("not finite"),
        "rte": {"accuracy": 0.5, "errors": {"seed-1": "skipped"}},
        "cola": {"matthews": 0.1},
    }
    expected = {"mnli": "not finite", "rte/seed-1": "skipped"}
    assert runs.list_errors(results) == expected


def test_a_check_of_several_runs_checks_the_first(monkeypatch):
    asked = []

    def pretended(task, init, output, *, learning_rate, seed, **rest):
        asked.append((output, learning_rate, seed))
        return {}

    monkeypatch.setattr(finetuning, "run", pretended)
    assert not runs.run("toy", "init", None, learning_rate=(5, 2), seeds=2)
    assert asked == [(None, 5, 0)]
    with pytest.raises(InputError, match="`seeds` is 0; expected 1 or more"):
        runs.run("toy", "init", None, seeds=0)


@pytest.mark.long
def test_one_process_trains_twice_on_devices(tmp_path):
    train = write_reviews(tmp_path / "train.csv", 16)
    dev = write_reviews(tmp_path / "dev.csv", 8, seed=1)
    task = classify_task(str(train), str(dev))
    init = save_toy_model(tmp_path / "init")
    arguments = {"epochs": 1.0, "batch_size": 8, "distribution": "mirrored"}
    first, second = (
        finetuning.run(task, init, tmp_path / name, **arguments)
        for name in ("first", "second")
    )
    assert len(first["curve"]) == 1
    assert first == second


def test_a_worker_without_results_prints_none(monkeypatch, capsys):
    monkeypatch.setattr(finetuning, "run", lambda *_, **__: {})
    assert runs.run(classify_task("a.csv"), "init", "run") == {}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("distribution", ["multi_worker", "auto"])
def test_runs_in_a_row_are_refused_on_several_hosts(
    tmp_path, monkeypatch, distribution
):
    monkeypatch.setenv("TF_CONFIG", tf_configs()[0])
    for run, plan in ((runs.run, {"seeds": 2}), (leaderboard.run_glue, {})):
        with pytest.raises(InputError, match="one --learning_rate, without"):
            run(
                None,
                "init",
                tmp_path / "run",
                distribution=distribution,
                **plan,
            )
    assert not (tmp_path / "run").exists()


def test_runs_that_learned_nothing_are_counted_and_left_out_of_the_mean():
    def ran(accuracy):
        return {"accuracy": accuracy, "majority_baseline": 0.6, "notes": []}

    each = {
        "a": ran(0.9),
        "b": ran(0.6),
        "c": ran(float("nan")),
        "d": ran(0.8),
    }
    results = runs.summarize(ACCURACY, each, dict.fromkeys(each, 5e-5))
    assert results["failed"] == ["b", "c"]
    assert results["mean"] == pytest.approx(0.85)
    assert results["deviation"] == pytest.approx(np.std([0.9, 0.8], ddof=1))
    assert results["best_run"] == "a"
    nothing = runs.summarize(ACCURACY, {"b": ran(0.6)}, {"b": None})
    assert nothing["mean"] is None and nothing["deviation"] is None
    rates = dict(zip(each, (5e-5, 4e-5, 3e-5, 2e-5), strict=True))
    alone = runs.summarize(ACCURACY, each, rates)  # one seed a rate
    assert alone["mean"] is None and alone["deviation"] is None
    losses = {"a": {"loss": 1.5}, "b": {"loss": float("inf")}}
    results = runs.summarize(
        Metric("loss", higher_is_better=False),
        losses,
        dict.fromkeys(losses, 5e-5),
    )
    assert results["failed"] == ["b"]


def test_a_table_of_one_run_is_a_column_and_lacks_what_a_failed_run_lacks():
    results = {"f1": 0.25, "missing": 3, "rows": 9, "classes": {}}
    one = runs.make_table("toy", {"a": results})
    assert [list(column.cells) for column in one.columns] == [
        ["f1", "missing"],
        ["0.2500", "3"],
    ]
    two = runs.make_table("toy", {"a": {"f1": 0.25}, "b": {"f1": None}})
    assert list(two.columns[1].cells) == ["0.2500", ""]


def printed_classes(results, capsys):
    """Return the class table as printed: name -> (P, R, F1, support)."""
    runs.show_classes(results)
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines()]
    return {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for cells in lines
        if len(cells) == 7
    }


@pytest.mark.parametrize("make", [classify_task, multilabel_task])
def test_the_scores_of_each_class_are_those_of_scikit_learn(make, capsys):
    random = np.random.default_rng(0)
    labels = ["a [bold]", "b", "c", "never"]
    task = make("a.csv")
    task.labels = labels
    outputs = random.normal(size=(50, 4)) + [0, 0, 0, -9]
    if make is classify_task:
        truth = random.integers(0, 3, 50)
        predicted, given = outputs.argmax(axis=1), truth
    else:
        truth = random.random((50, 4)) < [0.5, 0.3, 0.1, 0]
        predicted = outputs >= 0
        given = [frozenset(np.flatnonzero(row).tolist()) for row in truth]
    examples = [Example("x", None, label) for label in given]
    results = task.score(examples, outputs)
    report = classification_report(
        truth,
        predicted,
        labels=range(4),
        target_names=labels,
        output_dict=True,
        zero_division=0,
    )
    shown = printed_classes(results, capsys)
    assert [*shown] == labels
    for name, cells in shown.items():
        rates = [report[name][k] for k in ("precision", "recall", "f1-score")]
        support = f"{report[name]['support']:g}"
        assert cells == [*(f"{x:.4f}" for x in rates), support]
    many = {f"{i}": results["classes"]["b"] for i in range(21)}
    assert printed_classes({"classes": many}, capsys) == {}
    assert printed_classes({"f1": 0.5}, capsys) == {}


def test_several_runs_need_a_single_host():
    runs.refuse_several_hosts("mirrored")
    with pytest.raises(InputError, match="the distribution is multi_worker"):
        runs.refuse_several_hosts("multi_worker")
