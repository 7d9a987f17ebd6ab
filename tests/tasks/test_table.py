import bz2
import datetime
import decimal
import errno
import gzip
import lzma
import os
import re

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow  # noqa: F401  its import starts a process
import zstandard

from bert_keras import InputError, file_forms
from bert_keras.data.corpus import read_documents
from official_tasks.engine.prediction import find_kind, read_inputs
from official_tasks.tasks.forms.delimited import write_csv
from official_tasks.tasks.forms.table import read_rows
from official_tasks.tasks.forms.text_files import make_dialect, read_text
from official_tasks.tasks.own_tasks import classify_task

pytestmark = pytest.mark.fast


def rows(path, columns, **arguments):
    return [values for _, values in read_rows(path, columns, **arguments)]


def test_csv_keeps_quotes_commas_and_line_breaks_inside_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfid,text\n1,"He said ""no"", twice\nthen"\n')
    assert rows(path, ["text", "id"]) == [['He said "no", twice\nthen', "1"]]


def test_a_cell_may_be_a_long_document(tmp_path):
    text = "word " * 100_000
    for name, between in (("a.csv", ","), ("a.tsv", "\t")):
        path = tmp_path / name
        path.write_text(f"text{between}label\n{text}{between}1\n")
        assert rows(path, ["text", "label"]) == [[text, "1"]]


