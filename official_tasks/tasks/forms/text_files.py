"""Open text files of a user in any encoding, also compressed."""

import codecs
import contextlib
import csv
import io
import json
import os
import re
import sys
from typing import NamedTuple

from bert_keras import files
from bert_keras.errors import InputError, format_count
from bert_keras.file_forms import (
    HEAD,
    Reader,
    bound_lines,
    compression_errors,
    open_compressed,
    refuse_other_forms,
    split_ending,
)

CHUNK = 1 << 20  # bytes to decode at once
# UTF-32's mark begins with that of UTF-16, so it comes first.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Dialect(NamedTuple):
    """The separator and the encoding of a user's text files."""

    separator: str | None = None
    encoding: str = "utf-8-sig"


def make_dialect(separator=None, encoding=None) -> Dialect:
    """Return a `Dialect` from --separator and --encoding.

    Raises:
        InputError: the separator is not one character, "tab" or "\\t"; or is
            a double quote or a line break; or the encoding is unknown.
    """
    separator = "\t" if separator in ("\\t", "tab") else separator
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise InputError(
            f"--separator={separator}: expected one character except a double "
            "quote or a line break, such as --separator=';', or the word 'tab'"
        )
    try:
        name = codecs.lookup(encoding or "utf-8").name
        "".encode(name)  # raises for codecs that encode no text, such as hex
    except LookupError:
        raise InputError(
            f"--encoding={encoding}: there is no such encoding; expected "
            "utf-8, utf-16, cp1252 (Windows, Western Europe) or another "
            "encoding of Python"
        ) from None
    return Dialect(separator, "utf-8-sig" if name == "utf-8" else name)


def open_text(path, dialect=None, notes=None, **arguments):
    """Open a text file of a user, or standard input, for reading.

    A byte order mark decides the encoding. A file without one that is UTF-8,
    and not only ASCII, is read as UTF-8. Otherwise the dialect decides, for
    each line that is not UTF-8; see `_Mixed`. With UTF-8 as the dialect's
    encoding, other files raise an error when they are read. Of standard input,
    only the first bytes are checked.

    Args:
        path: a file, compressed if it ends in .gz, .bz2, .xz or .zst; or "-".
        dialect: `Dialect` of the file; None means UTF-8.
        notes: list that gets a note if the encoding is not the dialect's.
        **arguments: further arguments of `open`.

    Returns:
        The open text file, and the dialect with the encoding of the file.
    """
    advice = "give --encoding={}, or " if dialect else ""
    dialect = dialect or Dialect()
    encoding, is_mixed = dialect.encoding, False
    stream = _open_bytes(path)
    with plain_errors(path):
        refuse_other_forms(_read_head(stream, path == "-"), path)
    if encoding != "utf-8-sig":
        with plain_errors(path):
            found, reason = _detect_encoding(stream, path == "-")
        found = found or encoding
        if not encoding.startswith(found) and notes is not None:
            name = found.removesuffix("-sig").upper()
            notes.append(
                f"{path} is read as {name} and not as {encoding}, because "
                f"{reason}"
            )
        is_mixed = found == encoding and _is_single_byte(encoding)
        encoding = found
    elif marked := _find_mark(_read_head(stream, path == "-")):
        raise InputError(
            f"{path}: expected UTF-8 text, but it looks like {marked.upper()}: "
            f"{advice.format(marked)}convert the file to UTF-8"
        )
    # A JSON list is read as a whole, and may be one line.
    if split_ending(path)[0] != ".json":
        stream = bound_lines(stream, path)
    decoder = encoding
    if is_mixed:
        stream = io.BufferedReader(_Mixed(stream, path, encoding, notes))
        decoder = "utf-8"
    text = io.TextIOWrapper(stream, encoding=decoder, **arguments)
    return text, dialect._replace(encoding=encoding)


def _is_single_byte(encoding):
    return len(bytes(range(128, 256)).decode(encoding, "replace")) == 128


class _Mixed(Reader):
    """Decode each line as UTF-8 or in another encoding; return UTF-8.

    Tables that were pasted together may have lines of both. A line is UTF-8 if
    it is valid UTF-8 with characters that the other encoding has, or with
    several others: the letters of `café»` in cp1252 are valid UTF-8 by chance.
    """

    def __init__(self, stream, path, encoding, notes):
        self._path, self._encoding, self._notes = path, encoding, notes
        super().__init__(stream)

    def _start(self):
        self._left = memoryview(b"")
        self._number = self._first = self._count = 0

    def readinto(self, buffer):
        if not self._left:
            line = self._stream.readline()
            self._number += 1
            if not line:
                self._note()
            self._left = memoryview(self._decode(line))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _decode(self, line):
        if line.isascii():
            return line
        if self._is_utf8(line):
            self._first = self._first or self._number
            self._count += 1
            return line
        return line.decode(self._encoding).encode()

    def _is_utf8(self, line):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return False
        others = [x for x in text if not x.isascii()]
        known = "".join(others).encode(self._encoding, "ignore")
        is_known = len(known) == len(others)
        return is_known or len(others) > 2 or max(others) > "\uffff"

    def _note(self):
        if self._count and self._notes is not None:
            lines = format_count(self._count, "line is", "lines are")
            self._notes.append(
                f"{self._path}, line {self._first}: {lines} read as UTF-8, "
                f"the others as {self._encoding}"
            )


