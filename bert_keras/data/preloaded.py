"""What worker processes begin with; for `workers.forks` alone to import.

TensorFlow writes lines on CUDA and oneDNN before any setting is read. The
process that asked for workers has shown them.
"""

import os

from bert_keras import imports

_kept = os.dup(2)
with open(os.devnull, "w") as _nothing:
    os.dup2(_nothing.fileno(), 2)
try:
    with imports.lean():
        import keras  # noqa: F401
        import tensorflow_text  # noqa: F401
finally:
    os.dup2(_kept, 2)
    os.close(_kept)
