"""`predict` with stub models, and as a script."""

import csv
import gzip
import io
import itertools
import json
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.run_folder import RunFolder
from bert_keras.serving.load import load_saved_model
from official_tasks import predict, progress
from official_tasks.engine import parts as parts_module
from official_tasks.engine import prediction
from official_tasks.engine.answers import Answers, _as_json, _find_best
from official_tasks.engine.prediction import find_id, read_inputs
from official_tasks.engine.training import Meter
from official_tasks.outputs import prepare_output
from official_tasks.tasks.forms.text_files import make_dialect
from tests.support.run_script import call_script, run_script
from tools.compare import compare, read_records

ENTRY = {
    "input_order": ["text"],
    "outputs": {"letters": {}, "truncated": {}},
}


class Served:
    """Stub model that counts letters; texts over 9 letters are truncated."""

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


def answered(
    path,
    served=None,
    rows=TEXTS,
    stop_after=None,
    keep=(),
    batch_size=2,
    **arguments,
):
    """Write answers, or only the part `stop_after`; return `Answers`."""
    answers = Answers(served or Served(), "count", keep, batch_size)
    for number, _ in enumerate(answers.write(rows, str(path), **arguments)):
        if number == stop_after:
            break
    return answers


def parts(path):
    """Return the files of an output's parts."""
    return sorted(path.with_name(f"{path.name}.parts").glob("0*"))


def read_tree(folder):
    found = filter(Path.is_file, folder.rglob("*"))
    return {p: p.read_bytes() for p in found if p.name != ".lock"}


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Batched(Served):
    """Stub model whose values depend on the other rows of a batch."""

    def __init__(self):
        super().__init__()
        outputs = {**ENTRY["outputs"], "embedding": {}}
        self.card["signatures"]["count"] = {**ENTRY, "outputs": outputs}

    def count(self, texts):
        outputs = super().count(texts)
        outputs["letters"] = 1000 * outputs["letters"] + sum(map(len, texts))
        pairs = np.stack([outputs["letters"], outputs["truncated"]], 1)
        outputs["embedding"] = pairs.astype(np.float32) / 7
        # The order of a served model's outputs varies by process, so reverse
        # every second dict.
        return dict(list(outputs.items())[:: len(self.batches) % 2 * 2 - 1])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.npy"])
@pytest.mark.parametrize("removed", [[0], [1], [0, 1], []])
def test_an_interrupted_output_is_continued_in_the_same_batches(
    tmp_path, name, removed, monkeypatch
):
    def kill(*_):
        raise KeyboardInterrupt

    path, whole = tmp_path / name, tmp_path / f"whole{name}"
    expected = answered(whole, Batched())
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", kill)
        with pytest.raises(KeyboardInterrupt):
            answered(path, Batched())
    made = parts(path)
    assert len(made) == 2 and not path.exists()
    for number in removed:
        made[number].unlink()
    served = Batched()
    again = answered(path, served)
    assert path.read_bytes() == whole.read_bytes()
    assert again.rows == 50 and expected.truncated > 0
    if removed == [0, 1]:
        assert again.truncated == expected.truncated
    # Rows are sorted in groups of 32; a missing group is answered again.
    assert again.new_rows == sum([32, 18][number] for number in removed)
    assert sum(map(len, served.batches)) == again.new_rows
    assert not parts(path)


def test_a_kill_before_the_output_has_its_name_costs_nothing(
    tmp_path, monkeypatch
):
    def kill(source, target):
        if str(target).endswith("a.csv"):
            raise KeyboardInterrupt
        replace(source, target)

    replace, path = files.os.replace, tmp_path / "a.csv"
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            answered(path)
    served = Served()
    assert answered(path, served).rows == 50 and served.batches == []
    whole = tmp_path / "whole.csv"
    answered(whole)
    assert path.read_bytes() == whole.read_bytes()


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
    for batch in served.batches[:16]:  # bucketed by length
        assert abs(len(batch[0]) - len(batch[-1])) <= 1


