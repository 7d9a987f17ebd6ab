"""A remote file system for tests: `ram://` without rename and append.

TensorFlow has `ram://` in every build. It is made as poor as an object store:
nothing can be renamed or appended to, and a copy replaces what is there. It
lives in the process that uses it.
"""

import contextlib

import tensorflow as tf


class Killed(BaseException):
    """Stands for the end of the process."""


KILLED = Killed()
DOWN = tf.errors.UnavailableError(None, None, "the store is down")


@contextlib.contextmanager
def object_store(monkeypatch, fail_at=None, error=KILLED):
    """Yields the list of changes so far, as (what, path).

    Args:
        fail_at: the number of the change that fails: it is half done, or not
            at all.
        error: what it raises; after `KILLED` no later change is done either.
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

    with monkeypatch.context() as patch:
        for function in (copy, remove, rmtree, rename):
            patch.setattr(gfile, function.__name__, function)
        yield changes
