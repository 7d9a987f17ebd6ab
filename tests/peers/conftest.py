"""PyTorch comes first.

Its compiler brings an LLVM of its own; loaded after TensorFlow's it ends the
process: "inconsistency in registered CommandLine options".
"""

import contextlib

with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401
