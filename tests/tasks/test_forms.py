"""Own data in the forms in which other tools write it."""

import bz2
import gzip
import json
import re
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow_datasets as tfds

from bert_keras import InputError
from bert_keras.run_folder import RunFolder
from official_tasks.engine.prediction import read_inputs
from official_tasks.engine.splits import read_versions
from official_tasks.tasks.embedding import Ranking, embed_task
from official_tasks.tasks.forms.list_cells import parse_list
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.forms.text_files import make_dialect
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    multilabel_task,
    spans_task,
    tags_task,
)
from official_tasks.tasks.retrieval import rank_task
from official_tasks.tasks.spans import Answer
from official_tasks.tasks.tagging import Tags, tag_task
from tests.support.shared_data import shared
from tests.support.task_samples import read_csv, write_csv
from tests.support.tfds_samples import store


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
        ("('a', \"it's\")", ["a", "it's"]),  # pandas, of tuples
        ("('a',)", ["a"]),
        ("{'a'}", ["a"]),  # pandas, of sets
        ("()", []),
        ("set()", []),
        ("('a')", None),
        ("(1999, 2000)", None),
        ("(see 'a', 'b')", None),
        ("{'a': 1}", None),
        ("[np.str_('a'), np.str_('b')]", ["a", "b"]),  # NumPy 2
        ("[['np.log(1)'], np.int64(2)]", [["np.log(1)"], 2]),
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
    task = multilabel_task(path, path)
    assert task.labels == ["x", "y"]
    labels = [row.label for row in task.read("dev")]
    assert labels == [{0, 1}, {1}, set(), set(), {0, 1}]


def test_labels_in_other_brackets_are_labels_or_refused(tmp_path):
    cells = ["{'x', 'y'}", "('y',)", "set()", "()", "[]", "x", "(y)"]
    path = write_csv(tmp_path / "a.csv", zip("abcdefg", cells, strict=True))
    task = multilabel_task(path, path)
    assert task.labels == ["(y)", "x", "y"]
    labels = [row.label for row in task.read("dev")]
    assert labels == [{1, 2}, {2}, set(), set(), set(), {1}, {0}]
    cells = ["[1, 3]", "[2]", "(3, 1)"]
    path = write_csv(tmp_path / "b.csv", zip("abc", cells, strict=True))
    task = multilabel_task(path, path)
    assert task.labels == ["1", "2", "3"]
    assert [row.label for row in task.read("dev")] == [{0, 2}, {1}, {0, 2}]
    for cell in ("[x, y]", "{x,y}", "[0 0 ... 1]", "np.array(['x'])", "{}"):
        path = write_csv(tmp_path / "c.csv", [("a", "x"), ("b", cell)])
        with pytest.raises(InputError, match="line 3: .* a list as JSON"):
            multilabel_task(path).read("train")


@pytest.mark.parametrize("labels", ["[B-PER, O]", "B-PER, O", "{B-PER O}"])
def test_tags_in_an_unknown_form_of_list_are_refused(tmp_path, labels):
    path = write_csv(
        tmp_path / "a.csv", [("Ola ran", labels)], ("words", "tags")
    )
    with pytest.raises(InputError, match="line 2: .* a list as JSON"):
        tags_task(train=path).read("train")


def test_a_list_with_one_label_is_that_label(tmp_path):
    rows = [("a", "['x']"), ("b", "y"), ("c", '["x"]')]
    path = write_csv(tmp_path / "a.csv", rows)
    assert classify_task(path, path).labels == ["x", "y"]
    listed = tmp_path / "a.jsonl"  # as doccano writes
    listed.write_text('{"text": "a", "label": ["x"]}\n' * 2)
    assert [r.label for r in classify_task(path, str(listed)).read("dev")] == [
        0,
        0,
    ]
    listed.write_text('{"text": "a", "label": ["x", "y"]}\n')
    with pytest.raises(InputError, match="line 1: .* give --task=multilabel"):
        classify_task(path, str(listed)).read("dev")


@pytest.mark.parametrize("form", ["list", "floats", "booleans", "text"])
def test_a_list_of_0s_and_1s_has_a_label_at_each_position(tmp_path, form):
    digits = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    if form == "text":
        cells = [(f"t{i}", str(row)) for i, row in enumerate(digits)]
        path = write_csv(tmp_path / "a.csv", cells)
    else:
        number = {"floats": float, "booleans": bool}.get(form, int)
        path = tmp_path / "a.jsonl"
        path.write_text(
            "".join(
                json.dumps({"text": f"t{i}", "label": [*map(number, row)]})
                + "\n"
                for i, row in enumerate(digits)
            )
        )
    task = multilabel_task(str(path), str(path), classes="b, c,a")
    assert task.labels == ["a", "b", "c"]
    labels = [row.label for row in task.read("dev")]
    assert labels == [{0, 1}, set(), {2}, {0, 1, 2}]
    with pytest.raises(InputError, match="lists of 0s and 1s.*--classes=a,b,c"):
        multilabel_task(str(path)).read("train")
    with pytest.raises(
        InputError, match="line [12]: expected 0 or 1 for each of a"
    ):
        multilabel_task(str(path), classes="a,b").read("train")


def test_labels_may_have_a_column_of_0s_and_1s_each(tmp_path):
    header = ("text", "x", "y")
    rows = [("a", "True", "False"), ("b", "False", "False")]
    path = write_csv(tmp_path / "dummies.csv", rows, header)  # pandas 2
    task = multilabel_task(path, path, test=path, label="y, x")
    assert task.labels == ["x", "y"]
    assert [row.label for row in task.read("dev")] == [{0}, set()]
    assert len(task.read("test")) == 2
    for twice in ({"label": "x,y,x"}, {"classes": "a,x,x"}):
        with pytest.raises(InputError, match=f"--{[*twice][0]} has 'x' twice"):
            multilabel_task(path, **twice)
    rows = [("a", "1.0", "0"), ("b", "", "1"), ("c", "2", "1")]
    path = write_csv(tmp_path / "a.csv", rows, header)
    with pytest.raises(InputError) as error:
        multilabel_task(path, label="x,y").read("train")
    message = str(error.value)
    assert "line 3: expected 0 or 1 for each of x, y, got ', 1'" in message
    assert "line 4: expected 0 or 1" in message and "line 2" not in message
    with pytest.raises(InputError, match="no column 'z'"):
        multilabel_task(path, label="x,z").read("train")
    with pytest.raises(InputError, match="with one column as --label"):
        multilabel_task(path, label="x,y", classes="x,y")


def test_names_are_not_read_as_positions(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("a", "0"), ("b", "1,0"), ("c", "1")])
    task = multilabel_task(path, path)
    assert [row.label for row in task.read("dev")] == [{0}, {0, 1}, {1}]
    with pytest.raises(InputError, match="line 2: expected 0 or 1"):
        multilabel_task(path, classes="x,y").read("train")


@pytest.mark.parametrize("cells", [["1 0 1", "0 0 1"], ["011", "001"]])
def test_positions_in_one_cell_are_refused_and_the_advice_works(
    tmp_path, cells
):
    path = write_csv(tmp_path / "a.csv", zip("ab", cells, strict=True))
    with pytest.raises(InputError, match="0s and 1s.* as in --classes=a,b,c"):
        multilabel_task(path).read("train")
    task = multilabel_task(path, path, classes="a,b,c")
    first = {0, 2} if cells[0] == "1 0 1" else {1, 2}
    assert [row.label for row in task.read("dev")] == [first, {2}]


def test_quotes_after_a_blank_enclose_a_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('label, "text"\nx, "a, ""b"""\ny, c\n')
    task = classify_task(str(path), str(path))
    assert [row.text for row in task.read("dev")] == ['a, "b"', "c"]
    path.write_text("label, text\nx, a\ny\n")
    with pytest.raises(InputError, match="line 3: expected 2 columns, got 1"):
        classify_task(str(path)).read("train")


