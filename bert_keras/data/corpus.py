"""Documents from text files, JSON, Parquet or data sets.

A source is a string: a path, a folder, a glob, or the name of a data set. Only
one document, or a few hundred rows, is in memory at a time. The order is fixed:
files are sorted by path.
"""

import codecs
import contextlib
import dataclasses
import hashlib
import html
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator

from bert_keras import files
from bert_keras.data.data_sets import (
    PARQUET,
    column_rows,
    is_data_set,
    parse_data_set,
)
from bert_keras.data.sentences import ends_sentence, split_sentences
from bert_keras.errors import InputError
from bert_keras.file_forms import (
    COMPRESSED,
    HEAD,
    bound_lines,
    compression_errors,
    may_be_text,
    open_compressed,
    refuse_other_forms,
    split_compression,
    split_ending,
)
from bert_keras.text.wordpiece import encodable

LAYOUTS = ("auto", "document", "sentences", "lines")
ENDINGS = (".txt", ".text", ".md", ".jsonl", ".json")
# WikiExtractor's files: AA/wiki_00, AA/wiki_01.
_WIKI_FILE = re.compile(r"wiki_\d+")
# Titles may have quotes and ">".
_DOC = re.compile(r"""<doc(?: \w+=["'].*["'])? ?>""")
_DOC_TITLE = re.compile(r""" title=(["'])(.*?)\1(?: \w+=["']| ?>$)""")
# UTF-32's mark begins with that of UTF-16, so it comes first.
_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
# Beginning of a file whose text stands between marks -> its form.
_MARKED_UP = {
    rb"(?:<!--(?:(?!-->).)*-->\s*)*<(?:!doctype|html|head|body)[\s>]": (
        "an HTML page"
    ),
    rb"<\?xml\s+version": "an XML file",
    rb"\{\\rtf\d": "an RTF document",
    rb"(?-i:WEBVTT(?:[ \t][^\n]*)?\r?\n).*-->": (
        "a file of subtitles (WebVTT)"
    ),
    rb"\d+\s+\d+:\d\d:\d\d,\d+ --> ": "a file of subtitles (SubRip)",
}
_SAMPLE = 50_000  # bytes to read from a file to find its layout
_WRAPPED = 100  # maximum number of characters in a line of wrapped text
_ENDS = re.compile(r"\W$")


@dataclasses.dataclass
class Document:
    """One text, such as a file or an article.

    Args:
        name: name of the document in messages and reports.
        paragraphs: the text as paragraphs or, with `sentences_given`, as
            sentences.
        sentences_given: True if each paragraph is one sentence.
    """

    name: str
    paragraphs: list[str]
    sentences_given: bool = False


def paragraphs(documents: Iterable[Document]) -> Iterator[str]:
    """Yield the paragraphs of all documents, one after the other."""
    for document in documents:
        yield from document.paragraphs


def content_hash(document: Document) -> bytes:
    """Return the SHA-256 of a document's text."""
    return hashlib.sha256("\n".join(document.paragraphs).encode()).digest()


def held_out(document: Document, fraction: float) -> bool:
    """Return True if the hash of a document's text selects it as held-out.

    The hash depends only on the text, so other documents do not change the
    result. About `fraction` of all documents are held out.
    """
    return is_below(content_hash(document), fraction)


def is_below(digest: bytes, fraction: float) -> bool:
    """Return True if a hash is in the lowest `fraction` of all hashes."""
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


