"""Reading Parquet files and Hugging Face data sets that tests write."""

import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from bert_keras.data import data_sets
from bert_keras.data.corpus import Reading, read_documents
from bert_keras.data.data_sets import (
    column_rows,
    data_set_rows,
    is_data_set,
)
from bert_keras.errors import InputError


def write(path, table, rows_at_once=100):
    """Write a table as Parquet; return the path, a str."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    parquet.write_table(table, path, row_group_size=rows_at_once)
    return str(path)


def test_columns_come_as_they_are_whatever_else_the_file_holds(tmp_path):
    table = {
        "words": [["a", "b"], [], None],
        "text": pa.array(["Grüße", "b", None]).dictionary_encode(),
        "other": [{"a": 1}] * 3,
        "n": [1, 2, 3],
    }
    path = write(tmp_path / "a.parquet", table, 2)
    columns = ["text", "words", "none", "text"]
    assert list(column_rows(path, columns, optional=["none"])) == [
        (1, ["Grüße", ["a", "b"], None, "Grüße"]),
        (2, ["b", [], None, "b"]),
        (3, [None, None, None, None]),
    ]


def test_an_optional_column_that_occurs_twice_counts_as_missing(tmp_path):
    arrays = [pa.array(["a"]), pa.array([1]), pa.array([2])]
    table = pa.Table.from_arrays(arrays, names=["text", "id", "id"])
    path = write(tmp_path / "a.parquet", table)
    assert list(column_rows(path, ["text", "id"], ["id"])) == [(1, ["a", None])]
    with pytest.raises(InputError, match="2 columns are called 'id'"):
        list(column_rows(path, ["text", "id"]))


def test_what_cannot_be_read_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["a", "b"], "label": [0, 1]})

    def refusal(columns=("text",)):
        with pytest.raises(InputError) as caught:
            list(column_rows(path, columns))
        assert path in str(caught.value)
        return str(caught.value)

    assert "no column 'words': its columns are 'text'" in refusal(["words"])
    whole = (tmp_path / "a.parquet").read_bytes()
    for cut in (0, 3, len(whole) // 2, len(whole) - 8):
        (tmp_path / "a.parquet").write_bytes(whole[:cut])
        assert "fetch it again" in refusal()
    (tmp_path / "a.parquet").write_bytes(b"text,label\na,1\n")
    assert "fetch it again" in refusal()
    write(path, {"text": pa.nulls(3)})
    assert "got a column of type null" in refusal()
    write(path, pa.Table.from_arrays([["a"], ["b"]], ["text", "text"]))
    assert "2 columns are called 'text'" in refusal()
    # pyarrow writes these strings without checking that they are UTF-8.
    raw = pa.py_buffer(b"a\xff")
    ends = pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes())
    text = pa.StringArray.from_buffers(2, ends, raw)
    write(path, {"text": text})
    assert "UTF8" in refusal()


def test_damaged_bytes_never_end_the_process(tmp_path):
    text = [f"text {i} " * (i % 9) for i in range(300)]
    words = [[str(i)] * (i % 3) for i in range(300)]
    path = tmp_path / "a.parquet"
    write(path, {"text": text, "words": words})
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 3):
            damaged[place] ^= int(generator.integers(1, 256))
        path.write_bytes(damaged)
        try:
            assert all(
                len(row) == 2 for _, row in column_rows(path, ["text", "words"])
            )
        except InputError:
            refused += 1
    assert refused > 20


def test_memory_is_that_of_a_group_and_not_of_the_file(tmp_path):
    text = [f"{i} " * 200 for i in range(20_000)]
    peaks = []
    before, pool = pa.default_memory_pool(), pa.system_memory_pool()
    for rows in (1000, 20_000):
        path = write(tmp_path / f"{rows}.parquet", {"text": text[:rows]}, 1000)
        pa.set_memory_pool(pool)
        try:
            found = sum(1 for _ in column_rows(path, ["text"]))
        finally:
            pa.set_memory_pool(before)
        assert found == rows
        peaks.append(pool.max_memory())  # the maximum so far
    assert peaks[1] < 3 * peaks[0]  # for 20 times the rows


def test_without_its_package_the_extra_is_named(monkeypatch, tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["a"]})
    for module, source, extra in (
        ("pyarrow", path, "parquet"),
        ("datasets", "hf:owner/name", "hf"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(InputError, match=rf"\[{extra}\]"):
            list(column_rows(source, ["text"]))


def test_a_corpus_may_be_parquet(tmp_path):
    write(tmp_path / "a.parquet", {"text": ["One.\nTwo.", None, " \n"]})
    (tmp_path / "sub").mkdir()
    table = {"text": [b"Gr\xc3\xbcn."], "n": [1]}
    write(tmp_path / "sub" / "b.parquet", table)
    (tmp_path / "c.txt").write_text("Three.")
    found = list(read_documents(str(tmp_path)))
    assert [(d.name, d.paragraphs) for d in found] == [
        ("a.parquet#1", ["One.", "Two."]),
        ("c.txt", ["Three."]),
        ("sub/b.parquet#1", ["Grün."]),
    ]
    with pytest.raises(InputError, match="row 1: expected text in 'n', got 1"):
        list(
            read_documents(str(tmp_path / "sub" / "*"), Reading(text_field="n"))
        )
    write(tmp_path / "d.parquet", {"text": [b"a", b"\xff"]})
    with pytest.raises(InputError, match="row 2, is not UTF-8: .* byte 0xff"):
        list(read_documents(str(tmp_path / "d.parquet")))


def test_a_remote_parquet_file_is_read(tmp_path):
    from bert_keras import files

    path = write(tmp_path / "a.parquet", {"text": ["One.", "Two."]}, 1)
    files.upload(path, "ram://parquet/a.parquet")
    found = list(read_documents("ram://parquet"))
    assert [d.paragraphs for d in found] == [["One."], ["Two."]]


# Hugging Face data sets.


@pytest.fixture(scope="module")
def hf():
    import datasets

    datasets.disable_progress_bars()
    return datasets


def table(hf):
    return hf.Dataset.from_dict(
        {
            "text": ["One. Two.", "Three.\nFour.", None],
            "label": [1, 0, -1],
            "tags": [[0], [1, 0], []],
        },
        features=hf.Features(
            {
                "text": hf.Value("string"),
                "label": hf.ClassLabel(names=["no", "yes"]),
                "tags": hf.List(hf.ClassLabel(names=["O", "B-X"])),
            }
        ),
    )


@pytest.fixture
def folder(hf, tmp_path):
    """A folder like a data set of the Hub, with two configurations."""
    rows = table(hf)
    for path in ("a/train.parquet", "a/validation.parquet", "b/train.parquet"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        rows.to_parquet(tmp_path / path)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: one\n  data_dir: a\n"
        "- config_name: two\n  data_dir: b\n---\n"
    )
    return tmp_path


def test_a_data_set_streams_its_rows_classes_by_name(folder):
    rows = [
        (1, ["yes", "One. Two.", ["O"]]),
        (2, ["no", "Three.\nFour.", ["B-X", "O"]]),
        (3, [None, None, []]),
    ]
    columns = ["label", "text", "tags"]
    for source in (
        f"hf:{folder}/one",
        f"hf:{folder}/one:validation",
        f"hf:{folder}/two:train",
        f"hf:{folder}/a",
    ):
        assert is_data_set(source)
        assert list(column_rows(source, columns)) == rows
    assert [*data_set_rows(f"hf:{folder}/one", ["text"], "dev")][1] == {
        "text": "Three.\nFour.",
        "label": 0,
        "tags": [1, 0],
    }


def test_what_save_to_disk_wrote_is_read(hf, tmp_path):
    table(hf).save_to_disk(tmp_path / "one")
    splits = hf.DatasetDict({"train": table(hf), "test": table(hf)})
    splits.save_to_disk(tmp_path / "two")
    for source in (f"hf:{tmp_path}/one", f"hf:{tmp_path}/two:test"):
        rows = list(column_rows(source, ["label"]))
        assert rows == [(1, ["yes"]), (2, ["no"]), (3, [None])]


def test_a_data_set_that_is_none_is_named(hf, folder, monkeypatch):
    def refusal(source, columns=("text",)):
        with pytest.raises(InputError) as caught:
            list(column_rows(source, columns))
        return str(caught.value)

    assert "no column 'body': its columns are 'text', 'label'" in refusal(
        f"hf:{folder}/one", ["body"]
    )
    found = refusal(f"hf:{folder}/one:x")
    assert {"x", "train,", "validation"} <= {*found.split()}
    assert "has no train[:1] split" in refusal(f"hf:{folder}/two:train[:1]")
    assert "'three' not found" in refusal(f"hf:{folder}/three")
    assert "names no data set; expected hf:NAME" in refusal("hf:")
    (folder / "empty").mkdir()
    assert "cannot be opened" in refusal(f"hf:{folder}/empty")
    (folder / "a" / "train.parquet").write_bytes(b"PAR1")
    assert "Parquet file size is 4 bytes" in refusal(f"hf:{folder}/one")
    # For `csv`, `datasets` would read CSV files of the current folder.
    monkeypatch.chdir(folder)
    assert "csv is a format, not a data set" in refusal("hf:csv")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(""), "hf:some/set cannot be read: ValueError. Write it"),
        (OSError("line 3\nis cut"), "cannot be read: line 3. Write it again"),
    ],
)
def test_the_first_row_of_a_data_set_may_be_damaged(
    monkeypatch, error, message
):
    class Broken:
        features = None

        def __iter__(self):
            raise error

    library = SimpleNamespace(__version__="4.0.0")
    monkeypatch.setattr(data_sets, "import_extra", lambda *_: library)
    splits = {"train": Broken()}
    monkeypatch.setattr(data_sets, "_open_hugging_face", lambda *_: splits)
    with pytest.raises(InputError, match=message):
        list(column_rows("hf:some/set", ["text"]))

    def opened(*_):
        raise ValueError("\n")

    monkeypatch.setattr(data_sets, "_open_hugging_face", opened)
    with pytest.raises(InputError, match="cannot be opened: ValueError. Exp"):
        list(column_rows("hf:some/set", ["text"]))


def test_no_code_of_a_data_set_is_run(hf, tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    (tmp_path / "set").mkdir()
    script = f"open({str(ran)!r}, 'w').close()"
    (tmp_path / "set" / "set.py").write_text(script)
    with pytest.raises(InputError, match="a script is not read"):
        list(column_rows(f"hf:{tmp_path}/set", ["text"]))
    assert not ran.exists()
    monkeypatch.setattr(hf, "__version__", "3.6.0")
    with pytest.raises(InputError, match="datasets 3.6.0 may run .* code"):
        list(column_rows(f"hf:{tmp_path}/set", ["text"]))


def test_a_corpus_of_a_data_set_has_a_document_a_row(folder):
    found = list(read_documents(f"hf:{folder}/two"))
    assert [d.paragraphs for d in found] == [["One. Two."], ["Three.", "Four."]]
    assert found[0].name == f"{folder}/two:train#0"
    with pytest.raises(InputError, match="row 1: expected text in 'tags'"):
        list(read_documents(f"hf:{folder}/two", Reading(text_field="tags")))


def test_wrapped_lines_are_joined_in_data_sets_as_in_files(hf, tmp_path):
    text = "The old man\nwent home.\n\nHe slept."
    (tmp_path / "rows").mkdir()
    path = write(tmp_path / "rows/train.parquet", {"text": [text]})
    (of_set,) = read_documents(f"hf:{tmp_path}/rows")
    (of_file,) = read_documents(path)
    assert of_set.paragraphs == of_file.paragraphs
    assert of_set.paragraphs == ["The old man went home.", "He slept."]


def test_wikipedia_of_the_hub_gives_passages_alone(monkeypatch):
    import datasets

    text = "Bern is a city.\n\nHistory\n\nIt is old. It has bears."
    opened = []

    def load(name, config, streaming):
        opened.append((name, config, streaming))
        return {"train": Rows([{"text": text}])}

    class Rows(list):
        features = {"text": None}

    monkeypatch.setattr(datasets, "load_dataset", load)
    (found,) = read_documents("hf:wikimedia/wikipedia/20231101.en")
    assert found.paragraphs == ["Bern is a city.", "It is old. It has bears."]
    assert opened == [("wikimedia/wikipedia", "20231101.en", True)]
