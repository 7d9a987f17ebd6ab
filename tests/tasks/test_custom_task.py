import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.tasks.custom import PROBLEMS, CustomTask


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


@pytest.fixture
def reviews(tmp_path):
    rows = [(f"text {i}", "good" if i % 3 else "bad") for i in range(60)]
    return write(tmp_path / "train.csv", rows)


def test_a_tenth_of_each_class_is_held_out_and_no_row_is_on_both_sides(
    reviews,
):
    task = CustomTask(reviews, split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert task.labels == ["bad", "good"]
    assert [sum(row.label == k for row in dev) for k in (0, 1)] == [2, 4]
    assert len(train) + len(dev) == 60
    assert not {row.text for row in train} & {row.text for row in dev}
    assert CustomTask(reviews, split_seed=1).read("dev") == dev
    assert CustomTask(reviews, split_seed=2).read("dev") != dev


def test_equal_texts_are_held_out_together(tmp_path):
    rows = [(f"text {i % 20}", "xy"[i // 3 % 2]) for i in range(60)]
    task = CustomTask(write(tmp_path / "train.csv", rows), split_seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert (len(train), len(dev)) == (54, 6)  # 2 texts of 20, thrice each
    assert not {row.text for row in train} & {row.text for row in dev}


def test_a_seed_draws_the_rows_that_it_always_drew(reviews):
    dev = CustomTask(reviews, split_seed=1).read("dev")
    drawn = "3 30 37 38 52 58".split()
    assert [row.text.removeprefix("text ") for row in dev] == drawn


def test_scores_and_predictions_name_the_classes(reviews, tmp_path):
    task = CustomTask(reviews)
    dev = task.read("dev")
    outputs = np.array([[0.0, 2.0]] * len(dev))  # always "good"
    scores = task.score(dev, outputs)
    assert scores["accuracy"] == scores["majority_baseline"] == 4 / 6
    assert scores["classes"]["bad"]["recall"] == 0.0
    task.write(dev, outputs, tmp_path)
    with open(tmp_path / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(dev)
    assert {row["predicted"] for row in rows} == {"good"}
    assert float(rows[0]["score"]) == pytest.approx(0.8808, abs=1e-4)


def test_what_deserves_a_look_is_said_with_line_numbers(tmp_path):
    rows = [("same", "a"), ("same", "a"), (" ", "a"), ("x", "b"), ("x", "a")]
    train = write(
        tmp_path / "t.csv", rows + [(f"t{i}", "a") for i in range(40)]
    )
    dev = write(tmp_path / "d.csv", [("same", "a"), ("new", "b")])
    advice = " | ".join(CustomTask(train, dev).advice)
    assert "line 4: the text is empty" in advice
    assert "line 3: 1 rows repeat an earlier one" in advice
    assert "line 6: 1 rows repeat an earlier text under another" in advice
    assert f"{dev}, line 2: 1 texts stand in train and in dev" in advice
    assert "the class 'b' has 2.2%" in advice
    numbers = write(tmp_path / "n.csv", [("a", "100"), ("b", "100")] * 5)
    advice = " | ".join(CustomTask(numbers, problem="regression").advice)
    assert "line 4, 5, 6, 7, 8, ...: 8 rows repeat" in advice
    assert "every number of the training rows is 100" in advice


def test_several_files_are_read_as_one(tmp_path):
    first = write(tmp_path / "a.csv", [("a", "x"), ("b", "y")])
    second = write(tmp_path / "b.csv", [("c", "x"), ("d", "z")])
    task = CustomTask(f"{first},{second}", dev=str(first))
    assert [row.text for row in task.read("train")] == list("abcd")
    assert task.labels == ["x", "y", "z"]


def test_several_labels_of_a_text_are_told_apart(tmp_path):
    rows = [("a", "x; y"), ("b", ""), ("c", "y"), ("d", "x")]
    file = write(tmp_path / "t.csv", rows)
    task = CustomTask(file, file, problem="multi", label_separator=";")
    dev = task.read("dev")
    assert [sorted(row.label) for row in dev] == [[0, 1], [], [1], [0]]
    outputs = np.array([[1, 1], [-1, -1], [-1, -1], [1, 1]], "float32")
    scores = task.score(dev, outputs)
    assert scores["accuracy"] == 0.5
    # Both labels for every text: 4 of 8 are right, and none is missed.
    assert scores["majority_baseline"] == pytest.approx(2 * 4 / (4 + 8))
    assert scores["micro_f1"] == pytest.approx(6 / 8)
    task.write(dev, outputs, tmp_path)
    with open(tmp_path / "predictions.csv", newline="") as written:
        rows = list(csv.DictReader(written))
    assert [row["predicted"] for row in rows] == ["x;y", "", "", "x;y"]
    assert [row["label"] for row in rows] == ["x;y", "", "y", "x"]


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
    task = CustomTask(path, path, problem="multi")
    assert task.labels == ["true", "x", "x, y", "z"]
    dev = [sorted(row.label) for row in task.read("dev")]
    assert dev == [[2, 3], [], [], [1, 3], [0], [0]]
    path.write_text('{"text": "a", "label": ["x", ["y"]]}')
    with pytest.raises(InputError, match=r"line 1: expected text .* \[\"y\"\]"):
        CustomTask(path, path, problem="multi")
    file = write(tmp_path / "t.csv", [("a", "[x], y"), ("b", "y")])
    assert CustomTask(file, file, problem="multi").labels == ["[x]", "y"]
    with pytest.raises(InputError, match="--label_separator: expected"):
        CustomTask(file, problem="multi", label_separator="")


def test_blanks_around_a_label_are_none_of_it(tmp_path):
    file = write(tmp_path / "t.csv", [("a", "x "), ("b", " x"), ("c", "y")])
    assert CustomTask(file, file).labels == ["x", "y"]


def test_numbers_are_scored_by_correlation_and_written(tmp_path):
    file = write(tmp_path / "t.csv", [(str(i), str(i / 4)) for i in range(8)])
    task = CustomTask(file, file, problem="regression")
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


def test_a_test_file_needs_no_labels(tmp_path, reviews):
    path = tmp_path / "test.csv"
    path.write_text("text\nsome words\n")
    rows = CustomTask(reviews, test=str(path)).read("test")
    assert [(row.text, row.label) for row in rows] == [("some words", None)]
    with pytest.raises(InputError, match="give --test=FILE"):
        CustomTask(reviews).read("test")
    for problem in PROBLEMS:
        task = CustomTask(test=str(path), problem=problem)
        task.labels = ["bad", "good"]
        with pytest.raises(InputError, match="labels by --dev=FILE"):
            task.score(rows, np.zeros((1, 2)))


def test_labels_that_are_no_numbers_or_problems_that_are_none(tmp_path):
    file = write(tmp_path / "t.csv", [("a", "1"), ("b", "inf")])
    with pytest.raises(InputError, match="line 3: expected a number .* 'inf'"):
        CustomTask(file, problem="regression")
    with pytest.raises(InputError, match="single, multi, regression"):
        CustomTask(file, problem="ranking")
    with pytest.raises(InputError, match="split_seed is -1: expected 0"):
        CustomTask(file, split_seed=-1)


@pytest.mark.parametrize(
    ("rows", "dev", "message"),
    [
        ([], None, "at least one row"),
        ([("a", "1"), ("b", "1")], None, "at least 2 classes"),
        ([("a", "1"), ("b", "1"), ("c", "2")], None, "'2' has one row"),
        ([("a", "1"), ("b", "2")], [("c", "3")], "line 2: .* got '3'"),
        ([("a", "1"), ("b", " ")], None, "line 3: 1 rows have no label"),
    ],
)
def test_rows_that_cannot_be_learned_are_refused(tmp_path, rows, dev, message):
    train = write(tmp_path / "train.csv", rows)
    held = write(tmp_path / "dev.csv", dev) if dev else None
    with pytest.raises(InputError, match=message):
        CustomTask(train, held)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_file_that_is_written_otherwise_is_told_and_read(tmp_path, encoding):
    path = tmp_path / "t.csv"
    lines = "text;label\n" + "".join(
        f"caf\u00e9, gut {i};{'ja' if i % 2 else 'nein'}\n" for i in range(20)
    )
    path.write_text(lines, encoding=encoding)
    with pytest.raises(InputError, match=f"give --encoding={encoding}, or"):
        CustomTask(path)
    with pytest.raises(InputError, match="semicolons .* --separator=';'"):
        CustomTask(path, encoding=encoding)
    task = CustomTask(path, separator=";", encoding=encoding)
    assert task.labels == ["ja", "nein"]
    assert task.read("train")[0].text == "caf\u00e9, gut 0"
    for given, message in (
        ({"separator": ";;"}, "--separator=;;: expected one character"),
        ({"encoding": "utf9"}, "--encoding=utf9: there is no such encoding"),
        ({"encoding": "hex"}, "--encoding=hex: there is no such encoding"),
    ):
        with pytest.raises(InputError, match=message):
            CustomTask(path, **given)
    path = path.rename(tmp_path / "t.tsv")
    with pytest.raises(InputError, match="--separator=; is for files that end"):
        CustomTask(path, separator=";")


def test_rows_without_a_label_are_told_together_or_left_out(tmp_path):
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(20)]
    rows[3] = ("lost", "")
    rows[7] = ("lost too", " ")
    path = write(tmp_path / "t.csv", rows)
    with pytest.raises(InputError, match="line 5, 9: 2 rows have no label.*by"):
        CustomTask(path)
    task = CustomTask(path, drop_unlabelled=True)
    assert "line 5, 9: 2 rows have no label in column 'label' and are" in (
        " | ".join(task.advice)
    )
    texts = [row.text for split in ("train", "dev") for row in task.read(split)]
    assert len(texts) == 18 and "lost" not in texts
    rows = [(f"text {i}", str(i / 4)) for i in range(20)]
    rows[5] = ("lost", "NaN")
    path = write(tmp_path / "n.csv", rows)
    with pytest.raises(InputError, match="line 7: 1 rows have no label"):
        CustomTask(path, problem="regression")
    CustomTask(path, problem="regression", drop_unlabelled=True)
    with pytest.raises(InputError, match="nothing with --problem=multi"):
        CustomTask(path, problem="multi", drop_unlabelled=True)


def test_labels_and_columns_that_may_be_mistaken_are_noted(tmp_path):
    rows = [("a", "Good"), ("b", "good"), ("c", "very  bad"), ("d", "very bad")]
    path = write(tmp_path / "t.csv", rows)
    advice = " | ".join(CustomTask(path, path).advice)
    assert "the labels 'Good', 'good' in column 'label' differ in" in advice
    assert "the labels 'very  bad', 'very bad' in" in advice
    path.write_text("text,label,text\na,x,b\nc,y,d\n")
    task = CustomTask(path, path)
    assert f"{path}: 2 columns are called 'text'; the first" in task.advice[0]
    assert [row.text for row in task.read("train")] == ["a", "c"]
    path = write(tmp_path / "n.csv", [("a", "1.5"), ("b", "2"), ("c", "3")])
    assert "give --problem=regression" in " | ".join(
        CustomTask(path, path).advice
    )
    with pytest.raises(InputError, match="numbers, such as 1.5.*=regression"):
        CustomTask(path)  # no class has a row to spare
    stars = write(tmp_path / "s.csv", [(f"{i}", f"{i % 5}") for i in range(50)])
    assert CustomTask(stars).advice == []


def test_a_file_of_predictions_is_refused_before_the_data_is_read(tmp_path):
    from official_tasks.evaluate import evaluate

    for problem in PROBLEMS:
        task = CustomTask(dev=tmp_path / "absent.csv", problem=problem)
        with pytest.raises(InputError, match="custom scores no files of pred"):
            evaluate(task, predictions="predictions.csv")


def test_files_of_other_content_are_kept_unless_overwritten(tmp_path):
    from official_tasks.engine.leaderboard import new_files

    def write_into(text, overwrite=False):
        with new_files(tmp_path / "out", overwrite) as folder:
            Path(folder, "below").mkdir()
            Path(folder, "below", "a.txt").write_text(text)

    path = tmp_path / "out" / "below" / "a.txt"
    write_into("one")
    write_into("one")  # the same run again
    with pytest.raises(InputError, match="a.txt is there already, with other"):
        write_into("two")
    assert path.read_text() == "one"
    write_into("two", overwrite=True)
    assert path.read_text() == "two"
