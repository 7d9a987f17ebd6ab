"""The page of troubles quotes messages that there are."""

import json
import re

from run_script import ROOT


def test_every_message_of_the_page_is_one_of_the_record():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| ", page.split("| what you see")[0], re.M)
    assert len(rows) > 10
    record = json.loads((ROOT / "tests/frozen/frozen.json").read_text())
    errors = [m for kind in record["errors"].values() for m in kind.values()]
    for row in rows:
        parts = re.findall(r"`(.*?)`", row)
        assert any(all(p in e for p in parts) for e in errors), row
