"""How Keras and TensorFlow are imported where our own code is the program."""

import contextlib
import sys

# What Keras imports wherever it is installed, for its plots, wrappers and
# tables: half as much time again as the rest takes.
_NOT_NEEDED = ("matplotlib", "pandas", "sklearn")


@contextlib.contextmanager
def lean():
    """Within, an import finds no package that Keras has no need of here.

    Afterwards it does. In a process that uses this, Keras takes no pandas
    tables and has no wrappers for scikit-learn.
    """
    names = [name for name in _NOT_NEEDED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))  # None: "not found", to Python
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
