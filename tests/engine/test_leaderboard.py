"""Training all GLUE tasks: the average, the submission files, the zip."""

import errno
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.engine import leaderboard, runs, scoring
from official_tasks.engine.training import DivergedError
from official_tasks.tasks import glue
from official_tasks.tasks.glue import glue_task
from official_tasks.tasks.own_tasks import classify_task
from tests.support.glue_samples import write_glue
from tests.support.run_script import run_script

DATA = "BERT_KERAS_DATA"
# Table 1 of the paper: BERT BASE on the test sets, average 79.6, no WNLI.
PAPER = {
    "mnli": {"accuracy": 0.846, "mismatched_accuracy": 0.834},
    "qqp": {"f1": 0.712},
    "qnli": {"accuracy": 0.905},
    "sst2": {"accuracy": 0.935},
    "cola": {"matthews": 0.521},
    "stsb": {"spearman": 0.858},
    "mrpc": {"f1": 0.889},
    "rte": {"accuracy": 0.664},
    "wnli": {"accuracy": 0.0},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("glue"))


def tasks_of(data):
    rows = {row.name: row for row in glue.ROWS}
    return lambda name: (glue_task(rows[name], data_dir=str(data)), {})


def test_the_average_is_the_papers():
    assert round(100 * leaderboard.average(PAPER), 1) == 79.6
    assert list(leaderboard.columns(PAPER))[5:7] == ["MNLI", "MNLI-mm"]


def test_all_is_trained_and_the_zip_is_the_leaderboards(
    data, toy_model, tmp_path, monkeypatch
):
    trained, asked = [], {}

    def untrained(task, init, output, settings, **rest):
        """Return the paper's scores, without training."""
        assert rest == {"epochs": 7.0, "seeds": 2}
        trained.append(task.name)
        return PAPER[task.name]

    def predict(task, models, split):
        """Return random outputs, without a model."""
        asked[task.name] = models
        examples = task.read(split)
        shape = len(examples), len(task.labels or [0])
        return examples, np.random.default_rng(0).normal(size=shape)

    monkeypatch.setattr(scoring, "predict_split", predict)
    monkeypatch.setattr(runs, "run", untrained)
    results = leaderboard.run_glue(
        tasks_of(data), toy_model, tmp_path / "run", epochs=7.0, seeds=2
    )
    assert trained == [row.name for row in glue.ROWS if row is not glue.AX]
    run = str(tmp_path / "run")
    expected = {name: [f"{run}/{name}"] for name in trained}
    assert asked == expected | {"ax": [f"{run}/mnli"]}
    assert round(100 * results["average"], 1) == 79.6
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written == results
    with zipfile.ZipFile(tmp_path / "run" / "glue.zip") as archive:
        names = [name for row in glue.ROWS for name in row.submission]
        assert archive.namelist() == names
        for name in names:
            lines = archive.read(name).decode().split("\n")
            assert lines[0] == "index\tprediction"
            assert len(lines) == 10 and lines[-1] == ""
    ax = (tmp_path / "run" / "submission" / "AX.tsv").read_text().split()
    assert set(ax[3::2]) <= set(glue.NLI)


def test_a_task_that_fails_ends_no_other(
    data, toy_model, tmp_path, monkeypatch, capsys
):
    def untrained(task, init, output, settings, **rest):
        if task.name == "mnli":
            raise DivergedError("not finite")
        errors = {"seed-1": "not finite"} if task.name == "rte" else {}
        return {**PAPER[task.name], "errors": errors}

    predicted = []
    monkeypatch.setattr(runs, "run", untrained)

    def predict(task, *_, **__):
        predicted.append(task)

    monkeypatch.setattr(leaderboard, "predict_task", predict)
    results = leaderboard.run_glue(tasks_of(data), toy_model, tmp_path / "run")
    assert results["average"] is None
    assert results["errors"].keys() == {"mnli", "rte/seed-1"}
    trained = {row.name for row in glue.ROWS} - {"mnli", "ax"}
    assert results["scores"].keys() == trained
    assert {task.name for task in predicted} == trained
    assert not (tmp_path / "run" / "glue.zip").exists()
    assert "average" not in capsys.readouterr().out


def test_a_missing_file_is_told_before_anything_is_trained(toy_model, tmp_path):
    other = write_glue(tmp_path / "glue")
    (other / "WNLI" / "test.tsv").unlink()
    with pytest.raises(InputError, match="no test file of the task wnli"):
        leaderboard.run_glue(tasks_of(other), toy_model, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="has no CoLA.tsv"):
        leaderboard.write_zip(tmp_path)


def test_a_task_of_all_is_really_trained(
    data, toy_model, tmp_path, monkeypatch, eagerly
):
    # The other tasks are trained in the same way.
    monkeypatch.setattr(leaderboard, "BENCHMARK", (glue.RTE,))
    results = leaderboard.run_glue(
        tasks_of(data), toy_model, tmp_path, epochs=0.1, sequence_length=32
    )
    assert results["scores"].keys() == {"rte"}


