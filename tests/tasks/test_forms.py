"""Own data in the forms in which other tools write it."""

import json

import pytest
from shared_data import shared
from task_samples import write_csv

from bert_keras import InputError
from official_tasks.engine.prediction import read_inputs
from official_tasks.tasks.custom import custom_tags, custom_task
from official_tasks.tasks.list_cells import parse_list


@pytest.mark.parametrize(
    ("cell", "items"),
    [
        ("['a', \"it's\", 'b, c']", ["a", "it's", "b, c"]),  # pandas
        ('["a", "\\u00e9", "\\""]', ["a", "\u00e9", '"']),  # JSON
        ("['a' 'b'\n 'c']", ["a", "b", "c"]),  # NumPy
        (" [1, 0, 1] ", [1, 0, 1]),
        ("[1. 0. 1.]", [1.0, 0.0, 1.0]),
        ("[]", []),
        ("[(0, 4, 'PER')]", [(0, 4, "PER")]),
        ("[{'start': 0}]", [{"start": 0}]),
        ("[1]", None),  # a footnote
        ("[a, b]", None),
        ("[sic] he [came]", None),
        ("['a'] and ['b']", None),
        ("[__import__('os')]", None),
        ("a, b", None),
        ("[" * 100_000 + "]" * 100_000, None),
    ],
)
def test_a_cell_that_is_a_list_is_read_as_one(cell, items):
    assert parse_list(cell) == items


def test_a_long_cell_is_parsed_in_linear_time():
    assert parse_list("[" + "1" * 200_000 + "x]") is None
    assert parse_list("[" + "'a' " * 50_000 + "x]") is None


def test_labels_that_pandas_wrote_as_a_list_are_labels(tmp_path):
    rows = [
        ("a", "['x', 'y']"),
        ("b", '["y"]'),
        ("c", "[]"),
        ("d", ""),
        ("e", "x,y"),
    ]
    path = write_csv(tmp_path / "a.csv", rows)
    task = custom_task(path, path, problem="multi")
    assert task.labels == ["x", "y"]
    labels = [row.label for row in task.read("dev")]
    assert labels == [{0, 1}, {1}, set(), set(), {0, 1}]
    path = shared("forms/multi_repr.csv")
    hot = shared("forms/multi_hot.jsonl")
    task = custom_task(str(path), str(path), label="labels", problem="multi")
    truth = [json.loads(line)["labels"] for line in hot.open()]
    names = ("toxic", "rude", "spam")
    assert task.labels == sorted(names) and len(truth) == 60
    assert [
        {task.labels[i] for i in row.label} for row in task.read("dev")
    ] == [
        {n for n, digit in zip(names, row, strict=True) if digit}
        for row in truth
    ]


def test_a_list_with_one_label_is_that_label(tmp_path):
    rows = [("a", "['x']"), ("b", "y"), ("c", '["x"]')]
    path = write_csv(tmp_path / "a.csv", rows)
    assert custom_task(path, path).labels == ["x", "y"]
    listed = tmp_path / "a.jsonl"  # as doccano writes
    listed.write_text('{"text": "a", "label": ["x"]}\n' * 2)
    assert [r.label for r in custom_task(path, str(listed)).read("dev")] == [
        0,
        0,
    ]
    listed.write_text('{"text": "a", "label": ["x", "y"]}\n')
    with pytest.raises(InputError, match="line 1: .* give --problem=multi"):
        custom_task(path, str(listed)).read("dev")


@pytest.mark.parametrize("form", ["list", "floats", "text"])
def test_a_list_of_0s_and_1s_has_a_label_at_each_position(tmp_path, form):
    digits = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    if form == "text":
        cells = [(f"t{i}", str(row)) for i, row in enumerate(digits)]
        path = write_csv(tmp_path / "a.csv", cells)
    else:
        number = float if form == "floats" else int
        path = tmp_path / "a.jsonl"
        path.write_text(
            "".join(
                json.dumps({"text": f"t{i}", "label": [*map(number, row)]})
                + "\n"
                for i, row in enumerate(digits)
            )
        )
    asked = {"problem": "multi", "classes": "b, c,a"}
    task = custom_task(str(path), str(path), **asked)
    assert task.labels == ["a", "b", "c"]
    labels = [row.label for row in task.read("dev")]
    assert labels == [{0, 1}, set(), {2}, {0, 1, 2}]
    with pytest.raises(InputError, match="lists of 0s and 1s.*--classes=a,b,c"):
        custom_task(str(path), problem="multi").read("train")
    with pytest.raises(InputError, match="line [12]: expected 0 or 1 for each"):
        custom_task(str(path), problem="multi", classes="a,b").read("train")
    with pytest.raises(InputError, match="only applies with --problem=multi"):
        custom_task(str(path), classes="a,b")


def test_names_are_not_read_as_positions(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("a", "0"), ("b", "1,0"), ("c", "1")])
    task = custom_task(path, path, problem="multi")
    assert [row.label for row in task.read("dev")] == [{0}, {0, 1}, {1}]
    with pytest.raises(InputError, match="line 2: expected 0 or 1"):
        custom_task(path, problem="multi", classes="x,y").read("train")


def test_words_tags_and_spans_that_pandas_wrote_are_lists(tmp_path):
    path = str(shared("forms/tags_repr.csv"))
    found = custom_tags(train=path, dev=path).read("dev")
    labels = [label for text in found for label in text.labels]
    assert len(found) == 60 and {len(text.words) for text in found} == {7}
    assert sum(label.startswith("B-") for label in labels) == 120
    assert {*labels} == {"B-PER", "I-PER", "B-LOC", "I-LOC", "O"}
    spans = "[{'start': 0, 'end': 4, 'label': 'PER'}]"
    path = write_csv(
        tmp_path / "s.csv", [("Anna ran", spans)], ("text", "spans")
    )
    (text,) = custom_tags(dev=path, spans="spans").read("dev")
    assert text.labels == ("B-PER", "O")
    asked = read_inputs([path], None, ["spans"], [False])
    assert list(asked) == [[spans]]  # a text for `predict`
