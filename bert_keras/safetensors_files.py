"""Writer of safetensors files for models, LoRA weights and checkpoints.

Unlike the safetensors package, this writer raises `OSError` if a write fails,
holds one tensor at a time in memory, and hashes the file while writing it.
"""

import hashlib
import json
import math
import struct

import numpy as np

from bert_keras import full_disk
from bert_keras.comparison import check_finite

_CHUNK = 1 << 24  # bytes written at a time
# Name of a dtype in NumPy -> its name in safetensors.
DTYPES = {"bfloat16": "BF16", "bool": "BOOL"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


def write_safetensors(path, tensors, metadata=None, is_finite=False):
    """Write tensors to a file, one by one.

    Args:
        path: a local file.
        tensors: dict of name -> (NumPy dtype, shape, function). The function
            returns an array, which is cast to the dtype.
        metadata: dict of str -> str for the header.
        is_finite: True to refuse NaN and infinity.

    Returns:
        dict of "bytes" and "sha256", the file's entry in a manifest.

    Raises:
        InputError: `is_finite` is True and a tensor has NaN or infinity.
    """
    hashed = hashlib.sha256()
    header = _header(tensors, metadata)
    sizes = (
        math.prod(shape) * np.dtype(dtype).itemsize
        for dtype, shape, _ in tensors.values()
    )
    needed = len(header) + sum(sizes)
    with full_disk.name_file(path, needed=needed), open(path, "wb") as file:

        def put(data):
            hashed.update(data)
            file.write(data)

        put(header)
        for name, (dtype, _, read) in tensors.items():
            array = np.ascontiguousarray(read(), dtype).reshape(-1)
            if is_finite:
                check_finite(name, array)
            data = memoryview(array.view("u1"))
            for start in range(0, len(data), _CHUNK):
                put(data[start : start + _CHUNK])
        size = file.tell()
    return {"bytes": size, "sha256": hashed.hexdigest()}


def _header(tensors, metadata):
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, _) in tensors.items():
        dtype = np.dtype(dtype)
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": DTYPES[dtype.name],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
    return struct.pack("<Q", len(text)) + text
