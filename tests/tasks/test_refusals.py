"""Files and options that tasks refuse: input, and a word of the message."""

import functools
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from bert_keras import InputError
from official_tasks.engine import runs
from official_tasks.tasks import encoding, glue
from official_tasks.tasks.embedding import embed_task
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.glue import glue_task
from official_tasks.tasks.multiple_choice import SWAG, choice_task
from official_tasks.tasks.own_tasks import (
    choices_task,
    classify_task,
    multilabel_task,
    regress_task,
    spans_task,
    tags_task,
)
from official_tasks.tasks.retrieval import rank_task
from official_tasks.tasks.squad import SQUAD_1, SQUAD_2, squad_task
from official_tasks.tasks.tagging import tag_task
from tests.support.toy_words import preprocessor

MANY = "1" * 5000  # more digits than `int` accepts
COLA, MRPC, RTE, STSB, WNLI = (
    functools.partial(glue_task, row)
    for row in (glue.COLA, glue.MRPC, glue.RTE, glue.STS_B, glue.WNLI)
)
SQUAD1, SQUAD2 = (
    functools.partial(squad_task, row) for row in (SQUAD_1, SQUAD_2)
)
CHOOSE = functools.partial(choice_task, SWAG)
PAIR_HEADER = "index\tsentence1\tsentence2\tlabel\n"
STS = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t{}\n"
SENTENCES = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
CHOICES = "prompt,choice0,choice1,label\n"
SPANS = "question,context,answer,start\n"
PAIRS = "text,text_pair,score,word,one\na,b,1,high,1\nc,d,2,low,1\ne,f,0,,1\n"
ROWS = "text,label\na,1\nb,2\n"


def squad(*questions):
    """Return the JSON of a SQuAD file with these pairs of id and answers."""
    qas = [
        {"id": key, "question": "q", "answers": answers}
        for key, answers in questions
    ]
    paragraph = {"context": "c", "qas": qas}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