def test_parts_of_other_answers_are_not_continued(tmp_path):
    path = tmp_path / "out.jsonl"
    answered(path, stop_after=0)
    before = read_tree(tmp_path)
    for word, served, rows, arguments in (
        ("model was .f{12}. and is now", Served("e" * 64), TEXTS, {}),
        ("batch_size was 2 and is now 3", Served(), TEXTS, {"batch_size": 3}),
        ("keep was", Served(), TEXTS, {"keep": ["a"]}),
        ("parts was made from other rows", Served(), TEXTS[:3], {}),
        ("other rows", Served(), [["other"], *TEXTS[1:]], {}),
        ("other rows", Served(), [["other"]] * 50, {}),
    ):
        with pytest.raises(InputError, match=f"{word}.* another"):
            answered(path, served, rows, **arguments)
        assert read_tree(tmp_path) == before
    answered("/dev/null")


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_what_this_command_did_not_write_is_not_replaced(tmp_path, name):
    path = tmp_path / name
    for precious in ("precious\n", "precious", '{"row": 0, "other": 1}', ""):
        path.write_text(precious)
        with pytest.raises(InputError, match="exists. Name.*--overwrite"):
            answered(path)
        assert path.read_text() == precious
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_answers_of_earlier_versions_are_refused(tmp_path):
    path = tmp_path / "out.csv"
    (tmp_path / "out.csv.unfinished").write_text("{}")
    with pytest.raises(InputError, match="earlier version.*Remove it"):
        answered(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"letters": 1,', b'"letters": 2,'),
        (b'"truncated": false', b'"truncated": true'),
        (b'{"letters": 1, "truncated": false}', b"5"),
        (b'{"letters": 1, "truncated": false}', b"[" * 9999 + b"]" * 9999),
        (b'"row": 1', b'"row":  1'),
        (b'"inputs": {"text": "a"}', b'"inputs": {"text": "b"}'),
        (b'"row": 31', b""),
    ],
)
def test_a_part_that_was_changed_is_named_and_not_used(tmp_path, before, after):
    path = tmp_path / "out.jsonl"
    answered(path, stop_after=0)
    (part,) = parts(path)
    changed = part.read_bytes().replace(before, after, 1)
    assert changed != part.read_bytes()
    part.write_bytes(changed)
    with pytest.raises(InputError, match=f"{part.name} was changed"):
        answered(path)
    assert not path.exists()
    part.unlink()
    served = Served()
    answered(path, served)
    assert sum(map(len, served.batches)) == 32
    assert [line["row"] for line in records(path)] == list(range(50))


def test_every_kind_of_file_and_a_pipe_are_read(tmp_path, monkeypatch):
    def read(name, content, columns=("text",), lists=(False,), kind=None):
        path = tmp_path / name
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wb") as file:
            file.write(content)
        return list(read_inputs([str(path)], kind, list(columns), lists))

    lines = [["caf\u00e9, au lait"], [""], ["b\rc"]]
    content = "\ufeffcaf\u00e9, au lait\r\n\nb\rc".encode()
    assert read("a.txt", content) == lines
    assert read("a.txt.gz", content) == lines
    notes = []
    (tmp_path / "a").write_bytes(b"a\nb\xff\xfec\nd\n\xe9\n")
    asked = read_inputs(
        [str(tmp_path / "a")], None, ["text"], [False], notes=notes
    )
    assert [x for (x,) in asked] == ["a", "b\ufffd\ufffdc", "d", "\ufffd"]
    (note,) = notes
    assert "/a, line 2: bytes that are not UTF-8" in note and "2 texts" in note
    for encoding in ("utf-16", "utf-32"):
        for name in ("b.txt", "b.csv"):
            with pytest.raises(InputError, match=f"--encoding={encoding},"):
                read(name, "text\na\n".encode(encoding))
    table = b'\xef\xbb\xbfid,text\r\n1,"a, b"\r\n2,c\r\n'
    assert read("a.csv", table) == [["a, b"], ["c"]]
    assert read("a.data", table, kind="csv") == [["a, b"], ["c"]]
    assert read("a.tsv", b'text\tn\na "b\t1\n') == [['a "b']]
    both = b'{"prompt": "p", "choices": ["x", "y"]}\n'
    asked = read("a.jsonl", both, ["prompt", "choices"], [False, True])
    assert asked == [["p", ["x", "y"]]]
    line = b'{"choices": ["x", 4, null, true, "\\ud83dy"]}\n'
    texts = ["x", "4", "", "true", "\ufffdy"]
    assert read("a.jsonl", line, ["choices"], [True]) == [[texts]]
    assert read("a.jsonl", b'{"i": [3, 4]}', ["i"], [int]) == [[[3, 4]]]
    assert read("a.jsonl", b'{"i": [[3], [4]]}', ["i"], [list]) == [
        [[[3], [4]]]
    ]
    path = tmp_path / "b.csv"
    path.write_bytes("id;text\n1;caf\u00e9\n".encode("cp1252"))
    own = make_dialect(";", "cp1252")
    inputs = read_inputs([str(path)], None, ["text"], [False], own)
    assert list(inputs) == [["caf\u00e9"]]
    with pytest.raises(InputError, match="give --encoding=cp1252"):
        list(read_inputs([str(path)], None, ["text"], [False]))
    with pytest.raises(InputError, match="--separator is for CSV"):
        list(read_inputs([str(path)], "lines", ["text"], [False], own))
    with open(tmp_path / "a.txt", "rb") as pipe:
        stdin = types.SimpleNamespace(fileno=pipe.fileno)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert list(read_inputs(["-"], None, ["text"], [False])) == lines