@dataclasses.dataclass(frozen=True)
class Reading:
    """How texts become documents.

    Args:
        layout: "document" if each text file is one document. "sentences" for
            the original BERT's format, with one sentence on each line and a
            blank line between documents. "lines" for one document on each line.
            "auto" chooses one of the first two by the start of each file. In
            JSON, Parquet and data sets, each object or row is always one
            document, and so is each `<doc>` of WikiExtractor. A text file whose
            first line is an object with the text is read as JSONL, and a list
            of objects as JSON.
        text_field: field or column with the text in JSONL, Parquet, data sets.
        join_lines: True to join the lines between two blank lines into a
            paragraph, if the text has blank lines and no line is longer than
            100 characters. Otherwise, each line is a paragraph.

    Raises:
        InputError: the layout is unknown.
    """

    layout: str = "auto"
    text_field: str = "text"
    join_lines: bool = True

    def __post_init__(self):
        if self.layout not in LAYOUTS:
            raise InputError(
                f"Unknown layout {self.layout!r}; expected one of "
                f"{', '.join(LAYOUTS)}."
            )


def read_documents(
    source: str, reading: Reading | None = None
) -> Iterator[Document]:
    """Yield the documents of a source.

    Args:
        source: a text file, a folder, a glob, a data set, such as
            `tfds:wikipedia/20230601.en` or `hf:NAME/CONFIG:SPLIT` (without a
            split, "train"). In a folder and its subfolders, files that end in
            `.parquet`, `.txt`, `.text`, `.md`, `.jsonl` or `.json`, and
            WikiExtractor's `wiki_00`, are read, unless the name of the file or
            of a subfolder begins with "."; `list_unread` lists the others. All
            but Parquet may be compressed: `.txt.gz`, `.bz2`, `.xz` or `.zst`.
            Headings, lists and tables of Wikipedia data sets are skipped.
        reading: None for `Reading()`.

    Returns:
        An iterator over the documents that have text.

    Raises:
        InputError: there is no file or no text, a file is damaged or not UTF-8,
            a line of JSONL is not an object with the field `text_field`, the
            field or column is not text, a package is not installed, or
            `column_rows` cannot read the source.
    """
    reading = reading or Reading()
    if is_data_set(source):
        documents = _read_data_set(source, reading)
    else:
        documents = _read_files(*find_files(source), reading)
    return _not_empty(documents, source)


def find_files(source: str) -> tuple[str, list[str]]:
    """Return the root folder of a source, and the paths of its files."""
    if files.is_file(source):
        return os.path.dirname(source), [source]
    if files.is_folder(source):
        root = source
        paths = [p for p in _list_folder(source) if _is_text(p)]
    else:
        root = os.path.dirname(re.split("[*?[]", source)[0])
        paths = [path for path in files.find(source) if files.is_file(path)]
    if not paths:
        if os.path.exists(source) and not files.is_folder(source):
            files.check_file(source)  # raises for a pipe
        raise InputError(
            f"No text found at {source!r}. Expected a text file, a folder "
            f"with files that end in {', '.join(ENDINGS)} (compressed: "
            f"also {', '.join(COMPRESSED)}) or {PARQUET}, a glob in quotes, or "
            "a data set, tfds:NAME or hf:NAME."
        )
    return root, paths


def list_unread(source: str) -> list[str]:
    """Return the files in a folder that are not read, except hidden files."""
    if is_data_set(source) or not files.is_folder(source):
        return []
    return [path for path in _list_folder(source) if not _is_text(path)]


def _list_folder(root: str) -> list[str]:
    """Return the files in a folder and its subfolders that are not hidden."""
    names = ((p, os.path.relpath(p, root)) for p in files.walk(root))
    return [p for p, n in names if "/." not in "/" + n.replace(os.sep, "/")]


def _is_text(path: str) -> bool:
    if path.lower().endswith(PARQUET):
        return True
    if split_ending(path)[0] in ENDINGS:
        return True
    name = os.path.basename(split_compression(path)[0])
    return _WIKI_FILE.fullmatch(name) is not None


def _read_files(
    root: str, paths: list[str], reading: Reading
) -> Iterator[Document]:
    for path in paths:
        name = os.path.relpath(path, root or ".")
        yield from read_file(path, name, reading)


def _not_empty(documents: Iterator[Document], source: str):
    empty = True
    for document in documents:
        empty = False
        yield document
    if empty:
        raise InputError(
            f"{source!r} holds no text; expected at least one line that is "
            "not blank."
        )


