import re

import pytest
from page_commands import commands, flags_of, script_of
from run_script import ROOT

PAGES = ["README.md", "CONTRIBUTING.md"]
PAGES += [f"docs/{path.name}" for path in sorted(ROOT.glob("docs/*.md"))]
FOREIGN = ("json.tool", "-c", "pytest")
# Of other programs, and of every script or of none that a page runs.
FOREIGN_FLAGS = {"prism_location", "dask_partition_size", "help"}
PLACES = {"tools/compare.py": 2}  # words that are no flags


def own_commands(page):
    return [c for c in commands(page) if not {*FOREIGN} & {*c[:2]}]


@pytest.mark.parametrize("page", filter(own_commands, PAGES))
def test_every_flag_of_a_page_is_one_of_its_script(page):
    for command in own_commands(page):
        script = script_of(command)
        flags = command[len(script) + PLACES.get(command[0], 0) :]
        given = {word.split("=")[0].removeprefix("--") for word in flags}
        assert given <= flags_of(*script), command


def test_flags_in_the_text_of_a_page_are_those_of_some_script():
    scripts = {tuple(script_of(c)) for p in PAGES for c in own_commands(p)}
    scripts.add(("tools/demo.py",))  # by `make demo`
    known = FOREIGN_FLAGS.union(*(flags_of(*script) for script in scripts))
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert set(re.findall(r"`--(\w+)", text)) <= known, page


def test_proofs_that_pages_name_are_there():
    given = [c for p in PAGES for c in commands(p) if c[:2] == ["-m", "pytest"]]
    assert len(given) >= 3
    for command in given:
        assert "long" in command and (ROOT / command[-1]).is_file(), command