def test_labels_that_may_be_missing_values_or_prefixes_are_noted(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("a", "nan"), ("b", "x")])
    notes = str(classify_task(path, path).read("train").notes)
    assert "the label 'nan' in column 'label' is learned as a class" in notes
    train = tags_file(tmp_path / "a.txt", "B_PER", "O", "B_LOC")
    task = tag_task(train=train, dev=train)
    assert "If B_ is a prefix, write B-LOC" in str(task.read("dev").notes)


def test_words_tags_and_spans_that_pandas_wrote_are_lists(tmp_path):
    path = str(shared("forms/tags_repr.csv"))
    found = tags_task(train=path, dev=path).read("dev")
    labels = [label for text in found for label in text.labels]
    assert len(found) == 60 and {len(text.words) for text in found} == {7}
    assert sum(label.startswith("B-") for label in labels) == 120
    assert {*labels} == {"B-PER", "I-PER", "B-LOC", "I-LOC", "O"}
    spans = "[{'start': 0, 'end': 4, 'label': 'PER'}]"
    path = write_csv(
        tmp_path / "s.csv", [("Anna ran", spans)], ("text", "spans")
    )
    (text,) = tags_task(dev=path, spans="spans").read("dev")
    assert text.labels == ("B-PER", "O")
    asked = read_inputs([path], None, ["spans"], [False])
    assert list(asked) == [[spans]]  # a text for `predict`


def tags_file(path, *labels):
    lines = (f"word {label}\n" for label in labels)
    path.write_text("".join(lines))
    return str(path)


def test_tags_of_a_type_with_both_separators_are_one_type(tmp_path):
    labels = ["B-PER", "O", "B_PER", "I_PER", "B_LOC"]
    train = tags_file(tmp_path / "train.txt", *labels)
    task = tag_task(train=train, dev=train)
    assert task.labels == ["O", "B-PER", "B_LOC", "I-PER"]
    (text,) = task.read("dev")
    assert text.labels == ("B-PER", "O", "B-PER", "I-PER", "B_LOC")
    assert "such as 'B_PER' are read as 'B-PER'" in str(task.read("dev").notes)


@pytest.mark.parametrize("form", ["{0}_{1}", "{1}-{0}", "{1}_{0}"])
def test_tags_with_another_separator_or_order_are_the_usual_ones(
    tmp_path, form
):
    prefixes = [("B", "A_B-C"), ("I", "A_B-C"), ("B", "LOC"), ("B", "LOC")]
    labels = [form.format(*prefix) for prefix in prefixes]
    usual = ["-".join(prefix) for prefix in prefixes]
    train = tags_file(tmp_path / "train.txt", *labels, "O")
    # One prefix alone says nothing, but these are the labels of training.
    dev = tags_file(tmp_path / "dev.txt", labels[2], "O", labels[2])
    task = tag_task(train=train, dev=dev)
    assert task.labels == ["O", "B-A_B-C", "B-LOC", "I-A_B-C"]
    (text,) = task.read("train")
    assert text.labels == (*usual, "O")
    note = f"train file such as {min(labels)!r} are read as {usual[0]!r}"
    assert form[0:3] == "{1}" or note in " ".join(task.read("train").notes)
    (text,) = task.read("dev")
    assert text.labels == ("B-LOC", "O", "B-LOC")
    assert task.score([text], [Tags(list(text.labels))])["f1"] == 1.0
    (tags,) = task.read_predictions(dev, [text])
    assert tags.labels == ["B-LOC", "O", "B-LOC"]


@pytest.mark.parametrize(
    "labels",
    [
        ("B_CELL", "O"),  # one prefix: a type's name
        ("B_CELL", "T_CELL", "I_CELL"),
        ("HEPATITIS-B", "O"),
        ("B-PER", "I-PER", "B_LOC"),
        ("PER", "LOC", "O"),
    ],
)
def test_tags_that_may_be_types_stay_as_they_are(tmp_path, labels):
    train = tags_file(tmp_path / "train.txt", *labels)
    task = tag_task(train=train, dev=train)
    assert task.labels == ["O", *sorted({*labels} - {"O"})]
    assert not any("are read as" in note for note in task.read("train").notes)


def test_rows_that_a_reviewer_rejected_are_left_out(tmp_path):
    path = str(shared("forms/reviewed_spans.jsonl"))
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found = tags_task(dev=path, spans="spans").read("dev")
    labels = [label for text in found for label in text.labels]
    assert len(found) == labels.count("B-PER") == 60
    assert {*labels} == {"O", "B-PER", "I-PER"}
    left = sum('"accept"' not in line for line in lines)
    note = f"{left} rows left out, with 'reject'"
    assert left > 0 and sum(note in x for x in found.notes) == 1
    # As one list of objects.
    listed = tmp_path / "a.json"
    listed.write_text(json.dumps([json.loads(line) for line in lines if line]))
    again = tags_task(dev=str(listed), spans="spans").read("dev")
    assert [t.labels for t in again] == [t.labels for t in found]
    # A test file has no answers, so all its rows are predicted.
    assert len(tags_task(test=path, spans="spans").read("test")) == 60 + left


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_rejected_rows_are_left_out_beside_rows_without_answer(tmp_path, kind):
    rows = [("a", "x", ""), ("b", "z", "reject"), ("c", "y", "accept")]
    keys = ("text", "label", "answer")
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    else:
        separator = {"csv": ",", "tsv": "\t"}[kind]
        lines = [separator.join(row) for row in [keys, *rows]]
    path.write_text("\n".join(lines))
    task = classify_task(str(path), str(path))
    assert task.labels == ["x", "y"]
    found = task.read("train")
    assert [row.text for row in found] == ["a", "c"]
    assert sum("1 row left out, with 'reject'" in x for x in found.notes) == 1


def test_a_rejected_row_may_have_faults_and_its_columns_are_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        ("a", "x", 1, "accept"),
        (["b"], "y", 2, "reject"),
        ("c", "y", 3, ""),
    ]
    keys = ("text", "label", "key", "answer")
    lines = (json.dumps(dict(zip(keys, row, strict=True))) for row in rows)
    path.write_text("\n".join(lines))
    task = classify_task(str(path), str(path))
    assert [row.text for row in task.read("dev")] == ["a", "c"]
    assert task.source.read_columns("dev", ["key"]) == [["1"], ["3"]]


