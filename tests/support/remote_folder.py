"""A remote file system for tests: `ram://` without rename and append.

TensorFlow has `ram://` in every build. Here it is limited as an object store
is: nothing can be renamed or appended to, and a copy replaces an existing file.
Its files exist only in the process that uses it.
"""

import contextlib

import tensorflow as tf


class Killed(BaseException):
    """Raised to simulate the end of the process."""


KILLED = Killed()
DOWN = tf.errors.UnavailableError(None, None, "the store is down")


@contextlib.contextmanager
def object_store(monkeypatch, fail_at=None, error=KILLED):
    """Yield the list of changes so far, as (function name, path).

    Args:
        fail_at: index of the change that fails. A failed copy writes half of
            the file, a failed `rmtree` removes one file, and a failed `remove`
            removes nothing. None: no change fails.
        error: the error that the failed change raises. With `KILLED`, all later
            changes fail, too.
    """
    gfile = tf.io.gfile
    changes = []
    real = {name: getattr(gfile, name) for name in ("copy", "remove", "rmtree")}

    def changed(what, path):
        changes.append((what, path))
        if fail_at is None or error is KILLED:
            return fail_at is not None and len(changes) > fail_at
        return len(changes) == fail_at + 1

    def copy(source, target, overwrite=False):
        if not target.startswith("ram://"):
            return real["copy"](source, target, overwrite)
        fails = changed("copy", target)
        if gfile.exists(target):
            real["remove"](target)  # ram:// appends instead of replacing
        if fails:
            with gfile.GFile(source, "rb") as file:
                content = file.read()
            with gfile.GFile(target, "wb") as file:
                file.write(content[: len(content) // 2])
            raise error
        return real["copy"](source, target)

    def remove(path):
        if changed("remove", path):
            raise error
        real["remove"](path)

    def rmtree(path):
        fails = changed("rmtree", path)
        for place, _, names in list(gfile.walk(path)):
            for name in names:
                real["remove"](f"{place}/{name}")
                if fails:
                    raise error
        real["rmtree"](path)

    def rename(source, target, overwrite=False):
        raise tf.errors.UnimplementedError(None, None, "rename")

    class GFile(gfile.GFile):
        def __init__(self, name, mode="r"):
            if "a" in mode and name.startswith("ram://"):
                raise tf.errors.UnimplementedError(None, None, "append")
            super().__init__(name, mode)

    with monkeypatch.context() as patch:
        for function in (copy, remove, rmtree, rename, GFile):
            patch.setattr(gfile, function.__name__, function)
        yield changes