def test_rows_that_cannot_be_asked_are_refused(tmp_path):
    def read(content, columns, kind, lists):
        path = tmp_path / "a"
        path.write_text(content)
        return list(read_inputs([str(path)], kind, columns, lists))

    with pytest.raises(InputError, match="one text a line"):
        read("a", ["text", "text_pair"], "lines", [False, False])
    with pytest.raises(InputError, match="no column 'text'"):
        read("a,b\n1,2\n", ["text"], "csv", [False])
    with pytest.raises(InputError, match="line 2: expected a list"):
        read("choices\nabc\n", ["choices"], "csv", [True])
    with pytest.raises(InputError, match="line 2: expected a list"):
        read("choices\n" + "[" * 100_000, ["choices"], "csv", [True])
    with pytest.raises(InputError, match="line 1: expected text in 'c', got"):
        read('{"c": ["a", ["b"]]}', ["c"], "jsonl", [True])
    for ids in ('[3, "a"]', "[3, null]", "[true]", "[[3], 4]", "[[]]"):
        with pytest.raises(InputError, match="line 1: expected a list of int"):
            read(f'{{"ids": {ids}}}', ["ids"], "jsonl", [int])
    row = '{"ids": [3], "mask": [%s]}\n'
    for mask, message in (
        ("-1", "line 2: expected a list of integers from 0"),
        ("1, 1", "line 2: expected the same number of .* got .1, 2."),
    ):
        with pytest.raises(InputError, match=message):
            content = row % 1 + row % mask
            read(content, ["ids", "mask"], "jsonl", [int, int])
    with pytest.raises(InputError, match="no such file"):
        prediction.find_inputs(str(tmp_path / "b"))
    with pytest.raises(InputError, match="give --input=-"):
        prediction.find_inputs("/dev/null")
    with pytest.raises(InputError, match=r"is a folder.*/\*.csv"):
        prediction.find_inputs(str(tmp_path))


def test_lists_are_those_of_the_signatures_request():
    request = {"a": ["x"], "b": [["x"]], "c": [[3]], "d": [[[3]]]}
    entry = {"input_order": list(request), "request": request}
    assert prediction.list_types(entry) == [False, True, int, list]


