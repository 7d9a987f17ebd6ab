"""How TensorFlow and Keras are imported where our own code is the program."""

import contextlib
import os
import sys

# What Keras and TensorFlow import wherever it is installed, for a wrapper, a
# plot and a converter. Their own import takes twice as long with all four.
_NOT_NEEDED = ("jax", "matplotlib", "pandas", "sklearn")


@contextlib.contextmanager
def lean():
    """Within, an import finds no package that Keras has no need of here.

    Afterwards it does. In a process that uses this, Keras takes no pandas
    tables and has no wrappers for scikit-learn.
    """
    backend = os.environ.get("KERAS_BACKEND")
    kept = {*sys.modules, backend}
    names = [name for name in _NOT_NEEDED if name not in kept]
    sys.modules.update(dict.fromkeys(names))  # None: "not found", to Python
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
