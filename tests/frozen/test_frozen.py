"""The package does what `frozen.json` holds of it, and a change is seen."""

from frozen_compare import differences, lines_of, merged
from run_script import ROOT, run_script

# The rest of the record runs scripts that other tests run too.
SECTIONS = "tokens,data,models,training,errors"


def test_the_package_does_what_is_recorded(tmp_path):
    done = run_script(
        ROOT / "tests" / "frozen" / "frozen.py",
        "--check",
        "--quick",
        f"--only={SECTIONS}",
        "--jobs=1",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def lines(recorded, found, part=False):
    return [*differences(recorded, found, part)]


def test_each_difference_is_a_line_that_says_where():
    recorded = {"a": {"loss": [1.0, 2.0, 3.0], "text": "x", "true": True}}
    found = {"a": {"loss": [1.00001, 2.1, 3.2], "text": "y", "true": True}}
    assert lines(recorded, recorded) == []
    assert lines(recorded, found) == [
        "a / loss / 1: was '2.0', is '2.1' (and 1 more of it)",
        "a / text: was 'x', is 'y'",
    ]
    assert lines({"a": True}, {"a": 1}) == ["a: was 'true', is '1'"]
    assert lines({"a": 1}, {"b": 1}) == [
        "a: is gone; was '1'",
        "b: is new: '1'",
    ]


def test_of_a_part_only_what_it_has_is_compared():
    recorded, part = {"a": [1, 2], "b": 3}, {"a": [1]}
    assert lines(recorded, part, part=True) == []
    assert lines(recorded, part) == [
        "a: had 2 entries, has 1",
        "b: is gone; was '3'",
    ]


def test_hashes_of_another_processor_are_kept_and_not_compared():
    recorded = {"weights": {"exact": {"avx2": "abc"}}}
    other = {"weights": {"exact": {"avx512": "def"}}}
    changed = {"weights": {"exact": {"avx2": "def"}}}
    assert lines(recorded, other) == []
    assert lines(recorded, changed) == ["weights: was 'abc', is 'def'"]
    both = {"avx2": "abc", "avx512": "def"}
    assert merged(recorded, other) == {"weights": {"exact": both}}
    assert lines_of(changed) == '{\n "weights": {"exact":{"avx2":"def"}}\n}'
