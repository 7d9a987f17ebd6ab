"""Reads bytes and refuses a line of more than `MAX_LINE_BYTES`.

Without a limit, a file without line ends would be read into memory as a whole.
"""

import io

from bert_keras.errors import InputError

# A line of JSONL or CSV may hold a document. The longest books have 10 MB.
MAX_LINE_BYTES = 2**26
_BUFFER = 2**20  # bytes that are read at once


def bound_lines(stream, path) -> io.BufferedReader:
    """Return a reader of a binary stream that refuses too long lines.

    Args:
        stream: buffered binary stream. Closing the reader closes it.
        path: name of the stream in the message.

    Raises:
        InputError: when a line is read that has more than `MAX_LINE_BYTES`.
    """
    return io.BufferedReader(_Bounded(stream, path), _BUFFER)


class _Bounded(io.RawIOBase):
    def __init__(self, stream, path):
        self._stream, self._path = stream, path
        self._lines = self._length = 0  # full lines, bytes of the last line

    def readable(self):
        return True

    def seekable(self):
        return self._stream.seekable()

    def seek(self, offset, whence=io.SEEK_SET):
        if (offset, whence) != (0, io.SEEK_SET):
            raise io.UnsupportedOperation("seek is possible to the start only")
        self._lines = self._length = 0
        return self._stream.seek(0)

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

    def close(self):
        self._stream.close()
        super().close()
