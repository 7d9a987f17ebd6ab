"""Files that the pages name are in the tree."""

import re

from run_script import ROOT

# tools/x.py, official_tasks/tasks/, tests/tools/test_arrows.py
NAMED = re.compile(
    r"(?<![\w/.-])((?:tools|official_tasks|bert_keras|tests|docs)/[\w/.-]*\w)"
)


def pages():
    """(name, text) of each page; of the change log what is not released."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*")):
        if path.suffix in (".md", ".ipynb"):
            text = path.read_text(encoding="utf-8")
            if path.name == "CHANGELOG.md":
                text = "\n## ".join(text.split("\n## ")[:2])
            yield path.name, text


def test_every_file_that_a_page_names_is_there():
    named = [(p, name) for p, text in pages() for name in NAMED.findall(text)]
    assert len(named) > 100
    assert {"README.md", "architecture.md"} <= {page for page, _ in named}
    missing = [
        (page, name)
        for page, name in named
        if not (ROOT / name).exists() and name != "tools/NAME.py"
    ]
    assert not missing
