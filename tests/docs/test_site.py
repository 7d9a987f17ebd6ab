"""The site's pages: each has its place, and no link leads nowhere."""

import importlib.util
import re
import subprocess
import sys

import pytest
from run_script import ROOT

import bert_keras
from tools.maintenance import site_pages

GENERATED = {"index", "tour", "api", "tables", "scripts"}
GENERATED |= {"contributing", "changelog"}


def test_every_page_has_a_place_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r": (\w+)\.md$", menu, re.M))
    assert named == {p.stem for p in (ROOT / "docs").glob("*.md")} | GENERATED


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs"]
)
def test_links_lead_to_files(name):
    path = ROOT / name
    for page in [path] if path.is_file() else sorted(path.glob("*.md")):
        for link in re.findall(r"\]\(([\w./-]+)[#)]", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), (page.name, link)


def test_links_are_moved_into_the_site():
    text = "[a](docs/a.md) [c](../CONTRIBUTING.md#where) [r](README.md)"
    expected = "[a](a.md) [c](contributing.md#where) [r](index.md)"
    assert site_pages.as_page(text) == expected


def test_the_tables_and_the_api_are_those_of_the_code():
    tables, api = site_pages.tables(), site_pages.api()
    assert "| base | 12 | 12 | 768 | 3072 |" in tables
    assert "`bert_base_en_uncased` | yes |" in tables
    assert "| `bert_keras_mini_en`, in the package |  | yes |" in tables
    assert (
        "| `BertPretrainer` | `fill_mask` `next_sentence` `embed` |" in tables
    )
    for name in bert_keras._MODULES:
        assert re.search(rf"^::: bert_keras\.[\w.]+\.{name}$", api, re.M), name


@pytest.mark.long
def test_the_site_is_built():
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: make docs installs it")
    script = ROOT / "tools/maintenance/site_pages.py"
    done = subprocess.run([sys.executable, script], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    page = (ROOT / "build/site/api/index.html").read_text()
    for name in bert_keras._MODULES:
        assert f'.{name}"' in page, name
