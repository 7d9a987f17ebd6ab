"""Python runs this module at the start of each process that pytest starts.

Keras and TensorFlow import four large packages if they are installed. The tests
do not need these imports, which take almost half of the import time. So this
module hides the packages from imports in Keras and TensorFlow, and from no
other imports.
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
    """Return the name of the importing module."""
    frame = sys._getframe(2)
    while frame and frame.f_globals["__name__"].startswith("importlib"):
        frame = frame.f_back
    return frame.f_globals["__name__"] if frame else ""


sys.meta_path.insert(0, _NotInstalled)