def test_an_answer_of_another_kind_leaves_no_row_out(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [("a", "x", "accept"), ("b", "y", "reject"), ("c", "y", "not sure")]
    keys = ("text", "label", "answer")
    lines = (json.dumps(dict(zip(keys, row, strict=True))) for row in rows)
    path.write_text("\n".join(lines))
    task = classify_task(str(path), str(path))
    assert [row.text for row in task.read("train")] == ["a", "b", "c"]
    task = classify_task(str(path), str(path), label="answer")
    assert task.labels == ["accept", "not sure", "reject"]
    path.write_text(path.read_text().replace("not sure", "accept"))
    task = classify_task(str(path), str(path))
    assert [row.text for row in task.read("train")] == ["a", "c"]


def test_a_table_with_a_word_a_row_is_read_by_sentences(tmp_path):
    path = str(shared("forms/word_a_row.csv"))
    columns = {"words": "Word", "tags": "Tag", "sentence": "Sentence #"}
    found = tags_task(dev=path, **columns).read("dev")
    labels = [label for text in found for label in text.labels]
    assert len(found) == 60 and {len(text.words) for text in found} == {7}
    assert sum(label.startswith("B-") for label in labels) == 120
    assert found[0].words == tuple("Ola Karisen lives in New Lund .".split())
    del columns["sentence"]
    with pytest.raises(InputError, match="each row has one word.*--sentence"):
        tags_task(dev=path, **columns).read("dev")
    rows = [  # numbered in each row, and anew in the second file
        ("New York", "B-LOC", "1"),
        ("['x']", "O", "1"),
        ("Oslo", "B-LOC", "2"),
    ]
    header = ("words", "tags", "sentence")
    path = write_csv(tmp_path / "a.csv", rows, header)
    other = write_csv(tmp_path / "b.csv", [("ran", "O", "2")], header)
    asked = {"sentence": "sentence"}
    task = tags_task(dev=f"{path},{other}", test=path, **asked)
    words = [("New York", "['x']"), ("Oslo",), ("ran",)]
    assert [text.words for text in task.read("dev")] == words
    assert [text.labels for text in task.read("test")] == [None, None]
    assert [text.words for text in task.read("test")] == words[:2]
    path = write_csv(tmp_path / "c.csv", [("a", "", "1"), *rows], header)
    with pytest.raises(InputError, match="these cells, or remove the rows$"):
        tags_task(dev=path, **asked).read("dev")
    for other in ({"spans": "spans"}, {"drop_unlabelled": True}):
        with pytest.raises(InputError, match="--sentence only applies without"):
            tags_task(dev=path, **asked, **other)


@pytest.mark.parametrize(
    "lines",
    [
        None,  # of seven words each
        ["Anna lives in Oslo", "Nobody came at all"],  # may be labels
        ["Anna lives in Oslo .", "Nobody came ."],
        ["Anna", "Nobody came"],
    ],
)
def test_a_sentence_a_line_is_no_file_of_columns(tmp_path, lines):
    path = tmp_path / "test.txt"
    if lines is None:
        path = shared("forms/sentences.txt")
    else:
        path.write_text("\n".join(lines))
    task = tag_task(test=str(path))
    task.take_arguments({"labels": ["O", "B-PER", "I-PER"]})
    with pytest.raises(InputError, match="a word on each line.*column 'words'"):
        task.read("test")
    # The advice of the message:
    rows = [(line,) for line in path.read_text().splitlines()]
    table = write_csv(tmp_path / "a.csv", rows, ("words",))
    found = tags_task(test=table).read("test")
    assert [" ".join(text.words) for text in found] == [row for (row,) in rows]


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("Anna\nran\n\nBo\n", None),
        ("Anna\tNN .\nran\tVB .\n\nBo\tNN .\n", None),
        ("Anna _ -X-\nran _ _\n\nBo _ _\n", None),
        ("Anna NN B-PER\nran VB O\n\nBo NN B-DOG\n", ("B-DOG",)),
    ],
)
def test_a_test_file_of_columns_is_read_as_before(tmp_path, content, labels):
    path = tmp_path / "test.txt"
    path.write_text(content)
    task = tag_task(test=str(path))
    task.take_arguments({"labels": ["O", "B-PER", "I-PER"]})
    first, second = task.read("test")
    assert first.words == ("Anna", "ran") and second.words == ("Bo",)
    assert second.labels == labels


def read_tagged(path, text, **columns):
    path.write_text(text)
    return tag_task(train=str(path), dev=str(path), **columns).read("dev")


def test_a_line_of_names_is_no_word(tmp_path):
    path, rows = tmp_path / "a.txt", "Ola\tB-PER\nran\tO\n"
    with pytest.raises(InputError, match="--words=word --tags=tag, or remove"):
        read_tagged(path, f"word\ttag\n{rows}")
    with pytest.raises(InputError, match="--words=word --tags=tag, or remove"):
        read_tagged(path, f"word\ttag\n{rows}".replace("-", "_"))
    path.write_text(f"word\ttag\n{rows}")
    columns = {"words": "word", "tags": "tag"}
    (found,) = read_tagged(path, path.read_text(), **columns)
    assert found.words == ("Ola", "ran")
    # Labels without prefixes may be anything.
    (found,) = read_tagged(path, "Ola PER\nran O\nOslo LOC\n")
    assert found.labels == ("PER", "O", "LOC")


def test_columns_in_another_order_or_with_commas_are_refused(tmp_path):
    path, text = tmp_path / "a.txt", "B-PER Ola\nO ran\n"
    with pytest.raises(InputError, match="'B-PER', are in the column of words"):
        read_tagged(path, text)
    (found,) = read_tagged(path, text, words=2, tags=1)
    assert found.words == ("Ola", "ran") and found.labels == ("B-PER", "O")
    found = read_tagged(path, "doc1 Ola B-PER\ndoc1 ran O\n")
    assert "equal to the others of its sentence, such as 'doc1'" in str(
        found.notes
    )
    with pytest.raises(InputError, match="several labels, 'B-PER O'; .* make"):
        read_tagged(path, "Ola ran\tB-PER O\n")
    (found,) = read_tagged(path, "Ola\tB-Big Dog\nran\tO\n")
    assert found.labels == ("B-Big Dog", "O")
    with pytest.raises(InputError, match="every word ends in a comma"):
        read_tagged(path, "Ola, B-PER\nran, O\n")


@pytest.mark.parametrize("sign", "/|_")
def test_words_that_are_joined_to_their_labels_are_refused(tmp_path, sign):
    lines = ["Ada/NNP ran/VBD\n", "home/NN now/RB\n"]
    lines = [line.replace("/", sign) for line in lines]
    path = tmp_path / "a.txt"
    path.write_text("".join(lines) + f".{sign}. .{sign}.\n")
    expected = re.escape(f"last {sign!r} of each; expected a word on each line")
    for split in ("train", "test"):
        with pytest.raises(InputError, match=f"labels, 'Ada.*{expected}"):
            tag_task(**{split: str(path)}).read(split)
    # The advice of the message:
    words = "".join(lines).replace("\n", " \n").replace(" ", "\n")
    text = re.sub(rf"\{sign}(\S+)\n", "\t\\1\n", words)
    found = read_tagged(path, text)
    assert [x.words for x in found] == [("Ada", "ran"), ("home", "now")]
    # Some words have such a sign.
    (found,) = read_tagged(path, f"and{sign}or B{sign}CC\nOla B{sign}PER\n")
    assert found.words == (f"and{sign}or", "Ola")


def test_two_columns_of_tabs_are_words_and_labels(tmp_path):
    text = "A/B\tB_PER\nC/D\tI_PER\n"
    (found,) = read_tagged(tmp_path / "a.txt", text)
    assert found.words == ("A/B", "C/D")


def test_comments_are_no_words_beside_labels_without_prefixes(tmp_path):
    text = "# d1\nOla PER\nran O\n\n# d2\nBo PER\n"
    found = read_tagged(tmp_path / "a.txt", text)
    assert [x.words for x in found] == [("Ola", "ran"), ("Bo",)]
    found = read_tagged(tmp_path / "a.txt", text.replace("d2", "O"))
    assert [x.words[0] for x in found] == ["#", "#"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("# id = 1\n# a\nAnna\tB-PER\nran\tO\n", ["Anna", "ran"]),
        ("#1 B-PER\nran O\n", ["#1", "ran"]),
        ("# O\nran O\n", ["#", "ran"]),
        ("Anna B-PER\n# O\nran O\n", ["Anna", "#", "ran"]),
        ("# note\n-DOCSTART- O\n\n# id x\nran O\n", ["ran"]),
        ("# PUN\nran VERB\n", ["#", "ran"]),
    ],
)
def test_a_word_may_begin_with_a_number_sign(tmp_path, content, words):
    path = tmp_path / "dev.txt"
    path.write_text(content)
    for split in ("dev", "test"):
        found = tag_task(**{split: str(path)}).read(split)
        assert [word for text in found for word in text.words] == words


