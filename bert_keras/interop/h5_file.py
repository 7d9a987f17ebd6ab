"""HDF5 files: plain datasets only, found by their links, read by offset.

The HDF5 library only says where each dataset lies. Whatever could lead out
of the file, blow up on reading or loop is refused by name.
"""

import math
import os

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.json_file import shortened
from bert_keras.interop.stored_array import stored_tensor

FETCH = "Fetch the file again"
# The large model has 400 datasets in 500 groups, nested up to 8 deep.
MOST_NODES, DEEPEST = 20_000, 16


def read_h5(path):
    """Returns dict of dataset path -> `Tensor`, of those that hold floats."""
    import h5py

    try:
        files.check_file(path, inside=os.path.dirname(path))
        with h5py.File(path, "r") as file:
            if file.userblock_size:
                raise _refusal(path, None, "something stands before the data")
            found = {}
            _walk(path, file, "", found, [0])
            return found
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise _refusal(
            path, None, f"this is not HDF5, or it is damaged ({reason})"
        ) from None


def _refusal(path, name, problem, way_out=FETCH):
    return WeightsError(path, problem, way_out, tensor=name)


def _walk(path, group, prefix, found, seen):
    import h5py

    for key in group:
        name = f"{prefix}{key}"
        seen[0] += 1
        if seen[0] > MOST_NODES or name.count("/") > DEEPEST:
            raise _refusal(path, shortened(name), "the groups do not end")
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise _refusal(
                path,
                shortened(name),
                "it is a link that can lead out of the file",
                "Copy what it leads to into the file",
            )
        node = group[key]
        if isinstance(node, h5py.Group):
            _walk(path, node, f"{name}/", found, seen)
        elif isinstance(node, h5py.Dataset) and node.dtype.kind == "f":
            found[name] = _tensor(path, name, node)


def _tensor(path, name, dataset):
    shape, dtype = dataset.shape, dataset.dtype
    count = math.prod(shape)
    problem = None
    if dataset.external or dataset.is_virtual:
        problem = "its numbers stand in another file"
    elif dataset.chunks or dataset.compression:
        problem = "its numbers are compressed or in pieces"
    offset = dataset.id.get_offset()
    if problem:
        way_out = "Store the numbers in the file as they are"
        raise _refusal(path, shortened(name), problem, way_out)
    if offset is None or (
        offset + count * dtype.itemsize > os.path.getsize(path)
        or dataset.id.get_storage_size() != count * dtype.itemsize
    ):
        raise _refusal(
            path, shortened(name), f"its shape {shape} exceeds the file"
        )

    return stored_tensor(path, name, dtype, shape, offset)


def write_h5(path, tensors):
    """Writes float32 datasets one by one, groups as their names say.

    Args:
        path: the file.
        tensors: dict of dataset path -> (shape, function that returns the
            numbers in any shape of that size).
    """
    import h5py

    with h5py.File(path, "w") as file:
        for name, (shape, read) in tensors.items():
            numbers = np.asarray(read(), "float32").reshape(shape)
            file.create_dataset(name, data=numbers)
