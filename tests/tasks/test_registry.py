"""Tasks by name and from flags; evaluating and predicting by script."""

import pytest
from absl import flags
from glue_samples import write_glue
from run_script import run_script
from task_samples import save_toy_model

from bert_keras import BertPreprocessor, InputError
from official_tasks.engine import leaderboard
from official_tasks.engine.models import load_model
from official_tasks.tasks import glue, registry
from official_tasks.tasks.custom import (
    CustomChoices,
    CustomSpans,
    CustomTags,
)
from official_tasks.tasks.glue import GlueTask
from official_tasks.tasks.registry import TASKS, find_task, task_from_flags


@pytest.fixture(scope="module")
def values():
    """absl flags of their own, parsed from words."""

    def parse(*words):
        found = flags.FlagValues()
        with pytest.MonkeyPatch.context() as patch:
            for name, define in list(registry._DEFINE.items()):

                def defined(*arguments, define=define):
                    define(*arguments, flag_values=found)

                patch.setitem(registry._DEFINE, name, defined)
            string = flags.DEFINE_string
            several = flags.DEFINE_multi_string
            patch.setattr(
                flags,
                "DEFINE_string",
                lambda *a: string(*a, flag_values=found),
            )
            patch.setattr(
                flags,
                "DEFINE_multi_string",
                lambda *a: several(*a, flag_values=found),
            )
            registry.define_task_flags()
        found(["test", *words])
        return found

    return parse


def test_every_task_is_made_from_its_options(values):
    for name, (cls, _) in TASKS.items():
        task, settings = task_from_flags(values(f"--task={name}"))
        assert isinstance(task, cls) and settings == {}
        assert task.metric and task.defaults.batch_size > 0


def test_help_tells_each_meaning_of_an_option_with_its_tasks(values):
    told = values()["context"].help
    assert told == (
        "Column of the text with the answer. Default: context. Tasks: "
        "customspans. One of sentence, document. Default: sentence. Tasks: "
        "ner, conll2003, wnut17, wikiann."
    )


def test_names_are_taken_in_the_spelling_of_papers():
    assert find_task("SST-2") == find_task("sst2")
    assert find_task("MNLI")[1]["row"] is glue.MNLI
    with pytest.raises(InputError, match="no task 'bert': expected one of co"):
        find_task("bert")
    with pytest.raises(InputError, match="--task is missing"):
        find_task(None)


@pytest.mark.parametrize("script", ["finetune", "evaluate", "predict"])
def test_help_names_the_tasks_that_the_script_takes(script, tmp_path):
    words = ("-m", f"official_tasks.{script}", "--help")
    told = " ".join(run_script(*words, folder=tmp_path).stdout.split())
    more = ", glue" if script == "finetune" else ""
    assert f"conll2003, wnut17, wikiann{more}, or a Python file" in told


def test_only_given_options_are_passed_and_tell_runs_apart(values):
    task, settings = task_from_flags(
        values("--task=squad2", "--stride=64", "--train=t.json")
    )
    assert settings == {"stride": 64, "train": "t.json"}
    assert task.stride == 64


def test_spans_tags_and_choices_are_problems_of_custom_data(values):
    for problem, cls in (
        ("spans", CustomSpans),
        ("tags", CustomTags),
        ("choices", CustomChoices),
    ):
        assert find_task(f"custom_{problem}")[0] is cls
    words = ("--task=custom", "--problem=choices", "--choices=a,b,c")
    with pytest.raises(InputError, match="--train"):
        task_from_flags(values(*words))[0].read("train")
    task, settings = task_from_flags(values("--task=custom", "--problem=multi"))
    assert task.problem == "multi" and settings == {"problem": "multi"}


def test_an_option_of_another_task_is_refused(values):
    with pytest.raises(InputError, match="--stride does nothing for .* rte"):
        task_from_flags(values("--task=rte", "--stride=64"))


OWN = """
from official_tasks.tasks.base import Option, Task

class Mine(Task):
    name = metric = "mine"
    options = {
        "rows": Option(5, "Rows."),
        "fast": Option(False, "Fast."),
        "data_dir": Option(None, "Data."),
    }

    def __init__(self, rows=5, fast=False, data_dir=None):
        self.rows, self.fast, self.data_dir = rows, fast, data_dir
"""


def test_a_task_of_ones_own_takes_options_by_name(values, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    task, settings = task_from_flags(
        values(
            f"--task={path}",
            "--option=rows=7",
            "--option=fast=true",
            "--data_dir=here",
        )
    )
    assert (task.rows, task.fast, task.data_dir) == (7, True, "here")
    assert settings == {"rows": 7, "fast": True, "data_dir": "here"}
    for wrong, message in {
        "rows=many": "expected int",
        "fast=perhaps": "expected true or false",
        "rows": "expected NAME=VALUE",
        "slow=1": "--slow does nothing",
    }.items():
        with pytest.raises(InputError, match=message):
            task_from_flags(values(f"--task={path}", f"--option={wrong}"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """GLUE's toy files, and a toy model with a head for RTE."""
    folder = tmp_path_factory.mktemp("place")
    write_glue(folder / "glue")
    init = save_toy_model(folder / "init")
    model = load_model(GlueTask(glue.RTE), init)
    model.save_preset(folder / "rte", BertPreprocessor.from_preset(init))
    return folder


def test_scripts_evaluate_and_predict_a_task(place):
    common = ("--task=rte", "--data_dir=glue", "--model=rte,rte")
    done = run_script(
        "-m", "official_tasks.evaluate", *common, "--output=out", folder=place
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "accuracy" in done.stdout
    done = run_script(
        "-m",
        "official_tasks.evaluate",
        "--task=rte",
        "--data_dir=glue",
        "--predictions=out/RTE.tsv",
        folder=place,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    done = run_script(
        "-m", "official_tasks.predict", *common, "--output=test", folder=place
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (place / "test" / "RTE.tsv").read_text().splitlines()
    assert len(lines) == 9 and lines[0] == "index\tprediction"


def test_what_cannot_be_predicted_is_told(place):
    task = GlueTask(glue.RTE, data_dir=str(place / "glue"))
    with pytest.raises(InputError, match="one of train, dev, test"):
        leaderboard.predict_task(task, [place / "rte"], place, split="tset")


MISTAKES = {
    "neither a model nor predictions": (
        "evaluate --task=rte --data_dir=glue",
        "Give either --model",
    ),
    "predictions of own data": (
        "evaluate --task=custom --dev=glue/RTE/dev.tsv --text=sentence1 "
        "--label=label --predictions=glue/RTE/dev.tsv",
        "The task custom scores no files of predictions",
    ),
    "no folder to write to": (
        "predict --task=rte --data_dir=glue --model=rte",
        "--output is missing",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_plain_message(mistake, place):
    command, message = MISTAKES[mistake]
    name, *words = command.split()
    done = run_script("-m", f"official_tasks.{name}", *words, folder=place)
    assert done.returncode == 2, done.stderr[-2000:]
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
