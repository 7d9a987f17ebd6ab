"""`predict` on a stand-in that answers at once, and once as a script."""

import gzip
import io
import json
import sys
import types

import numpy as np
import pytest
from run_script import run_script

from bert_keras.errors import InputError
from bert_keras.serving.load import load_saved_model
from official_tasks import predict
from official_tasks.engine import prediction
from official_tasks.engine.prediction import Answers, read_inputs
from official_tasks.tasks.table import dialect
from tools.compare import compare, read_records

ENTRY = {
    "input_order": ["text"],
    "outputs": {"letters": "", "truncated": ""},
}


class Served:
    """Counts the letters; texts over 9 are truncated."""

    def __init__(self, fingerprint="f" * 64):
        self.card = {
            "default": "count",
            "fingerprint": fingerprint,
            "signatures": {"count": ENTRY},
        }
        self.batches = []

    def count(self, texts):
        self.batches.append(texts)
        lengths = np.array([len(text) for text in texts])
        return {"letters": lengths, "truncated": lengths > 9}


TEXTS = [[("ab" * 7)[: n % 13]] for n in range(50)]


def answered(path, served=None, rows=TEXTS, stop_after=None):
    answers = Answers(str(path), served or Served(), "count")
    for number, _ in enumerate(answers.answered(iter(rows), 2)):
        if number == stop_after:
            break
    return answers


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Batched(Served):
    """Its numbers depend on what else is in a batch."""

    def count(self, texts):
        outputs = super().count(texts)
        outputs["letters"] = 1000 * outputs["letters"] + sum(map(len, texts))
        # Another order each time, as of another process.
        return dict(list(outputs.items())[:: len(self.batches) % 2 * 2 - 1])


@pytest.mark.parametrize(
    "done, tail",
    [
        (1, '{"row": 1, "mod'),
        (31, f'{{"row": 31, "model": "{"f" * 12}", "si'),
        (32, ""),
        (50, ""),
    ],
)
def test_an_interrupted_file_is_continued_in_the_same_batches(
    tmp_path, done, tail
):
    whole = answered(tmp_path / "whole", Batched())
    lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
    (tmp_path / "cut").write_text("".join(lines[:done]) + tail)
    served = Batched()
    again = answered(tmp_path / "cut", served)
    assert (tmp_path / "cut").read_text() == "".join(lines)
    assert again.truncated == whole.truncated > 0
    # 32 rows are sorted by length together; those of a half are asked again.
    asked = 0 if done == 50 else 50 - done // 32 * 32
    assert sum(map(len, served.batches)) == asked


def test_answers_stand_in_the_order_of_the_rows_and_say_what_was_asked(
    tmp_path,
):
    served = Served()
    answers = answered(tmp_path / "out.jsonl", served)
    lines = records(tmp_path / "out.jsonl")
    assert [line["row"] for line in lines] == list(range(50))
    assert [[line["inputs"]["text"]] for line in lines] == TEXTS
    expected = [len(text) for (text,) in TEXTS]
    assert [line["answer"]["letters"] for line in lines] == expected
    assert answers.truncated == sum(length > 9 for length in expected) > 0
    assert all(len(batch) <= 2 for batch in served.batches)
    for batch in served.batches[:16]:  # of like length
        assert abs(len(batch[0]) - len(batch[-1])) <= 1


def test_another_file_is_not_continued(tmp_path):
    path = tmp_path / "out.jsonl"
    answered(path, stop_after=0)
    for served, rows in (
        (Served("e" * 64), TEXTS),
        (Served(), [["other"]] * 50),
        (Served(), TEXTS[:3]),
        (Served(), [["other"], *TEXTS[1:]]),
    ):
        with pytest.raises(InputError, match="Name another --output"):
            answered(path, served, rows)
    for precious in ("precious\n", "precious", '{"row": 0, "other": 1}'):
        path.write_text(precious)
        with pytest.raises(InputError, match="line 1"):
            answered(path)
        assert path.read_text() == precious
    answered("/dev/null")


@pytest.mark.parametrize(
    "before, after",
    [
        ('"letters": 1,', '"letters": 2,'),
        ('"truncated": false', '"truncated": true'),
        ('{"letters": 1, "truncated": false}', "5"),
        ('{"letters": 1, "truncated": false}', "[" * 9999 + "]" * 9999),
        ('"row": 1', '"row":  1'),
        ('"inputs": {"text": "a"}', '"inputs": {"text": "b"}'),
    ],
)
def test_a_line_that_was_changed_is_not_kept(tmp_path, before, after):
    path = tmp_path / "out.jsonl"
    answered(path, stop_after=0)
    changed = path.read_text().replace(before, after, 1)
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(InputError, match="line [12], is not .* or was changed"):
        answered(path)
    assert path.read_text() == changed


