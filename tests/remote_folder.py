"""A remote file system for tests: `ram://` without rename and append.

TensorFlow has `ram://` in every build. It is made as poor as an object store:
nothing can be renamed or appended to, and a copy replaces what is there. It
lives in the process that uses it.
"""

import contextlib

import tensorflow as tf


class Killed(BaseException):
    """Stands for the end of the process."""


@contextlib.contextmanager
def object_store(monkeypatch, fail_at=None):
    """Yields the list of changes so far, as (what, path).

    Args:
        fail_at: the number of the change at which the process is killed: it
            is half done, or not at all.
    """
    gfile = tf.io.gfile
    changes = []
    real = {name: getattr(gfile, name) for name in ("copy", "remove", "rmtree")}

    def changed(what, path):
        changes.append((what, path))
        return fail_at is not None and len(changes) > fail_at

    def copy(source, target, overwrite=False):
        if not target.startswith("ram://"):
            return real["copy"](source, target, overwrite)
        killed = changed("copy", target)
        if gfile.exists(target):
            real["remove"](target)  # ram:// appends instead of replacing
        if killed:
            with gfile.GFile(source, "rb") as file:
                content = file.read()
            with gfile.GFile(target, "wb") as file:
                file.write(content[: len(content) // 2])
            raise Killed
        return real["copy"](source, target)

    def remove(path):
        if changed("remove", path):
            raise Killed
        real["remove"](path)

    def rmtree(path):
        killed = changed("rmtree", path)
        for place, _, names in list(gfile.walk(path)):
            for name in names:
                real["remove"](f"{place}/{name}")
                if killed:
                    raise Killed
        real["rmtree"](path)

    def rename(source, target, overwrite=False):
        raise tf.errors.UnimplementedError(None, None, "rename")

    with monkeypatch.context() as patch:
        for function in (copy, remove, rmtree, rename):
            patch.setattr(gfile, function.__name__, function)
        yield changes
