"""Records in unicode_14.json which code points Unicode 14.0 does not assign.

    python3.11 -m tests.golden.record_unicode

Python 3.11 has Unicode 14.0. Each pair is the first and the last code point of
a range.
"""

import itertools
import json
import unicodedata
from pathlib import Path

UNASSIGNED = Path(__file__).with_name("unicode_14.json")


def record():
    assert unicodedata.unidata_version == "14.0.0"
    ranges = []
    for is_assigned, codes in itertools.groupby(
        range(0x110000), lambda code: unicodedata.category(chr(code)) != "Cn"
    ):
        if not is_assigned:
            first, *_, last = [*codes] * 2
            ranges.append([first, last])
    UNASSIGNED.write_text(json.dumps(ranges, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    record()
