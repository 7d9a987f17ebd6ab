"""Python runs this at the start of each process of the tests.

Keras and TensorFlow import four large packages wherever they are installed,
and use none of them here: almost half of what their import takes. Their
imports, and nobody else's, do not find these packages.
"""

import os
import sys

UNUSED = {"jax", "matplotlib", "pandas", "sklearn"}
if os.environ.get("KERAS_BACKEND") == "jax":
    UNUSED.remove("jax")


class _NotInstalled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in UNUSED and _importer().startswith(("keras.", "tensorflow.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer():
    """The name of the module that imports."""
    frame = sys._getframe(2)
    while frame and frame.f_globals["__name__"].startswith("importlib"):
        frame = frame.f_back
    return frame.f_globals["__name__"] if frame else ""


sys.meta_path.insert(0, _NotInstalled)