def test_columns_of_equal_names_are_noted_or_refused(
    tmp_path, classifier_export
):
    (tmp_path / "in.csv").write_text("a,a,text\nan hour,bad,x\n")
    command = ["-m", "official_tasks.predict", f"--model={classifier_export}"]
    command += ["--input=in.csv", "--columns=a", "--keep=text"]
    done = call_script(*command, "--output=out.csv", folder=tmp_path)
    assert done.returncode == 2
    assert "--keep=text has the name of an input" in done.stderr
    done = call_script(*command, "--output=out.jsonl", folder=tmp_path)
    assert done.stderr.count("2 columns are called 'a'") == 1
    (line,) = records(tmp_path / "out.jsonl")
    assert line["inputs"] == {"text": "an hour"} and line["keep"]["text"] == "x"


class Vectors(Served):
    """Stub model with scalars, vectors, strings and lists of any length."""

    def __init__(self):
        super().__init__()
        names = ["embedding", "label", "scores", "words"]
        entry = {"input_order": ["text"], "outputs": dict.fromkeys(names, {})}
        self.card["signatures"]["count"] = entry

    def count(self, texts):
        lengths = np.array([len(text) for text in texts], np.float32)
        return {
            "scores": lengths / np.float32(10),
            "embedding": np.stack([lengths / 3, -lengths], 1),
            "words": [text.split() for text in texts],
            "label": [f"{len(text)}, long" for text in texts],
        }


def answer_to(tmp_path, name, content="id,label,text\n7,x,a b\n8,y,\n"):
    source = tmp_path / "in.csv"
    source.write_text(content)
    columns, lists = ["text", "id", "label"], [False] * 3
    rows = read_inputs([str(source)], None, columns, lists)
    path = tmp_path / name
    answers = answered(path, Vectors(), rows, keep=["id", "label"])
    assert answers.rows == answers.new_rows == 2
    written = {p.name for p in tmp_path.iterdir()} - {"in.csv"}
    assert written == {name, f"{name}.parts"} and not parts(path)
    return path


def test_lists_hold_float32_in_its_shortest_form():
    value = [[float(np.float32(0.3))], ["a"], 3]
    assert _as_json(value) == [[0.3], ["a"], 3]


@pytest.mark.parametrize("count", [100, 101])
def test_of_more_than_100_labels_the_best_ten_are_written(tmp_path, count):
    labels = [f"class {n}" for n in range(count)]
    shares = np.random.default_rng(0).dirichlet(np.ones(count)).astype("f4")
    served = Served()
    served.card["signatures"]["count"] = {
        "input_order": ["text"],
        "outputs": {
            "probabilities": {"shape": ["B", "C"], "padded": False}
            | {"per_entry": False}
        },
        "labels": labels,
    }
    served.signatures = ["count"]
    served.count = lambda texts: {"probabilities": [shares] * len(texts)}
    path = tmp_path / "out.jsonl"
    answered(path, served, [["a text"]])
    answer = records(path)[0]["answer"]["probabilities"]
    if count == 100:
        np.testing.assert_array_equal(np.float32(answer), shares)
    else:
        best = np.argsort(-shares)[:10]
        assert [one["label"] for one in answer] == [labels[i] for i in best]
        written = np.float32([one["probability"] for one in answer])
        np.testing.assert_array_equal(written, shares[best])
    ties = np.repeat(np.float32([0.1, 0.2, 0.0]), [30, 3, 80])[None]
    best = _find_best(ties[0], labels * 2)
    assert [one["probability"] for one in best] == [0.2] * 3 + [0.1] * 7
    assert [one["label"] for one in best[3:]] == labels[:7]
    found = compare(read_records(path, served.card), served)["probabilities"]
    assert found["equal"] == 1
    shares[np.argmax(shares)] += 0.1
    found = compare(read_records(path, served.card), served)["probabilities"]
    assert found["greatest_difference"] == pytest.approx(0.1, rel=1e-5)


