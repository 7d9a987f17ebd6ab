import csv

import numpy as np
import pytest

from bert_keras import InputError
from official_tasks.custom import CustomTask


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
    task = CustomTask(reviews, seed=1)
    train, dev = task.read("train"), task.read("dev")
    assert task.labels == ["bad", "good"]
    assert [sum(row.label == k for row in dev) for k in (0, 1)] == [2, 4]
    assert len(train) + len(dev) == 60
    assert not {row.text for row in train} & {row.text for row in dev}
    assert CustomTask(reviews, seed=1).read("dev") == dev
    assert CustomTask(reviews, seed=2).read("dev") != dev


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


def test_what_deserves_a_look_is_said(tmp_path):
    rows = [("same", "a"), ("same", "a"), (" ", "a"), ("x", "b")]
    train = write(
        tmp_path / "t.csv", rows + [(f"t{i}", "a") for i in range(40)]
    )
    dev = write(tmp_path / "d.csv", [("same", "a"), ("new", "b")])
    advice = " | ".join(CustomTask(train, dev).advice)
    assert "line 4: the text is empty" in advice
    assert "1 rows repeat" in advice
    assert "1 texts stand in train and in dev" in advice
    assert "the class 'b' has 2.3%" in advice


@pytest.mark.parametrize(
    ("rows", "dev", "message"),
    [
        ([], None, "at least one row"),
        ([("a", "1"), ("b", "1")], None, "at least 2 classes"),
        ([("a", "1"), ("b", "1"), ("c", "2")], None, "'2' has one row"),
        ([("a", "1"), ("b", "2")], [("c", "3")], "got '3'"),
    ],
)
def test_rows_that_cannot_be_learned_are_refused(tmp_path, rows, dev, message):
    train = write(tmp_path / "train.csv", rows)
    held = write(tmp_path / "dev.csv", dev) if dev else None
    with pytest.raises(InputError, match=message):
        CustomTask(train, held)
