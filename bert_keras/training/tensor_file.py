"""One safetensors file of a checkpoint: written in pieces, hashed meanwhile."""

import hashlib
import json
import os
import struct

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from bert_keras import files

PIECE = 1 << 24  # bytes written at a time
# NumPy's names of what a variable may hold, and safetensors' own.
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_tensors(tensors, path):
    """Writes arrays by name to a local file; returns its size and hash.

    Written here and not by safetensors, so that an error at any write is
    Python's, and the file is not read again for its hash.

    Args:
        tensors: dict of name -> NumPy array.
        path: the file.

    Returns:
        dict of "bytes" and "sha256", as a manifest states them.
    """
    hashed, size = hashlib.sha256(), 0
    with open(path, "wb") as file:
        for part in _parts(tensors):
            hashed.update(part)
            size += file.write(part)
    return {"bytes": size, "sha256": hashed.hexdigest()}


def _parts(tensors):
    header, end = {}, 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8
    yield struct.pack("<Q", len(text)) + text
    for array in tensors.values():
        data = memoryview(np.ascontiguousarray(array).reshape(-1).view("u1"))
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]


def read_tensors(path):
    """The arrays of a file by name.

    Raises:
        OSError, ValueError: it cannot be read, or is no safetensors file.
    """
    try:
        if files.is_remote(path):
            with files.open_file(path) as file:
                return load(file.read())
        with safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: np.array(file.get_tensor(name)) for name in names}
    except SafetensorError as error:
        raise ValueError(f"{os.path.basename(path)}: {error}") from None
