"""Import of PyTorch before TensorFlow.

PyTorch's compiler has its own LLVM. If it is loaded after TensorFlow's LLVM, it
ends the process: "inconsistency in registered CommandLine options".
"""

import contextlib

with contextlib.suppress(ImportError):
    import torch._dynamo  # noqa: F401
