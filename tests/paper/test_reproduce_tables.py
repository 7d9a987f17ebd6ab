import re

import numpy as np
import pytest
from scipy import stats

from bert_keras import InputError
from official_tasks import reproduce
from official_tasks.paper import table_cost
from official_tasks.paper.results import (
    compare,
    draw_results,
    gathered,
    results_text,
    two_sided,
)
from official_tasks.paper.table_runs import Inputs, task_of
from official_tasks.paper.tables import (
    PAPER_ONLY,
    SCALES,
    TABLES,
    Table,
    TaskRow,
    Variant,
)


def all_tables():
    for scale in SCALES:
        for name in TABLES:
            if scale == "paper" or name not in PAPER_ONLY:
                yield scale, name, reproduce.table_of(name, scale)


# Comparing.


def test_the_paired_test_is_scipys():
    random = np.random.default_rng(0)
    for count in range(2, 9):
        one, other = random.normal(size=(2, count))
        expected = stats.ttest_rel(one, other)
        assert compare(one, other)["p"] == pytest.approx(expected.pvalue)
    assert two_sided(0.0, 0.0, 2) == 1
    assert two_sided(0.1, 0.0, 2) == 0


def test_a_verdict_tells_the_sign_from_the_spread():
    near, far, low = [0.5, 0.52, 0.51], [0.9, 0.91, 0.92], [0.3, 0.7, 0.5]
    assert compare(far, near)["verdict"] == "agrees"
    assert compare(near, far)["verdict"] == "disagrees"
    assert compare(near, far, claimed=-1)["verdict"] == "agrees"
    assert compare(near, low)["verdict"] == "hidden by spread"
    assert compare(near, low, claimed=0)["verdict"] == "hidden by spread"
    assert compare(far, near, claimed=0)["verdict"] == "disagrees"
    assert compare([0.5], [0.4])["verdict"] == "one seed tells no spread"


def toy_results():
    table = Table(
        "Toy",
        {"small": {}, "large": {}},
        {
            "small": Variant("small", figures={"A": 80.0, "perplexity": 5.0}),
            "large": Variant("large", figures={"A": 79.0, "perplexity": 4.0}),
        },
        [TaskRow("task", "custom", "accuracy", 10, {}, column="A")],
        [("large", "small")],
        held_out="perplexity",
        deviations=("Toys.",),
    )
    scores = {
        "small": {"task": [0.5, 0.51, 0.52]},
        "large": {"task": [0.7, 0.71, 0.73]},
    }
    held_out = {
        "small": [{"perplexity": p} for p in (50.0, 51.0, 52.0)],
        "large": [{"perplexity": p} for p in (30.0, 32.0, 31.0)],
    }
    return gathered(table, 3, scores, held_out)


def test_results_compare_with_the_papers_signs_and_perplexity_from_below():
    by_score, by_perplexity = toy_results()["comparisons"]
    # The paper's figures say the large one is worse: ours says otherwise.
    assert (by_score["claimed"], by_score["verdict"]) == (-1, "disagrees")
    assert by_score["difference"] == pytest.approx(0.61 / 3)
    assert (by_perplexity["claimed"], by_perplexity["verdict"]) == (1, "agrees")


def test_a_table_is_told_beside_the_papers_figures(tmp_path):
    told = results_text(toy_results())
    assert "51.0 ± 1.0 (80)" in told
    assert "31.0 ± 1.0 (4)" in told
    assert "- large below small on task: disagrees (+20.3" in told
    assert "- Toys." in told
    draw_results(toy_results(), tmp_path / "table.svg")
    drawn = (tmp_path / "table.svg").read_text()
    assert "the paper's" in drawn and "71.3" in drawn


def test_scores_over_steps_are_drawn_as_lines_without_a_place_for_no_figures(
    tmp_path,
):
    results = toy_results() | {"steps": {"small": 10, "large": 20}}
    draw_results(results, tmp_path / "table.svg")
    beside = (tmp_path / "table.svg").read_text()
    assert "steps of pre-training" in beside
    draw_results(
        results | {"paper": {"small": {}, "large": {}}}, tmp_path / "1.svg"
    )
    alone = (tmp_path / "1.svg").read_text()
    assert "the paper's" not in alone
    assert width(alone) < 0.7 * width(beside)


def width(svg):
    return float(re.search(r'<svg [^>]*width="([0-9.]+)pt"', svg)[1])


# The tables.


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
def test_a_plan_tells_hours_disk_and_commands(scale, name):
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


def test_what_stands_for_a_column_is_held_against_its_claims():
    table = reproduce.table_of("masking_mix", "small")
    scores = {
        name: {row.name: [0.5] for row in table.tasks_of(name)}
        for name in table.variants
    }
    found = {
        (c["other"], c["task"]): c["claimed"]
        for c in gathered(table, 1, scores, {})["comparisons"]
    }
    assert found["100/0/0", "sentiment"] == -1  # MNLI, 84.2 and 84.3
    assert found["80/0/20", "sentiment"] == 1
    assert found["100/0/0", "entities"] == 1
    assert found["0/0/100, features", "entities"] == 1


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
    with pytest.raises(InputError, match="--corpus does nothing beside --data"):
        reproduce.check_used(table, Inputs("data", "text"))
    with pytest.raises(InputError, match="--vocabulary does nothing beside"):
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


def test_a_tasks_own_files_stand_over_the_folder_of_all(tmp_path):
    row = TaskRow("spans", "squad1", "f1", 10, {})
    for own, expected in (
        ({}, {"data_dir": "all"}),
        ({"data_dir": "own"}, {"data_dir": "own"}),
        ({"train": "a", "dev": "b"}, {"train": "a", "dev": "b"}),
    ):
        inputs = Inputs(data_dir="all", options={"squad1": own})
        assert task_of(row, inputs)[1] == expected
