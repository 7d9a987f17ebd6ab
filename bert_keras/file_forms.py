"""Forms of files, known by their endings and first bytes."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import zlib
from pathlib import PurePath

from bert_keras.errors import InputError

PACKED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
HEAD = 4_096  # bytes at the start of a file that show its form
# A regular expression of a file's first bytes -> the form, and what to do.
_PACKED_NAME = "a {} file, whose name must end in {}"
_EXPORT = "Export its text, or name another file."
_UNPACK = "Unpack it first."
_MARKS = {
    rb"\x1f\x8b": (_PACKED_NAME.format("gzip", ".gz"), ""),
    rb"BZh[1-9]1AY&SY": (_PACKED_NAME.format("bzip2", ".bz2"), ""),
    rb"\xfd7zXZ\x00": (_PACKED_NAME.format("xz", ".xz"), ""),
    rb"\x28\xb5\x2f\xfd": (_PACKED_NAME.format("Zstandard", ".zst"), ""),
    rb"PAR1": ("a Parquet file, whose name must end in .parquet", ""),
    rb"PK\x03\x04": ("a zip file or an Office document", _EXPORT),
    rb"\xd0\xcf\x11\xe0": ("an old Office document", _EXPORT),
    rb"%PDF": ("a PDF file", _EXPORT),
    rb"7z\xbc\xaf": ("a 7-Zip archive", _UNPACK),
    rb"Rar!\x1a\x07": ("a RAR archive", _UNPACK),
    rb"(?s:.{257})ustar": ("a tar archive", _UNPACK),
    rb"SQLite format 3\x00": ("an SQLite database", _EXPORT),
}
# Control characters, except those that may stand in text.
_CONTROL = bytes({*range(32), 127} - {*b"\t\n\v\f\r\x1b"})
_CHUNK = 4_096  # bytes to unpack at once; Zstandard makes at most 128 MB of it


def split_packing(path) -> tuple[str, str]:
    """Return a path without an ending such as .gz, and this ending or ""."""
    path = str(path)
    for ending in PACKED:
        if path.lower().endswith(ending):
            return path[: -len(ending)], ending
    return path, ""


def split_ending(path) -> tuple[str, str]:
    """Return a file's lower-case ending without .gz, and ".gz" or ""."""
    name, packing = split_packing(path)
    return PurePath(name).suffix.lower(), packing


def open_packed(path, stream=None):
    """Open a file in binary mode, unpacked by its ending.

    With `stream`, its bytes are unpacked in place of the file's.
    """
    packing = split_packing(path)[1]
    if packing in _OPENERS:
        return _OPENERS[packing](path if stream is None else stream)
    if stream is None:
        stream = io.BufferedReader(io.FileIO(path))
    if packing == ".zst":
        stream = io.BufferedReader(_Zstandard(stream, path))
    return stream


@contextlib.contextmanager
def packing_errors(path):
    """Convert errors in unpacking a file to an `InputError`."""
    try:
        yield
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        packing = split_packing(path)[1]
        # Errors of the operating system, such as of a disk, have an errno.
        if not packing or getattr(error, "errno", None) is not None:
            raise
        raise InputError(
            f"{path} is not a complete {PACKED[packing]} file ({error}). "
            "Compress it again."
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


class _Zstandard(io.RawIOBase):
    """Unpack a stream of Zstandard frames; refuse a truncated frame.

    The package's own reader returns the start of such a frame without an error.
    """

    def __init__(self, stream, path):
        try:
            import zstandard
        except ImportError:
            raise InputError(
                f"{path} needs the package zstandard. Install it: "
                "pip install 'bert_keras[zst]'"
            ) from None
        self._error = zstandard.ZstdError
        # Large dumps are packed with --long=31.
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._stream = stream
        self._start()

    def _start(self):
        self._frame = None
        self._packed, self._unpacked = b"", memoryview(b"")

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

    def tell(self):
        raise io.UnsupportedOperation("tell")

    def readinto(self, buffer):
        while not self._unpacked:
            packed = self._packed or self._stream.read(_CHUNK)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._frame = self._frame or self._unpacker.decompressobj()
            try:
                self._unpacked = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise EOFError(str(error)) from error
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._unpacked))
        buffer[:count] = self._unpacked[:count]
        self._unpacked = self._unpacked[count:]
        return count

    def close(self):
        self._stream.close()
        super().close()