def test_words_that_are_all_numbers_are_noted(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("1\tAnna\tB-PER\n2\tran\tO\n")
    (note,) = tag_task(train=str(path)).read("train").notes
    assert "every word of the train file is a number, such as '1'" in note
    advice = dict(re.findall(r"--(\w+)=(\d)", note))
    (text,) = tag_task(train=str(path), **advice).read("train")
    assert (text.words, text.labels) == (("Anna", "ran"), ("B-PER", "O"))


def test_words_and_labels_may_be_in_other_columns(tmp_path):
    path = str(shared("forms/index_first.tsv"))
    task = tag_task(train=path, dev=path, test=path, words="2", tags="3")
    assert task.labels == ["O", "B-LOC", "B-PER", "I-LOC", "I-PER"]
    for split in ("train", "dev", "test"):
        found = task.read(split)
        labels = [label for text in found for label in text.labels]
        assert len(found) == 60 and not found.notes
        assert sum(label.startswith("B-") for label in labels) == 120
        assert found[0].words[:2] == ("Ola", "Karisen")
    for asked in ({"words": "Word"}, {"tags": "0"}):
        with pytest.raises(InputError, match="no number of a column, from 1"):
            tag_task(train=path, **asked).read("train")
    with pytest.raises(InputError, match="line 1: expected 5 columns or more"):
        tag_task(dev=path, tags="5").read("dev")
    path = tmp_path / "test.tsv"
    path.write_text("1\tOla\n2\tran\n")
    (text,) = tag_task(test=str(path), words="2", tags="3").read("test")
    assert (text.words, text.labels) == (("Ola", "ran"), None)
    named = tmp_path / "named.tsv"
    lines = Path(shared("forms/index_first.tsv")).read_text()
    named.write_text("id\tword\ttag\tother\n\n" + lines)
    asked = {"words": "word", "tags": "tag"}
    task = tag_task(train=str(named), dev=str(named), **asked)
    assert task.read("dev") == [
        text._replace(document=(named, text.document[1])) for text in found
    ]
    path.write_text("id word\n1 Ola\n2 ran\n")
    (text,) = tag_task(test=str(path), **asked).read("test")
    assert (text.words, text.labels) == (("Ola", "ran"), None)
    asked["tags"] = "Tag"
    with pytest.raises(InputError, match="--tags=Tag .* 'id, word, tag, other"):
        tag_task(train=str(named), **asked).read("train")


def test_conll_u_is_read_by_columns_without_its_joined_words(tmp_path):
    path = tmp_path / "dev.conllu"
    rows = ["1-2\tdont\t_\t_", "1\tdo\tdo\tAUX", "2\tnt\tnot\tPART"]
    rows += ["2.1\tgo\tgo\tVERB", "3\t#go\tgo\tVERB"]
    rest = "\t_\t_\t_\t_\t_\t_\n"
    lines = "".join(row + rest for row in rows)
    path.write_text(f"# sent_id = 1\n# text = dont go\n{lines}\n" * 2)
    found = tag_task(dev=str(path), words="2", tags="4").read("dev")
    assert [text.words for text in found] == [("do", "nt", "#go")] * 2
    assert found[0].labels == ("AUX", "PART", "VERB")


def test_labels_without_a_type_are_those_of_one_type(tmp_path):
    train = tags_file(tmp_path / "train.txt", "B", "I", "O")
    dev = tags_file(tmp_path / "dev.txt", "O", "B")
    task = tag_task(train=train, dev=dev)
    assert task.labels == ["O", "B-ENTITY", "I-ENTITY"]
    (text,) = task.read("dev")
    assert text.labels == ("O", "B-ENTITY")
    assert "such as 'B' are read as 'B-ENTITY'" in task.read("dev").notes[0]
    train = tags_file(tmp_path / "train.txt", "B", "B-PER", "O")
    with pytest.raises(InputError, match="the label 'B' without a type"):
        print(tag_task(train=train).labels)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (
            "#FORMAT=WebAnno TSV 3.3\n#Text=Anna ran\n1-1\t0-4\tAnna\tPER\n",
            "INCEpTION's WebAnno TSV. Export .* as CoNLL 2002",
        ),
        ("T1\tPER 0 4\tAnna\nT2\tLOC 9 13\tOslo\n", "brat's .* --spans=spans"),
    ],
)
def test_annotations_without_columns_are_called_by_their_tool(
    tmp_path, content, advice
):
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=advice) as error:
        tag_task(train=str(path)).read("train")
    if "JSONL" not in str(error.value):  # INCEpTION's CoNLL 2002
        path.write_text("Anna B-PER\nran O\n\n")
        assert len(tag_task(train=str(path)).read("train")) == 1
        return
    line = re.search(r"\{.*\}\]\}", str(error.value))[0]
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    (text,) = tags_task(dev=str(path), spans="spans").read("dev")
    assert text.labels == ("B-PER", "O")


@pytest.mark.parametrize("is_list", [False, True])
def test_json_is_no_file_of_columns(tmp_path, is_list):
    row = {"words": ["Anna", "ran"], "tags": ["B-PER", "O"]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([row], indent=1) if is_list else json.dumps(row))
    for split in ("train", "test"):
        with pytest.raises(InputError, match="is JSON, .* give --task=tags"):
            tag_task(**{split: str(path)}).read(split)
    assert tags_task(dev=str(path)).read("dev")[0].labels == ("B-PER", "O")


def test_the_message_on_a_missing_field_names_only_the_rows_fields(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "stars": 1}\n')
    with pytest.raises(InputError) as error:
        classify_task(str(path)).read("train")
    expected = "'label', got one with 'text', 'stars', '{\"text\": \"a\", "
    assert expected in str(error.value)


