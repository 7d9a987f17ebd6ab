"""Local and remote files and folders: paths, checks, atomic writes.

A path may be remote, such as `gs://bucket/folder`. Remote file systems lack
append and rename, so a finished local file is copied there. A remote folder's
manifest is uploaded last. Without it, the folder is invalid.
"""

import contextlib
import errno
import glob
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import uuid

from bert_keras import full_disk, processes, remote_files
from bert_keras.errors import InputError

PathLike = str | os.PathLike[str]
PARTIAL = ".partial-"  # in the name of a partial (unfinished) output
# Suffix of a temporary folder's name. The folder holds the old version of an
# output folder until the new version is renamed to the output's path.
REPLACED = "-before"
# Names of manifests. A remote manifest is written last and removed first.
MANIFESTS = ("manifest.json", "store.json", "signature_card.json")
HUB = "hf://"
# Errors of a disk or a network that may be temporary. They say nothing about
# the file. `remote_files.gfile` raises EIO for most errors of TensorFlow.
TEMPORARY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENETUNREACH}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_remote(path):
    """Return True if a path has a scheme, as in `gs://bucket/folder`.

    Return False for `hf://org/name`, which names weights or data on the Hub.
    """
    path = os.fspath(path)
    return bool(_SCHEME.match(path)) and not path.startswith(HUB)


def absolute(path: PathLike) -> str:
    """Return the absolute path; a remote path is returned unchanged."""
    return os.fspath(path) if is_remote(path) else os.path.abspath(path)


def is_plain_name(value):
    """Return True for a printable name without slashes, except "." and ".."."""
    return (
        isinstance(value, str)
        and value not in ("", ".", "..")
        and value.isprintable()
        and not set("/\\") & set(value)
    )


def check_name(path: PathLike) -> None:
    """Raise `InputError` for an `hf://` name or an overlong local name."""
    if os.fspath(path).startswith(HUB):
        raise InputError(
            f"{path} names weights or data on the Hub; it is not a path to "
            "write to. Name another path. bert-keras publish uploads a model."
        )
    if is_remote(path):
        return
    try:
        os.lstat(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                f"{path}: {str(error.strerror).lower()}; expected at most 255 "
                "bytes in a name. Use a shorter name."
            ) from None


def split_paths(text: str) -> list[str]:
    """Split a text into paths at commas, except commas in an existing path."""
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


def keras_home():
    """Return Keras's folder, `KERAS_HOME` or ~/.keras."""
    return os.environ.get("KERAS_HOME", os.path.expanduser("~/.keras"))


def cache_folder():
    """Return the local folder that keeps copies and builds of remote data."""
    return os.path.join(keras_home(), "datasets", "bert_keras")


def is_file(path):
    """Return True if there is a file at a path."""
    if not is_remote(path):
        return stat.S_ISREG(_find_mode(path))
    status = remote_files.find_status(path)
    return status is not None and not status.is_directory


def is_folder(path):
    """Return True if there is a folder at a path."""
    if not is_remote(path):
        return stat.S_ISDIR(_find_mode(path))
    status = remote_files.find_status(path)
    return status is not None and status.is_directory


def _find_mode(path):
    """Return the mode of a local file or folder; 0 if the path is missing.

    Raises:
        OSError: the disk gave no answer, so the path may exist.
    """
    try:
        return os.stat(path).st_mode
    except ValueError:  # for instance, NUL in the path
        return 0
    except OSError as error:
        if error.errno in TEMPORARY:
            raise
        return 0


def exists(path):
    """Return True if there is a file or a folder at a path."""
    return is_file(path) or is_folder(path)


def size(path):
    """Return the size of a file in bytes."""
    return describe_version(path)[0]


def describe_version(path):
    """Return [bytes, modification time in ns] of a file, without reading it."""
    if not is_remote(path):
        status = os.stat(path)
        return [status.st_size, status.st_mtime_ns]
    status = remote_files.find_status(path)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    return [status.length, status.mtime_nsec]


def list_folder(path):
    """Return the sorted names in a folder; [] if the path does not exist."""
    try:
        if not is_remote(path):
            return sorted(os.listdir(path))
        with remote_files.gfile(path) as gfile:
            return sorted(name.rstrip("/") for name in gfile.listdir(path))
    except FileNotFoundError:
        return []