def test_answers_are_jsonl_with_the_columns_that_are_kept(tmp_path):
    path = answer_to(tmp_path, "out.jsonl")
    first, second = records(path)
    assert first["keep"] == {"id": "7", "label": "x"}
    # The file has float32 0.3 in its shortest form, not 0.30000001192092896.
    assert '"scores": 0.3' in path.read_text()
    assert first["answer"]["embedding"] == [1.0, -3.0]
    assert second["answer"]["words"] == []


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_answers_have_the_ids_of_their_rows(tmp_path, name):
    path, source = tmp_path / name, tmp_path / "in.jsonl"
    source.write_text('{"text": "ab"}\n{"text": "c", "id": 7}\n')
    ids = find_id([str(source)], None, ["text"])
    assert ids == ["id"] and find_id([str(source)], None, ["id"]) == []
    assert find_id(["a.txt"], None, ["text"]) == find_id(["-"], None, []) == []
    lists = [False, False]
    rows = [
        *read_inputs([str(source)], None, ["text", *ids], lists, None, [], ids)
    ]
    assert rows == [["ab", ""], ["c", "7"]]
    answered(path, rows=rows)
    if name == "a.csv":
        assert path.read_text().splitlines()[:2] == [
            "id,text,letters,truncated",
            ",ab,2,false",
        ]
    elif name == "a.jsonl":
        assert [r.get("keep") for r in records(path)] == [None, {"id": "7"}]
    else:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path).to_pydict()
        assert table["id"] == ["", "7"] and table["letters"] == [2, 1]
    served = Served()
    assert answered(path, served, rows).rows == 2 and served.batches == []
    with pytest.raises(InputError, match="was made from other rows"):
        answered(path, served, [["ab", "1"], ["c", "8"]])


def test_answers_for_excel_have_its_separator_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.csv"
    rows = [["gr\u00fcn; ja"], ["1,5"]]
    answered(path, rows=rows, separator=";")
    assert (
        path.read_bytes()
        == (
            "\ufefftext;letters;truncated\n"
            '"gr\u00fcn; ja";8;false\n1,5;3;false\n'
        ).encode()
    )
    read = read_inputs([str(path)], None, ["text"], [False], make_dialect(";"))
    assert list(read) == rows
    served = Served()
    assert answered(path, served, rows, separator=";").rows == 2
    assert served.batches == []
    with pytest.raises(InputError, match='separator was ";"'):
        answered(path, served, rows)


