"""Where tests find each other's helpers, in processes of their own too."""

import os
from pathlib import Path

TESTS = Path(__file__).parent
HELPERS = (
    "",
    "samples",
    "oracles",
    "devices",
    "docs",
    "fuzz",
    "interop",
    "frozen",
)


def pytest_configure():
    """Processes that tests start find the checkout and the helpers as well."""
    paths = [str(TESTS.parent), *(str(TESTS / name) for name in HELPERS)]
    if "PYTHONPATH" in os.environ:
        paths.append(os.environ["PYTHONPATH"])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
