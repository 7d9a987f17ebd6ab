"""Tasks by name and from flags; the scripts `evaluate` and `predict`."""

import dataclasses
import json
import os
import shutil
import sys
import types
from unittest import mock

import pytest

from bert_keras import BertPreprocessor, InputError, files
from bert_keras.run_folder import RunFolder
from official_tasks import evaluate, predict, progress
from official_tasks.engine import scoring
from official_tasks.engine.models import load_model
from official_tasks.options import option
from official_tasks.tasks import glue, registry
from official_tasks.tasks.embedding import embed_task
from official_tasks.tasks.glue import glue_task
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    spans_task,
    tags_task,
)
from official_tasks.tasks.registry import (
    TASKS,
    TaskOptions,
    find_task,
    load_task_class,
    task_from_flags,
)
from official_tasks.tasks.retrieval import rank_task
from tests.support.glue_samples import write_glue
from tests.support.script_flags import parse_flags
from tests.support.task_samples import (
    eager_functions,
    save_toy_model,
    write_reviews,
)

pytestmark = pytest.mark.fast


def parse(*words, cls=TaskOptions):
    return parse_flags(cls, words)


def test_every_task_is_made_from_its_options():
    for name in TASKS:
        task, settings = task_from_flags(parse(f"--task={name}"))
        assert task.name == name and settings == {}
        assert task.metrics and task.defaults.batch_size > 0


def test_names_are_taken_in_the_spelling_of_papers():
    assert find_task("SST-2") == find_task("sst2")
    assert find_task("MNLI").make().row is glue.MNLI
    with pytest.raises(InputError, match="no task 'bert': expected one of cl"):
        find_task("bert")
    with pytest.raises(InputError, match="--task is missing"):
        find_task(None)


def test_only_given_options_are_passed_and_tell_runs_apart():
    words = ("--task=squad2", "--stride=64", "--train=t.json")
    task, settings = task_from_flags(parse(*words))
    assert settings == {"stride": 64, "train": "t.json"}
    assert task.stride == 64
    with pytest.raises(InputError, match="--stride does nothing for .* rte"):
        task_from_flags(parse("--task=rte", "--stride=64"))


def test_an_option_of_another_task_is_refused_with_the_tasks_that_have_it():
    words = ("--task=choices", "--choices=a,b,c")
    with pytest.raises(InputError, match="The task choices .*--train"):
        task_from_flags(parse(*words))[0].read("train")
    with pytest.raises(InputError, match="choices. It is for spans, squad1, "):
        task_from_flags(parse(*words, "--stride=64"))
    for flag in ("--label_separator=;", "--classes=a,b"):
        with pytest.raises(
            InputError, match="classify. It is for multilabel. "
        ):
            task_from_flags(parse("--task=classify", flag))
    task, settings = task_from_flags(parse("--task=multilabel"))
    assert task.problem == "multi" and settings == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("custom", "classify, multilabel, regress, spans, tags, choices"),
        ("Custom-Tags", "tags"),
        ("embedding", "embed"),
        ("ranking", "rank"),
    ],
)
def test_the_name_that_a_task_had_leads_to_its_name(old, new):
    with pytest.raises(InputError, match=f"^--task={old} is now --task={new}$"):
        task_from_flags(parse(f"--task={old}"))


@pytest.mark.parametrize(
    ("task", "more", "new"),
    [
        ("custom", {}, "classify"),
        ("custom", {"problem": "single"}, "classify"),
        ("custom", {"problem": "multi", "label_separator": ";"}, "multilabel"),
        ("custom", {"problem": "regression"}, "regress"),
        ("customspans", {"stride": 64}, "spans"),
        ("customtags", {}, "tags"),
        ("customchoices", {"choices": "a,b,c"}, "choices"),
        ("embedding", {"recall_at": "2"}, "embed"),
        ("ranking", {}, "rank"),
    ],
)
def test_runs_with_the_name_that_a_task_had_are_read_and_resumed(
    tmp_path, task, more, new
):
    settings = {"task": task, "init": "tiny", **more}
    with RunFolder(tmp_path, settings):
        pass
    values = parse(f"--model={tmp_path}", cls=evaluate.Options)
    registry.complete_flags(values)
    made, found = task_from_flags(values)
    assert made.name == new
    assert found == {n: x for n, x in more.items() if n != "problem"}
    again = {"task": new, "init": "tiny", **found}
    with RunFolder(tmp_path, registry.keep_old_name(tmp_path, again)):
        pass
    other = {**again, "task": "sst2"}
    with pytest.raises(InputError, match="task was"):
        RunFolder(tmp_path, registry.keep_old_name(tmp_path, other))


