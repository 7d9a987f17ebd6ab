"""Memory for loaded weights.

Importing this module does not import Keras or TensorFlow.
"""

import math
import mmap

import numpy as np


def paged_zeros(shape, dtype="float32"):
    """Return zeros that take no memory before they are written to.

    The array begins at a multiple of 64 bytes, as TensorFlow's memory does.
    `np.zeros` would request huge pages. The system would take time to move
    memory and make room for them.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(1, size), access=mmap.ACCESS_COPY)
    return np.ndarray(shape, dtype, pages)


def share_memory(array):
    """Return a TensorFlow tensor in the memory of a float32 NumPy array.

    Keras would copy the values twice. A variable made from the tensor changes
    if the array changes, so do not write to the array or to a file it maps.
    The first update of the variable writes to new memory, not to the array.

    On other backends and for other dtypes, the array itself is returned. It
    is also returned if it is read-only or not C-contiguous, or if its address
    is not a multiple of 64. TensorFlow would crash at such an address.
    """
    from bert_keras.modeling.gradients import tf

    is_aligned = array.flags.carray and array.ctypes.data % 64 == 0
    if tf is None or array.dtype != "float32" or not is_aligned:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
