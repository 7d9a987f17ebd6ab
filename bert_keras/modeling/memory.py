"""Memory for loaded weights. The import needs neither Keras nor TensorFlow."""

import math
import mmap

import numpy as np


def paged_zeros(shape, dtype="float32"):
    """Return zeros that take no memory before they are written to.

    The array begins at a multiple of 64 bytes, as TensorFlow's memory does.
    `np.zeros` would ask for huge pages, for which the system moves memory.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(1, size), access=mmap.ACCESS_COPY)
    return np.ndarray(shape, dtype, pages)


def share_memory(array):
    """Return NumPy's float32 array as TensorFlow's tensor in the same memory.

    A tensor made through Keras would need two copies. Do not write to `array`
    afterwards, and pass no memory that a file or a caller may change, because
    the variable with the tensor would change too. TensorFlow does not write to
    shared memory: a variable gets new memory at its first update.

    The array is returned unchanged on another backend, in another dtype, or if
    it does not begin at a multiple of 64 bytes, where TensorFlow would crash.
    """
    from bert_keras.modeling.gradients import tf

    is_aligned = array.flags.carray and array.ctypes.data % 64 == 0
    if tf is None or array.dtype != "float32" or not is_aligned:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