def test_a_run_is_no_export_and_the_message_names_test(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    settings = {"settings": {"task": "classify"}, "inputs": {}, "folder": ".."}
    (run / "run.json").write_text(json.dumps(settings))
    (tmp_path / "in.txt").write_text("an hour\n")
    command = ["-m", "official_tasks.predict", "--model=run", "--input=in.txt"]
    done = call_script(*command, folder=tmp_path)
    assert done.returncode == 2
    message = " ".join(done.stderr.split())
    assert "is not an export" in message
    assert "give --test=FILE in place of --input" in message


@pytest.mark.parametrize(
    ("name", "between"), [("out.csv", ","), ("out.TSV", "\t")]
)
def test_answers_are_csv_or_tsv(tmp_path, name, between):
    with open(answer_to(tmp_path, name), newline="") as file:
        first, second = csv.DictReader(file, delimiter=between)
    assert first == {
        "id": "7",
        "label": "x",
        "text": "a b",
        "embedding": "[1.0, -3.0]",
        "predicted_label": "3, long",
        "scores": "0.3",
        "words": '["a", "b"]',
    }
    assert second["id"] == "8" and second["text"] == ""


@pytest.mark.parametrize("count", [3, 101])
def test_a_table_has_a_column_for_each_labels_probability(tmp_path, count):
    served, shares = Served(), np.float32([0.25, 0.5, 0.25])
    served.card["signatures"]["count"] = {
        "input_order": ["text"],
        "outputs": {"probabilities": {"shape": ["B", "C"]}},
        "labels": ["bad", "a, b", *map(str, range(count - 2))],
    }
    served.signatures = ["count"]
    more = np.zeros(count - 3, "float32")
    row = np.concatenate([shares, more])
    served.count = lambda texts: {"probabilities": [row] * len(texts)}
    for rows in ([["a text", "kept"]], []):
        path = tmp_path / f"out{len(rows)}.csv"
        answered(path, served, rows, keep=["probability_0"])
        with open(path, newline="") as file:
            header, *found = csv.reader(file)
        if count == 3:
            names = [f"probability_{name}" for name in ("bad", "a, b")]
            names += ["predicted_probability_0"]
            assert header == ["probability_0", "text", *names]
            assert [row[2:] for row in found] == [["0.25", "0.5", "0.25"]][
                : len(rows)
            ]
        else:  # the ten best, in one column
            assert header == ["probability_0", "text", "probabilities"]
            assert all(len(json.loads(row[2])) == 10 for row in found)


def test_an_answer_replaces_no_column_that_is_kept(tmp_path):
    # The rows are the output of an earlier prediction with --keep=label.
    keep = ["label", "predicted_label"]
    path = tmp_path / "out.csv"
    answered(path, Vectors(), [["a b", "x", "y"]], keep=keep)
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    names = (*keep, "predicted_predicted_label")
    assert [row[name] for name in names] == ["x", "y", "3, long"]


def test_a_line_break_of_any_kind_in_a_text_ends_no_row(tmp_path):
    texts = ["a\rb", "a\nb", "a\r\nb", "\r", "a", "b\r\n"]
    path = tmp_path / "out.csv"
    answered(path, Vectors(), [[text] for text in texts])
    with open(path, newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts
    assert b'"[""a""]"\n' in path.read_bytes()


def test_answers_are_parquet_with_lists_and_float32(tmp_path):
    table = parquet.read_table(answer_to(tmp_path, "out.parquet"))
    assert table["id"].to_pylist() == ["7", "8"]
    assert table["words"].to_pylist() == [["a", "b"], []]
    assert str(table.schema.field("scores").type) == "float"
    expected = np.float32([3, 0]) / np.float32(10)
    np.testing.assert_array_equal(table["scores"].to_numpy(), expected)


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_table_without_rows_has_its_columns(tmp_path, name):
    path = tmp_path / name
    columns = "label,text,embedding,predicted_label,scores,words"
    if name == "out.csv":
        answered(path, Vectors(), [], keep=["label"])
        assert path.read_text() == columns + "\n"
    else:
        answered(path, Vectors(), [], keep=["label"])
        table = parquet.read_table(path)
        assert table.column_names == columns.split(",") and len(table) == 0


def test_answers_are_an_array_of_vectors(tmp_path):
    vectors = np.load(answer_to(tmp_path, "out.npy"))
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, [[1, -3], [0, 0]])


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("out", "'no ending'"),
        ("out.json", "ends in .jsonl, .csv"),
        ("out.csv.gz", "got '.gz'"),
        ("out.npy", ".npy is for vectors"),
    ],
)
def test_other_formats_are_refused(tmp_path, name, word):
    with pytest.raises(InputError, match=word):
        answered(tmp_path / name)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("overwrite", [True, False])
def test_an_output_has_one_writer(tmp_path, name, overwrite):
    path = tmp_path / name
    running = Answers(Served(), "count", batch_size=2).write(TEXTS, str(path))
    assert next(running) == 32
    with pytest.raises(InputError, match="parts is in use by process"):
        answered(path, overwrite=overwrite)
    assert list(running) == [50]
    assert len(parts(path)) == 0


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_what_is_overwritten_goes_when_its_replacement_is_complete(
    tmp_path, name
):
    path = tmp_path / name
    answered(path, rows=TEXTS[:2])
    before = path.read_text()
    answered(path, stop_after=0, overwrite=True)
    assert path.read_text() == before
    with pytest.raises(InputError, match="add --overwrite"):
        answered(path)
    assert answered(path, overwrite=True).new_rows == 50
    assert len(path.read_text()) > 10 * len(before)
    assert answered(path, overwrite=True).new_rows == 50
    assert answered(path).new_rows == 0


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.npy"]
)
def test_a_finished_command_ends_at_once_when_it_is_repeated(tmp_path, name):
    path = tmp_path / name
    answered(path, Vectors())
    before = path.read_bytes()
    served = Vectors()
    again = answered(path, served)
    assert again.rows == len(TEXTS) and again.new_rows == 0
    assert served.batches == []
    assert path.read_bytes() == before
    other = Vectors()
    other.card["fingerprint"] = "e" * 64
    for model, rows, arguments in (
        (other, TEXTS, {}),
        (served, TEXTS[:9], {}),
        (served, [*TEXTS, ["more"]], {}),
        (served, [["x"], *TEXTS[1:]], {}),
        (served, [[*row, "k"] for row in TEXTS], {"keep": ["id"]}),
    ):
        with pytest.raises(
            InputError, match="other (settings|rows).*--overwrite"
        ):
            answered(path, model, rows, **arguments)
    path.write_bytes(before + b"\n")  # changed by the user
    with pytest.raises(
        InputError, match="was changed by another program.*--overwrite"
    ):
        answered(path, served)
    assert served.batches == [] and path.read_bytes() == before + b"\n"
    path.unlink()
    assert answered(path, served).new_rows == len(TEXTS)
    assert path.read_bytes() == before


