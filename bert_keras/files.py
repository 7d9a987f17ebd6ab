"""Files and folders that are there whole or not at all; JSON and manifests.

A path may be remote (`gs://` and the like, through `tf.io.gfile`). There a
file is uploaded from a finished local one, and a folder counts only once its
manifest, which is uploaded last, is in it: no file system needs to append or
rename.
"""

import contextlib
import errno
import functools
import glob
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import uuid

from bert_keras.errors import InputError

PathLike = str | os.PathLike[str]
PARTIAL = ".partial-"
REPLACED = "-before"  # behind a partial's name: holds what was replaced
# Manifests: the last file that is written to a folder, the first removed.
MANIFESTS = ("manifest.json", "store.json", "signature_card.json")
# The largest real file, the multilingual model's tokenizer.json, has 3 MB; the
# deepest one has 8 levels.
MOST_JSON, DEEPEST_JSON = 16 * 1024 * 1024, 64
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_BUFFER = 1 << 20  # bytes of a remote file that are asked for at a time
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_remote(path):
    """Whether a path names a file system, as in `gs://bucket/folder`."""
    return _SCHEME.match(os.fspath(path)) is not None


def absolute(path: PathLike) -> str:
    """The path from the root of its file system."""
    return os.fspath(path) if is_remote(path) else os.path.abspath(path)


def is_file(path):
    """Whether there is a file of this name."""
    if not is_remote(path):
        return os.path.isfile(path)
    found = _remote_status(path)
    return found is not None and not found.is_directory


def is_folder(path):
    """Whether there is a folder, or remotely what begins with its name."""
    if not is_remote(path):
        return os.path.isdir(path)
    found = _remote_status(path)
    return found is not None and found.is_directory


def exists(path):
    """Whether there is a file or a folder of this name."""
    return is_file(path) or is_folder(path)


def size(path):
    """Bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    found = _remote_status(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    return found.length


def describe_version(path):
    """Return bytes and time of change, which tell a changed file at no cost."""
    if not is_remote(path):
        status = os.stat(path)
        return [status.st_size, status.st_mtime_ns]
    found = _remote_status(path)
    return [found.length, found.mtime_nsec]


def list_folder(path):
    """The names in a folder, sorted; none where there is no folder."""
    try:
        if not is_remote(path):
            return sorted(os.listdir(path))
        with _gfile(path) as gfile:
            return sorted(name.rstrip("/") for name in gfile.listdir(path))
    except FileNotFoundError:
        return []


def is_plain_name(value):
    """Whether the value names something in a folder, and nothing outside."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and value.isprintable()
        and not set("/\\") & set(value)
    )