ANSWER = {"text": "c", "answer_start": 0}
# Task, name and content of its train file, a word of the message, options.
FILES = [
    # Tables.
    (classify_task, "a.txt", "text\n", "ends in .csv"),
    (classify_task, "a.csv", "", "line of column names, got none"),
    (classify_task, "a.csv", "\ntext,label\n", "got an empty line"),
    (classify_task, "a.tsv", "\n", "got an empty line"),
    (classify_task, "a.csv", "words,label\na,1\n", "no column 'text'.*'label'"),
    (
        classify_task,
        "a.csv",
        "text,label\na,1\nb\n",
        "line 3: expected 2 columns",
    ),
    (classify_task, "a.csv", b"text,label\n\xffa,1\n", "got the byte 0xff"),
    (
        classify_task,
        "a.jsonl",
        '{"text": "a"}\n',
        "line 1: expected a JSON obj",
    ),
    (classify_task, "a.jsonl", "[" * 100_000 + "\n", "line 1: expected a JSON"),
    (classify_task, "a.csv.gz", "text,label\n", "not a complete gzip file"),
    (
        classify_task,
        "a.csv.gz",
        gzip.compress(b"text,label\n", mtime=0)[:-9] + b"xyz",
        "not a complete gzip file",
    ),
    (
        classify_task,
        "a.csv",
        "text\tlabel\na\t1\n",
        "tabs between .* name it .tsv",
    ),
    (classify_task, "a.tsv", "text,label\na,1\n", "commas .* name it .csv"),
    (
        classify_task,
        "a.csv",
        'text,label\n"a,1\nb,2\n',
        "line 2: .*quote opens",
    ),
    (
        classify_task,
        "a.jsonl",
        '{"text": ["a"], "label": "x"}',
        "expected text",
    ),
    # Labels in tables.
    (classify_task, "a.csv", "text,label\n", "at least one row"),
    (classify_task, "a.csv", "text,label\na,1\nb,1\n", "at least 2 classes"),
    (classify_task, "a.csv", ROWS + "c,2\n", "'1' has one row"),
    (classify_task, "a.csv", "text,label\na,1.5\nb,2\n", "1.5.*=regress"),
    (classify_task, "a.csv", "text,label\na,1\nb, \n", "line 3: 1 row without"),
    *(
        (
            regress_task,
            "a.csv",
            f"text,label\na,1\nb,{label}\n",
            word,
        )
        for label, word in {
            "nan": "without a label",
            "inf": "line 3: expected a number from",
            "1e39": "number from",
            "-1e38": "number from",
            "x": "number from",
            "1_000": "got '1_000'",
        }.items()
    ),
    # Spans, tags and choices in tables.
    (
        spans_task,
        "a.csv",
        f"{SPANS}q,c,c,1_0\n",
        "line 2: expected a whole number",
        {"start": "start"},
    ),
    (
        spans_task,
        "a.csv",
        f"{SPANS}q,c,c,{MANY}\n",
        "line 2: expected a whole number",
        {"start": "start"},
    ),
    (tags_task, "a.csv", "words,tags\na b,O\n", "line 2: .* of the 2 words"),
    (tags_task, "a.csv", "words,tags\na,X-B\n", "line 2: expected labels O"),
    (tags_task, "a.csv", "words,tags\n,O\n", "at least one word"),
    (tags_task, "a.csv", "words,tags\na,ner=B-A\n", "such as 'B-A', got the f"),
    (
        tags_task,
        "a.csv",
        "Ada,B-PER\nran,O\n",
        "the first line is a word and its label, give --task=ner.* tabs",
    ),
    (
        tags_task,
        "a.jsonl",
        '{"words": ["a"], "tags": ["B-A\\nB"]}',
        r"line 1: expected labels .* got 'B-A\\nB'",
    ),
    (tags_task, "a.csv", "words,tags\na,O\n", "one context, text or prompt"),
    (choices_task, "a.csv", f"{CHOICES}p,a,b,{MANY}\n", "from 0 to 1"),
    (choices_task, "a.csv", f"{CHOICES}p,1,0,1\n", "text of choice 0 .* '0'"),
    (choices_task, "a.csv", f"{CHOICES}p,1,0,1.0\n", "text of choice 0 .*"),
    # Objects that have columns, or another tool's rows.
    (
        classify_task,
        "a.json",
        '{"text": ["a", "b"], "label": ["x", "y"]}',
        "a list for each column. Expected an object on each .*to_json",
    ),
    (
        tags_task,
        "a.jsonl.json",
        '{"words": [["a"], ["b"]], "tags": [["O"], ["B-A"]]}',
        "a list for each column",
    ),
    (
        classify_task,
        "a.jsonl",
        '{"id": 1, "data": {"text": "a"}, "annotations": []}\n',
        "line 1: .* task of Label Studio. Write all tasks as one list",
    ),
    # Pairs of texts.
    (embed_task, "a.csv", PAIRS, "no column 'b'", {"text_pair": "b"}),
    (
        embed_task,
        "a.csv",
        PAIRS,
        "line 3: .* from 0 to 1 .*got '2'",
        {"label": "score"},
    ),
    (
        embed_task,
        "a.csv",
        PAIRS.replace("b,1", "b,0_1"),
        "line 2: .* from 0 to 1 .*got '0_1'",
        {"label": "score"},
    ),
    (rank_task, "a.csv", PAIRS, "the score 1: ", {"label": "one"}),
    (rank_task, "a.csv", PAIRS, "line 2: .* 'high'", {"label": "word"}),
    (
        rank_task,
        "a.csv",
        "text,text_pair,no\na,b,c\nd,e,\n",
        "line 3: 1 row without a value in column 'no'.*--drop_unlabelled",
        {"negative": "no"},
    ),
    # GLUE.
    (
        RTE,
        "a.tsv",
        "index\tsentence1\tsentence2\n0\ta\tb\n",
        "only be used to predict",
    ),
    (COLA, "a.tsv", "index\tsentence\n0\ta\n", "only be used to predict"),
    (COLA, "a.tsv", "sentence\tlabel\na\t1\n", "no file of the task cola"),
    (MRPC, "a.tsv", f"{PAIR_HEADER}0\ta\tb\t1\n", "no file of the task mrpc"),
    (
        WNLI,
        "a.tsv",
        f"{PAIR_HEADER}0\ta\tb\tentailment\n",
        "line 2: expected one of 0, 1 .* got 'entailment'",
    ),
    *(
        (STSB, "a.tsv", STS.format(label), "expected a number as the label")
        for label in ("high", "nan", "inf", "1e39")
    ),
    (RTE, "a.tsv", PAIR_HEADER.replace("\t", ","), "seems to have commas"),
    (RTE, "a.tsv", f"{PAIR_HEADER}8\tcut", "line 2: expected 4 columns"),
    (RTE, "a.tsv", "", "the file is empty"),
    (RTE, "a.tsv", PAIR_HEADER, "train split of rte has no rows"),
    (RTE, "a.tsv", b"sentence1\tlabel\ncaf\xe9\t1\n", "got the byte 0xe9"),
    # SQuAD.
    (SQUAD1, "a.json", "question,answer", "expected SQuAD's JSON"),
    (SQUAD1, "a.json", '["a"]', "expected SQuAD's JSON"),
    (SQUAD1, "a.json", '{"data": [{"title": "x"}]}', "fails at 'paragraphs'"),
    (SQUAD1, "a.json", '{"data": []}', "at least one question"),
    (
        SQUAD1,
        "a.json",
        squad(("1", [{**ANSWER, "answer_start": "first"}])),
        "reading fails at invalid literal",
    ),
    (
        SQUAD1,
        "a.json",
        squad(("1", [ANSWER])).replace(": 0", ": 1e400"),
        "SQuAD's JSON",
    ),
    (SQUAD1, "a.json", squad(("1", [])), "give --task=squad2"),
    (
        SQUAD1,
        "a.json",
        squad(("1", None)),
        "file without answers can only be used to predict",
    ),
    (SQUAD1, "a.json", squad(("1", [{**ANSWER, "text": "x"}])), "no question"),
    (
        SQUAD1,
        "a.json",
        squad(("1", [{**ANSWER, "text": None}])),
        "question .1.: expected a text, got None",
    ),
    # Columns of words.
    (tag_task, "a.txt", "a O\nb\n", "line 2: expected 2 columns"),
    (tag_task, "a.txt", "a\nb\n", "got only 'a'"),
    (tag_task, "a.txt", "a O\nb X-PER\n", "line 2: expected labels O"),
    (tag_task, "a.txt", "a O\nb B-\n", "line 2: expected labels O"),
    (tag_task, "a.txt", "a O\nb -X\n", "line 2: expected labels O"),
    (tag_task, "a.txt", "\n\t\n", "at least one sentence"),
    (tag_task, "a.txt", "a O\nb O\n", "only the label O"),
    (tag_task, "a.txt", b"caf\xe9 O\n", "got the byte 0xe9"),
    # Choices.
    (
        CHOOSE,
        "a.csv",
        f"{SENTENCES}a,b,c,d,e,f,4\n",
        "line 2: .* 0 to 3, got '4'$",
    ),
    (CHOOSE, "a.csv", f"{SENTENCES}a,b,c,d,e,f,\n", "got ''. A test file"),
    (CHOOSE, "a.csv", SENTENCES, "at least one row"),
    (CHOOSE, "a.csv", "id\n", "no column 'sent1'"),
]
# Task, its options, a word of the message.
OPTIONS = [
    (multilabel_task, {"label_separator": ""}, "expected text"),
    (classify_task, {"separator": ";;"}, "--separator=;;: expected one char"),
    (classify_task, {"encoding": "utf9"}, "no such encoding"),
    (classify_task, {"encoding": "hex"}, "no such encoding"),
    (classify_task, {"split_seed": -1}, "--split_seed=-1: expected 0"),
    (tags_task, {"spans": "s", "words": "w"}, "applies without --spans"),
    (tags_task, {"text": "t"}, "applies with --spans"),
    (choices_task, {"choices": "a"}, "at least 2 columns"),
    (SQUAD2, {"stride": 0}, "`stride` is 0: expected 1"),
    (tag_task, {"lstm_dim": 0}, "`lstm_dim` is 0"),
    (tag_task, {"recipe": "first"}, "no recipe 'first'"),
    (classify_task, {"recipe": "first"}, "no recipe 'first'"),
    (embed_task, {"label": "score", "negative": "n"}, "give one of them"),
    (embed_task, {"objective": "cosine"}, "cosine: expected --label="),
    (embed_task, {"objective": "cosent"}, "cosent: expected --label="),
    (embed_task, {"objective": "triplet"}, "expected --negative=COL"),
    (embed_task, {"objective": "best"}, "expected one of in_batch, "),
    (embed_task, {"max_score": 5.0}, "--max_score=5: expected a num"),
    (embed_task, {"label": "s", "max_score": -1.0}, "_score=-1: "),
    (embed_task, {"label": "s", "max_score": 1e39}, "max_score"),
    (embed_task, {"label": "s", "max_score": float("nan")}, "max_score"),
    (embed_task, {"id": "_id"}, "--id=_id only applies with --queries"),
    (embed_task, {"recall_at": "0"}, "--recall_at=0: expected whole"),
    (embed_task, {"recall_at": MANY}, "whole numbers"),
    (embed_task, {"recall_at": "1", "label": "s"}, "applies to a search"),
    (embed_task, {"drop_unlabelled": True}, "only applies with --label"),
    (embed_task, {"matryoshka": "64,x"}, "--matryoshka=64,x: expected"),
    (
        rank_task,
        {"drop_unlabelled": True, "passages": "a.csv"},
        "with --label or --negative. ",
    ),
    (rank_task, {"train": "a.csv"}, "expected --negative=COLUMN"),
]