@pytest.mark.parametrize(
    ("name", "words", "stride"),
    [
        ("spans", ["--task=Spans"], 64),
        ("customspans", ["--task=spans"], 64),
        ("squad2", ["--task=SQuAD-2"], 64),
        ("squad2", [], 64),
        ("squad2", ["--task=squad1"], 128),
    ],
)
def test_the_runs_options_apply_to_its_task_in_every_spelling(
    tmp_path, name, words, stride
):
    settings = {"task": name, "stride": 64}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    words = (f"--model={tmp_path}", *words)
    values = parse(*words, cls=predict.Options)
    registry.complete_flags(values)
    assert task_from_flags(values)[0].stride == stride


OWN = """
import dataclasses
from official_tasks.options import option
from official_tasks.tasks.base import Task

@dataclasses.dataclass(frozen=True, kw_only=True)
class MineOptions:
    rows: int = option(5, "Rows.")
    fast: bool = False
    data_dir: str | None = option(None, "Data.")

class Mine(Task):
    name = "mine"
    options = MineOptions

    def __init__(self, rows=5, fast=False, data_dir=None):
        self.rows, self.fast, self.data_dir = rows, fast, data_dir

    def read(self, split): ...
    def encode(self, examples, preprocess): ...
    def build(self, encoder): ...
    def score(self, examples, predictions): ...
    def write(self, examples, predictions, folder): ...
"""