def test_a_table_without_names_and_a_quoted_tsv_get_the_advice(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("I loved it,1\nI left,0\n")
    with pytest.raises(
        InputError, match="add a line of names: these look like"
    ):
        classify_task(str(path)).read("train")
    path.write_text("text,label\n" + path.read_text())
    assert len(classify_task(str(path), str(path)).read("train")) == 2
    content = 'text\tlabel\n"I\nloved"\t1\nI left\t0\n'
    path = tmp_path / "quoted.tsv"
    path.write_text('text\tlabel\n"a ""b"""\t1\n"c"\t0\n')
    found = classify_task(str(path), str(path)).read("dev")
    note = "line 2: the quotes around cells.* are read as text.* name the file"
    assert sum(re.search(note, x) is not None for x in found.notes) == 1
    path.write_text('text\tlabel\na\t"[""x""]"\n')
    with pytest.raises(InputError, match="line 2: quotes are text.*name the"):
        classify_task(str(path)).read("train")
    path.write_text('"text"\t"label"\n"a"\t"1"\n"b"\t"0"\n')
    with pytest.raises(InputError, match="name the file .csv, and"):
        classify_task(str(path)).read("train")
    path = tmp_path / "a.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match="line 2: .*name the file .csv, and"):
        classify_task(str(path)).read("train")
    path = str(path.rename(tmp_path / "b.csv"))
    (first, _) = classify_task(path, path, separator="tab").read("train")
    assert first.text == "I\nloved"


FORMS = ("csv", "tsv", "jsonl", "json", "parquet", "tfds", "hf")


def write_form(form, folder, rows, features):
    """Write rows, a list of dicts, in a form; return the name to read.

    `features` has a TFDS feature for each column, for the form "tfds".
    """
    path = folder / f"rows.{form}"
    if form == "tfds":
        return store(folder / "tfds", rows, features)
    if form == "hf":
        import datasets

        (folder / "hf").mkdir()
        labels = {
            name: datasets.ClassLabel(names=one.names)
            for name, one in features.items()
            if isinstance(one, tfds.features.ClassLabel)
        }
        data_set = datasets.Dataset.from_list(rows)
        for name, feature in labels.items():
            data_set = data_set.cast_column(name, feature)
        data_set.to_parquet(folder / "hf" / "train.parquet")
        return f"hf:{folder}/hf:train"
    if form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif form == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif form == "jsonl":
        lines = (json.dumps(row) + "\n" for row in rows)
        path.write_text("".join(lines), encoding="utf-8")
    else:
        between = {"csv": ",", "tsv": "\t"}[form]
        lines = [rows[0], *(row.values() for row in rows)]
        lines = (between.join(map(str, line)) + "\n" for line in lines)
        path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("form", FORMS)
def test_predictions_have_the_ids_of_their_rows(tmp_path, form):
    rows = [
        {"id": f"r{n}", "text": f"text {n}", "label": "xy"[n % 2]}
        for n in range(4)
    ]
    text = tfds.features.Text()
    features = dict.fromkeys(("id", "text", "label"), text)
    name = write_form(form, tmp_path, rows, features)
    task = classify_task(name, name)
    examples = task.read("dev")
    task.write(examples, np.eye(2)[[0, 1, 1, 0]], tmp_path)
    found = read_csv(tmp_path / "predictions.csv")
    assert list(found[0])[:2] == ["id", "text"]
    assert [(row["id"], row["text"]) for row in found] == [
        (row["id"], row["text"]) for row in rows
    ]
    # A column of this name that the task reads is not repeated.
    for asked in ({"text": "id"}, {"label": "id"}):
        task = classify_task(name, name, **asked)
        examples = task.read("dev")
        task.write(examples, np.eye(4)[:, : len(task.labels)], tmp_path)
        assert "id" not in read_csv(tmp_path / "predictions.csv")[0]


def test_rows_may_lack_an_id_or_repeat_it(tmp_path):
    ids = [7, None, {"$oid": "5f"}, 7]
    rows = [
        {"question": f"q{n}", "context": "Ada ran.", "answer": "Ada"}
        for n in range(4)
    ]
    lines = [{**row, "id": key} for row, key in zip(rows, ids, strict=True)]
    del lines[1]["id"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    task = spans_task(dev=str(path))
    answers = [Answer(f"a{n}") for n in range(4)]
    task.write(task.read("dev"), answers, tmp_path)
    expected = {str(n): f"a{n}" for n in range(4)}
    written = tmp_path / "predictions.json"
    assert json.loads(written.read_text()) == expected
    task = classify_task(dev=str(path), text="question", label="answer")
    task.take_arguments({"labels": ["Ada", "Bo"]})
    task.write(task.read("dev"), np.eye(2)[[0, 1, 1, 0]], tmp_path)
    found = [row["id"] for row in read_csv(tmp_path / "predictions.csv")]
    assert found == ["7", "", '{"$oid": "5f"}', "7"]


def test_each_task_of_a_table_writes_the_ids_of_the_rows(tmp_path):
    def write(name, **columns):
        columns = {"id": ["a", "b"], **columns}
        rows = zip(*columns.values(), strict=True)
        return write_csv(tmp_path / name, rows, list(columns))

    def ids(name):
        return [row["id"] for row in read_csv(tmp_path / name)]

    path = write("c.csv", prompt="pp", choice0="xx", choice1="yz", label="01")
    task = choices_task(dev=path)
    examples = task.read("dev")
    task.write(examples, np.eye(2), tmp_path)
    assert ids("predictions.csv") == ["a", "b"]
    read = task.read_predictions(tmp_path / "predictions.csv", examples)
    assert read.tolist() == np.eye(2).tolist()
    path = write("p.csv", text="xy", text_pair="vw", label="01")
    for make in (rank_task, embed_task):
        task = make(train=path, dev=path, label="label")
        task.write(task.read("dev"), np.zeros(2), tmp_path)
        assert ids("predictions.csv") == ["a", "b"]
    task = embed_task(dev=path)
    queries = task.read("dev")
    ranking = Ranking.best(np.array([[0.9, 0.1], [0.1, 0.9]]), 2)
    task.write(queries, ranking, tmp_path)
    assert ids("predictions.csv") == ["a", "a", "b", "b"]
    rows = {"question": "xy", "context": ["Ada", "Bo"], "answer": ["Ada", ""]}
    task = spans_task(dev=write("s.csv", **rows))
    examples = task.read("dev")
    task.write(examples, [Answer("Ada", -1.0), Answer("", 1.0)], tmp_path)
    path = tmp_path / "predictions.json"
    assert json.loads(path.read_text()) == {"a": "Ada", "b": ""}
    assert [a.text for a in task.read_predictions(path, examples)] == [
        "Ada",
        "",
    ]
    path.write_text('{"0": "Ada", "1": ""}')  # as earlier versions wrote it
    with pytest.raises(InputError, match="number of their row"):
        task.read_predictions(path, examples)
    for rows, spans in (
        ({"words": ["Ada ran", "Bo"], "tags": ["B-P O", "O"]}, None),
        ({"text": ["Ada ran", "Bo"], "s": ['[[0,3,"P"]]', "[]"]}, "s"),
    ):
        task = tags_task(dev=write("t.csv", **rows), spans=spans)
        examples = task.read("dev")
        predicted = [Tags(["B-P", "O"]), Tags(["O"])]
        task.write(examples, predicted, tmp_path)
        lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [row["id"] for row in found] == ["a", "b"]
        if not spans:
            assert found[0]["words"] == ["Ada", "ran"]
            assert found[0]["tags"] == ["B-P", "O"]


def argilla_record(number, values, question="label"):
    """Return a record of Argilla 2; `values` are the responses of users."""
    responses = [
        {"value": value, "user_id": str(n)} for n, value in enumerate(values)
    ]
    return {
        "id": f"r{number}",
        "fields": {"text": f"Ada ran {number}"},
        "metadata": {"source": "a"},
        "suggestions": {question: {"value": "z", "score": 0.9, "agent": "m"}},
        "responses": {question: responses} if values else {},
        "vectors": {},
        "status": "completed" if values else "pending",
        "_server_id": f"s{number}",
    }


ARGILLA = [["x"], ["y"], [], ["x", "y"], ["y", "y"]]  # responses of 5 records


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_argillas_records_have_the_responses_as_labels(tmp_path, form):
    records = [argilla_record(*pair) for pair in enumerate(ARGILLA)]
    path = tmp_path / f"a.{form}"
    lines = map(json.dumps, records if form == "jsonl" else [records])
    path.write_text("\n".join(lines))
    task = classify_task(str(path), str(path), test=str(path))
    found = task.read("dev")
    assert task.labels == ["x", "y"]
    assert [(row.text[-1], row.label) for row in found] == [
        ("0", 0),
        ("1", 1),
        ("4", 1),
    ]
    assert [row.row_id for row in found] == ["r0", "r1", "r4"]
    notes = " ".join(found.notes)
    assert "1 record left out, without a submitted response" in notes
    assert "1 disputed record left out" in notes
    assert len(task.read("test")) == 5
    if form == "json":
        with pytest.raises(InputError, match="no column 'tone'.*'label'"):
            classify_task(str(path), label="tone").read("train")
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    records = [argilla_record(n, [x], "ner") for n, x in enumerate([spans, []])]
    lines = map(json.dumps, records if form == "jsonl" else [records])
    path.write_text("\n".join(lines))
    found = tags_task(dev=str(path), spans="ner").read("dev")
    assert [text.labels for text in found] == [("B-PER", "O", "O"), ("O",) * 3]
    sets = [[["x", "y"]], [[]], [["y"]]]
    records = [argilla_record(n, x) for n, x in enumerate(sets)]
    lines = map(json.dumps, records if form == "jsonl" else [records])
    path.write_text("\n".join(lines))
    task = multilabel_task(str(path), str(path))
    assert [row.label for row in task.read("dev")] == [{0, 1}, set(), {1}]


@pytest.mark.parametrize(
    "form", ["jsonl", "parquet", "hf", "csv", "old", "stacked"]
)
def test_argillas_flat_records_have_the_submitted_responses(tmp_path, form):
    label = "label" if form in ("old", "stacked") else "label.responses"
    rows = []
    for n, values in enumerate([*ARGILLA, ["y", "x"]]):
        statuses = ["submitted"] * len(values)
        if n == 5:
            statuses[0] = "discarded"
        row = {"id": f"r{n}", "text": f"Ada ran {n}", "label.suggestion": "z"}
        if label == "label":  # Argilla 1
            row[label] = [
                {"user_id": "u", "value": value, "status": status}
                for value, status in zip(values, statuses, strict=True)
            ]
        else:
            row[label] = values or None
            row[f"{label}.users"] = ["u"] * len(values) or None
            row[f"{label}.status"] = statuses or None
        rows.append(row)
    if form == "csv":  # as pandas writes it
        cells = [["" if x is None else x for x in r.values()] for r in rows]
        name = write_csv(tmp_path / "a.csv", cells, list(rows[0]))
    elif label == "label":
        # Argilla 1 has an empty list without responses.
        rows = [row for row in rows if row[label]]
        if form == "stacked":  # as old versions of `datasets` store the list
            keys = ("user_id", "value", "status")
            rows = [
                row | {label: {k: [x[k] for x in row[label]] for k in keys}}
                for row in rows
            ]
        name = write_form("jsonl", tmp_path, rows, {})
    else:
        name = write_form(form, tmp_path, rows, {})
    task = classify_task(name, name, label=label)
    assert task.labels == ["x", "y"]
    found = [(row.text[-1], row.label) for row in task.read("dev")]
    assert found == [("0", 0), ("1", 1), ("4", 1), ("5", 0)]
    with pytest.raises(InputError, match="'tone'.* 'label.suggestion', "):
        classify_task(name, label="tone").read("train")


def test_spans_with_the_label_first_are_those_of_argilla_1(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"text": "Ada ran", "annotation": [["PER", 0, 3]]}
    path.write_text(json.dumps(row))
    (text,) = tags_task(dev=str(path), spans="annotation").read("dev")
    assert text.labels == ("B-PER", "O")
    path.write_text(json.dumps({**row, "annotation": [[]]}))
    with pytest.raises(InputError, match="expected a list of spans"):
        tags_task(dev=str(path), spans="annotation").read("dev")


def test_texts_that_are_lists_or_bytes_get_a_note(tmp_path):
    pairs = [("a", "['x', 'y']", "0"), ("c", "b'y'", "1")]
    path = write_csv(tmp_path / "a.csv", pairs, ("text", "text_pair", "label"))
    found = classify_task(path, path, text_pair="text_pair").read("train")
    assert sum("\"['x', 'y']\" is a list" in x for x in found.notes) == 1
    found = classify_task(path, path).read("train")
    assert not any("list" in note for note in found.notes)


def test_spans_of_words_with_prefixes_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for second in ("I-PER", "E-mail"):
        spans = [[0, 3, "B-PER"], [4, 6, second]]
        path.write_text(json.dumps({"text": "Ola Li", "spans": spans}))
        task = tags_task(dev=str(path), spans="spans")
        if second == "E-mail":
            (text,) = task.read("dev")
            assert text.labels == ("B-B-PER", "B-E-mail")
            continue
        with pytest.raises(InputError, match="line 1: .* such as 'PER', got"):
            task.read("dev")


def test_a_span_with_the_label_of_no_entity_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    spans = [[0, 3, "PER"], [4, 7, "O"]]
    path.write_text(json.dumps({"text": "Ada ran", "spans": spans}))
    with pytest.raises(InputError, match="line 1: .* label 'O', which means"):
        tags_task(dev=str(path), spans="spans").read("dev")
    path.write_text(json.dumps({"text": "Ada ran", "spans": spans[:1]}))
    (found,) = tags_task(dev=str(path), spans="spans").read("dev")
    assert found.labels == ("B-PER", "O")


def test_fasttexts_lines_have_their_labels(tmp_path):
    path = tmp_path / "reviews.ft.txt"
    lines = ["__label__2 A good film: yes", "__label__1 Bad", "", "__label__1"]
    path.write_text("\n".join(lines))
    packed = tmp_path / "reviews.ft.txt.bz2"
    packed.write_bytes(bz2.compress(path.read_bytes()))
    for name in (str(path), str(packed)):
        task = classify_task(name, name)
        assert task.labels == ["1", "2"]
        found = [(row.text, row.label) for row in task.read("dev")]
        assert found == [("A good film: yes", 1), ("Bad", 0), ("", 0)]
    asked = read_inputs([str(path)], None, ["text"], [False])
    assert list(asked) == [["A good film: yes"], ["Bad"], [""]]
    # `readWord` of fastText's dictionary.cc splits at these characters.
    for blank in " \t\v\f":
        path.write_text(f"__label__a{blank}x\n__label__b{blank}y y\n")
        found = classify_task(str(path), str(path)).read("dev")
        assert [(x.text, x.label) for x in found] == [("x", 0), ("y y", 1)]
    path.write_text("__label__a __label__b x\n__label__b y\n")
    task = multilabel_task(str(path), str(path))
    assert [row.label for row in task.read("dev")] == [{0, 1}, {1}]
    with pytest.raises(InputError, match="columns of fastText's format are"):
        classify_task(str(path), text="review").read("train")
    path.write_text("x\n")
    with pytest.raises(InputError, match="expected a file that ends in .csv"):
        classify_task(str(path)).read("train")


def test_json_with_one_object_is_pandas_table_or_refused(tmp_path):
    path = tmp_path / "a.json"
    table = {"text": {"0": "a", "7": "b"}, "label": {"0": "x", "7": "y"}}
    path.write_text(json.dumps(table, indent=1))
    task = classify_task(str(path), str(path))
    assert [(r.text, r.label) for r in task.read("dev")] == [("a", 0), ("b", 1)]
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    path.write_text(json.dumps(dict(enumerate(rows))))  # orient="index"
    task = classify_task(str(path), str(path))
    assert [(r.text, r.label) for r in task.read("dev")] == [("a", 0), ("b", 1)]
    for content, advice in (
        ({"version": "1", "data": [{"paragraphs": []}]}, "--task=squad1"),
        ({"examples": rows}, "Expected a list.*'examples', write this list"),
        (5, "got '5'"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=advice):
            classify_task(str(path)).read("train")
    path.write_text(json.dumps(rows))
    assert len(classify_task(str(path), str(path)).read("dev")) == 2
    path.write_text("\n".join(map(json.dumps, rows)))
    assert len(classify_task(str(path), str(path)).read("dev")) == 2
    path.write_text(json.dumps(rows[0]))
    assert len([*read_rows(path, ["text", "label"])]) == 1


def test_kaggles_words_are_latin_1(tmp_path):
    path = tmp_path / "ner_dataset.csv"
    lines = ["Sentence #,Word,POS,Tag", "Sentence: 1,Zo\u00eb,NNP,B-per"]
    lines += [",\u00e0,IN,O", ",N\u00eemes,NNP,B-geo", "Sentence: 2,a,DT,O"]
    path.write_text("\n".join(lines), encoding="latin-1")
    asked = {"words": "Word", "tags": "Tag", "sentence": "Sentence #"}
    with pytest.raises(InputError, match="give --encoding=cp1252") as error:
        tags_task(dev=str(path), **asked).read("dev")
    encoding = re.search("--encoding=(\\w+)", str(error.value))[1]
    found = tags_task(dev=str(path), encoding=encoding, **asked).read("dev")
    assert found[0].words == ("Zo\u00eb", "\u00e0", "N\u00eemes")
    assert [text.labels for text in found] == [("B-per", "O", "B-geo"), ("O",)]


def test_doccanos_relations_have_their_entities(tmp_path):
    path = tmp_path / "all.jsonl"
    entities = [(1, 0, 3, "PER"), (2, 12, 16, "LOC")]
    keys = ("id", "start_offset", "end_offset", "label")
    row = {
        "id": 9,
        "text": "Ada lives in Bern",
        "entities": [dict(zip(keys, x, strict=True)) for x in entities],
        "relations": [{"id": 1, "from_id": 1, "to_id": 2, "type": "in"}],
        "Comments": [],
    }
    row["entities"][1] |= {"start_offset": 13, "end_offset": 17}
    path.write_text(json.dumps(row, ensure_ascii=False))
    (text,) = tags_task(dev=str(path), spans="entities").read("dev")
    assert (text.labels, text.row_id) == (("B-PER", "O", "O", "B-LOC"), "9")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.xlsx", "save the sheet as CSV UTF-8"),
        ("a.spacy", "DocBin.*--spans=spans"),
        ("a.conllu", "--task=ner"),
        ("a.pkl", 'orient="records", lines=True'),
        ("a.ann", "--spans=spans"),
        ("a.arrow", "hf:FOLDER"),
    ],
)
def test_files_of_other_forms_get_an_advice(tmp_path, name, advice):
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match=f"ends in .csv.*{advice}"):
        classify_task(str(path)).read("train")
    if name == "a.spacy":  # the line that the advice writes
        span = {"start": 0, "end": 3, "label": "PER"}
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": "Ada ran", "spans": [span]}))
        (text,) = tags_task(dev=str(path), spans="spans").read("dev")
        assert text.labels == ("B-PER", "O")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tsv", "a.csv.gz"])
