"""Files on other machines (`gs://` and the like), through `tf.io.gfile`.

TensorFlow's errors become Python's. What is written comes from a finished
local file, so that a file system needs neither append nor rename.
"""

import contextlib
import errno
import io

from bert_keras.errors import InputError

_BUFFER = 1 << 20  # bytes that are asked for at a time


def is_file(path):
    """Whether there is a file of this name."""
    found = _stat(path)
    return found is not None and not found.is_directory


def is_folder(path):
    """Whether there is a folder, or what begins with its name."""
    found = _stat(path)
    return found is not None and found.is_directory


def size(path):
    """Bytes of a file."""
    found = _stat(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    return found.length


def open_to_read(path):
    """A buffered binary file for reading."""
    with _python_errors(path):
        return io.BufferedReader(_Reader(path), _BUFFER)


def names(folder):
    """The names in a folder."""
    with _python_errors(folder) as gfile:
        return [name.rstrip("/") for name in gfile.listdir(folder)]


def find(pattern):
    """The paths that match a pattern."""
    with _python_errors(pattern) as gfile:
        return gfile.glob(pattern)


def walk(folder):
    """As `os.walk`."""
    with _python_errors(folder) as gfile:
        yield from gfile.walk(folder)


def make_folder(path):
    """Makes the folder and those above it."""
    with _python_errors(path) as gfile:
        gfile.makedirs(path)


def remove_file(path):
    """Removes a file; nothing where there is none."""
    with contextlib.suppress(FileNotFoundError), _python_errors(path) as gfile:
        gfile.remove(path)


def remove_folder(path):
    """Removes a folder and what is in it."""
    with contextlib.suppress(FileNotFoundError), _python_errors(path) as gfile:
        gfile.rmtree(path)


def copy(source, target):
    """Copies a file to or from another machine, over what is there."""
    with _python_errors(target) as gfile:
        gfile.copy(source, target, overwrite=True)


class _Reader(io.RawIOBase):
    def __init__(self, path):
        self._path = path
        with _python_errors(path) as gfile:
            self._file = gfile.GFile(path, "rb")
            self._file.seek(0)  # opens it

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        with _python_errors(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def readinto(self, buffer):
        with _python_errors(self._path):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self):
        self._file.close()
        super().close()


def _stat(path):
    """What is known of a path; None where there is nothing."""
    with contextlib.suppress(FileNotFoundError), _python_errors(path) as gfile:
        return gfile.stat(path)


@contextlib.contextmanager
def _python_errors(path):
    """Yields `tf.io.gfile`; turns TensorFlow's errors into Python's."""
    import tensorflow as tf

    try:
        yield tf.io.gfile
    except tf.errors.NotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such file", path) from None
    except tf.errors.UnimplementedError as error:
        _refuse(path, error)
    except (
        tf.errors.PermissionDeniedError,
        tf.errors.UnauthenticatedError,
    ) as error:
        raise PermissionError(errno.EACCES, error.message, path) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, path) from None


def _refuse(path, error):
    import tensorflow as tf

    scheme = path.partition("://")[0]
    known = filter(None, tf.io.gfile.get_registered_schemes())
    known = ", ".join(f"{name}://" for name in sorted(known))
    raise InputError(
        f"{path}: TensorFlow has no file system for {scheme}:// that can do "
        f"this ({error.message.splitlines()[0][:200]}). Expected one of those "
        f"that this TensorFlow has ({known}), or a folder of this machine: "
        "copy the files there."
    ) from None