def test_an_output_may_be_remote(tmp_path, monkeypatch):
    root, local = f"ram://{tmp_path.name}", tmp_path / "out.csv"
    # Unlike a bucket, ram:// takes each start of a path for a folder.
    monkeypatch.setattr(
        parts_module, "parts_folder", lambda path: f"{root}/parts"
    )
    path = f"{root}/out.csv"
    answered(local)
    answered(path, stop_after=0)
    assert answered(path).new_rows == 50 - 32
    assert files.read_bytes(path, None) == local.read_bytes()
    assert answered(path).new_rows == 0
    with pytest.raises(InputError, match="other rows"):
        answered(path, rows=TEXTS[:9])


def test_a_pattern_names_files_and_rows_are_counted(tmp_path):
    for name in ("b.csv", "a.csv", "x[1].csv"):
        (tmp_path / name).write_text(f"text\n{name}\n\n")
    paths = prediction.find_inputs(f"{tmp_path}/?.csv")
    arguments = (None, ["text"], [False])
    found = [row for (row,) in read_inputs(paths, *arguments)]
    assert found == ["a.csv", "", "b.csv", ""]
    assert prediction.Rows(paths, *arguments).total == 4
    assert prediction.Rows(["-"], *arguments).total is None
    named = f"{tmp_path}/x[1].csv"
    assert prediction.find_inputs(named) == [named]
    with pytest.raises(InputError, match="no such file"):
        prediction.find_inputs(f"{tmp_path}/*.tsv")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.npy"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_answer_that_is_not_finite_is_named_with_its_row(
    tmp_path, name, bad
):
    class Broken(Vectors):
        def count(self, texts):
            outputs = super().count(texts)
            outputs["embedding"][np.array(texts) == "bad", 1] = bad
            return outputs

    rows = [["ok"], ["fine"], ["bad"], ["good"]]
    with pytest.raises(InputError, match="answers row 3 of .* 'bad'"):
        answered(tmp_path / name, Broken(), rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("after", "rows"),
    [
        ("a\nb\nc\n", "abc"),
        ("a\nb\nc\nd\n", "abc"),  # a log that grows
        ("a\nb\n", None),
        ("a\nb\nd\n", None),
        ("", None),
    ],
)
def test_rows_that_changed_since_they_were_counted_end_the_command(
    tmp_path, after, rows
):
    path = tmp_path / "a.txt"
    path.write_text("a\nb\nc\n")
    counted = prediction.Rows([str(path)], None, ["text"], [False])
    path.write_text(after)
    if rows:
        assert [text for (text,) in counted] == list(rows)
        return
    with pytest.raises(InputError, match="a.txt changed .* the 3 rows"):
        list(counted)


