"""Tasks on a user's tables of texts, spans, tags or choices; their notes."""

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from bert_keras import InputError
from official_tasks.engine.splits import encode_splits
from official_tasks.tasks.classify import score_classes
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    multilabel_task,
    regress_task,
    spans_task,
    tags_task,
)
from tests.support.task_samples import read_csv
from tests.support.task_samples import write_csv as write


def read_notes(task):
    return [note for s in ("train", "dev") for note in task.read(s).notes]


@pytest.fixture
def reviews(tmp_path):
    rows = [(f"text {i}", "good" if i % 3 else "bad") for i in range(60)]
    return write(tmp_path / "train.csv", rows)


def test_a_tenth_of_each_class_is_held_out_as_it_always_was(reviews):
    task = classify_task(reviews, split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert task.labels == ["bad", "good"]
    assert [sum(row.label == k for row in dev) for k in (0, 1)] == [2, 4]
    assert len(train) + len(dev) == 60
    assert not {row.text for row in train} & {row.text for row in dev}
    drawn = "3 30 37 38 52 58".split()
    assert [row.text.removeprefix("text ") for row in dev] == drawn
    assert classify_task(reviews, split_seed=2).read("dev") != dev


def test_the_labels_of_a_model_do_not_need_the_training_file(reviews, tmp_path):
    dev = write(tmp_path / "dev.csv", [("text", "good"), ("other", "bad")])
    for has_more in (False, True):
        if has_more:
            write(reviews, [(f"text {i}", "abc"[i % 3]) for i in range(9)])
        else:
            Path(reviews).rename(tmp_path / "moved.csv")
        task = classify_task(reviews, dev, test=dev)
        task.take_arguments({"labels": ["bad", "good"]})
        assert task.labels == ["bad", "good"]
        assert [row.label for row in task.read("dev")] == [1, 0]
        assert len(task.read("test")) == 2


def test_equal_texts_are_held_out_together(tmp_path):
    rows = [(f"text {i % 20}", "xy"[i // 3 % 2]) for i in range(60)]
    task = classify_task(write(tmp_path / "train.csv", rows), split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert (len(train), len(dev)) == (54, 6)  # 2 of 20 texts, 3 rows each
    assert not {row.text for row in train} & {row.text for row in dev}


def test_scores_and_predictions_name_the_classes(reviews, tmp_path):
    task = classify_task(reviews)
    dev = task.read("dev")
    outputs = np.array([[0.0, 2.0]] * len(dev))  # always "good"
    scores = task.score(dev, outputs)
    assert scores["accuracy"] == scores["majority_baseline"] == 4 / 6
    assert scores["classes"]["bad"]["recall"] == 0.0
    task.write(dev, outputs, tmp_path)
    rows = read_csv(tmp_path / "predictions.csv")
    assert len(rows) == len(dev)
    assert {row["predicted"] for row in rows} == {"good"}
    assert float(rows[0]["score"]) == pytest.approx(0.8808, abs=1e-4)


def test_several_labels_of_a_text_are_read_scored_and_written(tmp_path):
    rows = [("a", "x; y"), ("b", ""), ("c", "y"), ("d", "x")]
    file = write(tmp_path / "t.csv", rows)
    task = multilabel_task(file, file, label_separator=";")
    dev = task.read("dev")
    assert [sorted(row.label) for row in dev] == [[0, 1], [], [1], [0]]
    outputs = np.array([[1, 1], [-1, -1], [-1, -1], [1, 2]], "float32")
    scores = task.score(dev, outputs)
    assert scores["accuracy"] == 0.5
    # The baseline predicts both labels for each text: 4 of 8 predictions are
    # right, and no label is missed.
    assert scores["majority_baseline"] == pytest.approx(2 * 4 / (4 + 8))
    assert scores["micro_f1"] == pytest.approx(6 / 8)
    task.write(dev, outputs, tmp_path)
    rows = read_csv(tmp_path / "predictions.csv")
    assert [row["predicted"] for row in rows] == ["x;y", "", "", "x;y"]
    assert [row["label"] for row in rows] == ["x;y", "", "y", "x"]
    # Most confident first: 0.88 that "d" has y, 0.73 that "c" lacks y.
    shown = [
        (
            row["text"],
            row["truth"],
            row["predicted"],
            round(row["probability"], 2),
        )
        for row in task.mistakes(dev, outputs)
    ]
    assert shown == [("d", "x", "x, y", 0.88), ("c", "y", "(none)", 0.73)]


def test_several_labels_are_a_list_in_jsonl_and_text_in_csv(tmp_path):
    lines = [
        {"text": "a", "label": ["x, y", "z"]},
        {"text": "b", "label": [None]},
        {"text": "c", "label": None},
        {"text": "d", "label": "x, z"},
        {"text": "e", "label": [True]},
        {"text": "f", "label": True},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    task = multilabel_task(path, path)
    assert task.labels == ["true", "x", "x, y", "z"]
    dev = [sorted(row.label) for row in task.read("dev")]
    assert dev == [[2, 3], [], [], [1, 3], [0], [0]]
    path.write_text('{"text": "a", "label": ["x", ["y"]]}')
    with pytest.raises(InputError, match=r"line 1: expected text .* \[\"y\"\]"):
        multilabel_task(path, path).read("train")
    file = write(tmp_path / "t.csv", [("a", "[x], y"), ("b", "y")])
    assert multilabel_task(file, file).labels == ["[x]", "y"]


def test_numbers_are_scored_by_correlation_and_written(tmp_path):
    file = write(tmp_path / "t.csv", [(str(i), str(i / 4)) for i in range(8)])
    task = regress_task(file, file)
    dev = task.read("dev")
    outputs = np.array([[2.0 * row.label + 1] for row in dev])
    scores = task.score(dev, outputs)
    assert scores["pearson"] == pytest.approx(1)
    assert scores["mean_squared_error"] == pytest.approx(
        np.mean([(row.label + 1) ** 2 for row in dev])
    )
    task.write(dev, outputs, tmp_path)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[:3] == ["text,label,predicted", "0,0,1", "1,0.25,1.5"]
    farthest = task.mistakes(dev, outputs)[0]
    assert (farthest["text"], farthest["truth"]) == ("7", "1.75")
    assert farthest["off by"] == pytest.approx(1.75 + 1)


def test_a_test_file_needs_no_labels(tmp_path, reviews):
    path = write(tmp_path / "test.csv", [("some words",)], header=["text"])
    rows = classify_task(reviews, test=path).read("test")
    assert [(row.text, row.label) for row in rows] == [("some words", None)]
    with pytest.raises(InputError, match="give --test=FILE"):
        classify_task(reviews).read("test")
    for make in (classify_task, multilabel_task, regress_task):
        task = make(test=path)
        task.labels = ["bad", "good"]
        with pytest.raises(InputError, match="labels as --dev=FILE"):
            task.score(rows, np.zeros((1, 2)))


def test_several_files_are_read_as_one_and_blanks_are_no_part_of_labels(
    tmp_path,
):
    first = write(tmp_path / "a.csv", [("a", " x"), ("b", "y ")])
    second = write(tmp_path / "b.csv", [("c", "x "), ("d", "z")])
    task = classify_task(f"{first}, {second}", dev=first)
    assert [row.text for row in task.read("train")] == list("abcd")
    assert task.labels == ["x", "y", "z"]


def test_labels_of_a_dev_file_are_those_of_training(tmp_path):
    train = write(tmp_path / "train.csv", [("a", "1"), ("b", "2")])
    dev = write(tmp_path / "dev.csv", [("c", "3")])
    with pytest.raises(InputError, match="line 2: .* got '3'"):
        classify_task(train, dev).read("dev")
    many = classify_task(dev=dev)
    many.labels = [f"class {i}" for i in range(5000)]
    with pytest.raises(InputError, match="labels class 0, .*, ..., got") as bad:
        many.read("dev")
    assert len(str(bad.value)) < 1000
    with pytest.raises(InputError, match="line 2: .* labels .* --model"):
        classify_task(dev=dev).read("dev")


def test_whole_numbers_that_are_stored_as_floats_are_the_same_labels(tmp_path):
    stored = str(tmp_path / "floats.parquet")
    table = {"text": list("abcd"), "label": [0.0, 1.0, None, 2.0]}
    parquet.write_table(pa.table(table), stored)
    whole = write(tmp_path / "whole.csv", zip("efg", "012", strict=True))
    text = write(tmp_path / "text.csv", [("h", "2.0"), ("i", "1.00")])
    task = classify_task(stored, whole, drop_unlabelled=True)
    assert task.labels == ["0", "1", "2"]
    assert [row.label for row in task.read("train")] == [0, 1, 2]
    assert [row.label for row in task.read("dev")] == [0, 1, 2]
    note = "row 1, 2, 4: the labels of 3 rows are whole numbers, so '0.0' is"
    assert [note in x for x in task.read("train").notes].count(True) == 1
    assert not any("whole numbers" in x for x in task.read("dev").notes)
    for train in (whole, f"{stored},{whole}"):
        task = classify_task(train, text, drop_unlabelled=True)
        assert task.labels == ["0", "1", "2"]
        assert [row.label for row in task.read("dev")] == [2, 1]
    task = classify_task(dev=whole)
    task.take_arguments({"labels": ["0.0", "1.0", "2.0"]})  # an older model
    assert [row.label for row in task.read("dev")] == [0, 1, 2]
    mixed = write(tmp_path / "m.csv", [("a", "1.0"), ("b", "2.5"), ("c", "x")])
    assert classify_task(mixed, mixed).labels == ["1.0", "2.5", "x"]
    lists = tmp_path / "lists.jsonl"
    rows = [{"text": "a", "label": [0.0, 1.0]}, {"text": "b", "label": [1]}]
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = multilabel_task(str(lists), str(lists))
    assert task.labels == ["0", "1"]
    assert [row.label for row in task.read("dev")] == [{0, 1}, {1}]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_the_message_on_another_encoding_or_separator_names_its_flag(
    tmp_path, encoding
):
    path = tmp_path / "t.csv"
    lines = "text;label\n" + "".join(
        f"caf\u00e9, gut {i};{'ja' if i % 2 else 'nein'}\n" for i in range(20)
    )
    path.write_text(lines, encoding=encoding)
    with pytest.raises(InputError, match=f"give --encoding={encoding}, or"):
        classify_task(path).read("train")
    with pytest.raises(InputError, match="semicolons .* --separator=';'"):
        classify_task(path, encoding=encoding).read("train")
    task = classify_task(path, separator=";", encoding=encoding)
    assert task.labels == ["ja", "nein"]
    assert task.read("train")[0].text == "caf\u00e9, gut 0"
    path = path.rename(tmp_path / "t.tsv")
    with pytest.raises(InputError, match="--separator=; is for files that end"):
        classify_task(path, separator=";").read("train")


def test_rows_without_a_label_may_be_left_out(tmp_path):
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(20)]
    rows[3], rows[7] = ("lost", ""), ("lost too", " ")
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(InputError, match="5, 9: 2 rows without a label.*by"):
        classify_task(path).read("train")
    task = classify_task(path, drop_unlabelled=True)
    assert "line 5, 9: 2 rows without a label in column 'label', left" in (
        " | ".join(read_notes(task))
    )
    texts = [row.text for split in ("train", "dev") for row in task.read(split)]
    assert len(texts) == 18 and "lost" not in texts


def test_what_deserves_a_look_in_labels_and_columns_is_noted(tmp_path):
    rows = [("a", "Good"), ("b", "good"), ("c", "very  bad"), ("d", "very bad")]
    path = write(tmp_path / "t.csv", rows)
    advice = " | ".join(read_notes(classify_task(path, path)))
    assert "the labels 'Good', 'good' in column 'label' differ in" in advice
    assert "the labels 'very  bad', 'very bad' in" in advice
    Path(path).write_text("text,label,text\na,x,b\nc,y,d\n")
    note = f"{path}: 2 columns are called 'text'; the first"
    assert note in " | ".join(read_notes(multilabel_task(path, path)))
    task = classify_task(path, path)
    assert note in read_notes(task)[0]
    assert [row.text for row in task.read("train")] == ["a", "c"]
    path = write(tmp_path / "n.csv", [("a", "1.5"), ("b", "2"), ("c", "3")])
    advice = read_notes(classify_task(path, path))
    assert "give --task=regress" in " | ".join(advice)
    stars = write(
        tmp_path / "s.csv", [(f"t{i}", f"{i % 5}") for i in range(50)]
    )
    assert read_notes(classify_task(stars)) == []
    rows = [("x", "b"), *((f"t{i}", "a") for i in range(44))]
    dev = write(tmp_path / "dev.csv", [("new", "b")])
    rare = classify_task(write(tmp_path / "r.csv", rows), dev)
    assert "the class 'b' has 2.2%" in " | ".join(read_notes(rare))
    rows = [("a", "100"), ("b", "100")] * 5
    task = regress_task(write(tmp_path / "c.csv", rows))
    advice = " | ".join(read_notes(task))
    assert "line 4, 5, 6, 7, 8, ...: 8 rows repeat" in advice
    assert "every training row has the number 100" in advice


# Task function -> header and rows. The second row repeats the first row with
# another label. The third row, which `tags_task` lacks, has an empty text.
NOTED = {
    classify_task: (
        ("text", "label"),
        [("so it is", "a"), ("so it is", "b"), (" ", "a")],
    ),
    spans_task: (
        ("question", "context", "answer"),
        [("Who?", "Ada.", "Ada"), ("Who?", "Ada.", ""), ("Who?", " ", "")],
    ),
    tags_task: (
        ("words", "tags"),
        [("Ada is", "B-PER O"), ("Ada is", "O O")],
    ),
    choices_task: (
        ("prompt", "choice0", "choice1", "label"),
        [
            ("It is", "so", "or", "0"),
            ("It is", "so", "or", "1"),
            ("It is", " ", "or", "0"),
        ],
    ),
}


@pytest.mark.parametrize("cls", NOTED)
def test_what_deserves_a_look_in_rows_is_noted_once_by_line(tmp_path, cls):
    header, rows = NOTED[cls]
    train = write(tmp_path / "t.csv", [rows[0], *rows], header)
    dev = write(tmp_path / "d.csv", rows[:1], header)
    task = cls(train=train, dev=dev)
    expected = [
        f"{train}, line 5: a text is empty",
        f"{train}, line 3: 1 row repeats an earlier row",
        f"{train}, line 4: 1 row repeats an earlier text under another label",
        f"{dev}, line 2: 1 text of dev is also in train, so the "
        f"score is too high; the first is {rows[0][0]!r}",
    ]
    noted = [note for note in read_notes(task) if "line" in note]
    assert noted == expected[cls is tags_task :]


@pytest.mark.parametrize("separator", ["|", ";"])
def test_labels_that_a_separator_may_part_are_noted(tmp_path, separator):
    cells = ["Drama", f"Comedy{separator}Drama", "War", "", "War"]  # MovieLens
    rows = [(f"film {i}", cell) for i, cell in enumerate(cells)]
    path = write(tmp_path / "a.csv", rows)
    (note,) = [x for x in read_notes(multilabel_task(path, path)) if "no" in x]
    assert f"the label 'Comedy{separator}Drama' has '{separator}'" in note
    advice = shlex.split(note)[-1].removeprefix("--label_separator=")
    task = multilabel_task(path, path, label_separator=advice)
    assert task.labels == ["Comedy", "Drama", "War"]
    assert not any("no text" in note for note in read_notes(task))


def test_numbers_in_the_column_of_texts_are_noted(tmp_path):
    rows = [("17", "a"), ("2.5", "b"), ("4", "a"), ("-1e3", "b")]
    task = classify_task(train=write(tmp_path / "t.csv", rows))
    note = next(n for n in read_notes(task) if "every text" in n)
    assert "17" in note and "column 'text'" in note
    task = classify_task(train=write(tmp_path / "u.csv", [*rows, ("so", "b")]))
    assert not [n for n in read_notes(task) if "every text" in n]
    header = ("question", "context", "answer")
    file = write(tmp_path / "s.csv", [("7", "7 a", "7")], header)
    (note,) = spans_task(dev=file).read("dev").notes
    assert "column 'question'" in note


def spans_file(path, answers, start=None):
    rows = [
        (f"Who {i}?", f"Text {i // 2} has Ada and Eve.", answer, start or "")
        for i, answer in enumerate(answers)
    ]
    return write(path, rows, ("question", "context", "answer", "at"))


def test_spans_come_with_answers_starts_or_without_any(tmp_path):
    file = spans_file(tmp_path / "t.csv", ["Ada", "Eve"] * 10)
    task = spans_task(train=file, split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert len(train) == 18
    assert len(dev) == 2  # both questions of one context
    assert not {q.context for q in train} & {q.context for q in dev}
    assert not task.may_be_none
    assert "unanswerable_f1" not in task.score(dev, [None, None])
    assert spans_task(train=file, split_seed=2).read("dev") != dev
    file = spans_file(tmp_path / "d.csv", ["Ada", " "], start="11")
    task = spans_task(train=file, dev=file, start="at")
    first, second = task.read("dev")
    assert (first.start, first.answers, second.answers) == (11, ("Ada",), ())
    assert task.may_be_none
    task = spans_task(test=file, answer="none")
    assert task.read("test")[0].answers is None
    with pytest.raises(InputError, match="labels as --dev=FILE"):
        task.score(task.read("test"), [None, None])
    file = spans_file(tmp_path / "a.csv", ["Ada", "Ann", "Bo"])
    task = spans_task(train=file, dev=file)
    notes = task.read("train").notes
    assert f"not found; the first is {file}, line 3" in notes[-1]


def test_starts_that_the_context_contradicts_are_noted(tmp_path):
    # The positions of this file count from 1, not from 0.
    file = spans_file(tmp_path / "t.csv", ["Ada", "Ada"], "12")
    notes = spans_task(train=file, dev=file, start="at").read("train").notes
    assert "2 answers not at the start" in notes[-1]
    assert notes[-1].endswith(f"{file}, line 2")
    # pandas writes a column with gaps as floats.
    file = spans_file(tmp_path / "t.csv", ["Ada", "Ada"], "11.0")
    train = spans_task(train=file, dev=file, start="at").read("train")
    assert [question.start for question in train] == [11, 11]
    assert not [note for note in train.notes if "at their start" in note]


@pytest.mark.parametrize("unanswered", range(4))
def test_an_unanswered_question_may_be_held_out(tmp_path, unanswered):
    answers = ["Ada"] * 4
    answers[unanswered] = ""
    task = spans_task(train=spans_file(tmp_path / "t.csv", answers))
    questions = [*task.read("train"), *task.read("dev")]
    assert [q.answers for q in questions].count(()) == 1


def test_tags_are_lists_in_jsonl_and_blanks_apart_in_csv(tmp_path):
    rows = [
        {"words": ["New York", "is"], "tags": ["B-LOC", "O"]},
        {"words": ["Ada"], "tags": ["B-PER"]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = tags_task(train=str(path), dev=str(path))
    first, second = task.read("train")
    assert first.words == ("New York", "is")
    assert second.labels == ("B-PER",)
    assert task.labels == ["O", "B-LOC", "B-PER"]
    header = ("words", "tags")
    file = write(tmp_path / "t.csv", [("[ 1 ]", "B-PER O O")], header)
    (text,) = tags_task(dev=file).read("dev")
    assert text.words == ("[", "1", "]")
    assert text.labels == ("B-PER", "O", "O")


def test_choices_are_named_by_number_or_by_their_text(tmp_path):
    header = ("prompt", "a", "b", "c", "label")
    rows = [
        ("It rains,", "so", "but", "or", "1"),
        ("It pours,", "so", "but", "or", "or"),
    ]
    file = write(tmp_path / "t.csv", rows, header)
    task = choices_task(train=file, dev=file, choices="a, b,c")
    assert [e.label for e in task.read("train")] == [1, 2]
    assert task.read("dev")[0].choices == ("so", "but", "or")
    scores = task.score(task.read("dev"), np.eye(3)[[1, 1]])
    assert scores["accuracy"] == 0.5
    test = choices_task(test=file, choices="a,b,c", label="absent")
    assert test.read("test")[0].label is None
    # The label "1" is both the index and the text of one choice.
    row = ("0 + 1 is", "0", "1", "7", "1")
    file = write(tmp_path / "n.csv", [row], header)
    own = choices_task(dev=file, choices="a,b,c")
    assert [e.label for e in own.read("dev")] == [1]


def test_labels_of_choices_are_read_with_blanks_and_as_floats(tmp_path):
    rows = [
        ("It", "so ", "but", "so"),
        ("It", "so", " but", "but "),
        ("It", "so", "but", "1.0"),  # as pandas writes a column with gaps
        ("It is", "1.0", "2.0", "1.0"),
    ]
    file = write(tmp_path / "t.csv", rows, ("prompt", "a", "b", "label"))
    task = choices_task(dev=file, choices="a,b")
    assert [e.label for e in task.read("dev")] == [0, 1, 1, 0]


def test_all_faults_of_both_files_are_listed_with_their_lines(tmp_path):
    rows = [("a fine film", "good"), ("a dull film", "bad")] * 3
    train = write(
        tmp_path / "train.csv", [*rows, ("short",), ("x", ""), ("y", "z", 1)]
    )
    dev = write(tmp_path / "dev.csv", [*rows, ("alone",)])
    with pytest.raises(InputError) as error:
        encode_splits(classify_task(str(train), str(dev)), None)
    for place in (f"{train}, line {line}:" for line in (8, 9, 10)):
        assert place in str(error.value)
    assert f"{dev}, line 8: expected 2 columns" in str(error.value)
    train = write(tmp_path / "train.csv", rows)
    dev = write(tmp_path / "dev.csv", [("a", "new"), ("b", "newer")] * 15)
    with pytest.raises(InputError, match="'new'\n.*'newer'\n") as error:
        classify_task(str(train), str(dev)).read("dev")
    assert str(error.value).endswith("and 10 more faults")


@pytest.mark.parametrize("make_task", [classify_task, multilabel_task])
def test_a_model_is_scored_on_the_rows_whose_labels_it_knows(
    tmp_path, make_task
):
    rows = [("a", "x"), ("b", "new"), ("c", "y"), ("d", "newer"), ("e", "x")]
    dev = write(tmp_path / "dev.csv", rows)
    train = write(tmp_path / "train.csv", [("t", "x"), ("u", "y")])

    def make(path=dev):
        task = make_task(dev=path)
        task.take_arguments({"labels": ["x", "y"]})
        return task

    found = make().read("dev")
    known = [(row.text, row.label) for row in found if row.label != frozenset()]
    labels = [0, 1, 0]
    if make_task is multilabel_task:
        labels = [{0}, {1}, {0}]
    assert known == list(zip("ace", labels, strict=True))
    assert (
        "2 rows of the dev file with classes that the model lacks, which are "
        "left out: 'new', 'newer'" in found.notes
    )
    # A tenth of the training file is dev, without the classes left out of it.
    task = make_task(write(tmp_path / "more.csv", [*rows, ("f", "y")]))
    task.take_arguments({"labels": ["x", "y"]})
    assert len(task.read("dev")) == 1 + (make_task is classify_task)
    none = write(tmp_path / "none.csv", [("b", "new"), ("d", "newer")])
    with pytest.raises(InputError, match="expected one of the labels x, y"):
        make(none).read("dev")
    # In training, an unknown label is a fault of the files.
    with pytest.raises(InputError, match="line 3: expected one of the labels"):
        make_task(train, dev).read("dev")


def test_a_stray_quote_hides_no_fault_before_it(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('text,label\nab,1\n,\n"x" y,0\nc,1\n')
    with pytest.raises(InputError) as error:
        classify_task(str(path)).read("train")
    assert f"{path}, line 3: 1 row without a label" in str(error.value)
    assert f"{path}, line 4: the row that begins here" in str(error.value)


def test_the_note_on_a_rare_class_says_what_to_do(tmp_path):
    rows = [(f"t{i}", "ab"[i % 2]) for i in range(30)] + [("x", "rare")]
    train = str(write(tmp_path / "train.csv", rows))
    notes = " | ".join(read_notes(classify_task(train, train)))
    assert "'rare' has 3.2% of the rows" in notes
    assert "add or repeat rows of this class, or merge it" in notes


def test_of_many_classes_the_most_frequent_errors_are_kept():
    labels = [str(i) for i in range(1500)]
    truth = np.arange(1500).repeat(2)
    guess = truth.copy()
    guess[[0, 1, 2]] = 7, 7, 9
    scores = score_classes(truth, guess, labels)
    assert scores["confusions"] == [
        {"label": "0", "predicted": "7", "rows": 2},
        {"label": "1", "predicted": "9", "rows": 1},
    ]
    assert len(json.dumps(scores)) < 300_000
    # The matrix of so many classes would take 80 GB.
    labels = [str(i) for i in range(100_000)]
    scores = score_classes(truth, guess, labels)
    assert scores["accuracy"] == pytest.approx(2997 / 3000)
    assert [error["rows"] for error in scores["confusions"]] == [2, 1]


def test_own_data_may_be_parquet_or_a_data_set(tmp_path):
    import datasets

    table = {
        "text": [f"text {i}" for i in range(40)],
        "label": ["good" if i % 3 else "bad" for i in range(40)],
        "kinds": [["a", "b"][: i % 3] for i in range(40)],
    }
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.table(table), path)
    rows = zip(table["text"], table["label"], strict=True)
    as_csv = classify_task(write(tmp_path / "train.csv", rows))
    task = classify_task(str(path))
    assert task.read("train") == as_csv.read("train")
    assert task.read("dev") == as_csv.read("dev")
    assert [p.name for p in task.data_files()] == ["train.parquet"]
    multi = multilabel_task(str(path), label="kinds")
    assert multi.labels == ["a", "b"]
    # The same rows as a Hugging Face data set, with named classes.
    folder = tmp_path / "set"
    folder.mkdir()
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["bad", "good"]),
        }
    )
    for split, count in (("train", 40), ("validation", 9), ("test", 5)):
        part = {k: table[k][:count] for k in ("text", "label")}
        data_set = datasets.Dataset.from_dict(part, features=features)
        data_set.to_parquet(folder / f"{split}.parquet")
    name = f"hf:{folder}"
    assert classify_task(name).read("train") == as_csv.read("train")
    both = classify_task(f"{name},{path}", name, name)
    assert len(both.read("train")) == 80
    assert [len(both.read(split)) for split in ("dev", "test")] == [9, 5]
    assert [p.name for p in both.data_files()] == ["train.parquet"]
    part = {"text": ["a", "b", " "], "label": ["bad", "good", "bad"]}
    parquet.write_table(pa.table(part), path)
    notes = read_notes(classify_task(str(path), str(path)))
    assert any(note.startswith(f"{path}, row 3: a text") for note in notes)
