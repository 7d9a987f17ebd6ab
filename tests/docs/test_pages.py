"""Files, functions, flags, links and menu entries in the pages exist."""

import ast
import re

import pytest

from tests.support.page_commands import (
    commands,
    commands_in,
    flags_of,
    script_of,
)
from tests.support.run_script import ROOT

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *ROOT.glob("*.md"),
        *sorted(ROOT.glob("docs/*.md")),
        *ROOT.glob("tools/maintenance/*.md"),
    )
}
# Matches tools/x.py, official_tasks/tasks/, tests/tools/test_arrows.py.
FILE = re.compile(
    r"(?<![\w/.-])((?:tools|official_tasks|bert_keras|tests|docs)/[\w/.-]*\w)"
)
# Matches a box of a diagram: its file and its function.
BOX = re.compile(r'\["([\w/]+\.py)<br/>([\w.]+)"\]')
FOREIGN = ("json.tool", "-c", "pytest")
# Flags of Apache Beam, and --help, which absl defines.
FOREIGN_FLAGS = {"prism_location", "dask_partition_size", "help"}
PLACES = {"tools/compare.py": 2}  # positional arguments
GENERATED = {"index", "tour", "tables", "scripts"}
GENERATED |= {"api_models", "api_text", "api_training", "api_saving"}
GENERATED |= {"contributing", "changelog"}


def test_every_file_that_a_page_names_exists():
    tour = (ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8")
    # Old sections of the changelog may name files that are gone.
    log = "\n## ".join(PAGES["CHANGELOG.md"].split("\n## ")[:2])
    texts = PAGES | {"tour.ipynb": tour, "CHANGELOG.md": log}
    named = [
        (p, name) for p, text in texts.items() for name in FILE.findall(text)
    ]
    assert len(named) > 100
    missing = [(p, name) for p, name in named if not (ROOT / name).exists()]
    assert [x for x in missing if x[1] != "tools/NAME.py"] == []


def test_a_script_is_called_by_its_name():
    """README and `commands` alone name the other ways."""
    old = re.compile(r"python -m official_tasks\.\w+|python tools/\w+\.py")
    others = {"README.md", "CHANGELOG.md", "official_tasks/cli.py"}
    folders = ("bert_keras", "official_tasks", "tools", "docs")
    paths = [p for f in folders for p in (ROOT / f).rglob("*.*")]
    for path in (*ROOT.glob("*.md"), *paths):
        name = str(path.relative_to(ROOT))
        if path.suffix in (".py", ".md", ".ipynb") and name not in others:
            found = old.findall(path.read_text(encoding="utf-8"))
            assert not found, (name, found)


def functions_in(path):
    """Yield names of functions, classes and methods ("Class.method")."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}"


def test_each_box_of_a_diagram_is_a_function():
    page = PAGES["docs/architecture.md"]
    boxes = BOX.findall(page)
    assert len(boxes) == page.count('["') > 30
    assert [x for x in boxes if x[1] not in {*functions_in(x[0])}] == []


def test_links_lead_to_files():
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([\w./-]+)[#)]", text):
            assert ((ROOT / page).parent / link).exists(), (page, link)


def test_every_page_has_a_place_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r": (\w+)\.md$", menu, re.M))
    assert named == {p.stem for p in (ROOT / "docs").glob("*.md")} | GENERATED


def commands_with_flags(page):
    return [c for c in commands(page) if not {*FOREIGN} & {*c[:2]}]


def check_flags(command):
    script = script_of(command)
    words = command[len(script) + PLACES.get(command[0], 0) :]
    names = {word.split("=")[0].removeprefix("--") for word in words}
    assert names <= flags_of(*script) | {"help"}, command


@pytest.mark.parametrize("page", filter(commands_with_flags, PAGES))
def test_every_flag_of_a_command_is_one_of_its_script(page):
    for command in commands_with_flags(page):
        check_flags(command)


def test_the_commands_of_a_help_can_be_copied():
    scripts = [*ROOT.glob("tools/*.py"), *ROOT.glob("official_tasks/*.py")]
    for path in scripts:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert max(map(len, text.splitlines())) <= 80, path
        for command in commands_in(text):
            check_flags(command)


def test_flags_in_the_text_of_a_page_are_those_of_some_script():
    scripts = {
        tuple(script_of(c)) for page in PAGES for c in commands_with_flags(page)
    }
    scripts.add(("tools/demo.py",))  # run by `make demo`
    known = FOREIGN_FLAGS.union(*(flags_of(*script) for script in scripts))
    for page in PAGES.keys() - {"CHANGELOG.md"}:
        assert set(re.findall(r"`--(\w+)", PAGES[page])) <= known, page


def test_slow_tests_that_pages_name_exist():
    named = [c for p in PAGES for c in commands(p) if c[:2] == ["-m", "pytest"]]
    assert len(named) >= 3
    for command in named:
        assert "long" in command and (ROOT / command[-1]).is_file(), command


def test_the_limits_are_those_of_the_code():
    import bert_keras.serving.server as limits
    from official_tasks.options import list_options
    from tools import serve

    page = PAGES["docs/serving.md"]
    fields = list_options(serve.Options)
    for name in ("max_request_rows", "max_request_bytes"):
        limit = fields[name].default
        assert f"`--{name}` ({limit:,})" in page
        field = name.replace("_request", "")
        assert getattr(limits.Limits(), field) == limit
    assert f"{limits.MAX_VALUES:,} values in an output" in page
    assert f"over {limits.BODY_SECONDS} s 408" in page
