"""Reader of HDF5 files of weights from untrusted sources."""

import math

import ml_dtypes
import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensor_files import OpenFile, shorten, stored_tensor
from bert_keras.interop.tensors import FETCH, WeightsError

# A dataset is read at its offset in the file. The reader refuses
# compressed or chunked datasets, links, values in other files, and too many or
# too deep groups. h5py's `visititems` is not used: it skips links silently.

# A file of BERT-large has 400 datasets. Its 500 groups nest up to 8 deep.
MAX_NODES, MAX_DEPTH = 20_000, 16


def read_h5(path):
    """Return dict of dataset path -> `Tensor` for all datasets of floats."""
    import h5py

    try:
        source = OpenFile(path)
        with h5py.File(path, "r") as file:
            if file.userblock_size:
                raise WeightsError(
                    path, "the file has a user block before its data"
                )
            found = {}
            _walk(source, file, "", found, [0])
            return found
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if getattr(error, "errno", None) in files.TEMPORARY:
            raise
        reason = str(error).splitlines()[0][:200]
        raise WeightsError(
            path, f"the file is not HDF5, or is damaged ({reason})"
        ) from None


def _walk(source, group, prefix, found, seen):
    import h5py

    path = source.path

    for key in group:
        name = f"{prefix}{key}"
        seen[0] += 1
        if seen[0] > MAX_NODES or name.count("/") > MAX_DEPTH:
            raise WeightsError(
                path,
                f"there are more than {MAX_NODES} groups and datasets, or more "
                f"than {MAX_DEPTH} levels of groups",
                tensor=shorten(name),
            )
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise WeightsError(
                path,
                "this is a link, which can lead out of the file",
                "Copy the link's target into the file",
                tensor=shorten(name),
            )
        node = group[key]
        if isinstance(node, h5py.Group):
            _walk(source, node, f"{name}/", found, seen)
        elif isinstance(node, h5py.Dataset):
            dtype = _find_float_dtype(node)
            if dtype is not None:
                found[name] = _tensor(source, name, node, dtype)


def _find_float_dtype(dataset):
    """Return the dtype of a dataset of floats; None for any other dataset.

    HDF5 has no bfloat16. Keras stores a bfloat16 value as two opaque bytes, and
    sets the dataset's attribute `dtype` to "bfloat16".
    """
    if dataset.dtype.kind == "f":
        return dataset.dtype
    if dataset.dtype == np.dtype("V2"):
        is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
        return np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else None
    return None


def _tensor(source, name, dataset, dtype):
    shape = dataset.shape
    size, offset = math.prod(shape) * dtype.itemsize, dataset.id.get_offset()
    problem, fix = None, "Store the values uncompressed in this file"
    if dataset.external or dataset.is_virtual:
        problem = "the values are in another file"
    elif dataset.chunks or dataset.compression:
        problem = "the values are compressed or in chunks"
    elif (
        offset is None
        or offset + size > source.size
        or dataset.id.get_storage_size() != size
    ):
        problem = f"the stored bytes do not fit the shape {shape}"
        fix = FETCH
    if problem:
        raise WeightsError(source.path, problem, fix, tensor=shorten(name))
    return stored_tensor(source, name, dtype, shape, offset)