def test_a_file_with_lines_of_two_encodings_is_read_line_by_line(
    tmp_path, name
):
    texts = ["gr\u00fcn", "\u20ac 5", "na\u00efve", "plain", "caf\u00c9\u00bb"]
    texts += ["\U0001f600", "\u0410\u043d\u043d\u0430", "Stra\u00dfe"]
    utf8 = {1, 2, 5, 6}  # the last but two are not in cp1252
    labels = ["x" if n in utf8 else "y" for n in range(len(texts))]
    path = tmp_path / name
    rows = list(zip(texts, labels, strict=True))
    lines = [f"{text},{label}" for text, label in [("text", "label"), *rows]]
    if ".tsv" in name:
        lines = [line.replace(",", "\t") for line in lines]
    if ".jsonl" in name:
        lines = [
            json.dumps({"text": text, "label": label}, ensure_ascii=False)
            for text, label in rows
        ]
    data = b"".join(
        line.encode("utf-8" if line.strip('}"')[-1] == "x" else "cp1252")
        + b"\n"
        for line in lines
    )
    path.write_bytes(gzip.compress(data) if ".gz" in name else data)
    with pytest.raises(InputError, match="give --encoding=cp1252"):
        classify_task(str(path)).read("train")
    task = classify_task(str(path), str(path), encoding="cp1252")
    found = task.read("dev")
    assert [row.text for row in found] == texts
    note = "4 lines are read as UTF-8, the others as cp1252"
    assert sum(note in one for one in found.notes) == 1
    asked = read_inputs(
        [str(path)], None, ["text"], [False], make_dialect(None, "cp1252")
    )
    assert [text for (text,) in asked] == texts


