"""The site and its generated pages."""

import importlib.util
import re
import subprocess
import sys

import pytest
from run_script import ROOT

import bert_keras
from tools.maintenance import site_pages


def test_links_are_moved_into_the_site():
    text = "[a](docs/a.md) [c](../CONTRIBUTING.md#where) [r](README.md)"
    expected = "[a](a.md) [c](contributing.md#where) [r](index.md)"
    assert site_pages.as_page(text) == expected


def test_the_tables_and_the_api_are_those_of_the_code():
    tables, api = site_pages.tables(), site_pages.api()
    assert "| base | 12 | 12 | 768 | 3072 |" in tables
    assert "`bert_base_en_uncased` |" in tables
    assert "| `bert_keras_mini_en`, in the package |  |" in tables
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
    assert "<blockquote>" not in page  # ">>>" is code, not a quote