def find(pattern):
    """The paths that match a pattern, sorted."""
    if not is_remote(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    with _gfile(pattern) as gfile:
        return sorted(gfile.glob(pattern))


def walk(folder):
    """The paths of all files in a folder and in those below, sorted."""
    with contextlib.ExitStack() as stack:
        if is_remote(folder):
            walked = stack.enter_context(_gfile(folder)).walk(folder)
        else:
            walked = _walk_links(folder)
        return sorted(
            os.path.join(place, name)
            for place, _, names in walked
            for name in names
        )


def refuse_input_as_output(
    output: PathLike | None, *inputs: PathLike | None
) -> None:
    """Raise `InputError` if writing `output` would replace an input.

    Links are followed, and two names of one file are one file.

    Args:
        output: file or folder to write; None for none.
        *inputs: files, folders (with all that is in them) or patterns that
            are read; None and names of data sets are skipped.
    """
    if not output:
        return
    check_name(output)
    if not exists(output):
        return
    written = _identities(output)
    for source in filter(None, inputs):
        if written & _identities(source):
            raise InputError(
                f"The output {output} is an input ({source}), which writing "
                "would replace. Name another output."
            )


def _identities(source):
    """Return what tells files apart, of those at a path or a pattern."""
    found = [source] if exists(source) else find(os.fspath(source))
    below = [walk(path) if is_folder(path) else [path] for path in found]
    paths = filter(exists, itertools.chain(*below))  # no broken links
    return {
        os.fspath(path)
        if is_remote(path)
        else (os.stat(path).st_dev, os.stat(path).st_ino)
        for path in paths
    }


def same_content(path, other) -> bool:
    """Return True if two paths name one file, or files of the same bytes."""
    if not (is_file(path) and is_file(other)):
        return False
    if not (is_remote(path) or is_remote(other)) and os.path.samefile(
        path, other
    ):
        return True
    return size(path) == size(other) and sha256(path) == sha256(other)


def split_paths(text: str) -> list[str]:
    """Return the paths that stand in a text with commas between.

    A path that exists may have commas in its name.
    """
    parts, paths = text.split(","), []
    while parts:
        count = next(
            n
            for n in range(len(parts), 0, -1)
            if n == 1 or exists(",".join(parts[:n]))
        )
        paths.append(",".join(parts[:count]).strip())
        del parts[:count]
    return paths


def folder_size(folder):
    """Bytes of all files in a local folder and in those below."""
    return sum(map(os.path.getsize, walk(folder)))


def _walk_links(folder):
    """As `os.walk`, into links too, but not into what they stand in."""
    folder = os.fspath(folder)
    above = {folder: {os.path.realpath(folder)}}
    for place, below, names in os.walk(folder, followlinks=True):
        yield place, below, names
        known = above.pop(place)
        inner = {name: os.path.join(place, name) for name in below}
        real = {name: os.path.realpath(inner[name]) for name in below}
        below[:] = [name for name in below if real[name] not in known]
        above |= {inner[name]: known | {real[name]} for name in below}


def check_file(path, most=None, inside=None):
    """The bytes of a regular file, before it is opened.

    Reading a pipe may never return and a device never ends; a link in
    somebody else's folder can lead to any file of this machine.

    Args:
        path: a link in it is followed.
        most: bytes that the file may have.
        inside: the folder that the file must be in, links resolved; see
            `check_inside`.

    Raises:
        InputError: it is no regular file, too large, or not in `inside`.
        OSError: there is no file, or it may not be read.
    """
    if is_remote(path):
        found = size(path)
    else:
        if inside is not None:
            check_inside(path, inside)
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(
                errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
            )
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"{path} is a pipe, a device or a socket; expected a regular "
                "file. Copy what it gives into a file and name that."
            )
        found = status.st_size
    if most is not None and found > most:
        raise InputError(
            f"{path} is too large to be what it is read as: it has {found:,} "
            f"bytes; expected at most {most:,}. Check that it is the right "
            "file, or fetch it again."
        )
    return found


def check_inside(path, folder):
    """Raises `InputError` where a link leads from a path out of `folder`.

    One exception: the cache of the Hugging Face Hub keeps each file in
    `models--NAME/blobs`, and links to it in `models--NAME/snapshots/COMMIT`.
    """
    root, real = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([root, real]) == root:
        return
    repository, snapshots, _ = root.rpartition(f"{os.sep}snapshots{os.sep}")
    if (
        snapshots
        and os.path.basename(repository).startswith("models--")
        and os.path.dirname(real) == os.path.join(repository, "blobs")
    ):
        return
    raise InputError(
        f"{path} is a link out of the folder {folder}; nothing outside it is "
        "read, as such a link can lead to any file of this machine. Put a "
        "copy of the file in the link's place."
    )


def read_bytes(path, most, inside=None):
    """The content of a file, which is checked first; see `check_file`."""
    found = check_file(path, most, inside)
    with open_file(path) as file:
        return file.read(found)


def open_file(path, mode="rb", inside=None):
    """Opens a regular file for reading, "rb" or "r" (UTF-8).

    Args:
        inside: the folder that it must be in; see `check_file`.
    """
    if not is_remote(path):
        check_file(path, inside=inside)
        return open(path, mode, encoding=None if "b" in mode else "utf-8")
    with _gfile(path):
        file = io.BufferedReader(_RemoteReader(path), _BUFFER)
    return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")