def test_a_file_of_one_encoding_is_read_as_before(tmp_path):
    path = tmp_path / "a.csv"
    texts = [
        "gr\u00fcn",
        "CAF\u00c9\u00bb",
        "\u00e9\u2026\u00bb",
    ]  # valid UTF-8
    path.write_text("text\n" + "\n".join(texts), encoding="cp1252")
    notes: list = []
    dialect = make_dialect(None, "cp1252")
    rows = read_rows(path, ["text"], dialect=dialect, notes=notes)
    assert [text for _, (text,) in rows] == texts and not notes
    path.write_text("text\n\u8054\u901a\n\u4e2d", encoding="gbk")
    dialect = make_dialect(None, "gbk")
    rows = read_rows(path, ["text"], dialect=dialect, notes=notes)
    assert [text for _, (text,) in rows] == ["\u8054\u901a", "\u4e2d"]
    path.write_bytes(b"text\n\xe9\n\x81\n")
    with pytest.raises(InputError, match="expected CP1252 text, got .* 0x81"):
        rows = read_rows(path, ["text"], dialect=make_dialect(None, "cp1252"))
        list(rows)


REVIEWS = {  # path in the folder -> text
    "pos/1.txt": "Gr\u00fcn\r\nand good\n",
    "pos/deep/2.TXT": "fine",
    "neg/1.txt": "",
    "neg/10.txt": "bad\n\n",
    "neg/2.txt": "awful",
    "old/1.txt": "so so",
}


def write_folder(folder, texts, encoding="utf-8"):
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(encoding))
    return str(folder)


def test_a_folder_of_classes_is_read_as_keras_reads_it(tmp_path):
    folder = write_folder(tmp_path / "train", REVIEWS)
    data = keras.utils.text_dataset_from_directory(
        folder, batch_size=None, shuffle=False, verbose=False
    )
    truth = [(text.numpy().decode(), int(label)) for text, label in data]
    task = classify_task(train=folder, dev=folder)
    assert task.labels == data.class_names == ["neg", "old", "pos"]
    found = task.read("dev")
    assert [(row.text, row.label) for row in found] == truth
    assert len(truth) == len(REVIEWS)
    ids = {Path(row.row_id).relative_to(folder).as_posix() for row in found}
    assert ids == {*REVIEWS}
    task.write(found, np.eye(3)[[0] * 6], tmp_path)
    rows = read_csv(tmp_path / "predictions.csv")
    assert [row["id"] for row in rows] == [row.row_id for row in found]
    assert [row["text"] for row in rows] == [text for text, _ in truth]


def test_files_of_a_folder_that_are_not_texts_are_named(tmp_path):
    folder = write_folder(tmp_path / "train", REVIEWS)
    others = {"list.txt": "a", "neg/.a.txt": "b", "pos/notes.md": "c"}
    write_folder(tmp_path / "train", {**others, ".git/x/a.txt": "d"})
    task = classify_task(train=folder, dev=folder)
    found = task.read("dev")
    assert len(found) == len(REVIEWS) and task.labels == ["neg", "old", "pos"]
    note = "4 files not read: .git/x/a.txt, list.txt, neg/.a.txt, ..."
    assert sum(note in one for one in found.notes) == 1
    # Texts to predict need no classes.
    test = write_folder(tmp_path / "test", {"b.txt": "b", "a.txt": "a"})
    texts = {
        row.row_id: row.text for row in classify_task(test=test).read("test")
    }
    assert texts == {f"{test}/a.txt": "a", f"{test}/b.txt": "b"}
    with pytest.raises(InputError, match="expected a folder of .txt files"):
        classify_task(dev=test).read("dev")
    with pytest.raises(InputError, match="no column 'review'.*'text' and"):
        classify_task(dev=folder, text="review").read("dev")
    (tmp_path / "train" / "empty").mkdir()
    with pytest.raises(InputError, match="train/empty: expected .txt files"):
        classify_task(train=folder).read("train")
    for make in (tags_task, multilabel_task):
        with pytest.raises(InputError, match="is a folder; expected a file"):
            make(dev=folder).read("dev")


def test_splits_are_not_read_as_classes(tmp_path):
    for split in ("test", "train"):
        write_folder(tmp_path / "data" / split, REVIEWS)
    folder = str(tmp_path / "data")
    with pytest.raises(InputError, match="got the splits test, train") as error:
        classify_task(train=folder).read("train")
    advice = re.search("such as (\\S+)", str(error.value))[1]
    assert len(classify_task(dev=advice, train=advice).read("dev")) == 6
    # A class of vehicles.
    write_folder(tmp_path / "data", {"car/1.txt": "a", "car/2.txt": "b"})
    assert classify_task(train=folder).labels == ["car", "test", "train"]


def test_a_folder_in_another_encoding_needs_it_named(tmp_path):
    texts = {"a/1.txt": "gr\u00fcn", "b/1.txt": "rot"}
    folder = write_folder(tmp_path / "train", texts, "cp1252")
    with pytest.raises(InputError, match="a/1.txt: .* give --encoding=cp1252"):
        classify_task(train=folder).read("train")
    task = classify_task(train=folder, dev=folder, encoding="cp1252")
    assert [row.text for row in task.read("dev")] == ["gr\u00fcn", "rot"]