def test_every_kind_of_file_and_a_pipe_are_read(tmp_path, monkeypatch):
    def read(name, content, columns=("text",), lists=(False,), kind=None):
        path = tmp_path / name
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wb") as file:
            file.write(content)
        return list(read_inputs(str(path), kind, list(columns), lists))

    lines = [["caf\u00e9, au lait"], [""], ["b\rc"]]
    content = "caf\u00e9, au lait\r\n\nb\rc".encode()
    assert read("a.txt", content) == lines
    assert read("a.txt.gz", content) == lines
    assert read("a", b"a\xff\xfeb\n") == [["a\ufffd\ufffdb"]]
    table = b'id,text\n1,"a, b"\n2,c\n'
    assert read("a.csv", table) == [["a, b"], ["c"]]
    assert read("a.data", table, kind="csv") == [["a, b"], ["c"]]
    assert read("a.tsv", b'text\tn\na "b\t1\n') == [['a "b']]
    both = b'{"prompt": "p", "choices": ["x", "y"]}\n'
    asked = read("a.jsonl", both, ["prompt", "choices"], [False, True])
    assert asked == [["p", ["x", "y"]]]
    line = b'{"choices": ["x", 4, null, true, "\\ud83dy"]}\n'
    texts = ["x", "4", "", "true", "y"]
    assert read("a.jsonl", line, ["choices"], [True]) == [[texts]]
    assert read("a.jsonl", b'{"i": [3, 4]}', ["i"], [int]) == [[[3, 4]]]
    assert read("a.jsonl", b'{"i": [[3], [4]]}', ["i"], [int]) == [[[[3], [4]]]]
    path = tmp_path / "b.csv"
    path.write_bytes("id;text\n1;caf\u00e9\n".encode("cp1252"))
    own = dialect(";", "cp1252")
    inputs = read_inputs(str(path), None, ["text"], [False], own)
    assert list(inputs) == [["caf\u00e9"]]
    with pytest.raises(InputError, match="give --encoding=cp1252"):
        list(read_inputs(str(path), None, ["text"], [False]))
    with pytest.raises(InputError, match="--separator is for CSV"):
        list(read_inputs(str(path), "lines", ["text"], [False], own))
    with open(tmp_path / "a.txt", "rb") as pipe:
        stdin = types.SimpleNamespace(fileno=pipe.fileno)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert list(read_inputs("-", None, ["text"], [False])) == lines


def test_rows_that_cannot_be_asked_are_refused(tmp_path):
    def read(content, columns, kind, lists):
        path = tmp_path / "a"
        path.write_text(content)
        return list(read_inputs(str(path), kind, columns, lists))

    with pytest.raises(InputError, match="a line one text"):
        read("a", ["text", "text_pair"], "lines", [False, False])
    with pytest.raises(InputError, match="no column 'text'"):
        read("a,b\n1,2\n", ["text"], "csv", [False])
    with pytest.raises(InputError, match="line 2: expected a list"):
        read("choices\nabc\n", ["choices"], "csv", [True])
    with pytest.raises(InputError, match="line 1: expected text in 'c', got"):
        read('{"c": ["a", ["b"]]}', ["c"], "jsonl", [True])
    for ids in ('[3, "a"]', "[3, null]", "[true]", "[[3], 4]", "[[]]"):
        with pytest.raises(InputError, match="line 1: expected a list of int"):
            read(f'{{"ids": {ids}}}', ["ids"], "jsonl", [int])
    with pytest.raises(InputError, match="no such file"):
        list(read_inputs(str(tmp_path / "b"), None, ["text"], [False]))


def test_standard_output_gets_the_same_lines(tmp_path, monkeypatch):
    answered(tmp_path / "out.jsonl")
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    answered("-")
    assert shown.getvalue() == (tmp_path / "out.jsonl").read_text()


def test_the_script_answers_and_its_output_can_be_compared(
    tmp_path, classifier_export
):
    (tmp_path / "in.txt").write_text("an hour\n" * 9 + "well " * 18 + "\n\n")
    command = ["-m", "official_tasks.predict", f"--model={classifier_export}"]
    command += ["--input=in.txt", "--output=out.jsonl"]
    done = run_script(*command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "11 rows, 11 of them now; 9.1% truncated" in done.stderr
    found = read_records(tmp_path / "out.jsonl")
    served = load_saved_model(classifier_export)
    assert compare(found, served)["label"]["equal"] == 1.0
    with pytest.raises(InputError, match="answers classify, tokenize"):
        prediction.asked(served, "tag", None)
    with pytest.raises(InputError, match="names 2"):
        prediction.asked(served, None, ["a", "b"])
    with pytest.raises(InputError, match="--output is missing: give a folder"):
        predict.main(types.SimpleNamespace(task="rte", output="-"))


def test_inputs_may_be_parquet_with_lists_as_they_are(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"a": ["one", None], "b": [["x", "y"], ["z"]], "ids": [[1], [2]]}
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table(table), path)

    def read(columns, lists):
        return list(read_inputs(path, None, columns, lists))

    assert read(["a", "b"], [False, True]) == [["one", ["x", "y"]], ["", ["z"]]]
    assert read(["ids"], [int]) == [[[1]], [[2]]]
    with pytest.raises(InputError, match="row 1: expected a list of integers"):
        read(["b"], [int])
    with pytest.raises(InputError, match="row 1: expected a list of texts"):
        read(["a"], [True])