@contextlib.contextmanager
def written_beside(path):
    """Yields a free local path that takes the place of `path` at the end.

    What the caller wrote there, a file or a folder, is flushed to the disk,
    then renamed to `path`. A file that stands there is replaced; a folder is
    replaced by a folder, but between two renames, so that a kill may leave
    neither in place: the next output in the parent puts the old one back.
    When the caller fails, what was written is removed.

    A remote `path` is uploaded to instead. Of a folder, what stands there is
    removed and the manifest goes last: without it, the folder does not count.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="bert_keras-") as folder:
            partial = os.path.join(folder, os.path.basename(path.rstrip("/")))
            yield partial
            if os.path.isfile(partial):
                refuse_folder(path)
            upload(partial, path)
        return
    path = os.path.abspath(path)
    check_name(path)
    if os.path.ismount(path):
        raise InputError(
            f"{path} is a mount point, which nothing can take the place of. "
            "Name a folder in it, which need not be there."
        )
    parent, name = os.path.split(path)
    make_folder(parent)
    _remove_abandoned(parent)
    # Short: the name of the output may be as long as a name can be.
    short = name.encode("utf-8", "ignore")[:80].decode("utf-8", "ignore")
    suffix = f"{_process_space()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    partial = os.path.join(parent, f".{short}{PARTIAL}{suffix}")
    try:
        yield partial
        _flush_tree(partial)
        if os.path.isfile(partial):
            refuse_folder(path)
        if os.path.isdir(path):
            _replace_folder(path, partial)
        else:
            os.replace(partial, path)
        flush(parent)
    finally:
        remove(partial)


@contextlib.contextmanager
def plain_link(folder):
    """Yield a path of the folder that TensorFlow takes as it is.

    TensorFlow reads *, ?, [ and a backslash in some paths as a pattern, and
    takes no names that are not UTF-8. Such a folder gets a link elsewhere.
    """
    folder = os.fspath(folder)
    try:
        folder.encode()
        is_plain = not set("*?[]{}\\") & set(folder)
    except UnicodeEncodeError:
        is_plain = False
    if is_plain or is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bert_keras-") as place:
        link = os.path.join(place, "folder")
        os.symlink(os.path.abspath(folder), link)
        yield link


def refuse_folder(path):
    """One sentence where a file is to be written and a folder stands."""
    if is_folder(path):
        raise InputError(f"{path} is a folder. Name the file to write.")


def _replace_folder(path, partial):
    replaced = partial + REPLACED
    os.mkdir(replaced)
    try:
        os.rename(path, os.path.join(replaced, os.path.basename(path)))
        os.rename(partial, path)
    finally:
        _remove_left(replaced)


def _remove_left(path):
    """Remove what a writer left; put back a folder that it did not replace."""
    if path.endswith(REPLACED):
        for name in list_folder(path):
            target = os.path.join(os.path.dirname(path), name)
            if not os.path.lexists(target):
                os.rename(os.path.join(path, name), target)
    remove(path)


def check_name(path: PathLike) -> None:
    """Raise `InputError` if the file system takes no such name."""
    if is_remote(path):
        return
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                f"{path}: {str(error.strerror).lower()}; expected at most 255 "
                "bytes in a name. Name a shorter one."
            ) from None


def upload(local, path):
    """Copies a local file or folder to a remote place, manifests last."""
    if os.path.isfile(local):
        make_folder(os.path.dirname(path))
        copy(local, path)
        return
    remove(path)
    found = [os.path.relpath(file, local) for file in walk(local)]
    for name in sorted(found, key=lambda name: name in MANIFESTS):
        target = os.path.join(path, name)
        make_folder(os.path.dirname(target))
        copy(os.path.join(local, name), target)


def copy(source, target):
    """Copies a file, local or remote, over what is there."""
    with _gfile(target) as gfile:
        gfile.copy(source, target, overwrite=True)


def cache_folder():
    """Where remote data is kept on this machine.

    Below `KERAS_HOME`, which is ~/.keras where it is not set.
    """
    return os.path.join(keras_home(), "datasets", "bert_keras")


def keras_home():
    return os.environ.get("KERAS_HOME", os.path.expanduser("~/.keras"))


def make_folder(path):
    """Makes the folder and those above it; one sentence where it cannot."""
    try:
        if is_remote(path):
            with _gfile(path) as gfile:
                gfile.makedirs(path)
            return
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {path} cannot be made ({error.strerror}). "
            "Name a folder in a place where you may write."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(
            f"The folder {path} is not writable. "
            "Name a folder in a place where you may write."
        )


def remove(path):
    """Removes a file or a folder, if it is there; of a remote folder, first
    its manifest, so that what is left of it counts as none."""
    if is_remote(path):
        is_tree = is_folder(path)
        for name in MANIFESTS if is_tree else ():
            remove(os.path.join(path, name))
        with contextlib.suppress(FileNotFoundError), _gfile(path) as gfile:
            (gfile.rmtree if is_tree else gfile.remove)(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@functools.cache  # the same name in all of a process's partials
def _process_space() -> str:
    """Return a name of what process numbers belong to: a boot, a container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # Linux
        parts.append(os.readlink("/proc/self/ns/pid"))
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read())
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:8]


