"""The baseline of words alone: what it can tell, and what it cannot."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from glue_samples import write_glue
from run_script import ROOT

from bert_keras.errors import InputError
from official_tasks.tasks import glue
from official_tasks.tasks.base import Example
from official_tasks.tasks.registry import find_task
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


def test_a_pairs_number_is_the_cosine_of_its_words():
    rows = [
        Example("ash birch", "birch ash", 5.0),
        Example("ash birch", "ash pine", 2.0),
        Example("ash birch", "elm fir", 0.0),
    ]
    toy = task(rows, rows, labels=None)
    toy.score = lambda rows, outputs: {"found": outputs}
    found = bag_of_words.score(toy)["found"]
    assert found.shape == (3, 1) and found[2] == 0
    # By hand: of 6 texts 5 have "ash", 4 "birch", 3 "ash birch" and 1
    # "birch ash"; a weight is 1 + log(7 / (1 + texts)).
    ash, birch, straight, back = 1 + np.log(7 / np.array([6, 5, 4, 2]))
    lengths = [np.sqrt(ash**2 + birch**2 + x**2) for x in (straight, back)]
    by_hand = (ash**2 + birch**2) / np.prod(lengths)
    assert found[0, 0] == pytest.approx(by_hand)
    assert 0 < found[1, 0] < found[0, 0]


@pytest.mark.parametrize("name", ["cola", "mrpc", "stsb"])
def test_the_official_files_are_scored(tmp_path, name):
    folder = next(row.folder for row in glue.ROWS if row.name == name)
    cls, fixed = find_task(name)
    place = write_glue(tmp_path / "glue") / folder
    official = cls(**fixed, data_dir=str(place))
    score = bag_of_words.score(official)[official.metric]
    assert -1 <= score <= 1 and np.isfinite(score)


def test_a_number_for_one_text_is_refused():
    with pytest.raises(InputError, match="Name a task of classes"):
        rows = [Example("ash", None, 1.0)]
        bag_of_words.score(task(rows, rows, labels=None))
