"""The baseline of words alone: what it can tell, and what it cannot."""

import sys
from types import SimpleNamespace

import pytest
from run_script import ROOT

from bert_keras.errors import InputError
from official_tasks.tasks.base import Example
from official_tasks.tasks.text_task import score_classes

sys.path.insert(0, str(ROOT / "tools" / "benchmark"))
import bag_of_words  # noqa: E402

WORDS = "ash birch cedar elm fir hazel larch maple oak pine".split()


def task(train, dev, labels=("no", "yes")):
    return SimpleNamespace(
        name="toy",
        labels=labels,
        read={"train": train, "dev": dev}.get,
        score=lambda rows, logits: score_classes(
            [row.label for row in rows], logits.argmax(1), labels
        ),
    )


def test_it_learns_which_words_a_class_has():
    rows = [
        Example(f"{word} {mark}", None, label)
        for word in WORDS
        for mark, label in (("good", 1), ("bad", 0))
    ]
    found = bag_of_words.score(task(rows[:14], rows[14:]))
    assert found["accuracy"] == 1.0


def test_of_a_pair_it_sees_what_both_share():
    rows = [
        Example(f"{a} stood there", f"{b} was seen", int(a == b))
        for a in WORDS
        for b in (a, WORDS[(WORDS.index(a) + 3) % 10])
    ]
    found = bag_of_words.score(task(rows, rows))
    assert found["accuracy"] == 1.0


def test_numbers_are_refused():
    with pytest.raises(InputError, match="Name a task of classes"):
        bag_of_words.score(task([], [], labels=None))
