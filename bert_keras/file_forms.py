"""Forms of files, known by their endings and first bytes.

Also a reader of bytes that refuses a line of more than `MAX_LINE_BYTES`.
Without a limit, a file without line ends would be read into memory as a whole.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import zlib
from pathlib import PurePath

from bert_keras.errors import InputError, install_command

COMPRESSED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
HEAD = 4_096  # bytes at the start of a file that show its form
# A regular expression of a file's first bytes -> the form, and what to do.
_NAME = "a {} file, whose name must end in {}"
_EXPORT = "Export its text, or name another file."
_EXTRACT = "Extract it first."
_MARKS = {
    rb"\x1f\x8b": (_NAME.format("gzip", ".gz"), ""),
    rb"BZh[1-9]1AY&SY": (_NAME.format("bzip2", ".bz2"), ""),
    rb"\xfd7zXZ\x00": (_NAME.format("xz", ".xz"), ""),
    rb"\x28\xb5\x2f\xfd": (_NAME.format("Zstandard", ".zst"), ""),
    rb"PAR1": ("a Parquet file, whose name must end in .parquet", ""),
    rb"PK\x03\x04": ("a zip file or an Office document", _EXPORT),
    rb"\xd0\xcf\x11\xe0": ("an old Office document", _EXPORT),
    rb"%PDF": ("a PDF file", _EXPORT),
    rb"7z\xbc\xaf": ("a 7-Zip archive", _EXTRACT),
    rb"Rar!\x1a\x07": ("a RAR archive", _EXTRACT),
    rb"(?s:.{257})ustar": ("a tar archive", _EXTRACT),
    rb"(\xef\xbb\xbf)?\s*<mediawiki\b": (
        "a dump of a wiki's pages",
        "Extract its text, for instance with WikiExtractor.",
    ),
    rb"WARC/1\.": ("a WARC file of web pages", _EXPORT),
    rb"SQLite format 3\x00": ("an SQLite database", _EXPORT),
}
# Control characters, except those that may stand in text.
_CONTROL = bytes({*range(32), 127} - {*b"\t\n\v\f\r\x1b"})
# A line of JSONL or CSV may hold a document. The longest books have 10 MB.
MAX_LINE_BYTES = 2**26
_BUFFER = 2**20  # bytes that are read at once
_CHUNK = 4_096  # bytes read at once; Zstandard makes at most 128 MB of it


def split_compression(path) -> tuple[str, str]:
    """Return a path without an ending such as .gz, and this ending or ""."""
    path = str(path)
    for ending in COMPRESSED:
        if path.lower().endswith(ending):
            return path[: -len(ending)], ending
    return path, ""


def split_ending(path) -> tuple[str, str]:
    """Return a file's lower-case ending without .gz, and ".gz" or ""."""
    name, compression = split_compression(path)
    return PurePath(name).suffix.lower(), compression


def open_compressed(path, stream=None):
    """Open a file in binary mode, decompressed by its ending.

    With `stream`, its bytes are decompressed in place of the file's.
    """
    compression = split_compression(path)[1]
    if compression in _OPENERS:
        return _OPENERS[compression](path if stream is None else stream)
    if stream is None:
        stream = io.BufferedReader(io.FileIO(path))
    if compression == ".zst":
        stream = io.BufferedReader(_Zstandard(stream, path))
    return stream


@contextlib.contextmanager
def compression_errors(path):
    """Convert errors in decompressing a file to an `InputError`."""
    try:
        yield
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        compression = split_compression(path)[1]
        # Errors of the operating system, such as of a disk, have an errno.
        if not compression or getattr(error, "errno", None) is not None:
            raise
        raise InputError(
            f"{path} is not a complete {COMPRESSED[compression]} file "
            f"({error}). Compress it again."
        ) from error


def refuse_other_forms(head: bytes, path) -> None:
    """Raise `InputError` if the first bytes of a text are not those of text."""
    for mark, (name, advice) in _MARKS.items():
        if re.match(mark, head):
            advice = f" {advice}" if advice else ""
            raise InputError(f"{path} is {name}. Expected text.{advice}")


def may_be_text(head: bytes) -> bool:
    """Return True if bytes that are not UTF-8 may be text in another encoding.

    In a compressed file, one byte of nine is a control character.
    """
    return 50 * (len(head) - len(head.translate(None, _CONTROL))) <= len(head)


def bound_lines(stream, path) -> io.BufferedReader:
    """Return a reader of a binary stream that refuses too long lines.

    Args:
        stream: buffered binary stream. Closing the reader closes it.
        path: name of the stream in the message.

    Raises:
        InputError: when a line is read that has more than `MAX_LINE_BYTES`.
    """
    return io.BufferedReader(_Bounded(stream, path), _BUFFER)


class Reader(io.RawIOBase):
    """Base class of readers of a stream, which seek to its start only."""

    def __init__(self, stream):
        self._stream = stream
        self._start()

    def readable(self):
        return True

    def seekable(self):
        return self._stream.seekable()

    def seek(self, offset, whence=io.SEEK_SET):
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("seek is possible to the start only")
        self._stream.seek(0)
        self._start()
        return 0

    def close(self):
        self._stream.close()
        super().close()


class _Zstandard(Reader):
    """Decompress a stream of Zstandard frames; refuse a truncated frame.

    The package's own reader returns the start of such a frame without an error.
    """

    def __init__(self, stream, path):
        try:
            import zstandard
        except ImportError:
            raise InputError(
                f"{path} needs the package zstandard: {install_command('zst')}."
            ) from None
        self._error = zstandard.ZstdError
        # Large dumps are compressed with --long=31.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        super().__init__(stream)

    def _start(self):
        self._frame = None
        self._rest, self._left = b"", memoryview(b"")

    def tell(self):
        raise io.UnsupportedOperation("tell")

    def readinto(self, buffer):
        while not self._left:
            data = self._rest or self._stream.read(_CHUNK)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._left = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise EOFError(str(error)) from error
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class _Bounded(Reader):
    """Count the bytes of each line; raise if they are too many."""

    def __init__(self, stream, path):
        super().__init__(stream)
        self._path = path

    def _start(self):
        self._lines = self._length = 0  # full lines, bytes of the last line

    def readinto(self, buffer):
        # `read1` gives the rows of a pipe as soon as they come. It reads at
        # most the limit, so a line that begins and ends in it is not longer.
        data = self._stream.read1(min(len(buffer), MAX_LINE_BYTES))
        buffer[: len(data)] = data
        # In a file with the line ends of old Macs, "\r" ends a line.
        end = b"\n" if b"\n" in data else b"\r"
        first = data.find(end)
        if first < 0:
            self._length += len(data)
        else:
            self._length += first
            self._check()
            self._length = len(data) - 1 - data.rfind(end)
            self._lines += data.count(end)
        self._check()
        return len(data)

    def _check(self):
        if self._length > MAX_LINE_BYTES:
            raise InputError(
                f"{self._path}, line {self._lines + 1} has more than "
                f"{MAX_LINE_BYTES:,} bytes, the most that a line may have. "
                "Split its text into several lines, or check that the file is "
                "text."
            )