@pytest.mark.parametrize("case", FILES, ids=lambda case: case[3])
def test_files_that_cannot_be_learned_from(tmp_path, case):
    make, name, content, word, options = (*case, {})[:5]
    path = tmp_path / name
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    with pytest.raises(InputError, match=word):
        task = make(train=str(path), **options)
        task.read("train"), task.read("dev")


@pytest.mark.parametrize(("make", "options", "word"), OPTIONS)
def test_options_that_cannot_be(make, options, word):
    with pytest.raises(InputError, match=word):
        make(**options)


def test_a_start_below_0_is_no_position(tmp_path):
    path = tmp_path / "a.jsonl"
    row = {"question": "q", "context": "the cat sat", "answer": "sat"}
    rows = [{**row, "start": -3}, {**row, "answer": "t", "start": -1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = spans_task(train=str(path), dev=str(path), start="start")
    train = task.read("train")  # "t" occurs three times
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
    days = pa.array([253402300800000 * 1000], pa.date64())
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": days}), path)
    with pytest.raises(InputError, match="cannot be read"):
        list(read_rows(path, ["text"]))


def test_seeds_beyond_the_largest():
    with pytest.raises(InputError, match="at most 4294967295"):
        runs.run(None, "init", "output", seed=2**32 - 1, seeds=2)
