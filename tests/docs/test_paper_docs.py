"""The commands of docs/paper.md: tables, plans."""

import pytest
from page_commands import commands
from run_script import call_script


@pytest.mark.parametrize("command", commands("docs/paper.md"))
def test_the_plan_of_a_command_is_told(command, tmp_path):
    found = call_script(*command, "--dry_run", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "python -m official_tasks.finetune" in found.stdout
    assert not list(tmp_path.iterdir())
