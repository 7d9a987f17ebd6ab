"""The commands of docs/paper.md and docs/cost.md: flags, tables, plans."""

import os
import re
import shlex

import pytest
from run_script import ROOT, run_script

from official_tasks import reproduce
from official_tasks.reproduce_tables import PAPER_ONLY, TABLES


def commands(page):
    text = (ROOT / f"docs/{page}.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^    python (.*?)(?: \.\.\.)?$", text, re.M)
    return [shlex.split(line) for line in lines]


COMMANDS = commands("paper")


def flag(command, name):
    (value,) = [w for w in command if w.startswith(f"--{name}=")]
    return value.split("=", 1)[1]


def script_of(command):
    return tuple(command[: 2 if command[0] == "-m" else 1])


@pytest.mark.parametrize("script", sorted(set(map(script_of, COMMANDS))))
def test_every_flag_of_the_page_is_one_of_its_script(script):
    told = run_script(*script, "--help", folder=ROOT).stdout
    known = set(re.findall(r"--(?:\[no\])?([a-z_]+)", told))
    for command in COMMANDS:
        if script_of(command) == script:
            given = {w.split("=")[0].strip("-") for w in command[len(script) :]}
            assert given <= known, command


def plans():
    """(table, command) for each table that the page names."""
    for command in COMMANDS:
        if command[1] != "official_tasks.reproduce":
            continue
        table, scale = flag(command, "table"), flag(command, "scale")
        paper = scale == "paper"
        for name in TABLES if table == "NAME" else [table]:
            if paper or name not in PAPER_ONLY:
                yield name, [word.replace("NAME", name) for word in command]


def test_the_page_names_every_table_at_each_of_its_scales():
    named = {(name, flag(command, "scale")) for name, command in plans()}
    assert {name for name, scale in named if scale == "paper"} == set(TABLES)
    small = {name for name, scale in named if scale == "small"}
    assert small == TABLES.keys() - set(PAPER_ONLY)
    for name, scale in named:
        assert reproduce.table_of(name, scale).tasks


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            id=f"{name}-{flag(command, 'scale')}",
            marks=()
            if name in ("squad", "masking_mix")
            else pytest.mark.skipif(
                not os.environ.get("BERT_KERAS_LONG"),
                reason="two of the plans in the quick suite: BERT_KERAS_LONG=1",
            ),
        )
        for name, command in plans()
        if len(command) > 4  # not those that leave the files to the first one
    ],
)
def test_the_plan_of_a_command_is_told(command, tmp_path):
    given = [*command, "--dry_run", "--flops=1e11"]
    found = run_script(*given, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Together: " in found.stdout
    assert not list(tmp_path.iterdir())


def test_the_command_of_the_page_on_costs_runs(tmp_path):
    for command in commands("cost"):
        found = run_script(ROOT / command[0], *command[1:], folder=tmp_path)
        assert found.returncode == 0, found.stderr
        assert "hours" in found.stdout
