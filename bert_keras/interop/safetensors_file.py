"""Safetensors files: the header checked, tensors read and written singly.

The `safetensors` package maps the whole file into memory and wants all
tensors at once to write; here one tensor at a time is in memory.
"""

import json
import math
import os
import struct

import ml_dtypes
import numpy as np

from bert_keras import files
from bert_keras.interop.checkpoint import WeightsError
from bert_keras.interop.json_file import Fields, parse_json, shortened
from bert_keras.interop.stored_array import stored_tensor

DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
# 400 tensors of a large model take 50 KB; the format itself allows 100 MB.
MAX_HEADER = 16 * 1024 * 1024
FETCH = "Fetch the file again"


def read_safetensors(path):
    """Returns dict of name -> `Tensor`; only the header is read."""
    header, start = _read_header(path)
    header.pop("__metadata__", None)
    size = os.path.getsize(path) - start
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, span = _checked_entry(path, name, entry, size)
        tensors[name] = stored_tensor(path, name, dtype, shape, start + span[0])
        spans.append(span)
    _check_spans(path, spans, size)
    return tensors


def _read_header(path):
    try:
        size = files.check_file(path, inside=os.path.dirname(path))
        with files.open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, MAX_HEADER):
                raise WeightsError(
                    path,
                    "this is not a safetensors file, or it was cut",
                    FETCH,
                    expected=f"a header of 2 to {min(size - 8, MAX_HEADER)}"
                    " bytes",
                    found=f"{length}",
                )
            return parse_json(file.read(length), path).values, 8 + length
    except OSError as error:
        raise WeightsError(
            path, f"the file cannot be read ({error.strerror})", FETCH
        ) from None


def _checked_entry(path, name, entry, size):
    """The dtype, shape and span of one header entry."""

    def refuse(problem, expected, found):
        raise WeightsError(
            path,
            problem,
            FETCH,
            tensor=shortened(name),
            expected=expected,
            found=shortened(found),
        )

    if not isinstance(entry, dict):
        refuse("the header is damaged", "a JSON object", entry)
    fields = Fields(entry, path)
    dtype, shape = fields.raw("dtype"), fields.raw("shape")
    span = fields.raw("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        refuse("unknown kind of number", " ".join(DTYPES), dtype)
    if not _naturals(shape) or len(shape) > 8:
        refuse("the shape is damaged", "sizes", shape)
    if not _naturals(span) or len(span) != 2 or not span[0] <= span[1] <= size:
        refuse("it lies outside the file", f"offsets up to {size}", span)
    expected = math.prod(shape) * DTYPES[dtype].itemsize
    if span[1] - span[0] != expected:
        refuse(
            f"the shape {shape} contradicts the bytes stored",
            f"{expected} bytes",
            span[1] - span[0],
        )
    return DTYPES[dtype], tuple(shape), tuple(span)


def _naturals(values):
    return isinstance(values, list) and all(
        type(value) is int and value >= 0 for value in values
    )


def _check_spans(path, spans, size):
    """Tensors must cover the rest of the file, without gap or overlap."""
    end = 0
    for first, last in sorted(spans):
        if first != end:
            break
        end = last
    if end != size:
        raise WeightsError(
            path,
            "the tensors overlap, leave a gap, or the file was cut",
            FETCH,
            expected=f"tensors that end at byte {size}",
            found=f"{end}",
        )


def write_safetensors(path, tensors):
    """Writes float32 tensors one by one.

    Args:
        path: the file.
        tensors: dict of name -> (shape, function that returns the numbers).
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, _) in tensors.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the numbers start at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, read in tensors.values():
            np.ascontiguousarray(read(), "<f4").tofile(file)
