"""Remote files, such as `gs://bucket/name`, through `tf.io.gfile`."""

import contextlib
import errno
import io

from bert_keras.errors import InputError

_BUFFER = 1 << 20  # bytes that one request reads


@contextlib.contextmanager
def gfile(path):
    """Yield `tf.io.gfile`; raise its errors as `OSError` or `InputError`."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such file", path) from None
    except tf.errors.UnimplementedError as error:
        scheme = path.partition("://")[0]
        known = filter(None, tf.io.gfile.get_registered_schemes())
        known = ", ".join(f"{name}://" for name in sorted(known))
        raise InputError(
            f"{path}: TensorFlow has no file system for {scheme}:// that "
            f"supports this operation ({error.message.splitlines()[0][:200]}). "
            f"Use a file system that this TensorFlow has ({known}), or copy "
            "the files to a local folder."
        ) from None
    except (
        tf.errors.PermissionDeniedError,
        tf.errors.UnauthenticatedError,
    ) as error:
        raise PermissionError(errno.EACCES, error.message, path) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, path) from None


def find_status(path):
    """Return the result of `tf.io.gfile.stat`; None for a missing path."""
    with contextlib.suppress(FileNotFoundError), gfile(path) as remote:
        return remote.stat(path)


def open_file(path):
    """Open a remote file for reading bytes."""
    return io.BufferedReader(_Reader(path), _BUFFER)


class _Reader(io.RawIOBase):
    def __init__(self, path):
        self._path = path
        with gfile(path) as remote:
            self._file = remote.GFile(path, "rb")
            self._file.seek(0)  # GFile opens a file only at its first use

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        with gfile(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def readinto(self, buffer):
        with gfile(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        self._file.close()
        super().close()
