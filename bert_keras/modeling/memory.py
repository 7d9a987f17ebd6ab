"""Memory for weights to be loaded; the import needs neither Keras nor TF."""

import math
import mmap

import numpy as np


def paged_zeros(shape, dtype="float32"):
    """Return zeros that take no memory before they are written to.

    They begin at a multiple of 64 bytes, as TensorFlow's memory does.
    `np.zeros` asks for huge pages, for which the system moves other memory.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(1, size), access=mmap.ACCESS_COPY)
    return np.ndarray(shape, dtype, pages)


def share_memory(array):
    """Return NumPy's float32 array as TensorFlow's tensor in the same memory.

    Through Keras, TensorFlow would copy it twice. Do not write to `array`
    afterwards, nor pass memory that a file or a caller may change: the
    variable that takes the tensor would change with it. TensorFlow writes to
    no shared memory: a variable gets new memory at its first update.

    An array is returned unchanged on another backend, in another dtype, or if
    it does not begin at a multiple of 64 bytes: TensorFlow would assume that
    it does, and crash.
    """
    from bert_keras.modeling.gradients import tf

    is_aligned = array.flags.carray and array.ctypes.data % 64 == 0
    if tf is None or array.dtype != "float32" or not is_aligned:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
