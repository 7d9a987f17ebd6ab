"""Label Studio's exports: JSON, JSON-MIN and CSV, with spans or choices."""

import csv
import json

import pytest

from bert_keras import InputError, file_forms
from official_tasks.engine.prediction import read_inputs
from official_tasks.tasks.own_tasks import (
    classify_task,
    multilabel_task,
    regress_task,
    tags_task,
)
from tests.support.shared_data import shared

ANNA = {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}
OSLO = {"start": 14, "end": 18, "text": "Oslo", "labels": ["LOC"]}
BOTH, NONE = "Anna lives in Oslo", "nobody came"


def result(value, kind="labels", name="label"):
    return {"from_name": name, "to_name": "text", "type": kind, "value": value}


def annotation(*results, **fields):
    return {"id": 1, "result": list(results), "was_cancelled": False, **fields}


def task(text, *annotations, **fields):
    return {
        "id": 7,
        "data": {"text": text, **fields},
        "annotations": annotations,
    }


def write_json(path, rows):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def row_of(text, number, cancelled=False, **outputs):
    """Return a row of JSON-MIN."""
    meta = {"annotator": 1, "annotation_id": number, "lead_time": 4.3}
    return {"text": text, **outputs, **meta, "was_cancelled": cancelled}


def write_csv(path, rows):
    """Write rows of JSON-MIN as Label Studio's CSV does."""
    header = sorted({name for row in rows for name in row})
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, header, quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {
                    key: json.dumps(value, ensure_ascii=False)
                    if isinstance(value, list | dict)
                    else value
                    for key, value in row.items()
                }
            )
    return str(path)


def tags(path, split="dev"):
    return tags_task(**{split: path}, spans="label").read(split)


def test_spans_are_read_from_every_export(tmp_path):
    tasks = [
        task(BOTH, annotation(result(ANNA), result(OSLO))),
        task(NONE, annotation()),
        task(BOTH, annotation(result(ANNA), was_cancelled=True)),
    ]
    rows = [
        row_of(BOTH, 1, label=[ANNA, OSLO]),
        row_of(NONE, 2),  # a control without a result has no key
        row_of(BOTH, 3, cancelled=True, label=[ANNA]),
    ]
    files = [
        write_json(tmp_path / "full.json", tasks),
        write_json(tmp_path / "min.json", rows),
        write_csv(tmp_path / "rows.csv", rows),
    ]
    for path, note in zip(
        files,
        ("1 unlabelled task", "1 cancelled", "1 cancelled"),
        strict=True,
    ):
        found = tags(path)
        assert [(text.text, text.labels) for text in found] == [
            (BOTH, ("B-PER", "O", "O", "B-LOC")),
            (NONE, ("O", "O")),
        ]
        assert any(note in x and "cancelled" in x for x in found.notes)
    # A test file needs no annotations.
    assert [text.text for text in tags(files[0], "test")] == [BOTH, NONE, BOTH]
    asked = read_inputs([files[0]], None, ["text"], [False])
    assert list(asked) == [[BOTH], [NONE], [BOTH]]


