"""Numbers that lie in a file as they are in memory, read as far as needed."""

import math

import numpy as np

from bert_keras.interop.checkpoint import Tensor, WeightsError


def stored_tensor(path, name, dtype, shape, offset):
    """The `Tensor` of numbers in C order from byte `offset` on.

    Whoever makes it has checked that it lies inside the file.
    """
    width = math.prod(shape[1:])

    def rows(first, last):
        count = (last - first) * width
        start = offset + first * width * dtype.itemsize
        array = np.fromfile(path, dtype, count, offset=start)
        if array.size != count:
            raise WeightsError(
                path,
                "the file was cut while it was read",
                "Fetch the file again",
                tensor=name,
                expected=f"{count} numbers",
                found=f"{array.size}",
            )
        return array.reshape((last - first, *shape[1:]))

    def whole():
        return rows(0, shape[0]) if shape else rows(0, 1).reshape(())

    return Tensor(path, name, shape, whole, rows if shape else None)
