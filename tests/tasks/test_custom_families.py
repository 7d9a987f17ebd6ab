import csv
import json

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.tasks.custom_families import (
    CustomChoices,
    CustomSpans,
    CustomTags,
)


def write(path, header, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def spans_file(path, answers, start=None):
    rows = [
        (f"Who {i}?", f"Text {i // 2} has Ada and Eve.", answer, start or "")
        for i, answer in enumerate(answers)
    ]
    return write(path, ("question", "context", "answer", "at"), rows)


def test_spans_come_with_answers_starts_or_without_any(tmp_path):
    file = spans_file(tmp_path / "t.csv", ["Ada", "Eve"] * 10)
    task = CustomSpans(train=file, split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert len(train) == 18
    assert len(dev) == 2  # one context and both its questions
    assert not {q.context for q in train} & {q.context for q in dev}
    assert not task.row.may_be_none
    assert "unanswerable_f1" not in task.score(dev, [None, None])
    other = CustomSpans(train=file, split_seed=2)
    assert other.read("dev") != dev
    with pytest.raises(InputError, match="split_seed is -1: expected 0"):
        CustomSpans(train=file, split_seed=-1)
    file = spans_file(tmp_path / "d.csv", ["Ada", " "], start="11")
    task = CustomSpans(train=file, dev=file, start="at")
    first, second = task.read("dev")
    assert (first.start, first.answers, second.answers) == (11, ("Ada",), ())
    assert task.row.may_be_none
    assert CustomSpans(test=file, answer="none").read("test")[0].answers is (
        None
    )
    task = CustomSpans(test=file)
    with pytest.raises(InputError, match="labels by --dev=FILE"):
        task.score(task.read("test"), [None, None])
    file = spans_file(tmp_path / "a.csv", ["Ada", "Ann", "Bo"])
    task = CustomSpans(train=file, dev=file)
    task.read("train")
    assert f"not found, the first is {file}, line 3" in task.advice[-1]
    file = spans_file(tmp_path / "w.csv", ["Ada"], start="x")
    with pytest.raises(InputError, match="line 2: expected a whole number"):
        CustomSpans(dev=file, start="at").read("dev")


# A row, the same under another label, and one whose text is empty.
NOTED = {
    CustomSpans: (
        ("question", "context", "answer"),
        [("Who?", "Ada.", "Ada"), ("Who?", "Ada.", ""), ("Who?", " ", "")],
    ),
    CustomTags: (
        ("words", "tags"),
        [("Ada is", "B-PER O"), ("Ada is", "O O")],
    ),
    CustomChoices: (
        ("prompt", "choice0", "choice1", "label"),
        [
            ("It is", "so", "or", "0"),
            ("It is", "so", "or", "1"),
            ("It is", " ", "or", "0"),
        ],
    ),
}


@pytest.mark.parametrize("cls", NOTED)
def test_what_deserves_a_look_is_told_once_by_file_and_line(tmp_path, cls):
    header, rows = NOTED[cls]
    train = write(tmp_path / "t.csv", header, [rows[0], *rows])
    dev = write(tmp_path / "d.csv", header, rows[:1])
    task = cls(train=train, dev=dev)
    for split in ("train", "dev", "train", "dev"):
        task.read(split)
    wanted = [
        f"{train}, line 5: the text is empty",
        f"{train}, line 3: 1 rows repeat an earlier one",
        f"{train}, line 4: 1 rows repeat an earlier text under another label",
        f"{dev}, line 2: 1 texts stand in train and in dev, which flatters "
        f"the score: the first is {rows[0][0]!r}",
    ]
    told = [note for note in task.advice if "line" in note]
    assert told == wanted[cls is CustomTags :]
    assert not cls().advice


def test_tags_are_lists_in_jsonl_and_blanks_apart_in_csv(tmp_path):
    rows = [
        {"words": ["New York", "is"], "tags": ["B-LOC", "O"]},
        {"words": ["Ada"], "tags": ["B-PER"]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = CustomTags(train=str(path), dev=str(path))
    first, second = task.read("train")
    assert first.words == ("New York", "is")
    assert second.labels == ("B-PER",)
    assert task.labels == ["O", "B-LOC", "B-PER"]
    header = ("words", "tags")
    file = write(tmp_path / "t.csv", header, [("Ada is", "B-PER O")])
    assert CustomTags(dev=file).read("dev")[0].labels == ("B-PER", "O")
    file = write(tmp_path / "b.csv", header, [("[ 1 ]", "O O O")])
    assert CustomTags(dev=file).read("dev")[0].words == ("[", "1", "]")
    for row, message in (
        (("Ada is", "O"), "line 2: expected a label for each of the 2 words"),
        (("Ada", "X-B"), "line 2: expected labels O, B-TYPE"),
        (("", "O"), "at least one word"),
    ):
        file = write(tmp_path / "w.csv", header, [row])
        with pytest.raises(InputError, match=message):
            CustomTags(dev=file).read("dev")
    with pytest.raises(InputError, match="one context, text or prompt"):
        CustomTags(train=file.replace("w.csv", "t.csv")).read("train")


def test_choices_are_named_by_number_or_by_their_text(tmp_path):
    header = ("prompt", "a", "b", "c", "label")
    rows = [
        ("It rains,", "so", "but", "or", "1"),
        ("It pours,", "so", "but", "or", "or"),
    ]
    file = write(tmp_path / "t.csv", header, rows)
    task = CustomChoices(train=file, dev=file, choices="a, b,c")
    assert [e.label for e in task.read("train")] == [1, 2]
    assert task.read("dev")[0].choices == ("so", "but", "or")
    scores = task.score(task.read("dev"), np.eye(3)[[1, 1]])
    assert scores["accuracy"] == 0.5
    test = CustomChoices(test=file, choices="a,b,c", label="absent")
    assert test.read("test")[0].label is None
    file = write(tmp_path / "w.csv", header, [(*rows[0][:4], "3")])
    with pytest.raises(InputError, match="number of a choice from 0 to 2"):
        CustomChoices(dev=file, choices="a,b,c").read("dev")
    # By its text and by its number a label may say two things, or one.
    file = write(tmp_path / "n.csv", header, [("2 - 1 is", "1", "0", "2", "1")])
    with pytest.raises(InputError, match="text of choice 0 .* number of '0'"):
        CustomChoices(dev=file, choices="a,b,c").read("dev")
    file = write(tmp_path / "n.csv", header, [("0 + 1 is", "0", "1", "7", "1")])
    own = CustomChoices(dev=file, choices="a,b,c")
    assert [e.label for e in own.read("dev")] == [1]
    with pytest.raises(InputError, match="at least 2 columns"):
        CustomChoices(choices="a")
    with pytest.raises(InputError, match="has no rows"):
        file = write(tmp_path / "e.csv", header, [])
        CustomChoices(dev=file, choices="a,b,c").read("dev")
