import bz2
import gzip
import json
import lzma

import pytest
import zstandard

from bert_keras import file_forms
from bert_keras.data import corpus
from bert_keras.data.corpus import (
    Document,
    Reading,
    content_hash,
    held_out,
    read_documents,
)
from bert_keras.errors import InputError
from tests.support.shared_data import shared

pytestmark = pytest.mark.fast


def read(source, **arguments):
    return list(read_documents(str(source), Reading(**arguments)))


def test_a_folder_gives_one_document_a_file_sorted(tmp_path):
    for name in ("b.txt", "sub/deep/c.txt", "sub/a.txt", "ignored.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"This is {name}.\nA second paragraph.\n")
    found = read(tmp_path)
    assert [d.name for d in found] == ["b.txt", "sub/a.txt", "sub/deep/c.txt"]
    assert found[0].paragraphs == ["This is b.txt.", "A second paragraph."]
    assert not found[0].sentences_given
    for pattern in ("**", "su?"):
        assert read(tmp_path / pattern / "a.txt")[0].name == "sub/a.txt"
    assert read(tmp_path / "b.txt")[0] == found[0]


def test_wrapped_lines_are_joined_to_paragraphs(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("It was a dark\nand stormy night.\n\nThe rain\nfell.\n")
    (found,) = read(path)
    assert found.paragraphs == [
        "It was a dark and stormy night.",
        "The rain fell.",
    ]
    (lines,) = read(path, join_lines=False)
    assert lines.paragraphs == [
        *("It was a dark", "and stormy night.", "The rain", "fell."),
    ]


ORIGINAL = (
    "One here.\nTwo here.\n\nThree there.\nFour there.\n\n\nFive?\nSix!\n"
)


def test_halves_of_surrogate_pairs_in_json_stop_no_corpus(tmp_path):
    path = tmp_path / "web.jsonl"
    path.write_text('{"text": "Half \\ud83d of it."}\n{"text": "Whole."}\n')
    first, second = read(path)
    assert first.paragraphs == ["Half \ufffd of it."]
    assert content_hash(first) != content_hash(second)


def test_the_original_format_is_recognised(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text(ORIGINAL)
    found = read(path)
    assert [d.paragraphs for d in found] == [
        ["One here.", "Two here."],
        ["Three there.", "Four there."],
        ["Five?", "Six!"],
    ]
    assert all(d.sentences_given for d in found)
    assert len({d.name for d in found}) == 3
    path.write_text(ORIGINAL.rstrip("\n"))
    assert read(path) == found
    (whole,) = read(path, layout="document")
    assert not whole.sentences_given


def test_lines_that_hold_more_than_a_sentence_are_paragraphs(tmp_path):
    path = tmp_path / "notes.txt"
    line = "A first sentence. And another one.\n"
    path.write_text((line * 3 + "\n") * 3)
    assert len(read(path)) == 1
    assert len(read(path, layout="sentences")) == 3


def test_compressed_files_and_endings_in_capitals_read_like_others(tmp_path):
    (tmp_path / "a.txt").write_text(ORIGINAL)
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write(ORIGINAL)
    (tmp_path / "C.TXT").write_text(ORIGINAL)
    found = [document.paragraphs for document in read(tmp_path)]
    assert len(found) == 9 and found[:3] == found[3:6] == found[6:]


def test_json_lines_hold_a_document_each(tmp_path):
    path = tmp_path / "docs.jsonl"
    texts = ("One.\nTwo.", "", None, "Three.")
    rows = [{"text": text} for text in texts]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert [d.paragraphs for d in read(path)] == [["One.", "Two."], ["Three."]]
    path.write_text(json.dumps({"body": "Here."}))
    assert read(path, text_field="body")[0].paragraphs == ["Here."]


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_files_are_read_and_a_cut_one_is_named(tmp_path, ending):
    pack = PACKERS[ending]
    path = tmp_path / ("a.txt" + ending)
    path.write_bytes(pack(ORIGINAL.encode()) * 2)  # two streams, as of `cat`
    plain = tmp_path / "b.txt"
    plain.write_text(ORIGINAL * 2)
    texts = [document.paragraphs for document in read(plain)]
    assert [document.paragraphs for document in read(path)] == texts
    packed = pack(ORIGINAL.encode() * 9)
    path.write_bytes(packed[:-3])
    with pytest.raises(InputError, match="not a complete .* file"):
        read(path)
    path.write_text(ORIGINAL)
    with pytest.raises(InputError, match="not a complete .* file"):
        read(path)
    wrong = tmp_path / "packed.txt"
    wrong.write_bytes(packed)
    with pytest.raises(InputError, match=rf"whose name must end in \{ending}"):
        read(wrong)


def test_noise_is_not_called_text_of_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(1, 256)) * 9)
    with pytest.raises(InputError, match="may be no text") as error:
        read(path)
    assert "iconv" not in str(error.value)


def test_the_files_of_a_folder_that_are_not_read_are_listed(tmp_path):
    for name in (
        "a.txt",
        "b.csv",
        "c/d.PDF",
        "e.md.bz2",
        ".f/g.csv",
        "LICENSE",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = ["LICENSE", "b.csv", "c/d.PDF"]
    unread = corpus.list_unread(str(tmp_path))
    assert unread == [str(tmp_path / name) for name in names]
    assert corpus.list_unread(str(tmp_path / "b.csv")) == []
    mixed = shared("forms/mixed")
    assert corpus.list_unread(str(mixed)) == [str(mixed / "c.csv")]
    assert {document.name.split("#")[0] for document in read(mixed)} == {
        "a.txt",
        "b.jsonl.bz2",
    }


@pytest.mark.parametrize("name", ["wiki_doc", "wiki_json", "packed.jsonl.bz2"])
def test_articles_of_wikiextractor_are_documents(name):
    found = read(shared(f"forms/{name}"))
    assert len(found) == len({document.name for document in found}) == 12
    for document in found:
        assert len(document.paragraphs) == 8
        assert all(text[-1] == "." for text in document.paragraphs)


def test_text_around_doc_lines_is_refused_and_entities_are_read(tmp_path):
    path = tmp_path / "wiki_07"
    lines = [
        '<doc id="1" url="u" title="A &amp; B">',
        *("A & B", "", "One.", "A & B", "</doc>", ""),
        '<doc id="2" title="C">',
        *("C", "</doc>", '<doc id="3" title="D">', "Text.", "</doc>"),
    ]
    path.write_text("\n".join(lines))
    found = read(tmp_path)
    texts = [["One.", "A & B"], ["Text."]]
    assert [document.paragraphs for document in found] == texts
    (tmp_path / "wiki.txt").write_text("\n".join([*lines, "x"]))
    with pytest.raises(InputError, match="line 14: expected <doc ...>"):
        read(tmp_path / "wiki.txt")
    # A title may be escaped in the text too, and have quotes and ">".
    lines = ['<doc id="1" title="A &amp; B">', "A &amp; B", "One.", "</doc>"]
    lines += ['<doc id="2" title=""C" > D" url="u">', '"C" > D', "Two."]
    lines += ["</doc>", "<doc id='3' title='E'>", "E", "Three.", "</doc>"]
    for first in ("", "<doc>\nZero.\n</doc>\n"):
        path.write_text(first + "\n".join(lines))
        texts = ["Zero."] * bool(first) + ["One.", "Two.", "Three."]
        assert [x.paragraphs for x in read(path)] == [[x] for x in texts]
    path.write_text("A <doc>\n</doc>\n")  # no output of WikiExtractor
    assert read(path)[0].paragraphs == ["A <doc>", "</doc>"]


def test_lines_of_objects_are_jsonl_whatever_the_ending(tmp_path):
    path = tmp_path / "a.txt"
    long = "Word. " * 2000
    rows = [{"id": 1, "text": long}, {"id": 2, "text": "Two."}]
    path.write_text("\n".join(map(json.dumps, rows)))
    texts = [[long.strip()], ["Two."]]
    assert [document.paragraphs for document in read(path)] == texts
    with pytest.raises(InputError, match="line 1: .*'body'.*`text_field`"):
        read(path, text_field="body")
    path.write_text('{"note": 1}\nProse.\n')
    assert len(read(path)[0].paragraphs) == 2
    for name in ("a.json", "a.jsonl", "b.txt"):
        path = tmp_path / name
        path.write_text(json.dumps(rows, indent=1))
        assert [document.paragraphs for document in read(path)] == texts


def test_a_table_is_no_text(tmp_path):
    for name in ("a.csv", "a.tsv.gz"):
        path = tmp_path / name
        pack = gzip.compress if name.endswith(".gz") else bytes
        path.write_bytes(pack(b"text,label\nOne. Two.,x\n"))
        with pytest.raises(InputError, match="is a table. .* as JSONL"):
            read(path)


def test_each_line_may_be_a_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One. Two.\n\nThree.\n")
    found = read(path, layout="lines")
    assert [d.paragraphs for d in found] == [["One. Two."], ["Three."]]
    assert [d.name for d in found] == ["a.txt#1", "a.txt#3"]
    assert not found[0].sentences_given


@pytest.mark.parametrize("layout", ["document", "sentences"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf_8_are_named_with_their_place(
    tmp_path, layout, mark
):
    path = tmp_path / "latin.txt"
    path.write_bytes(mark + b"Good line.\nCaf\xe9 noir.\n")
    with pytest.raises(InputError, match="latin.txt, line 2, is not .*0xe9"):
        read(path, layout=layout)


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("Größe".encode("utf-16"), "is UTF-16 text. .*iconv -f UTF-16 -t"),
        ("Größe".encode("utf-16-le"), "NUL bytes.*iconv -f UTF-16LE -t UTF-8"),
        ("Größe".encode("utf-16-be"), "NUL bytes.*iconv -f UTF-16BE -t UTF-8"),
        ("Größe".encode("utf-32"), "is UTF-32 text. .*iconv -f UTF-32 -t"),
        (b"%PDF-1.7\n\xe2", "is a PDF file. Expected text. Export"),
        (b"\n<mediawiki xmlns='x'>\n", "a wiki's pages.* with WikiExtractor"),
        (b"WARC/1.0\r\nWARC-Type: x\r\n", "is a WARC file"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html>\n<p>A.</p>", "is an HTML page"),
        (b"<!-- saved -->\n<HTML lang='en'><body>", "is an HTML page"),
        (b"<!-- a -->\n" * 300 + b"<html>", "is an HTML page"),
        (b'<?xml version="1.0"?>\n<TEI/>', "is an XML file"),
        (b"{\\rtf1\\ansi A text.}", "is an RTF document"),
        (b"WEBVTT\n\n00:01.000 --> 00:04.000\nA.", "subtitles .WebVTT.*.txt"),
        (b"1\r\n00:00:01,000 --> 00:00:04,000\r\nA.", "subtitles .SubRip"),
        (b"PK\x03\x04\x14\x00", "is a zip file or an Office document"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.md.gz"])
def test_a_corpus_in_another_format_is_called_by_its_name(
    tmp_path, content, advice, name
):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if "gz" in name else content)
    with pytest.raises(InputError, match=advice):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        "WebVTT (Web Video Text Tracks) is a form for subtitles.",
        "WEBVTT is a form for subtitles.",
        "<body-part> is a token.",
        "<?xml is how each such file starts.",
        "<!-- a -->\n" * 300 + "A text.",  # in no time
    ],
)
def test_a_text_about_marks_is_a_text(tmp_path, text):
    path = tmp_path / "a.md"
    path.write_text(text)
    (document,) = read(path)
    assert document.paragraphs


def test_a_single_nul_is_no_other_format(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"A text with one NUL\0 in it.\n")
    (document,) = read(path)
    assert document.paragraphs == ["A text with one NUL\0 in it."]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
@pytest.mark.parametrize("layout", ["document", "sentences"])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_refused_with_its_number(
    tmp_path, monkeypatch, name, layout, end
):
    monkeypatch.setattr(file_forms, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(file_forms, "_BUFFER", 16)
    path = tmp_path / name

    def write(length):
        line = b'{"text": "%s"}' % (b"x" * (length - 12))
        content = b'{"text": "short"}\n' * 2 + line + end
        path.write_bytes(gzip.compress(content) if "gz" in name else content)

    write(100)
    assert "x" * 88 in read(path, layout=layout)[-1].paragraphs[-1]
    write(101)
    with pytest.raises(InputError, match=f"{name}, line 3 has more than"):
        read(path, layout=layout)


def test_held_out_documents_go_by_content_alone():
    documents = [Document(str(i), [f"text {i}"]) for i in range(4_000)]
    held = [held_out(document, 0.05) for document in documents]
    assert 150 < sum(held) < 250  # expected: 200, standard deviation: 14
    again = [Document("other", d.paragraphs) for d in documents]
    assert held == [held_out(document, 0.05) for document in again]
    assert not any(held_out(document, 0) for document in documents)
    more = [held_out(document, 0.2) for document in documents]
    assert all(m for h, m in zip(held, more, strict=True) if h)


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "layout", "lines"),
    [
        ("a.txt", "document", ["One two.", "", "Three é."]),
        ("a.md", "sentences", ["One two.", "", "Three é."]),
        ("a.jsonl", "auto", ['{"text": "One two."}', '{"text": "Three é."}']),
    ],
)
def test_line_ends_and_a_byte_order_mark_leave_no_trace(
    name, layout, lines, packed, start, end, tmp_path
):
    path = tmp_path / (name + packed)
    content = (start + end.join([*lines, ""])).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = [text for d in read(path, layout=layout) for text in d.paragraphs]
    assert found == ["One two.", "Three é."]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("東京は日本の首都である。", True),
        ("東京の歴史", False),
        ("दिल्ली भारत की राजधानी है।", True),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย" * 6, True),
        ("ประวัติศาสตร์", False),
        ("1968 – 1970", False),
        ("St. Louis", False),
        (" An item of a list.", False),
        (" It was rebuilt. The picture shows it.", True),
        ("* A film. Another.", False),
    ],
)
def test_a_passage_is_recognised_in_any_script(line, kept):
    assert corpus._is_passage(line) == kept