def test_a_row_without_entities_is_unlabelled_in_other_tables(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nnobody came,\n")
    with pytest.raises(InputError, match="1 row without a label in column"):
        tags(str(path))


def test_of_several_annotators_the_ground_truth_or_the_newest_is_read(tmp_path):
    first = annotation(result(ANNA), updated_at="2024-01-30T02:40:43Z")
    second = annotation(result(OSLO), updated_at="2024-02-01T00:00:00Z")
    truth = annotation(updated_at="2024-01-01T00:00:00Z", ground_truth=True)
    undated = annotation(result(OSLO)), annotation(result(ANNA))
    relation = {"type": "relation", "from_id": "a", "to_id": "b"}
    path = write_json(
        tmp_path / "a.json",
        [
            task(BOTH, second, first),
            task(BOTH, first, truth, second),
            task(BOTH, *undated),
            task(BOTH, annotation(result(ANNA), relation, result(OSLO))),
        ],
    )
    found = tags(path)
    assert [text.labels for text in found] == [
        ("O", "O", "O", "B-LOC"),
        ("O", "O", "O", "O"),
        ("B-PER", "O", "O", "O"),
        ("B-PER", "O", "O", "B-LOC"),
    ]
    notes = " | ".join(found.notes)
    assert "3 tasks with several annotations: the one marked as" in notes
    assert "1 relation between spans not read" in notes


def test_choices_are_classes_or_lists_of_them(tmp_path):
    def chosen(*names):
        return annotation(result({"choices": [*names]}, "choices", "topic"))

    one = [task("a", chosen("x, y")), task("b", chosen("z")), task("c")]
    full = write_json(tmp_path / "one.json", one)
    rows = [row_of("a", 1, topic="x, y"), row_of("b", 2, topic="z")]
    small = write_json(tmp_path / "min.json", rows)
    table = write_csv(tmp_path / "rows.csv", rows)
    for path in (full, small, table):
        labelled = classify_task(path, path, label="topic")
        assert labelled.labels == ["x, y", "z"]
        assert [row.label for row in labelled.read("dev")] == [0, 1]
        # With several labels a text, a name with a comma is one label.
        several = multilabel_task(path, path, label="topic")
        assert several.labels == ["x, y", "z"]
    two = [
        task("a", chosen("x", "y")),
        task("b", chosen("y")),
        task("d", chosen()),
    ]
    full = write_json(tmp_path / "two.json", two)
    rows = [
        row_of("a", 1, topic={"choices": ["x", "y"]}),
        row_of("b", 2, topic="y"),
        row_of("d", 3),
    ]
    small = write_json(tmp_path / "min2.json", rows)
    table = write_csv(tmp_path / "rows2.csv", rows)
    for path in (full, small, table):
        several = multilabel_task(path, path, label="topic")
        assert [row.label for row in several.read("dev")] == [
            {0, 1},
            {1},
            set(),
        ]
        with pytest.raises(
            InputError, match="[12]: expected one label .* got 'x, y'"
        ):
            classify_task(path, label="topic").read("train")
    # A damaged cell is text, and not a traceback.
    damaged = tmp_path / "damaged.csv"
    content = (tmp_path / "rows2.csv").read_text()
    damaged.write_text(content.replace('""y""]}', '""y""'))
    several = multilabel_task(damaged, label="topic")
    assert several.labels == ["y", '{"choices": ["x", "y"']


def test_a_number_is_a_rating(tmp_path):
    tasks = [
        task(f"text {n}", annotation(result({"rating": n}, "rating", "stars")))
        for n in (1, 5)
    ]
    path = write_json(tmp_path / "a.json", tasks)
    graded = regress_task(dev=path, label="stars")
    assert [row.label for row in graded.read("dev")] == [1.0, 5.0]


def test_positions_are_utf_16_units(tmp_path):
    span = {"start": 3, "end": 7, "text": "Anna", "labels": ["PER"]}
    path = write_json(
        tmp_path / "a.json", [task("😀 Anna ran", annotation(result(span)))]
    )
    assert tags(path)[0].labels == ("O", "B-PER", "O")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("[", "got text that is no JSON"),
        (
            '[{"text": "a"}, {"label": []}]',
            "row 1: expected a JSON object with",
        ),
        (
            '[3, {"text": "a", "label": []}]',
            "row 1: expected a JSON object with",
        ),
        (
            '[{"text": "a", "spans": []}]',
            "no column 'label': its columns are 'te",
        ),
        (
            '[{"data": {"text": "a"}, "annotations": [{"result": 7}]}]',
            "row 1: expected a task of Label Studio",
        ),
        (
            '[{"data": {"text": "a"}, "annotations": [{"result": []}]}]',
            "no column 'label': its columns are 'text'",
        ),
    ],
)
def test_json_that_is_no_table_is_refused(tmp_path, content, word):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=word):
        tags(str(path))


def test_json_is_a_list_of_objects_or_an_object_a_line(tmp_path, monkeypatch):
    # A list may be one line of any length.
    monkeypatch.setattr(file_forms, "MAX_LINE_BYTES", 50)
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    listed = write_json(tmp_path / "a.json", rows)
    (tmp_path / "b.json").write_text("\n".join(map(json.dumps, rows)))
    for path in (listed, str(tmp_path / "b.json")):
        assert classify_task(path, path).labels == ["x", "y"]
        asked = read_inputs([path], None, ["text"], [False])
        assert list(asked) == [["a"], ["b"]]


def test_one_task_without_a_list_is_read(tmp_path):
    spans = annotation(result({"start": 0, "end": 3, "labels": ["PER"]}))
    path = write_json(tmp_path / "a.json", task("Ola ran", spans))
    (text,) = tags(path)
    assert text.labels == ("B-PER", "O")


def test_a_whole_export_has_its_entities():
    found = tags(str(shared("forms/label_studio.json")))
    labels = [label for text in found for label in text.labels]
    assert len(found) == labels.count("B-PER") == 60
    assert {*labels} == {"O", "B-PER", "I-PER"}