@pytest.mark.parametrize("separator", [";", ",", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("first", ["sep={}\r\n", '"sep={}"\n', "SEP={}\r"])
def test_excels_first_line_names_the_separator(
    tmp_path, separator, encoding, first
):
    path = tmp_path / "a.csv"
    lines = [f"text{separator}label", f'"a{separator}b"{separator}x', "c"]
    path.write_bytes(
        (first.format(separator) + "\n".join(lines)).encode(encoding)
    )
    dialect = make_dialect(None, encoding)
    read, faults = [], []
    for row in read_rows(path, ["text"], dialect=dialect, faults=faults):
        read.append(row)
    assert read == [(3, [f"a{separator}b"])]
    assert faults == [f"{path}, line 4: expected 2 columns, got 1"]
    asked = read_inputs([str(path)], None, ["label"], [False], dialect)
    assert next(asked) == ["x"]


def test_a_first_line_that_contradicts_the_separator_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sep=;\ntext;label\na;x\n")
    with pytest.raises(InputError, match="';', and --separator means ','"):
        rows(path, ["text"], dialect=make_dialect(","))
    path = path.rename(tmp_path / "a.tsv")
    with pytest.raises(InputError, match="';', and .tsv means .*name the file"):
        rows(path, ["text"])
    path.write_text("sep=\t\ntext\tlabel\na\tx\n")
    assert rows(path, ["text", "label"]) == [["a", "x"]]


def test_tsv_is_split_at_tabs_and_nowhere_else(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"odd quote\t1\n', encoding="utf-8")
    assert rows(path, ["text", "label"]) == [['"odd quote', "1"]]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_an_empty_line_of_one_column_is_a_row(tmp_path, name):
    path = tmp_path / name
    path.write_text("text\na\n\n\nb\n\n")
    assert rows(path, ["text"]) == [["a"], [""], [""], ["b"], [""]]
    asked = read_inputs([str(path)], None, ["text"], [False])
    assert len(list(asked)) == 5
    between = "," if name == "a.csv" else "\t"
    path.write_text(f"text{between}label\na{between}1\n\n")
    assert rows(path, ["text"]) == [["a"]]


def test_jsonl_and_gzip_are_read(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write('{"text": "Grüße", "label": 3}\n\n')
    assert rows(path, ["text", "label"]) == [["Grüße", "3"]]


@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_packed_tables_and_columns_are_read(tmp_path, ending, pack):
    path = tmp_path / ("a.csv" + ending)
    packed = pack(b'text\n"so it\nis"\n')
    path.write_bytes(packed)
    dialect = make_dialect(None, "cp1252")  # reads the file twice
    assert rows(path, ["text"], dialect=dialect) == [["so it\nis"]]
    assert list(read_inputs([str(path)], None, ["text"], [False])) == [
        ["so it\nis"]
    ]
    path.write_bytes(packed[:-3])
    with pytest.raises(InputError, match="a.csv.* is not a complete .* file"):
        rows(path, ["text"])
    path = tmp_path / ("a.txt" + ending)
    path.write_bytes(pack(b"cat O\n"))
    assert read_text(path) == "cat O\n"


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (gzip.compress(b"a", mtime=0), "is a gzip file, .* end in .gz"),
        (b"PK\x03\x04\x14", "is a zip file or an Office document. .*Export"),
        (b"\xd0\xcf\x11\xe0\xa1", "is an old Office document"),
        (b"a" * 257 + b"ustar\0", "is a tar archive.* Extract it first"),
    ],
)
def test_a_table_in_another_format_is_called_by_its_name(
    tmp_path, content, advice
):
    for name in ("a.csv", "a.txt"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=advice):
        rows(tmp_path / "a.csv", ["text"], dialect=make_dialect(None, "cp1252"))
    with pytest.raises(InputError, match=advice):
        list(read_inputs([str(tmp_path / "a.txt")], None, ["text"], [False]))
    with pytest.raises(InputError, match=advice):
        read_text(tmp_path / "a.txt")


def test_a_name_in_capitals_says_the_same(tmp_path):
    path = tmp_path / "EXPORT.CSV.GZ"
    path.write_bytes(gzip.compress(b"text,label\nso it is,1\n"))
    assert rows(path, ["text"]) == [["so it is"]]
    (asked,) = read_inputs([str(path)], None, ["text"], [False])
    assert asked == ["so it is"]
    assert find_kind("A.PARQUET") == "columns"
    assert find_kind("a.parquet", "lines") == "columns"
    path = tmp_path / "A.PARQUET"
    parquet.write_table(pa.table({"text": ["so it is"]}), path)
    assert rows(path, ["text"]) == [["so it is"]]


LETTERS = "text,label\nGr\u00fc\u00dfe \u2013 caf\u00e9,1\n"


@pytest.mark.parametrize(
    ("written", "named", "noted"),
    [
        ("cp1252", "cp1252", None),
        ("utf-8", "cp1252", "read as UTF-8 and not as cp1252, because its let"),
        ("utf-8-sig", "cp1252", "as UTF-8 .* begins with a byte order mark"),
        ("utf-8", "utf-16", "as UTF-8 and not as utf-16"),
        ("utf-16", "cp1252", "as UTF-16 .* begins with a byte order mark"),
        ("utf-32", "utf-16", "as UTF-32 .* begins with a byte order mark"),
        ("utf-16", "utf-16-be", None),
        ("utf-16-le", "utf-16-le", None),
        ("utf-8", "utf-8", None),
        ("utf-8-sig", "utf-8", None),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_bytes_that_are_utf_8_or_marked_win_over_the_named_encoding(
    tmp_path, written, named, noted, name
):
    path = tmp_path / name
    content = LETTERS.encode(written)
    path.write_bytes(gzip.compress(content) if name[-1] == "z" else content)
    dialect, notes = make_dialect(None, named), []
    found = list(read_rows(path, ["text"], dialect=dialect, notes=notes))
    assert found == [(2, ["Gr\u00fc\u00dfe \u2013 caf\u00e9"])]
    assert re.search(noted, notes.pop()) if noted else not notes
    asked = read_inputs([str(path)], None, ["text"], [False], dialect, notes)
    assert list(asked) == [["Gr\u00fc\u00dfe \u2013 caf\u00e9"]]
    assert len(notes) == bool(noted)


def test_a_letter_that_ends_a_file_shows_its_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("caf\u00e9".encode("cp1252"))
    dialect = make_dialect(None, "cp1252")
    rows = read_inputs([str(path)], "lines", ["text"], [False], dialect)
    assert list(rows) == [["caf\u00e9"]]


@pytest.mark.parametrize("written", ["utf-8", "utf-8-sig", "cp1252"])
def test_a_pipe_shows_its_encoding_by_its_first_bytes(monkeypatch, written):
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write("caf\u00e9\ncaf\u00e9".encode(written))
    with os.fdopen(reader) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        notes, dialect = [], make_dialect(None, "cp1252")
        rows = read_inputs(["-"], None, ["text"], [False], dialect, notes)
        assert list(rows) == [["caf\u00e9"]] * 2
    assert len(notes) == (written != "cp1252")


def test_null_is_an_empty_cell_and_a_list_only_where_it_may_be(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null, "label": ["a", "b"], "sure": true}\n')
    columns = ["text", "label", "sure"]
    found = list(read_rows(path, columns, lists=["label"]))
    assert found == [(1, ["", ["a", "b"], "true"])]
    path.write_text('{"text": "a\\ud800b", "label": ["\\udfff"], "sure": 1}\n')
    assert rows(path, ["text", "sure"]) == [["a\ufffdb", "1"]]
    with pytest.raises(InputError, match="line 1: expected text in 'label'"):
        rows(path, columns)
    path.write_text('{"text": {"a": 1}}\n')
    with pytest.raises(InputError, match='expected text .* got {"a": 1}'):
        list(read_rows(path, ["text"], lists=["text"]))


def test_a_missing_file_is_plain_errors(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        rows(tmp_path / "none.csv", ["text"])


def test_cells_of_parquet_are_text_or_lists_of_it(tmp_path):
    path = tmp_path / "a.parquet"
    table = {
        "text": ["Grüße", None, "c"],
        "bytes": [b"Gr\xc3\xbcn", b"b", b"\xff"],
        "n": [1, 2, 3],
        "share": [0.5, None, 1.0],
        "grade": [2.0, float("nan"), None],
        "sure": [True, False, None],
        "day": [datetime.date(2026, 11, 23)] * 3,
        "price": [decimal.Decimal("1.50")] * 3,
        "tags": [["a", "b"], [], None],
    }
    parquet.write_table(pa.table(table), path)
    columns = ["text", "n", "share", "sure", "day", "price"]
    assert rows(path, columns) == [
        ["Grüße", "1", "0.5", "true", "2026-11-23", "1.50"],
        ["", "2", "", "false", "2026-11-23", "1.50"],
        ["c", "3", "1.0", "", "2026-11-23", "1.50"],
    ]
    assert rows(path, ["grade"]) == [["2.0"], [""], [""]]
    tagged = [row for _, (row,) in read_rows(path, ["tags"], lists=["tags"])]
    assert tagged == [["a", "b"], [], ""]
    found = read_rows(path, ["bytes"])
    assert [next(found), next(found)] == [(1, ["Grün"]), (2, ["b"])]
    with pytest.raises(InputError, match="row 3: expected UTF-8 .* byte 0xff"):
        next(found)
    with pytest.raises(InputError, match="row 1: expected text in 'tags'"):
        rows(path, ["tags"])
    with pytest.raises(InputError, match="no column 'txt'.*'bytes'.* Name"):
        rows(path, ["txt"])
    for own in (make_dialect(";"), make_dialect(None, "cp1252")):
        with pytest.raises(InputError, match="is for text files: leave it"):
            list(read_rows(path, ["text"], dialect=own))
    with pytest.raises(InputError, match="no such file"):
        rows(tmp_path / "none.parquet", ["text"])
    with pytest.raises(InputError, match=r"ends in .* got 'a.parquet.gz'"):
        rows(tmp_path / "a.parquet.gz", ["text"])


def test_a_table_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, [("text",), ("good",)])

    def cut():
        yield ("text",)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_csv(path, cut())
    assert path.read_text() == "text\ngood\n" and os.listdir(tmp_path) == [
        "a.csv"
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_a_row_of_any_length_is_refused_with_its_line(
    tmp_path, monkeypatch, name, encoding
):
    monkeypatch.setattr(file_forms, "MAX_LINE_BYTES", 400)
    path = tmp_path / name
    before, after = ('{"text": "', '"}') if "json" in name else ("", "")
    first = f"{before}text{after}\n"
    for length, is_long in ((150, False), (500, True)):
        text = f"{first}{before}{'x' * length}{after}\n"
        path.write_text(text, encoding=encoding)
        dialect = make_dialect(None, encoding)
        found = read_inputs([str(path)], None, ["text"], [False], dialect)
        if is_long:
            with pytest.raises(InputError, match=f"{name}, line 2 has more th"):
                list(found)
        else:
            assert list(found)[-1] == ["x" * length]


def test_a_pipe_and_a_folder_are_not_called_missing(tmp_path):
    pipe = tmp_path / "a.csv"
    os.mkfifo(pipe)
    (tmp_path / "b.csv").mkdir()
    for read in (
        lambda: rows(pipe, ["text"]),
        lambda: read_text(pipe),
        lambda: classify_task(str(pipe), str(pipe)).read("train"),
        lambda: list(read_documents(str(pipe))),
    ):
        with pytest.raises(InputError, match="a.csv is a pipe, .* regular"):
            read()
    with pytest.raises(InputError, match="b.csv is a folder; expected a file"):
        rows(tmp_path / "b.csv", ["text"])
