"""The site and its generated pages."""

import importlib.util
import re
import subprocess
import sys

import pytest
import site_pages

import bert_keras
from tests.support.run_script import ROOT, run_script


def test_links_are_moved_into_the_site():
    text = "[a](docs/a.md) [c](../CONTRIBUTING.md#where) [r](README.md)"
    expected = "[a](a.md) [c](contributing.md#where) [r](index.md)"
    assert site_pages.as_page(text) == expected


def test_the_tables_and_the_api_are_those_of_the_code():
    tables, api = site_pages.tables(), "\n".join(site_pages.api().values())
    assert "| base | 12 | 12 | 768 | 3072 |" in tables
    assert "`bert_base_en_uncased` |" in tables
    assert "| `bert_keras_mini_en`, in the package |  |" in tables
    assert "| `BertPretrainer` | `fill_mask` `next_sentence` `embed` " in tables
    for name in bert_keras._MODULES:
        assert re.search(rf"^::: bert_keras\.[\w.]+\.{name}$", api, re.M), name
    listed = " ".join(site_pages.API.values()).split()
    assert sorted(listed) == sorted(bert_keras._MODULES)


def test_a_table_of_flags_has_defaults_ranges_and_meanings():
    rows = site_pages.list_flags("official_tasks.finetune", "squad2")
    flags = {flag.strip("`-"): tuple(rest) for flag, *rest in rows}
    assert flags["seeds"][:2] == ("`1`", "a whole number, 1 or more")
    assert flags["seed"][0] == "`0`"
    assert flags["optimizer"][:2] == ("`adamw`", "`adamw` `lamb`")
    assert flags["optimizer"][2] == "AdamW, or LAMB for large batches."
    assert flags["from_scratch"][:2] == ("", "switch")
    assert flags["label_smoothing"][1] == "a number from 0 to below 1"
    assert "`--lora_rank`" in flags["lora_alpha"][2]
    assert "stride" in flags and "label" not in flags
    assert site_pages.mark_flags("--a=1,2, --b") == "`--a=1,2`, `--b`"
    table = site_pages.flag_table(rows)
    assert table.count("\n") == len(rows) + 1
    help_text = run_script(
        *("-m", "official_tasks.finetune", "--task=squad2", "--help"),
        folder=ROOT,
    ).stdout
    shown = re.findall(r"^  --(?:\[no\])?(\w+):", help_text, re.M)
    assert sorted(flags) == sorted(shown)


@pytest.mark.long
def test_the_site_is_built():
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: make docs installs it")
    script = ROOT / "tools/maintenance/site_pages.py"
    done = subprocess.run([sys.executable, script], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    pages = (ROOT / "build/site").glob("api_*/index.html")
    page = "".join(path.read_text() for path in pages)
    for name in bert_keras._MODULES:
        assert f'.{name}"' in page, name
    assert "<blockquote>" not in page  # ">>>" is code, not a quote
    page = (ROOT / "build/site/architecture/index.html").read_text()
    assert page.count('<div class="boxes">') == 3
    assert "mermaid" not in page and "-->" not in page.split("<article")[1]


def test_a_diagram_that_is_no_chain_stops_the_build():
    chain = '  a["x.py<br/>f"] -->|rows & ids| b["y.py<br/>g"]\n  b --> a\n'
    page = site_pages.draw_boxes(chain)
    assert "<b>g</b>" in page and "rows &amp; ids" in page
    assert "back to f" in page
    for bad in ("  b -.-> c\n", '  a --> c["z.py<br/>h"]\n'):
        with pytest.raises(ValueError, match="from the last box"):
            site_pages.draw_boxes(chain.splitlines(True)[0] + bad)
