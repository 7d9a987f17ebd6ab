"""Documents of one file: plain text, the original's format, or JSONL; gzip."""

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Iterator

from bert_keras import files
from bert_keras.data.documents import Document
from bert_keras.data.sentences import split_sentences
from bert_keras.errors import InputError
from bert_keras.text.encodable import encodable

LAYOUTS = ("auto", "document", "sentences")
_PLAIN = (".txt", ".text", ".md", ".jsonl", ".json")
SUFFIXES = _PLAIN + tuple(suffix + ".gz" for suffix in _PLAIN)
_SAMPLE = 50_000  # bytes that are enough to tell a file's layout
_WRAPPED = 100  # characters; longer lines were not wrapped by hand
_ENDS = re.compile(r"\W$")


def read(
    path: str, name: str, group: str, layout: str, text_field: str
) -> Iterator[Document]:
    """Yields a file's documents that hold text.

    A file of one document is held in memory; of the other layouts, one
    document at a time.
    """
    with _opened(path) as file:
        if path.removesuffix(".gz").endswith((".jsonl", ".json")):
            documents = _json_lines(_lines(file, path), path, text_field)
        elif _layout(file, path, layout) == "sentences":
            documents = _blank_line_between(_lines(file, path))
        else:
            lines = _decode(file.read(), path, 0).split("\n")
            paragraphs = _paragraphs([line.strip() for line in lines])
            if paragraphs:
                yield Document(name, group, paragraphs)
            return
        for number, paragraphs, given in documents:
            if paragraphs:
                yield Document(f"{name}#{number}", group, paragraphs, given)


@contextlib.contextmanager
def _opened(path: str):
    """The file's bytes, which may be compressed."""
    try:
        with files.open_file(path) as file:
            packed = path.endswith(".gz")
            yield gzip.GzipFile(fileobj=file) if packed else file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not a whole gzip file ({error}). Compress it anew."
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _lines(file, path: str) -> Iterator[str]:
    """The stripped lines of a file."""
    offset = 0
    for raw in file:
        yield _decode(raw, path, offset).strip()
        offset += len(raw)


def _decode(raw: bytes, path: str, offset: int) -> str:
    try:
        return raw.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        # Without the mark of UTF-8 that a file may begin with.
        where = offset + error.start + len(raw) - len(error.object)
        raise InputError(
            f"{path} is not UTF-8: byte 0x{byte:02x} at offset {where}. "
            "Convert it first, for instance with `iconv -f LATIN1 -t UTF-8`."
        ) from error


def _layout(file, path: str, layout: str) -> str:
    """Tells whether a file's beginning looks like one sentence a line.

    It does where blank lines stand between blocks of several lines, nine of
    ten lines end in punctuation, and nearly no line holds two sentences.
    """
    if layout != "auto":
        return layout
    beginning = file.read(_SAMPLE).decode("utf-8", "replace")
    file.seek(0)
    lines = [line.strip() for line in beginning.split("\n")]
    blocks = [block for block in _blocks(lines[:-1]) if block]
    full = [line for block in blocks for line in block]
    if len(blocks) < 2 or len(full) < 2 * len(blocks):
        return "document"
    ended = sum(_ENDS.search(line) is not None for line in full)
    single = sum(len(split_sentences(line)) == 1 for line in full)
    given = min(ended, single) >= 0.9 * len(full)
    return "sentences" if given else "document"


def _blocks(lines) -> Iterator[list[str]]:
    """Runs of lines without a blank one."""
    block = []
    for line in lines:
        if line:
            block.append(line)
        else:
            yield block
            block = []
    yield block


def _paragraphs(lines: list[str]) -> list[str]:
    """A line a paragraph, or a block of wrapped lines a paragraph."""
    blocks = [block for block in _blocks(lines) if block]
    wrapped = len(blocks) > 1 and max(map(len, lines)) <= _WRAPPED
    if wrapped:
        return [" ".join(block) for block in blocks]
    return [line for block in blocks for line in block]


def _blank_line_between(lines: Iterator[str]):
    """(number, sentences, True) of each document."""
    blocks = (block for block in _blocks(lines) if block)
    for number, block in enumerate(blocks):
        yield number, block, True


def _json_lines(lines: Iterator[str], path: str, text_field: str):
    """(line, paragraphs, False) of each document."""
    for number, line in enumerate(lines, 1):
        if line:
            text = _field(line, text_field, f"{path}, line {number}")
            parts = [part.strip() for part in text.split("\n")]
            yield number, _paragraphs(parts), False


def _field(line: str, field: str, where: str) -> str:
    """The text of one JSON object, as far as UTF-8 can hold it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is not JSON ({error}). Expected one object a line."
        ) from error
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        has = sorted(record) if isinstance(record, dict) else record
        raise InputError(
            f"{where}: expected an object with the text under {field!r}, "
            f"found {str(has)[:200]}. Name the field with text_field."
        )
    return encodable(text)