def _remove_abandoned(folder):
    """Remove partial files in `folder` whose writer was killed."""
    for name in filter(is_partial, list_folder(folder)):
        space, _, rest = name.rpartition(PARTIAL)[2].partition("-")
        pid = rest.partition("-")[0]
        if space == _process_space() and pid.isdecimal():
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                _remove_left(os.path.join(folder, name))
            except OSError:  # another user's process
                continue


def is_partial(name):
    """Whether a killed writer left the file or folder of this name."""
    return name.startswith(".") and PARTIAL in name


def remove_partials(folder):
    """Removes what killed writers left half-written in `folder`."""
    for name in filter(is_partial, list_folder(folder)):
        _remove_left(os.path.join(folder, name))


def flush(path):
    """Has the disk hold the file, or the names that stand in the folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def _flush_tree(path):
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            flush(os.path.join(folder, name))
        flush(folder)
    if os.path.isfile(path):
        flush(path)


# Remote files. TensorFlow's errors become Python's.


class _RemoteReader(io.RawIOBase):
    """The bytes of a remote file, unbuffered."""

    def __init__(self, path):
        self._path = path
        with _gfile(path) as gfile:
            self._file = gfile.GFile(path, "rb")
            self._file.seek(0)  # opens it

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        with _gfile(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def readinto(self, buffer):
        with _gfile(self._path):
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def close(self):
        self._file.close()
        super().close()


def _remote_status(path):
    """What is known of a path; None where there is nothing."""
    with contextlib.suppress(FileNotFoundError), _gfile(path) as gfile:
        return gfile.stat(path)


@contextlib.contextmanager
def _gfile(path):
    """Yields `tf.io.gfile`; turns TensorFlow's errors to Python's."""
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
            f"{path}: TensorFlow has no file system for {scheme}:// that can "
            f"do this ({error.message.splitlines()[0][:200]}). Expected one of "
            f"those that this TensorFlow has ({known}), or a folder of this "
            "machine: copy the files there."
        ) from None
    except (
        tf.errors.PermissionDeniedError,
        tf.errors.UnauthenticatedError,
    ) as error:
        raise PermissionError(errno.EACCES, error.message, path) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, error.message, path) from None


# Hashes and JSON.


def sha256(path):
    """Hash of a file's bytes, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_hash(value):
    """Hash of a JSON value, the same for any order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True).encode()
    ).hexdigest()


def write_json(value, path):
    """Writes one JSON value to a local file, for people to read too."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, sort_keys=True)
        file.write("\n")


def without_nan(value):
    """Return a JSON value with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def read_json(path, most=MOST_JSON):
    """Reads one JSON value; `ValueError` as `parse_json`, `InputError` for a
    file that `check_file` refuses."""
    return parse_json(read_bytes(path, most))


def parse_json(text, **arguments):
    """The value of JSON text, which may come from anybody.

    Args:
        text: str or bytes.
        arguments: of `json.loads`.

    Raises:
        ValueError: it is not JSON, is nested too deep to be handled, or
            holds half of a surrogate pair, which no text file can.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, **arguments)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if text.count("[") + text.count("{") > DEEPEST_JSON:
        _check_depth(value)
    if _HALF_PAIR.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError
    return value


def _check_depth(value):
    level = [value]
    for _ in range(DEEPEST_JSON + 1):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST_JSON} deep")
