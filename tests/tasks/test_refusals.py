"""What tasks refuse of files and options: the input, and a word of why."""

import json

import pytest
from toy_words import preprocessor

from bert_keras import InputError
from official_tasks.engine import grid
from official_tasks.tasks import encoding
from official_tasks.tasks.custom import (
    custom_choices,
    custom_spans,
    custom_task,
)
from official_tasks.tasks.embedding import embedding_task
from official_tasks.tasks.glue import STS_B, glue_task
from official_tasks.tasks.squad import SQUAD_1, squad_task
from official_tasks.tasks.table import read_rows

MANY = "1" * 5000  # digits, more than Python reads as a number
STS = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t{}\n"


def numbers(file):
    return custom_task(train=file, problem="regression").read("train")


def choices(file):
    return custom_choices(train=file).read("train")


def sts(file):
    return glue_task(STS_B, train=file).read("train")


def squad(file):
    return squad_task(SQUAD_1, train=file).read("train")


def spans(file):
    return custom_spans(train=file, start="start").read("train")


@pytest.mark.parametrize(
    ("read", "name", "content", "word"),
    [
        *(
            (numbers, "a.csv", f"text,label\na,1\nb,{label}\n", "number from")
            for label in ("1e39", "-1e38", "inf", "x")
        ),
        *(
            (sts, "a.tsv", STS.format(label), "a number")
            for label in ("nan", "inf", "1e39")
        ),
        (
            choices,
            "a.csv",
            f"prompt,choice0,choice1,label\np,a,b,{MANY}\n",
            "from 0 to 1",
        ),
        (
            spans,
            "a.csv",
            f"question,context,answer,start\nq,c,c,{MANY}\n",
            "whole number",
        ),
        (
            squad,
            "a.json",
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1",'
            '"question": "q", "answers": [{"text": "c", "answer_start":'
            "1e400}]}]}]}]}",
            "SQuAD's JSON",
        ),
    ],
)
def test_files_that_cannot_be_learned_from(tmp_path, read, name, content, word):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=word):
        read(str(path))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"max_score": 1e39, "label": "label"}, "max_score"),
        ({"max_score": float("nan"), "label": "label"}, "max_score"),
        ({"recall_at": MANY}, "whole numbers"),
    ],
)
def test_options_of_retrieval(arguments, word):
    with pytest.raises(InputError, match=word):
        embedding_task(**arguments)


def test_a_start_below_0_is_no_position(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"question": "q", "context": "the cat sat", "answer": "sat"}
    rows = [{**row, "start": -3}, {**row, "answer": "t", "start": -1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = custom_spans(train=str(path), dev=str(path), start="start")
    train = task.read("train")  # "t" stands thrice
    (kept,) = train
    assert kept.start == -3 and "ambiguous" in train.notes[-1]
    encoded = task.encode([kept], preprocessor(12))
    assert encoded.targets["start"].tolist() != [0]


@pytest.mark.parametrize("sequence_length", [3, 4])
def test_rows_too_short_for_a_pair(sequence_length):
    with pytest.raises(InputError) as caught:
        encoding.encode_texts(preprocessor(sequence_length), ["a"], ["b"])
    assert "need at least 5" in str(caught.value)
    assert "Arguments received" not in str(caught.value)


def test_dates_that_do_not_exist(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    days = pa.array([253402300800000 * 1000], pa.date64())
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": days}), path)
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rows(path, ["text"]))


def test_seeds_beyond_the_largest():
    with pytest.raises(InputError, match="at most 4294967295"):
        grid.run(None, "init", "output", seed=2**32 - 1, seeds=2)