def _open_bytes(path):
    if path == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return open_compressed(path)


def _read_head(stream, is_pipe):
    if is_pipe:
        return stream.peek()
    head = stream.read(HEAD)
    stream.seek(0)
    return head


def _find_mark(head):
    """Return the encoding of a byte order mark other than that of UTF-8."""
    return next((x for mark, x in MARKS.items() if head.startswith(mark)), None)


def _detect_encoding(stream, is_pipe):
    """Return the encoding that the bytes show, or None, and the reason."""
    head = _read_head(stream, is_pipe)
    if is_pipe:
        stream = io.BytesIO(head)
    if marked := _find_mark(head):
        return marked, "it begins with a byte order mark"
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8-sig", "it begins with a byte order mark"
    decoder, is_ascii = codecs.getincrementaldecoder("utf-8")(), True
    try:
        while chunk := stream.read(CHUNK):
            # UTF-16 has NUL in each ASCII letter.
            if b"\0" in chunk:
                return None, ""
            is_ascii = decoder.decode(chunk).isascii() and is_ascii
        # A pipe's first bytes may end within a letter.
        decoder.decode(b"", final=not is_pipe)
    except UnicodeDecodeError:
        return None, ""
    finally:
        stream.seek(0)
    reason = "its letters outside ASCII are valid UTF-8"
    return (None, "") if is_ascii else ("utf-8-sig", reason)


# File in the folder of a data set -> its library.
_DATA_SETS = {
    "dataset_dict.json": "hf",
    "state.json": "hf",
    "features.json": "tfds",
}


def advise_data_set(folder) -> None:
    """Raise `InputError` if a folder is that of a data set's library."""
    for name, library in _DATA_SETS.items():
        if os.path.isfile(os.path.join(folder, name)):
            raise InputError(
                f"{folder} is a folder of a data set: give {library}:{folder}"
            )


# Beginning of a file that has words or labels but no columns of them.
_ANNOTATIONS = {
    re.compile("#FORMAT=WebAnno TSV"): (
        "INCEpTION's WebAnno TSV",
        "Export the document from INCEpTION as CoNLL 2002 and name that file",
    ),
    re.compile("T[0-9]+\t[^ \t]+ [0-9]+ [0-9]+[;0-9 ]*\t"): (
        "brat's file of spans, which has no text",
        "Write each text and its spans as a line of JSONL, "
        '{"text": "Anna ran", "spans": [{"start": 0, "end": 4, "label": '
        '"PER"}]}, and give --task=tags --spans=spans',
    ),
}


def refuse_annotations(path, text) -> None:
    """Raise `InputError` if a text begins as an annotation tool's own form."""
    for form, (name, advice) in _ANNOTATIONS.items():
        if form.match(text):
            raise InputError(f"{path} is {name}. {advice}")


def require_file(path) -> None:
    """Raise `InputError` unless there is a regular file at a local path."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        advise_data_set(path)
        raise InputError(f"{path} is a folder; expected a file")
    files.check_file(path)  # a pipe can be read only once


@contextlib.contextmanager
def plain_errors(path, dialect=None):
    """Convert errors in reading text or CSV to an `InputError`.

    Args:
        path: the file to name in messages.
        dialect: `Dialect` of a user's file; errors then suggest --encoding.
    """
    try:
        with compression_errors(path):
            yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        encoding = dialect.encoding.removesuffix("-sig") if dialect else "utf-8"
        advice, where = "", f" at index {error.start}"
        if dialect:
            # Text is decoded in chunks, and `start` is an index in the chunk,
            # not in the file.
            where = ""
            advice = "if it is a Windows file, give --encoding=cp1252, or "
        raise InputError(
            f"{path}: expected {encoding.upper()} text, got the byte "
            f"{byte:#04x}{where}: {advice}convert the file to UTF-8"
        ) from error
    except csv.Error as error:
        raise InputError(f"{path} {quote_fault(error)}") from error
    except UnicodeError as error:  # UTF-16 without a byte order mark
        raise InputError(f"{path} cannot be read: {error}") from error


def quote_fault(error):
    return (
        f"cannot be read ({error}): a quote opens but is not closed, or text "
        "follows a closing quote. Double each quote inside quotes. If tabs "
        "separate columns and no cell is quoted, rename the file to .tsv"
    )


def read_text(path) -> str:
    """Return the text of a UTF-8 file without its byte order mark."""
    require_file(path)
    with plain_errors(path), open_compressed(path) as file:
        content = file.read()
        refuse_other_forms(content[:HEAD], path)
        return content.decode("utf-8-sig")


def read_json(path, form):
    """Return the content of a JSON file; errors say that `form` is expected."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected {form}, got text that is no JSON: {error}"
        ) from error