def test_a_file_that_is_cut_while_it_is_read_is_not_finished(
    tmp_path, classifier_export, monkeypatch
):
    (tmp_path / "in.txt").write_text("an hour\nwell\nspent\n")
    cut = lambda: (tmp_path / "in.txt").write_text("an hour\n")  # noqa: E731
    monkeypatch.setattr(progress, "show_devices", cut)
    done = call_script(
        *("-m", "official_tasks.predict", f"--model={classifier_export}"),
        *("--input=in.txt", "--output=out.csv"),
        folder=tmp_path,
    )
    assert done.returncode == 2 and "changed while it was" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_no_input_is_a_file_that_the_command_writes(
    tmp_path, classifier_export
):
    path = tmp_path / "z.csv.parts/in.csv"
    path.parent.mkdir()
    path.write_text("text\nwell\n")
    done = call_script(
        *("-m", "official_tasks.predict", f"--model={classifier_export}"),
        *(f"--input={path}", "--input_format=csv"),
        *("--output=z.csv", "--overwrite"),
        folder=tmp_path,
    )
    assert done.returncode == 2 and "is an input" in done.stderr
    assert path.read_text() == "text\nwell\n"
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text\n")
    values = types.SimpleNamespace(
        output=str(tmp_path / "b.csv"),
        overwrite=True,
        train=f"{tmp_path}/a.csv, {tmp_path}/b.csv",
    )
    with pytest.raises(InputError, match="is an input"):
        prepare_output(values, values.train, None)


def test_a_log_file_gets_a_line_now_and_then(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "console", progress.Console(file=shown))
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    clock = itertools.count(0, 5)  # each reading is 5 s later
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    note = "loss 6.195  mlm 15.3%  nsp 77.2%  6,718 tokens/s"
    with progress.bar("Asking", 100) as update:
        update(1)
        update(11)
        update(12, note=note)
    line, *_, last, below = shown.getvalue().splitlines()
    assert line == "Asking: 11 of 100, 2.0/s, 0:00:44 left"
    assert "12/100" in last and below.strip() == note  # note on its own line
    with progress.bar("Training") as update:
        update(1)
        update(3)
    assert "Training: 3, 2.5 s each" in shown.getvalue()


def test_a_slow_step_is_shown_at_once():
    shown = []
    state = types.SimpleNamespace(progress=types.SimpleNamespace(step=0))
    meter = Meter(
        lambda step, _, note: shown.append((step, note)), state, 100, int
    )
    meter._shown -= 60
    meter.on_epoch_begin(0)
    meter.on_train_batch_end(0)
    assert shown == [(1, "")]  # no rate before a second step


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
    assert "11 rows, 11 of them by this command, 9.1% of" in done.stderr
    served = load_saved_model(classifier_export)
    found = read_records(tmp_path / "out.jsonl", served.card)
    assert compare(found, served)["label"]["equal"] == 1.0
    with pytest.raises(InputError, match="'tag'. It has classify, tokenize"):
        prediction.choose_signature(served, "tag", None)
    with pytest.raises(InputError, match="names 2"):
        prediction.choose_signature(served, None, ["a", "b"])
    with pytest.raises(InputError, match="--output is missing"):
        predict.main(types.SimpleNamespace(task="rte", output="-"))


def test_inputs_may_be_parquet_with_lists_as_they_are(tmp_path):
    table = {"a": ["one", None], "b": [["x", "y"], ["z"]], "ids": [[1], [2]]}
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table(table), path)

    def read(columns, lists):
        return list(read_inputs([path], None, columns, lists))

    assert read(["a", "b"], [False, True]) == [["one", ["x", "y"]], ["", ["z"]]]
    assert read(["ids"], [int]) == [[[1]], [[2]]]
    with pytest.raises(InputError, match="row 1: expected a list of integers"):
        read(["b"], [int])
    with pytest.raises(InputError, match="row 1: expected a list of texts"):
        read(["a"], [True])


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--output=loop.jsonl", "loop.jsonl cannot be written or read"),
        ("--input=loop.jsonl", "loop.jsonl: no such file"),
        ("--input=caf\udce9.txt", "is not UTF-8"),
        (f"--output={'a' * 300}.jsonl", "too long"),
    ],
)
def test_names_that_no_file_can_have(tmp_path, classifier_export, flag, word):
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "in.txt").write_text("an hour\n")
    command = ["-m", "official_tasks.predict", f"--model={classifier_export}"]
    done = call_script(*command, "--input=in.txt", flag, folder=tmp_path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
