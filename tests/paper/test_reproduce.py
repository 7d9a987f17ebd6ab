"""Tables of toys: run, resumed, shared, by several processes at once."""

import json
import os
import threading

import keras
import numpy as np
import pytest
from toy_pretraining import PIECES, SMALLEST, WORDS, reviews, write_data

from bert_keras import InputError
from bert_keras.files import read_json
from bert_keras.run_folder import RunFolder
from official_tasks import reproduce
from official_tasks.engine import grid
from official_tasks.paper import table_runs
from official_tasks.paper.table_runs import Inputs, Run, Work, shared_name
from official_tasks.paper.tables import PAPER_ONLY, SCALES, TABLES, TaskRow
from official_tasks.pretraining import runner

TUNING = {
    "epochs": 1.0,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "sequence_length": 16,
    "dtype": "float32",
}
TOY = {**SMALLEST, "phase_2_steps": 0, "steps": 4, "dtype": "float32"}


def toy_table(names):
    """A part of the table of pre-training tasks, on a toy task."""
    whole = TABLES["pretraining_tasks"]("small")
    variants = {name: whole.variants[name] for name in names}
    runs = {v.run for v in variants.values()}
    runs |= {v.second for v in variants.values()}
    return whole._replace(
        runs={k: v for k, v in whole.runs.items() if k in runs},
        variants=variants,
        tasks=[TaskRow("reviews", "custom", "accuracy", 16, {}, dev_rows=8)],
        comparisons=[p for p in whole.comparisons if set(p) <= set(names)],
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The data of a table: `Inputs` of toy text and toy reviews."""
    folder = tmp_path_factory.mktemp("data")
    options = {"custom": reviews(folder)}
    return Inputs(data=write_data(folder / "data"), options=options)


@pytest.fixture(scope="module")
def one_job(data, tmp_path_factory):
    """A table of two variants, run: the arguments, the results."""
    table = toy_table(["LTR, no NSP", "LTR and RTL"])
    table = table._replace(comparisons=[("LTR, no NSP", "LTR and RTL")])
    output = tmp_path_factory.mktemp("table") / "out"
    arguments = (table, "small", output, data)
    return arguments, reproduce.run(*arguments, 1, TOY, TUNING)


def test_a_table_is_run_and_resumed_and_nothing_is_trained_twice(
    one_job, monkeypatch
):
    arguments, results = one_job
    table, _, output, inputs = arguments
    for name in ("LTR, no NSP", "LTR and RTL"):
        (score,) = results["scores"][name]["reviews"]
        assert 0 <= score <= 1
    assert results["held_out"]["left_to_right"][0]["lm_perplexity"] > 1
    kept = json.loads((output / "results.json").read_text())
    assert kept == json.loads(json.dumps(results))
    assert (output / "table.txt").exists()
    assert (output / "table.svg").exists()
    trained = output / "pretrain" / "left_to_right" / "seed-0"
    figures = read_json(trained / "results.json")
    assert {"lm_accuracy", "lm_perplexity"} <= set(figures)
    assert figures["lm_unigram_baseline"] < 0.5 and figures["guesses"]
    config = read_json(trained / "model" / "config.json")
    assert config["encoder"]["attention"] == "left_to_right"

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "run", refuse)
    assert reproduce.run(*arguments, 1, TOY, TUNING) == results
    with pytest.raises(AssertionError, match="trained again"):
        reproduce.run(*arguments, 2, TOY, TUNING)  # one more seed
    with pytest.raises(InputError, match="other settings: .*scale"):
        reproduce.run(table, "paper", output, inputs, 1, TOY, TUNING)
    fewer = table._replace(tasks=[table.tasks[0]._replace(rows=12)])
    with pytest.raises(InputError, match="rows was 16 and is now 12. Give"):
        reproduce.run(fewer, *arguments[1:], 1, TOY, TUNING)
    shown = table._replace(tasks=[table.tasks[0]._replace(column="SST-2")])
    again = reproduce.run(shown, *arguments[1:], 1, TOY, TUNING)
    assert again["scores"] == results["scores"]


def figures(results):
    return keras.tree.flatten([results["scores"], results["held_out"]])


@pytest.mark.long
def test_two_jobs_at_once_give_the_same_table(one_job, tmp_path, capfd):
    arguments, results = one_job
    table, scale, output, inputs = arguments
    name = "LTR and RTL"  # two encoders at once, then a model on both
    table = table._replace(
        variants={name: table.variants[name]}, comparisons=[]
    )
    other = reproduce.run(
        table, scale, tmp_path / "2", inputs, 1, TOY, TUNING, 2
    )
    results = {**results, "scores": {name: results["scores"][name]}}
    np.testing.assert_allclose(figures(results), figures(other), rtol=1e-4)
    stages = set(os.listdir(tmp_path / "2/stages"))
    assert stages < set(os.listdir(output / "stages")) and len(stages) == 3
    assert "LTR_and_RTL-reviews-0: " in capfd.readouterr().out


def test_tables_share_the_runs_that_they_have_in_common(
    data, tmp_path, monkeypatch
):
    def same(name, run):
        table = TABLES[name]("small")
        return shared_name({**SCALES["small"], **table.runs[run]}, "small")

    usual = same("pretraining_tasks", "mlm+nsp")
    assert usual == same("feature_based", "mlm+nsp")
    assert usual == same("masking_mix", "80/10/10")
    assert usual == same("model_size", "12x768x12")
    assert shared_name({"steps": 2000}, "paper") != shared_name({}, "paper")
    names = [same("masking_mix", run) for run in ("80/10/10", "0/0/100")]
    assert len({*names, same("pretraining_tasks", "mlm")}) == 3

    table = toy_table(["no NSP"])
    inputs = data._replace(pretrained=str(tmp_path / "shared"))
    one, other = (
        (table, "small", tmp_path / name, inputs, 1, TOY, TUNING)
        for name in ("one", "other")
    )
    monkeypatch.setattr(grid, "run", lambda *_, **__: {"accuracy": 0.5})
    results = reproduce.run(*one)
    assert results["scores"]["no NSP"]["reviews"] == [0.5]
    assert not (tmp_path / "one/pretrain").exists()
    assert os.listdir(tmp_path / "shared") == ["small"]
    monkeypatch.setattr(
        runner, "pretrain", lambda *_: pytest.fail("trained again")
    )
    assert reproduce.run(*other) == results
    text = inputs._replace(data=None, corpus=f"{tmp_path}/*.txt")
    with pytest.raises(InputError, match="share the data too: give --data"):
        reproduce.run(table, "small", tmp_path / "third", text, 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_job_idles_while_a_score_waits(tmp_path, monkeypatch, jobs):
    table = toy_table(["LTR, no NSP"])._replace(
        tasks=[TaskRow(n, "custom", None, 16, {}) for n in ("one", "other")]
    )
    both, begun = threading.Barrier(2), []

    class Recorded(Work):
        def pretrain(self, data, run, seed):
            begun.append(seed)
            if jobs == 2 and seed < 2:
                both.wait(timeout=10)
            return {}

        def score(self, name, row, seed):
            begun.append((row.name, seed))
            return 0.5

    inputs = Inputs(data="data")
    work = Recorded(str(tmp_path), table, "small", inputs, TOY, TUNING)
    monkeypatch.setattr(Run, "_check_tasks", lambda self: None)
    monkeypatch.setattr(
        table_runs, "in_a_process", lambda f, *given, **_: f(*given)
    )
    with RunFolder(str(tmp_path), {}) as folder:
        Run(folder, work, 3, jobs).finish()
    if jobs == 1:  # one seed after the other
        assert begun == [
            what for s in range(3) for what in (s, ("one", s), ("other", s))
        ]
    assert len(begun) == 9


def test_a_tasks_mistake_is_reported_before_any_training(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        runner, "pretrain", lambda *_: pytest.fail("trained before")
    )
    options = data.options["custom"] | {"dev": "nowhere.csv"}
    inputs = data._replace(options={"custom": options})
    table = toy_table(["no NSP"])
    with pytest.raises(InputError, match="nowhere.csv"):
        reproduce.run(table, "small", tmp_path / "out", inputs, 1, TOY, TUNING)


def test_data_are_made_of_a_corpus_once(tmp_path):
    table = toy_table(["no NSP"])
    for number in range(100):  # a twentieth is held out
        lines = [f"The old ship {word} {number}." for word in WORDS]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    inputs = Inputs(
        corpus=f"{tmp_path}/[0-9]*.txt", vocabulary=tmp_path / "vocab.txt"
    )
    with RunFolder(tmp_path / "out", {}) as folder:
        work = Work(folder.path, table, "small", inputs)
        run = Run(folder, work, 1)
        data = run._data()
        assert os.path.isfile(f"{data}/tokens/held_out/store.json")
        made = os.stat(f"{data}/tokens/train/tokens.bin").st_mtime_ns
        assert run._data() == data
        assert os.stat(f"{data}/tokens/train/tokens.bin").st_mtime_ns == made
        with pytest.raises(InputError, match="give --corpus"):
            Run(folder, work._replace(inputs=Inputs()), 1)._data()


@pytest.mark.parametrize("name", [n for n in TABLES if n not in PAPER_ONLY])
def test_what_a_call_gives_goes_before_what_a_row_has(name, monkeypatch):
    given = []

    def run(*_, **arguments):
        given.append(arguments)
        return {"f1": 0.5}

    monkeypatch.setattr(table_runs.grid, "run", run)
    table = reproduce.table_of(name, "small", ["entities"])
    work = Work("out", table, "small", Inputs(data="data"), {}, TUNING)
    for variant in table.variants:
        assert work.score(variant, table.tasks[0], 0) == 0.5
    assert given
    for arguments in given:
        assert {key: arguments[key] for key in TUNING} == TUNING


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name in TABLES if name not in PAPER_ONLY]
)
def test_every_table_runs_to_its_end(name, tmp_path):
    table = reproduce.table_of(name, "small", ["entities"])
    runs = {
        run: own | ({"steps": 4} if "steps" in own else {})
        for run, own in table.runs.items()
    }
    sizes = ("num_layers", "num_heads", "hidden_dim")
    own = {key for settings in runs.values() for key in settings}
    toy = {k: v for k, v in TOY.items() if k not in own}
    if own.isdisjoint(sizes):
        toy["num_layers"] = 4  # recipes read four layers
    lines = []
    for number in range(20):
        person = ("ada", "ben")[number % 2]
        lines += [f"{person}\tB-PER", "sailed\tO", "waves\tB-LOC", ""]
    for split in ("train", "dev"):
        (tmp_path / split).write_text("\n".join(lines))
    options = {"data_dir": str(tmp_path), "lstm_dim": 4}
    inputs = Inputs(
        data=write_data(tmp_path / "data"), options={"wikiann": options}
    )
    results = reproduce.run(
        table._replace(runs=runs),
        "small",
        tmp_path / "out",
        inputs,
        2,
        toy,
        TUNING,
    )
    assert set(results["scores"]) == set(table.variants)
    text = (tmp_path / "out/table.txt").read_text()
    assert "Compared, paired over the seeds:" in text