def find(pattern):
    """Return the sorted paths that match a pattern."""
    if not is_remote(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    with remote_files.gfile(pattern) as gfile:
        return sorted(gfile.glob(pattern))


def walk(folder):
    """Return the sorted paths of all files in a folder and its subfolders."""
    with contextlib.ExitStack() as stack:
        if is_remote(folder):
            gfile = stack.enter_context(remote_files.gfile(folder))
            levels = gfile.walk(folder)
        else:
            levels = _walk_links(folder)
        return sorted(
            os.path.join(path, name)
            for path, _, names in levels
            for name in names
        )


def _walk_links(folder):
    """Walk like `os.walk` and follow links, except links to a folder above."""
    folder = os.fspath(folder)
    above = {folder: {os.path.realpath(folder)}}
    for path, below, names in os.walk(folder, followlinks=True):
        yield path, below, names
        known = above.pop(path)
        inner = {name: os.path.join(path, name) for name in below}
        real = {name: os.path.realpath(inner[name]) for name in below}
        below[:] = [name for name in below if real[name] not in known]
        above |= {inner[name]: known | {real[name]} for name in below}


def check_file(path, most=None):
    """Return the size of a regular file in bytes, without opening it.

    Pipes and devices are refused, because reading them may never end.

    Args:
        path: local or remote; links are followed.
        most: largest allowed size in bytes; None for any size.

    Raises:
        InputError: the file is not regular or too large.
        OSError: the path does not exist, is a folder or is not accessible.
    """
    if is_remote(path):
        length = size(path)
    else:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(
                errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
            )
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"{path} is a pipe, a device or a socket; expected a regular "
                "file. Copy its content into a file and name that file."
            )
        length = status.st_size
    if most is not None and length > most:
        raise InputError(
            f"{path} is too large: it has {length:,} bytes; expected at most "
            f"{most:,}. Check that it is the right file, or fetch it again."
        )
    return length


def check_inside(path, folder):
    """Raise `InputError` if a path, with links resolved, is not in `folder`.

    The links of the Hugging Face Hub's cache are allowed. They lead from
    `models--NAME/snapshots/COMMIT` to files in `models--NAME/blobs`.
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
        f"{path} is a link out of the folder {folder}. Such a link is not "
        "followed, because it can lead to any file of this machine. Replace "
        "the link with a copy of the file."
    )


def read_bytes(path, most):
    """Check a file with `check_file`; return the file's content."""
    length = check_file(path, most)
    with open_file(path) as file:
        return file.read(length)


def open_file(path, mode="rb"):
    """Open a regular file for reading.

    Args:
        path: local or remote.
        mode: "rb", or "r" for UTF-8 text.
    """
    if not is_remote(path):
        check_file(path)
        return open(path, mode, encoding=None if "b" in mode else "utf-8")
    file = remote_files.open_file(path)
    return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")


def sha256(path):
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_content(path, other) -> bool:
    """Return True if two paths are files with the same content."""
    if not (is_file(path) and is_file(other)):
        return False
    if not (is_remote(path) or is_remote(other)) and os.path.samefile(
        path, other
    ):
        return True
    return size(path) == size(other) and sha256(path) == sha256(other)