def test_a_task_of_ones_own_takes_options_by_name(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    words = ("--option=rows=7", "--option=fast=true", "--data_dir=here")
    task, settings = task_from_flags(parse(f"--task={path}", *words))
    assert (task.rows, task.fast, task.data_dir) == (7, True, "here")
    assert settings == {"rows": 7, "fast": True, "data_dir": "here"}
    for wrong, message in {
        "rows=many": "expected int",
        "fast=perhaps": "expected true or false",
        "rows": "expected NAME=VALUE",
        "slow=1": "--slow does nothing",
    }.items():
        with pytest.raises(InputError, match=message):
            task_from_flags(parse(f"--task={path}", f"--option={wrong}"))


def test_a_task_file_may_hold_dataclasses_and_be_called_like_a_module(tmp_path):
    row = (
        "import dataclasses\n\n@dataclasses.dataclass\nclass Row:\n    x: int\n"
    )
    for name in ("reviews.py", "json.py"):
        path = tmp_path / name
        path.write_text(f"from __future__ import annotations\n{row}{OWN}")
        cls = load_task_class(str(path))
        assert cls.name == "mine"
        found = registry.find_task_file(cls.__new__(cls))
        assert found == {str(path): files.describe_version(path)}
    assert registry.find_task_file(glue_task(glue.RTE)) == {}
    assert sys.modules["json"] is json


def test_a_file_with_no_task_or_with_two_is_refused(tmp_path):
    path = tmp_path / "none.py"
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="one class .* got 0"):
        load_task_class(str(path))
    with pytest.raises(InputError, match="no such file"):
        load_task_class(str(tmp_path / "absent.py"))
    path.write_text(f"{OWN}\nclass Second(Mine):\n    name = 'second'\n")
    with pytest.raises(InputError, match="got 2"):
        load_task_class(str(path))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with toy GLUE files and a toy model with a head for RTE."""
    folder = tmp_path_factory.mktemp("place")
    write_glue(folder / "glue")
    init = save_toy_model(folder / "init")
    model = load_model(glue_task(glue.RTE), init)
    model.save_preset(folder / "rte", BertPreprocessor.from_preset(init))
    return folder


def run(script, *words):
    # `predict` sets `stderr` to True; the patch restores it.
    with mock.patch.object(progress.console, "stderr", False):
        script.main(parse(*words, cls=script.Options))


def test_scripts_evaluate_and_predict_a_task(place, tmp_path, monkeypatch):
    place = shutil.copytree(place, tmp_path / "place")
    monkeypatch.chdir(place)
    rte = ("--task=rte", "--data_dir=glue")
    with eager_functions():
        run(evaluate, *rte, "--model=rte,rte", "--output=out")
    scores = json.loads((place / "out" / "results.json").read_text())
    run(evaluate, *rte, "--predictions=out/RTE.tsv", "--output=read")
    again = json.loads((place / "read" / "results.json").read_text())
    assert again == scores
    run(predict, *rte, "--model=rte", "--output=test")
    lines = (place / "test" / "RTE.tsv").read_text().splitlines()
    assert len(lines) == 9 and lines[0] == "index\tprediction"
    own = ("--task=classify", "--dev=glue/RTE/dev.tsv", "--text=sentence1")
    with pytest.raises(InputError, match="classify cannot score files of pr"):
        run(evaluate, *own, "--predictions=glue/RTE/dev.tsv")
    with pytest.raises(InputError, match="Give either --model.*got neither"):
        run(evaluate, *rte)
    with pytest.raises(InputError, match="got both"):
        run(evaluate, *rte, "--model=rte", "--predictions=out/RTE.tsv")
    with pytest.raises(InputError, match="--output is missing"):
        run(predict, *rte, "--model=rte")
    task = glue_task(glue.RTE, data_dir="glue")
    with pytest.raises(InputError, match="one of train, dev, test"):
        scoring.predict_task(task, ["rte"], place, split="tset")


@pytest.mark.parametrize("flags", [(), ("--encoding=utf-8",)])
def test_a_run_on_files_of_two_encodings_is_evaluated(
    place, tmp_path, monkeypatch, capsys, flags
):
    monkeypatch.chdir(tmp_path)
    rows = "text,label\ncaf\u00e9,bad\nbien s\u00fbr,good\n"
    (tmp_path / "train.csv").write_text(rows, encoding="cp1252")
    (tmp_path / "dev.csv").write_text(rows, encoding="utf-8-sig")
    model = load_model(
        classify_task("train.csv", encoding="cp1252"), place / "init"
    )
    settings = {"task": "classify", "train": "train.csv", "dev": "dev.csv"}
    with RunFolder("run", {**settings, "encoding": "cp1252"}, ["train.csv"]):
        preprocess = BertPreprocessor.from_preset(place / "init")
        model.save_preset("run/model", preprocess)
    with eager_functions():
        run(evaluate, "--model=run", *flags, "--output=scores")
    text = (tmp_path / "scores" / "predictions.csv").read_text("utf-8")
    assert "\ncaf\u00e9,bad," in text and "\nbien s\u00fbr,good," in text
    note = "dev.csv is read as UTF-8 and not as cp1252"
    if flags:  # train is no UTF-8
        note = "dev was not searched for training texts: train.csv: expected"
    assert note in capsys.readouterr().out


def test_a_run_is_evaluated_and_resumed_from_another_folder(
    place, tmp_path, monkeypatch
):
    project, other = tmp_path / "project", tmp_path / "other"
    (project / "runs").mkdir(parents=True)
    other.mkdir()
    (other / "dev.csv").write_text("text,label\nnot this file,good\n")
    rows = "text,label\nold,bad\nnew,good\n"
    (project / "train.csv").write_text(rows)
    (project / "dev.csv").write_text(rows + "newer,good\n")
    monkeypatch.chdir(project)
    model = load_model(classify_task("train.csv"), place / "init")
    paths = {"train": "train.csv", "dev": "dev.csv"}
    settings = {"task": "classify", "init": "init", **paths, "label": "label"}
    with RunFolder("runs/a", settings, paths.values()):
        preprocess = BertPreprocessor.from_preset(place / "init")
        model.save_preset("runs/a/model", preprocess)
    monkeypatch.chdir(other)
    with eager_functions():
        run(evaluate, "--model=../project/runs/a", "--output=scores")
    text = (other / "scores" / "predictions.csv").read_text()
    assert "newer,good" in text and len(text.splitlines()) == 4
    words = ("--test=../project/dev.csv", "--output=p")
    with eager_functions():
        run(
            predict,
            "--task=classify",
            "--model=../project/runs/a/model",
            *words,
        )
    assert "newer,," in (other / "p" / "predictions.csv").read_text()
    # The same files under other names are the same settings.
    again = {n: f"../project/{path}" for n, path in paths.items()}
    folder = RunFolder(
        "../project/runs/a", {**settings, **again}, again.values()
    )
    folder.check_inputs()
    folder.close()
    with pytest.raises(InputError, match='dev was "dev.csv" and is now '):
        RunFolder("../project/runs/a", {**settings, "dev": "x.csv"})
    shutil.copy("../project/train.csv", "copy.csv")
    (project / "train.csv").unlink()  # its hash is recorded
    (note,) = evaluate._check_held_out(
        classify_task(dev="copy.csv"), ["../project/runs/a"]
    )
    assert "copy.csv" in note and "was trained on" in note
    # A project may be moved with its runs.
    project.rename(tmp_path / "moved")
    settings = registry.read_run_record("../moved/runs/a/model", "settings")
    assert settings["dev"] == str(tmp_path / "moved" / "dev.csv")
    (tmp_path / "moved" / "dev.csv").write_text("text,label\nx,bad\n")
    with pytest.raises(InputError, match=r"dev\.csv changed since then"):
        RunFolder("../moved/runs/a", settings, [settings["dev"]])


UNLABELLED = {
    classify_task: ("text\na\nb\n", {}),
    spans_task: ("question,context\na,b\n", {}),
    tags_task: ("words\na b\n", {}),
    choices_task: ("prompt,a,b\nx,y,z\n", {"choices": "a,b"}),
    embed_task: ("text,text_pair\na,b\n", {"label": "score"}),
    rank_task: ("text,text_pair\na,b\n", {"label": "score"}),
}


@pytest.mark.parametrize("make", UNLABELLED)
def test_a_file_without_labels_is_not_predicted_to_be_scored(
    tmp_path, monkeypatch, make
):
    def predict(*_):
        raise AssertionError("the rows are predicted first")

    content, options = UNLABELLED[make]
    (tmp_path / "test.csv").write_text(content)
    task = make(test=str(tmp_path / "test.csv"), **options)
    checkpoint = types.SimpleNamespace(head_arguments={"labels": ["O", "b"]})
    monkeypatch.setattr(scoring, "open_checkpoint", lambda _: checkpoint)
    monkeypatch.setattr(scoring, "average_outputs", predict)
    with pytest.raises(InputError, match="can only be used to predict"):
        evaluate.evaluate(task, ["model"], split="test")


def test_only_a_named_model_brings_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"task": "multilabel", "classes": "a,b", "train": "t.csv"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    words = ("--label_separator=;", "--dev=d.csv")
    values = parse(*words, "--model=.", cls=evaluate.Options)
    registry.complete_flags(values)
    assert (values.classes, values.train) == ("a,b", "t.csv")
    values = parse("--predictions=p.json", cls=evaluate.Options)
    registry.complete_flags(values)
    assert values.task is values.train is None


def test_a_deleted_file_of_the_run_is_named_with_a_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"task": "classify", "train": "april.csv,may[1].csv"}
    (tmp_path / "run.json").write_text(json.dumps({"settings": settings}))
    (tmp_path / "may[1].csv").write_text("text,label\na,b\n")

    def take(*words):
        values = parse("--model=.", *words, cls=evaluate.Options)
        evaluate._take_flags_of_run(values)
        return values

    with pytest.raises(InputError, match=r"april.csv: no such.*--dev=FILE"):
        take()
    assert take("--dev=new.csv").train == settings["train"]
    (tmp_path / "april.csv").write_text("text,label\na,b\n")
    assert take().train == settings["train"]


def test_flags_of_the_input_act_in_predict_with_and_without_a_task():
    words = ("--model=m", "--separator=;", "--encoding=cp1252")
    parse(*words, cls=predict.Options)
    with pytest.raises(InputError, match="--stride only applies with --task"):
        parse(*words, "--stride=64", cls=predict.Options)


def test_what_a_task_of_ones_own_lacks_is_said_before_training(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("".join(OWN.splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="the class Mine lacks write"):
        registry.load_task_class(str(path))
    nameless = [line for line in OWN.splitlines() if "name =" not in line]
    assert len(nameless) == len(OWN.splitlines()) - 1
    path.write_text("\n".join(nameless))
    with pytest.raises(InputError, match="the class Mine lacks a `name`"):
        task_from_flags(parse(f"--task={path}"))


def test_an_option_has_one_type_in_all_tasks():
    cls = dataclasses.make_dataclass("A", [("stride", float, option(0.5, ""))])
    other = registry.Entry(glue_task, cls)
    tasks = {**registry.TASKS, "other": other}
    with pytest.raises(TypeError, match="--stride has several types"):
        registry.make_options(tasks)


@pytest.mark.parametrize(
    "name", ["a.csv", "./a.csv", "link.csv", "copy.csv", "b.csv,a.csv"]
)
def test_rows_that_a_model_has_learned_from_are_noticed(
    tmp_path, monkeypatch, name
):
    monkeypatch.chdir(tmp_path)
    for seed, path in enumerate(("a.csv", "b.csv", "c.csv")):
        write_reviews(tmp_path / path, 20, seed=seed)
    (tmp_path / "link.csv").symlink_to("a.csv")
    shutil.copy("a.csv", "copy.csv")
    for run, held_out in (
        ("run", {"split_seed": 1}),
        ("dev", {"dev": "d"}),
        ("fold", {"fold": "fold-1"}),
    ):
        (tmp_path / run / "model").mkdir(parents=True)
        settings = {"train": f"{tmp_path}/a.csv", **held_out}
        (tmp_path / run / "run.json").write_text(
            json.dumps({"settings": settings})
        )
    with pytest.raises(InputError, match="give --dev=d"):
        evaluate._check_held_out(classify_task(train=name), ["dev"])
    with pytest.raises(InputError, match="fold-1 of a cross-validation"):
        evaluate._check_held_out(classify_task(train=name), ["fold/model"])
    same = classify_task(train=name, split_seed=1)
    if name == "b.csv,a.csv":  # another tenth is drawn from other files
        with pytest.raises(InputError, match=r"give --train=\S*/a.csv\.$"):
            evaluate._check_held_out(same, ["run"])
    else:
        assert evaluate._check_held_out(same, ["run"]) == []
    for model in ("run", "run/model"):
        with pytest.raises(InputError, match="give .*--split_seed=1"):
            evaluate._check_held_out(classify_task(train=name), [model])
        notes = evaluate._check_held_out(classify_task(dev=name), [model])
        assert "was trained on" in notes[-1]
        task = classify_task(train="c.csv")
        assert evaluate._check_held_out(task, [model]) == []
        # A Hub data set and a user's own task have no files to compare.
        task = glue_task(glue.RTE, data_dir="hf:nyu-mll/glue/rte")
        assert evaluate._check_held_out(task, [model]) == []
        task = types.SimpleNamespace(source="reviews.csv")
        assert evaluate._check_held_out(task, [model]) == []


def test_a_copy_of_a_folder_of_classes_is_the_training_data(tmp_path):
    train, copy = tmp_path / "train", tmp_path / "copy"
    for name in ("bad", "good"):
        for number in range(3):
            path = train / name / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {number}")
    names = list(train.rglob("*.txt"))
    with RunFolder(tmp_path / "run", {"train": str(train)}, names):
        pass
    models = [tmp_path / "run"]
    train.rename(copy)  # the run recorded the content
    task = classify_task(dev=str(copy))
    (note,) = evaluate._check_held_out(task, models)
    assert "was trained on" in note and "copy" in note
    assert evaluate._check_held_out(classify_task(str(copy)), models) == []
    (copy / "bad" / "0.txt").write_text("bad 9")
    assert evaluate._check_held_out(task, models) == []
    (copy / "bad" / "0.txt").unlink()
    assert evaluate._check_held_out(task, models) == []


def test_a_training_file_that_changed_holds_out_other_rows(tmp_path):
    path = write_reviews(tmp_path / "a.csv", 20)
    with RunFolder(tmp_path / "run", {"train": path}, [path]):
        pass
    models = [tmp_path / "run" / "model"]
    models[0].mkdir()
    assert evaluate._check_held_out(classify_task(train=path), models) == []
    os.utime(path, (0, 0))  # as after `touch` or a copy
    assert evaluate._check_held_out(classify_task(train=path), models) == []
    with open(path, "a") as file:
        file.write("one more,good\n")
    for name in (path, os.path.relpath(path)):
        with pytest.raises(InputError, match="a.csv changed after the run"):
            evaluate._check_held_out(classify_task(train=name), models)
    new = write_reviews(tmp_path / "new.csv", 20, seed=1)
    task = classify_task(train=path, dev=new)
    assert evaluate._check_held_out(task, models) == []
    # The file was the run's dev file, so the model was not trained on it.
    settings = {"train": new, "dev": path}
    with RunFolder(tmp_path / "other", settings, [new, path]):
        pass
    with open(path, "a") as file:
        file.write("two more,good\n")
    models = [tmp_path / "other"]
    for name in (path, os.path.relpath(path)):
        task = classify_task(train=name)
        assert evaluate._check_held_out(task, models) == []
