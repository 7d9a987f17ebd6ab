"""The commands of docs/paper.md: tables, plans."""

import pytest
from page_commands import commands
from run_script import call_script

from official_tasks import reproduce
from official_tasks.paper.tables import PAPER_ONLY, TABLES

COMMANDS = commands("docs/paper.md")


def flag(command, name):
    (value,) = [w for w in command if w.startswith(f"--{name}=")]
    return value.split("=", 1)[1]


def plans():
    """(table, command) for each table that the page names."""
    for command in COMMANDS:
        if command[1] != "official_tasks.reproduce":
            continue
        table, scale = flag(command, "table"), flag(command, "scale")
        for name in TABLES if table in ("NAME", "RELEASED") else [table]:
            if scale != "paper" and name in PAPER_ONLY:
                continue
            released = not reproduce.table_of(name, scale).runs
            if table in (name, "RELEASED" if released else "NAME"):
                yield name, [word.replace(table, name) for word in command]


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
            marks=() if name in ("squad", "masking_mix") else pytest.mark.long,
        )
        for name, command in plans()
        if len(command) > 4  # not those that leave the files to the first one
    ],
)
def test_the_plan_of_a_command_is_told(command, tmp_path):
    given = [*command, "--dry_run", "--flops=1e11"]
    found = call_script(*given, folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "Together: " in found.stdout
    assert not list(tmp_path.iterdir())