@contextlib.contextmanager
def atomic_output(path, overwrite=True):
    """Yield a temporary local path; on success, move its content to `path`.

    The caller writes the output to the temporary path. At the end of the `with`
    block, the output is flushed to the disk and renamed to `path`. If the block
    raises an error, the temporary path is removed.

    An old folder at `path` is replaced by two renames. If the process is killed
    between them, `path` is missing. The next `atomic_output` in the same parent
    folder restores the old folder, if it runs in the same
    `processes.process_space`. For a remote `path`, see `upload`.

    Args:
        path: path of a file or a folder.
        overwrite: False to raise an error if `path` has content at the end,
            because another process wrote it at the same time.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="bert_keras-") as folder:
            partial = os.path.join(folder, os.path.basename(path.rstrip("/")))
            with full_disk.name_file(partial):
                yield partial
            if os.path.isfile(partial):
                refuse_folder(path)
            if not overwrite:
                _refuse_content(path)
            upload(partial, path)
        return
    check_name(path)
    path = os.path.abspath(path)
    if os.path.ismount(path):
        raise InputError(
            f"{path} is a mount point, which cannot be replaced. Name a new "
            "folder in it."
        )
    parent, name = os.path.split(path)
    processes.check_held(absolute(path))
    make_folder(parent)
    _remove_old_partials(parent)
    # Shorten the name, because a name with the suffix may be too long.
    short = name.encode("utf-8", "ignore")[:80].decode("utf-8", "ignore")
    suffix = f"{processes.process_space()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    partial = os.path.join(parent, f".{short}{PARTIAL}{suffix}")
    try:
        with full_disk.name_file(path, partial):
            yield partial
            _flush_tree(partial)
        if os.path.isfile(partial):
            refuse_folder(path)
        if not overwrite:
            _refuse_content(path)
        if os.path.isdir(path):
            _replace_folder(path, partial)
        else:
            os.replace(partial, path)
        flush(parent)
    finally:
        remove(partial)


def has_content(path):
    """Return True if `path` is a file, or a folder that is not empty."""
    return is_file(path) or (is_folder(path) and bool(list_folder(path)))


def _refuse_content(path):
    if has_content(path):
        raise InputError(
            f"Another command wrote {path} at the same time. This command "
            "changed nothing. Name another output."
        )


def refuse_folder(path):
    """Raise `InputError` if the path of an output file is a folder."""
    if is_folder(path):
        raise InputError(f"{path} is a folder. Name the file to write.")


def _replace_folder(path, partial):
    replaced = partial + REPLACED
    os.mkdir(replaced)
    try:
        os.rename(path, os.path.join(replaced, os.path.basename(path)))
        os.rename(partial, path)
    finally:
        _remove_partial(replaced)


def _remove_partial(path):
    """Remove a partial output.

    If `path` holds the old version of an output and there is no new version,
    move the old version back. If `path` is a complete remote folder and its
    output is not, complete the output.
    """
    if is_remote(path) and _has_manifest(path):
        parent, name = os.path.split(path)
        target = os.path.join(parent, name[1:].rpartition(PARTIAL)[0])
        if not _has_manifest(target):
            _replace_remote_folder(target, path)
            return
    if path.endswith(REPLACED):
        for name in list_folder(path):
            target = os.path.join(os.path.dirname(path), name)
            if not os.path.lexists(target):
                os.rename(os.path.join(path, name), target)
    remove(path)


def _remove_old_partials(folder):
    for name in filter(is_partial, list_folder(folder)):
        space, _, rest = name.rpartition(PARTIAL)[2].partition("-")
        pid = rest.partition("-")[0]
        is_ours = space == processes.process_space() and pid.isdecimal()
        if is_ours and not processes.is_running(int(pid)):
            _remove_partial(os.path.join(folder, name))


def is_partial(name):
    """Return True for the name of a partial output."""
    return name.startswith(".") and PARTIAL in name


def remove_partials(folder):
    """Remove all partial outputs in `folder`; see `_remove_partial`."""
    for name in filter(is_partial, list_folder(folder)):
        _remove_partial(os.path.join(folder, name))


def flush(path):
    """Flush a file's content, or a folder's entries, to the disk."""
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


def upload(local, path):
    """Copy a local file or folder to a remote path.

    Manifests are copied last, because a folder without its manifest is invalid.
    An old remote folder is replaced when all new files are in a folder next to
    it. If the replacement is interrupted, `remove_partials` completes it.
    """
    if os.path.isfile(local):
        make_folder(os.path.dirname(path))
        copy(local, path)
        return
    if not is_folder(path):
        _copy_folder(local, path)
        return
    parent, name = os.path.split(path.rstrip("/"))
    prefix = f".{name}{PARTIAL}"
    for old in list_folder(parent):
        if old.startswith(prefix):
            remove(os.path.join(parent, old))
    partial = os.path.join(parent, prefix + uuid.uuid4().hex[:8])
    _copy_folder(local, partial)
    _replace_remote_folder(path, partial)


def _copy_folder(source, target):
    names = [os.path.relpath(file, source) for file in walk(source)]
    for name in sorted(names, key=lambda name: name in MANIFESTS):
        path = os.path.join(target, name)
        make_folder(os.path.dirname(path))
        copy(os.path.join(source, name), path)


def _replace_remote_folder(path, partial):
    remove(path)
    _copy_folder(partial, path)
    remove(partial)


def _has_manifest(folder):
    return not set(MANIFESTS).isdisjoint(list_folder(folder))


def copy(source, target):
    """Copy a file, local or remote; overwrite `target` if it exists."""
    # Errors name the remote path.
    with remote_files.gfile(source if is_remote(source) else target) as gfile:
        gfile.copy(source, target, overwrite=True)


def make_folder(path):
    """Make the folder and its parents, unless they exist.

    Returns:
        Path of the outermost local folder that was created; None if `path`
        existed or is remote.

    Raises:
        InputError: the folder cannot be made, or is not writable, or it is in a
            folder of `processes.held` that another process may have taken.
    """
    check_name(path)
    made = None
    processes.check_held(absolute(path))
    try:
        if is_remote(path):
            with remote_files.gfile(path) as gfile:
                gfile.makedirs(path)
            return None
        parent = os.path.abspath(path)
        while not os.path.lexists(parent):
            made, parent = parent, os.path.dirname(parent)
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"The folder {path} cannot be made ({error.strerror}). Name a "
            "folder that you may write to."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(
            f"The folder {path} is not writable. Name a folder that you may "
            "write to."
        )
    return made


def remove_made(made):
    """Remove a folder that `make_folder` returned, if it contains no file."""
    if made is not None and not walk(made):
        remove(made)


def remove(path):
    """Remove a file or a folder, if it exists.

    A remote folder's manifest is removed first. If the removal is interrupted,
    the folder is invalid.
    """
    if is_remote(path):
        is_tree = is_folder(path)
        for name in MANIFESTS if is_tree else ():
            remove(os.path.join(path, name))
        with (
            contextlib.suppress(FileNotFoundError),
            remote_files.gfile(path) as gfile,
        ):
            (gfile.rmtree if is_tree else gfile.remove)(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