def test_a_folder_of_a_data_set_gets_its_name(tmp_path):
    import datasets

    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    text = tfds.features.Text()
    features = {"text": text, "label": text}
    named = [store(tmp_path / "tfds", rows, features)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    named.append(f"hf:{tmp_path / 'saved'}:train")
    for name in named:
        library, folder = re.fullmatch("(hf|tfds):([^:#]+).*", name).groups()
        with pytest.raises(InputError, match="a folder of a data set") as error:
            classify_task(train=folder).read("train")
        with pytest.raises(InputError, match="a folder of a data set"):
            tags_task(train=folder).read("train")
        advice = re.search("give (\\S+)", str(error.value))[1]
        assert advice == f"{library}:{folder}"
        assert len(classify_task(train=advice).source.read_files("train")) == 2


def test_a_run_on_a_folder_does_not_resume_with_other_files(tmp_path):
    folder = write_folder(tmp_path / "train", REVIEWS)

    def open_run():
        task = classify_task(train=folder, dev=folder)
        task.read("train")
        settings = {"train": folder}
        with RunFolder(tmp_path / "run", settings, task.data_files()) as run:
            run.check_inputs(read_versions(task))
        return task

    assert len(open_run().data_files()) == 2 * len(REVIEWS)
    open_run()
    added = tmp_path / "train/neg/3.txt"
    added.write_text("new")
    with pytest.raises(InputError, match="other files: .*neg/3.txt came"):
        open_run()
    added.rename(tmp_path / "3.txt")
    open_run()
    (tmp_path / "train/neg/2.txt").unlink()
    with pytest.raises(InputError, match="other files: .*neg/2.txt came"):
        open_run()


def test_a_label_that_only_dev_has_gets_a_fix(tmp_path):
    train = write_csv(tmp_path / "a.csv", [("a", "x"), ("b", "y")])
    dev = write_csv(tmp_path / "b.csv", [("a", "x"), ("b", "z")])
    with pytest.raises(InputError, match="x, y, got 'z'. .* add rows") as error:
        classify_task(train, dev).read("dev")
    assert "leave the row out" in str(error.value)
    write_csv(tmp_path / "a.csv", [("a", "x"), ("b", "y"), ("c", "z")])
    assert [r.label for r in classify_task(train, dev).read("dev")] == [0, 2]


@pytest.mark.parametrize("form", FORMS)
def test_readers_of_all_tables_read_data_sets_alike(tmp_path, form):
    names = ["neg", "pos"]
    label = tfds.features.ClassLabel(names=names)
    text, texts = tfds.features.Text(), tfds.features.Sequence
    features = {"id": text, "text": text, "label": label}
    rows = [
        {"id": f"r{n}", "text": f"Ada ran {n}", "label": names[n % 2]}
        for n in range(4)
    ]
    if form == "hf":  # stored as indices
        rows = [row | {"label": n % 2} for n, row in enumerate(rows)]
    name = write_form(form, tmp_path, rows, features)
    task = classify_task(train=name, dev=name)
    assert task.labels == names
    found = [(row.text, row.label, row.row_id) for row in task.read("dev")]
    assert found == [(f"Ada ran {n}", n % 2, f"r{n}") for n in range(4)]
    if form in ("csv", "tsv"):
        return  # lists in cells have tests of their own
    (tmp_path / "words").mkdir()
    rows = [
        {"words": ["Ada", "ran"], "tags": ["B-PER", "O"], "s": "a"},
        {"words": ["Bo"], "tags": ["B-PER"], "s": "b"},
    ]
    features = {"words": texts(text), "tags": texts(text), "s": text}
    name = write_form(form, tmp_path / "words", rows, features)
    found = tags_task(dev=name).read("dev")
    assert [(list(t.words), list(t.labels)) for t in found] == [
        (row["words"], row["tags"]) for row in rows
    ]
    (tmp_path / "multi").mkdir()
    rows = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": ["y"]}]
    features = {"text": text, "label": texts(text)}
    name = write_form(form, tmp_path / "multi", rows, features)
    found = multilabel_task(train=name, dev=name).read("dev")
    assert [row.label for row in found] == [{0, 1}, {1}]
    (tmp_path / "hot").mkdir()
    rows = [{"text": "a", "label": [1, 1]}, {"text": "b", "label": [0, 1]}]
    features = {"text": text, "label": texts(tfds.features.Scalar(np.int64))}
    name = write_form(form, tmp_path / "hot", rows, features)
    with pytest.raises(InputError, match="0s and 1s.*--classes=a,b"):
        multilabel_task(train=name).read("train")
    found = multilabel_task(train=name, dev=name, classes="x,y").read("dev")
    assert [row.label for row in found] == [{0, 1}, {1}]
    (tmp_path / "spans").mkdir()
    span = {"start": 0, "end": 3, "label": "PER"}
    rows = [{"text": "Ada ran", "spans": [span]}]
    number = tfds.features.Scalar(np.int64)
    features = {
        "text": text,
        "spans": texts({"start": number, "end": number, "label": text}),
    }
    name = write_form(form, tmp_path / "spans", rows, features)
    (found,) = tags_task(dev=name, spans="spans").read("dev")
    assert found.labels == ("B-PER", "O")


def test_spacys_pairs_and_lighttags_examples_are_rows(tmp_path):
    path = tmp_path / "a.json"
    pairs = [
        ["Ada ran", {"entities": [[0, 3, "PER"]]}],
        ["A", {"entities": []}],
    ]
    path.write_text(json.dumps(pairs))
    found = tags_task(dev=str(path), spans="entities").read("dev")
    assert [text.labels for text in found] == [("B-PER", "O"), ("O",)]
    path.write_text(json.dumps({"classes": ["PER"], "annotations": pairs}))
    with pytest.raises(InputError, match="'annotations', write this list"):
        tags_task(dev=str(path), spans="entities").read("dev")
    span = {"example_id": "e", "start": 0, "end": 3, "tag": "PER"}
    row = {"content": "Ada ran", "annotations": [{**span, "value": "Ada"}]}
    asked = {"text": "content", "spans": "annotations"}
    path.write_text(json.dumps({"examples": [row]}))
    with pytest.raises(InputError, match="'examples', write this list alone"):
        tags_task(dev=str(path), **asked).read("dev")
    path.write_text(json.dumps([row]))
    (text,) = tags_task(dev=str(path), **asked).read("dev")
    assert text.labels == ("B-PER", "O")


def test_conll_u_and_webanno_are_called_by_their_names(tmp_path):
    path = tmp_path / "a.conllu"
    rows = ["1\tAda\tAda\tPROPN", "2\tran\trun\tVERB"]
    lines = [row + "\t_" * 6 for row in rows]
    path.write_text("# text = Ada ran\n" + "\n".join(lines) + "\n\n")
    for split in ("dev", "test"):
        with pytest.raises(InputError, match="is CoNLL-U.*--words") as error:
            tag_task(**{split: str(path)}).read(split)
    advice = dict(re.findall(r"--(\w+)=(\d)", str(error.value)))
    (text,) = tag_task(dev=str(path), **advice).read("dev")
    assert (text.words, text.labels) == (("Ada", "ran"), ("PROPN", "VERB"))
    fields = "SpaceAfter=No|name=B-PER|start_char=0"
    path.write_text("\n".join(lines).replace("_\n2", f"{fields}\n2"))
    with pytest.raises(InputError, match="line 1: .* alone, such as 'B-PER'"):
        tag_task(dev=str(path), words=2, tags=10).read("dev")
    path = tmp_path / "a.tsv"
    path.write_text("#FORMAT=WebAnno TSV 3.3\n\n\n#Text=Ada\n1-1\t0-3\tAda\n")
    with pytest.raises(InputError, match="is INCEpTION's .* as CoNLL 2002"):
        tags_task(dev=str(path)).read("dev")