def read_file(path: str, name: str, reading: Reading) -> Iterator[Document]:
    """Yield the documents of a file, except documents without text.

    A text file that is one document is read as a whole. From other files, one
    document or a few hundred rows are in memory at a time.
    """
    parts = _read_parts(path, reading)
    for number, paragraphs, given in parts:
        if paragraphs:
            title = name if number is None else f"{name}#{number}"
            yield Document(title, paragraphs, given)


def _read_parts(path: str, reading: Reading):
    """Yield (number, paragraphs, `sentences_given`) for each document.

    The number counts rows and lines from 1, and groups from 0. It is None if
    the whole file is one document. `Document` explains `sentences_given`.
    """
    text_field = reading.text_field
    if path.lower().endswith(PARQUET):
        for number, text in _read_column_texts(path, text_field):
            yield number, _split_paragraphs(text, reading), False
        return
    with _open(path) as file:
        head = _refuse_other_formats(file, path)
        form = _find_form(head, path, text_field)
        if form == "docs":
            given = reading.layout == "sentences"
            for number, lines in _read_docs(_read_lines(file, path), path):
                parts = _split_paragraphs("\n".join(lines), reading)
                yield number, lines if given else parts, given
        elif form:
            read = _read_json_list if form == "list" else _read_json_texts
            for number, text in read(file, path, text_field):
                yield number, _split_paragraphs(text, reading), False
        else:
            yield from _read_text(file, path, reading)


def _read_text(file, path: str, reading: Reading):
    layout = _find_layout(file, path, reading.layout)
    if layout == "lines":
        for number, line in enumerate(_read_lines(file, path), 1):
            yield number, [line] if line else [], False
    elif layout == "sentences":
        for number, group in enumerate(_split_groups(_read_lines(file, path))):
            yield number, group, True
    else:
        text = _decode(file.read(), path, 1)
        yield None, _split_paragraphs(text, reading), False


