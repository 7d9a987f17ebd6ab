"""Import of PyTorch before TensorFlow.

PyTorch's compiler has its own LLVM. If it is loaded after TensorFlow's LLVM, it
ends the process: "inconsistency in registered CommandLine options".
"""

import contextlib

import pytest

with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401


@pytest.fixture
def check_difference(capsys):
    """Function that prints a difference and asserts that it is below 1e-5."""

    def check(what, difference):
        with capsys.disabled():
            print(f"\n{what}: {difference:.1e}", end="")
        assert difference < 1e-5

    return check