def first_rows(source, folder, most):
    """Write toy GLUE files; use the first official rows where they exist."""
    write_glue(folder)
    for path in sorted(Path(source).glob("*/*.tsv")):
        lines = path.read_bytes().split(b"\n")[: most + 1]
        copy = folder / path.parent.name / path.name
        copy.write_bytes(b"\n".join(lines) + b"\n")
    qnli = folder / "QNLI"
    (qnli / "train.tsv").write_bytes((qnli / "dev.tsv").read_bytes())
    return folder


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get(DATA), reason=f"{DATA} is not set")
def test_one_command_trains_all_on_the_official_files(tmp_path):
    shared = Path(os.environ[DATA])
    data = first_rows(shared / "data" / "glue", tmp_path / "glue", 16)
    done = run_script(
        "-m",
        "official_tasks.finetune",
        "--task=glue",
        f"--data_dir={data}",
        f"--init={shared / 'weights' / 'all-MiniLM-L6-v2'}",
        "--output=run",
        "--epochs=1",
        "--learning_rate=1e-4",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "average" in done.stdout
    with zipfile.ZipFile(tmp_path / "run" / "glue.zip") as archive:
        texts = {n: archive.read(n).decode() for n in archive.namelist()}
    assert len(texts) == 11
    assert len(texts["AX.tsv"].splitlines()) == 17
    assert texts["RTE.tsv"].startswith("index\tprediction\n0\t")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < results["average"] < 1


@pytest.mark.parametrize("row", [glue.STS_B, glue.MNLI, glue.SST_2])
def test_a_data_set_gives_the_same_rows_as_the_files(
    data, tmp_path, row, monkeypatch
):
    """Fields, splits and classes have the names of `nyu-mll/glue`."""
    import datasets

    texts = [
        name for name in row.data_set_texts or (row.text, row.text_pair) if name
    ]
    label = datasets.Value("float32")
    if row.labels:
        label = datasets.ClassLabel(names=row.labels)
    features = datasets.Features(
        {name: datasets.Value("string") for name in texts}
        | {"label": label, "idx": datasets.Value("int32")}
    )
    files, splits = glue_task(row, data_dir=str(data)), {}
    for split in ("train", "dev", "test"):
        for part, name in enumerate(row.parts.get(split, (split,))):
            rows = [
                dict(zip(texts, (e.text, e.text_pair), strict=False))
                | {"label": -1 if e.label is None else e.label}
                | {"idx": int(e.index)}
                for e in files.read(split)
                if e.part == part
            ]
            splits[name.replace("dev", "validation")] = (
                datasets.Dataset.from_list(rows, features=features)
            )
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "glue" / row.name)
    monkeypatch.chdir(tmp_path)
    for split in ("train", "dev", "test"):
        expected = files.read(split)
        for name in ("hf:glue", f"hf:{tmp_path}/glue/{row.name}"):
            got = glue_task(row, data_dir=name).read(split)
            assert [e[:3] for e in got] == [e[:3] for e in expected]
            assert [e.part for e in got] == [e.part for e in expected]


def test_a_further_row_changes_neither_average_nor_zip(monkeypatch, tmp_path):
    mine = glue.RTE._replace(name="mine", folder="MINE")
    rows = (*glue.BENCHMARK, mine)
    for module in (glue, leaderboard):  # both must read BENCHMARK, not ROWS
        monkeypatch.setattr(module, "ROWS", rows, raising=False)
    scores = {**PAPER, "mine": {"accuracy": 0.1}}
    assert leaderboard.average(scores) == leaderboard.average(PAPER)
    (tmp_path / "submission").mkdir()
    names = [name for row in rows for name in row.submission]
    for name in names:
        (tmp_path / "submission" / name).touch()
    leaderboard.write_zip(tmp_path)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert [*archive.namelist(), "MINE.tsv"] == names


def test_a_full_disk_leaves_no_cut_file_under_its_name(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def fill(source, target):
        Path(target).write_text("cu")
        if source.endswith("b"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fill)
    with (
        pytest.raises(OSError, match="No space"),
        scoring.new_files(tmp_path, overwrite=True) as folder,
    ):
        for name in "ab":
            Path(folder, name).write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_remote_file_is_replaced_only_if_asked():
    for _ in range(2):  # the second time, the content is equal
        with scoring.new_files("ram://scores", overwrite=False) as made:
            Path(made, "results.json").write_text("1")
    with (
        pytest.raises(InputError, match="results.json exists, with other"),
        scoring.new_files("ram://scores", overwrite=False) as made,
    ):
        Path(made, "results.json").write_text("2")


def test_official_files_replace_no_input(tmp_path):
    data = tmp_path / "predictions.csv"
    data.write_text("text\nso it is\n")
    task = classify_task(test=str(data))
    with (
        pytest.raises(InputError, match="is an input"),
        scoring.new_files(tmp_path, True, scoring.input_files(task)) as folder,
    ):
        Path(folder, "predictions.csv").write_text("new")
    assert data.read_text() == "text\nso it is\n"
