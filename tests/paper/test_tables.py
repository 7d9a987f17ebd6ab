"""The tables' rows, plans and options; what of a command is refused."""

import pytest

from bert_keras import InputError
from official_tasks import reproduce
from official_tasks.paper import table_cost
from official_tasks.paper.table_runs import Inputs, task_of
from official_tasks.paper.tables import PAPER_ONLY, SCALES, TABLES, TaskRow


def all_tables():
    for scale in SCALES:
        for name in TABLES:
            if scale == "paper" or name not in PAPER_ONLY:
                yield scale, name, reproduce.table_of(name, scale)


def test_every_table_names_only_what_it_has():
    for scale, name, table in all_tables():
        for variant in table.variants.values():
            released = variant.run.startswith("hf://")
            assert released or variant.run in table.runs, (scale, name)
            assert variant.second is None or variant.second in table.runs
        for pair in table.comparisons:
            assert set(pair) <= table.variants.keys(), (scale, name)
        used = {v.run for v in table.variants.values()}
        used |= {v.second for v in table.variants.values()}
        assert set(table.runs) <= used


def test_runs_of_a_table_differ_in_the_one_thing_only():
    varied = {
        name: {key for own in table.runs.values() for key in own}
        for scale, name, table in all_tables()
        if scale == "small"
    }
    assert varied == {
        "pretraining_tasks": {"objectives"},
        "model_size": {"num_layers", "hidden_dim", "num_heads"},
        "masking_mix": {"mask_mix"},
        "steps": {"objectives", "steps"},
        "feature_based": set(),
    }


def test_the_papers_mix_of_mask_same_random_becomes_masked_replaced_kept():
    runs = reproduce.table_of("masking_mix", "paper").runs
    assert runs["80/0/20"] == {"mask_mix": (80, 20, 0)}
    assert runs["80/20/0"] == {"mask_mix": (80, 0, 20)}
    assert runs["0/20/80"] == {"mask_mix": (0, 80, 20)}


@pytest.mark.parametrize("scale, name", [(s, n) for s, n, _ in all_tables()])
def test_a_plan_has_hours_disk_and_commands(scale, name):
    table = reproduce.table_of(name, scale)
    inputs = Inputs(data_dir="glue")
    plan = table_cost.jobs(table, scale, inputs, 1e14, "runs/x")
    jobs = len(table.runs) + sum(map(len, map(table.tasks_of, table.variants)))
    assert len(plan) == jobs
    assert all(job.hours > 0 and job.disk > 0 for job in plan)
    lines = table_cost.lines(plan, table, 3, 1e14)
    total = 3 * sum(job.hours for job in plan)
    together = next(line for line in lines if line.startswith("Together: "))
    shown = f"{total:,.1f} hours" if total >= 1 else f"{60 * total:.1f} minutes"
    assert shown in together
    assert any("python -m official_tasks." in line for line in lines)


def test_a_plan_counts_the_windows_that_rows_are_cut_into():
    table = TABLES["pretraining_tasks"]("small")
    plan = table_cost.jobs(table, "small", Inputs(), 1e14, "runs/x")
    hours = {job.name: job.hours for job in plan}
    # 4,000 questions of 1.6 windows, 3 epochs; 5,000 sentences, 2 epochs.
    ratio = hours["BERT on spans"] / hours["BERT on sentiment"]
    assert ratio == pytest.approx(4000 * 1.6 * 3 / (5000 * 2))


def test_the_plans_commands_are_those_of_the_scripts():
    table = reproduce.table_of("squad", "paper")
    plan = table_cost.jobs(table, "paper", Inputs(), 1e14, "runs/squad")
    assert plan[1].command == (
        "python -m official_tasks.finetune --task=squad2 --data_dir=DATA_DIR "
        "--init=hf://google-bert/bert-base-uncased --output=runs/squad/"
        "base/SQuAD_2_0 --epochs=2.0 --batch_size=48 --learning_rate=5e-05 "
        "--sequence_length=384"
    )
    files = {"squad2": {"train": "a.json", "dev": "b.json"}}
    plan = table_cost.jobs(
        table,
        "paper",
        Inputs(options=files),
        1e14,
        "runs/squad",
        tuning={"dtype": "mixed_bfloat16"},
    )
    command = plan[1].command
    assert "--train=a.json --dev=b.json --init" in command
    assert "--data_dir" not in command
    assert command.endswith("--dtype=mixed_bfloat16")


def test_what_a_table_does_not_have_is_refused():
    with pytest.raises(InputError, match="give --scale=paper"):
        reproduce.table_of("glue", "small")
    with pytest.raises(InputError, match="no task 'spam'.*spans"):
        reproduce.table_of("pretraining_tasks", "small", ["spam"])
    table = reproduce.table_of("pretraining_tasks", "small", ["spans"])
    assert [row.name for row in table.tasks] == ["spans"]


def test_what_would_change_nothing_in_a_table_is_refused():
    table = TABLES["masking_mix"]("small")
    reproduce.check_used(table, Inputs("data"), 400)
    with pytest.raises(InputError, match="--corpus does nothing with --data"):
        reproduce.check_used(table, Inputs("data", "text"))
    with pytest.raises(InputError, match="--vocabulary does nothing with"):
        reproduce.check_used(table, Inputs("data", vocabulary="v.txt"))
    for name, scale in (("steps", "small"), ("squad", "paper")):
        table = reproduce.table_of(name, scale)
        reproduce.check_used(table, Inputs())
        with pytest.raises(InputError, match="--steps=400 does nothing"):
            reproduce.check_used(table, Inputs(), 400)
    for name in ("data", "corpus", "vocabulary", "pretrained"):
        with pytest.raises(InputError, match=f"--{name} does nothing for"):
            reproduce.check_used(table, Inputs(**{name: "given"}))


def test_options_of_tasks_are_read_and_checked():
    given = ["squad1.stride=32", "wikiann.data_dir=folder"]
    expected = {"squad1": {"stride": 32}, "wikiann": {"data_dir": "folder"}}
    assert reproduce.options_of(given) == expected
    with pytest.raises(InputError, match="expected TASK.NAME=VALUE"):
        reproduce.options_of(["stride=32"])
    with pytest.raises(InputError, match="the options of squad1 are"):
        reproduce.options_of(["squad1.strides=32"])
    message = "--option=squad1.stride=many: expected int"
    with pytest.raises(InputError, match=message):
        reproduce.options_of(["squad1.stride=many"])


def test_a_tasks_own_files_replace_the_folder_of_all():
    row = TaskRow("spans", "squad1", "f1", 10, {})
    for own, expected in (
        ({}, {"data_dir": "all"}),
        ({"data_dir": "own"}, {"data_dir": "own"}),
        ({"train": "a", "dev": "b"}, {"train": "a", "dev": "b"}),
    ):
        inputs = Inputs(data_dir="all", options={"squad1": own})
        assert task_of(row, inputs)[1] == expected