@contextlib.contextmanager
def _open(path: str):
    try:
        with files.open_file(path) as file, compression_errors(path):
            yield bound_lines(open_compressed(path, file), path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _find_form(head: bytes, path: str, text_field: str) -> str:
    """Return "lines" or "list" for JSON, "docs" for <doc>, or "" for text."""
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()
    ending = split_ending(path)[0]
    is_json = ending in (".jsonl", ".json")
    if re.match(rb"\[" if is_json else rb"\[\s*\{\s*\"", first):
        return "list"
    if is_json:
        return "lines"
    if _DOC.match(first.decode("utf-8", "replace").partition("\n")[0]):
        return "docs"
    return "lines" if _starts_object(first, text_field) else ""


def _starts_object(first: bytes, text_field: str) -> bool:
    """Return True if a text file is JSONL, by its first two lines."""
    lines = first.split(b"\n", 2)
    if len(lines) == 1:  # the first line may be longer than `first`
        return re.match(rb'\{\s*"[^"\n]*"\s*:', first) is not None
    try:
        records = [json.loads(line) for line in lines[:2] if line.strip()]
    except (ValueError, RecursionError):
        records = [None]
    is_object = all(isinstance(record, dict) for record in records)
    return is_object and (len(records) > 1 or text_field in records[0])


def _read_docs(lines, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of each <doc ...> ... </doc>, without the title."""
    number, doc, titles = 0, None, ()
    for line_number, line in enumerate(lines, 1):
        start = _DOC.fullmatch(line)
        if start or line == "</doc>":
            if doc:
                yield number, doc
            number, doc = number + bool(start), [] if start else None
            found = start and _DOC_TITLE.search(line)
            titles = (found[2], html.unescape(found[2])) if found else ()
        elif line and doc is None:
            raise InputError(
                f"{path}, line {line_number}: expected <doc ...> as at the "
                f"start of the file, got {line[:60]!r}. Put all text between "
                "<doc ...> and </doc>, or remove these lines."
            )
        elif line and not (not doc and line in titles):
            doc.append(line)
    if doc:
        yield number, doc


def _read_lines(file, path: str) -> Iterator[str]:
    for number, raw in enumerate(file, 1):
        yield _decode(raw, path, number).strip()


def _decode(raw: bytes, path: str, line: int | None = None) -> str:
    """Decode bytes of a file that begin with the line of this number.

    Without `line`, decode a cell, and `path` names its row.
    """
    try:
        return raw.decode("utf-8-sig" if line in (None, 1) else "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        advice = (
            "Convert the file first, for instance with `iconv -f CP1252 -t "
            "UTF-8` if it comes from Windows."
        )
        if not may_be_text(raw[:HEAD]):
            advice = "It may be no text. Export its text, or name another file."
        if line is not None:
            line += error.object.count(b"\n", 0, error.start)
            path = f"{path}, line {line}"
        raise InputError(
            f"{path}, is not UTF-8: it has the byte 0x{byte:02x}. {advice}"
        ) from error


def _refuse_other_formats(file, path: str) -> bytes:
    """Return the first bytes; refuse those that are not UTF-8."""
    if split_ending(path)[0] in (".csv", ".tsv"):
        raise InputError(
            f"{path} is a table. Expected text. Write its column of text as "
            'JSONL, {"text": "One. Two."} on each line, or as Parquet.'
        )
    head = file.read(HEAD)
    file.seek(0)
    refuse_other_forms(head, path)
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for mark, name in _MARKED_UP.items():
        if re.match(mark, start, re.IGNORECASE | re.DOTALL):
            raise InputError(
                f"{path} is {name}. Expected plain text. Write its sentences "
                "without marks to a .txt file, and name that file."
            )
    encoding = next((e for m, e in _MARKS.items() if head.startswith(m)), None)
    if encoding:
        raise InputError(f"{path} is {encoding} text. {_convert(encoding)}")
    # UTF-16 has a NUL in each ASCII letter. A few may stand in any text.
    if 10 * head.count(0) > len(head):
        even = head[::2].count(0) > head[1::2].count(0)
        encoding = f"UTF-16{'BE' if even else 'LE'}"
        raise InputError(
            f"{path} has many NUL bytes: it is {encoding} text, or it is not "
            f"text. {_convert(encoding)}"
        )
    return head


def _convert(encoding: str) -> str:
    return f"Convert it first, with `iconv -f {encoding} -t UTF-8`."


def _find_layout(file, path: str, layout: str) -> str:
    """Return the layout of a file, "sentences" or "document".

    With "auto", the layout is "sentences" if the first 50,000 bytes have all of
    these properties:
    - Blank lines separate groups of, on average, two or more lines.
    - At least 90 % of the lines end with neither a letter nor a digit.
    - At least 90 % of the lines have exactly one sentence.
    """
    if layout != "auto":
        return layout
    beginning = file.read(_SAMPLE)
    file.seek(0)
    lines = beginning.decode("utf-8", "replace").split("\n")
    if len(beginning) == _SAMPLE:
        lines.pop()  # the last line may be cut
    groups = list(_split_groups(map(str.strip, lines)))
    full = [line for group in groups for line in group]
    if len(groups) < 2 or len(full) < 2 * len(groups):
        return "document"
    ended = sum(_ENDS.search(line) is not None for line in full)
    single = sum(len(split_sentences(line)) == 1 for line in full)
    given = min(ended, single) >= 0.9 * len(full)
    return "sentences" if given else "document"


def _split_groups(lines) -> Iterator[list[str]]:
    for has_text, group in itertools.groupby(lines, bool):
        if has_text:
            yield list(group)


def _split_paragraphs(text: str, reading: Reading) -> list[str]:
    """Return the paragraphs: each line, or each group of wrapped lines."""
    lines = [line.strip() for line in text.split("\n")]
    groups = list(_split_groups(lines))
    wrapped = len(groups) > 1 and max(map(len, lines)) <= _WRAPPED
    if wrapped and reading.join_lines:
        return [" ".join(group) for group in groups]
    return [line for group in groups for line in group]


def _read_json_texts(file, path: str, field: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_read_lines(file, path), 1):
        if not line:
            continue
        where = f"{path}, line {number}"
        record = _parse_json(line, where, "a JSON object on each line")
        yield number, _select_text(record, where, field)


def _read_json_list(file, path: str, field: str) -> Iterator[tuple[int, str]]:
    text = _decode(file.read(), path, 1)
    records = _parse_json(text, path, "a list of JSON objects")
    for number, record in enumerate(records, 1):
        yield number, _select_text(record, f"{path}, row {number}", field)


def _parse_json(text: str, where: str, expected: str):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not JSON ({error}). Expected {expected}."
        ) from error


def _select_text(record, where: str, field: str) -> str:
    if not isinstance(record, dict) or field not in record:
        has = sorted(record) if isinstance(record, dict) else record
        raise InputError(
            f"{where}: expected an object with the text under {field!r}, "
            f"found {str(has)[:200]}. Name the field with `text_field`."
        )
    return _to_encodable(record[field], where, field)


def _to_encodable(value, where: str, field: str) -> str:
    """Return a value as text that UTF-8 can encode; "" for None."""
    if isinstance(value, bytes):
        value = _decode(value, where)
    if not isinstance(value, str | None):
        raise InputError(
            f"{where}: expected text in {field!r}, got {str(value)[:60]}. "
            "Name the field or column with `text_field`."
        )
    return encodable(value or "")


def _read_column_texts(
    source: str, text_field: str
) -> Iterator[tuple[int, str]]:
    for number, (text,) in column_rows(source, [text_field]):
        yield number, _to_encodable(text, f"{source}, row {number}", text_field)


_MARKUP = tuple("*#;:|{!=")  # first characters of lists, tables and headings
# Maximum characters of a heading. A longer line is kept even if it has no
# terminator at its end, because Thai text has none.
_LONG = 200


def _read_data_set(source: str, reading: Reading) -> Iterator[Document]:
    text_field = reading.text_field
    _, name, split = parse_data_set(source)
    for number, text in _read_column_texts(source, text_field):
        passages = "\n".join(_select_passages(text, name, text_field))
        paragraphs = _split_paragraphs(passages, reading)
        if paragraphs:
            yield Document(f"{name}:{split}#{number - 1}", paragraphs)


# wiki40b marks titles, sections and paragraphs in the text.
_PARAGRAPH = re.compile(r"_START_PARAGRAPH_(.*?)(?=_START_[A-Z]+_|\Z)", re.S)
_NEWLINE = re.compile(r"_NEWLINE_|\n")


def _select_passages(text: str, name: str, text_field: str) -> list[str]:
    """Return a text's lines; for Wikipedia, without headings, lists, tables."""
    known = {*name.split("/")[:2]} if not os.path.exists(name) else ()
    if "wiki40b" in known:
        passages = _PARAGRAPH.findall(text)
        return [line for part in passages for line in _NEWLINE.split(part)]
    lines = text.split("\n")
    if "wikipedia" in known and text_field == "text":  # paper, section 3.1
        lines = list(filter(_is_passage, lines))
    return lines


def _is_passage(line: str) -> bool:
    """Return True if a line of an article consists of sentences.

    Such a line does not begin with markup. It ends with a sentence terminator,
    has two or more sentences, or has more than 200 characters. The terminator
    does not count in a line that begins with white space, because the line may
    be a list item that lost its asterisk.
    """
    text = line.strip()
    if text.startswith(_MARKUP):
        return False
    ends = ends_sentence(text) and not line[:1].isspace()
    return ends or len(text) > _LONG or len(split_sentences(text)) > 1
