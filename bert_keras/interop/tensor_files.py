"""Files of strangers, checked before use: JSON, safetensors, HDF5."""

import json
import math
import os
import struct

import ml_dtypes
import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensors import Tensor, WeightsError

# JSON from strangers: bounded in size and depth, each field checked.


def read_json(path, kind=dict, inside=None):
    """The JSON object in the file, as `Fields`; a list with `kind=list`.

    Args:
        path: the file.
        kind: dict or list.
        inside: the folder that it must be in; its own one by default.
    """
    try:
        text = files.read_bytes(
            path, files.MOST_JSON, inside or os.path.dirname(path)
        )
    except OSError as error:
        raise WeightsError(
            path,
            f"the file cannot be read ({error.strerror})",
            "Fetch the file again",
        ) from None
    return parse_json(text, path, kind)


def parse_json(text, path, kind=dict):
    """The JSON value in `text`, as `Fields`; `path` is for messages."""
    try:
        value = files.parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise WeightsError(
            path, f"this is not JSON ({error})", "Fetch the file again"
        ) from None
    if not isinstance(value, kind):
        raise WeightsError(
            path,
            "the file holds no settings",
            "Fetch the file again",
            expected=f"a JSON {'object' if kind is dict else 'array'}",
            found=f"a {type(value).__name__}",
        )
    return Fields(value, path)


def _refuse_constant(name):
    raise ValueError(f"{name} is not a number")


class Fields:
    """The fields of one JSON object; a wrong type names file and field."""

    def __init__(self, values, path):
        self.values, self.path = values, path

    def __contains__(self, name):
        return self.values.get(name) is not None

    def raw(self, name, default=None):
        """The value as it stands; the caller checks it."""
        value = self.values.get(name)
        return default if value is None else value

    def integer(self, name, default=None, maximum=2**31 - 1):
        value = self._required(name, default)
        if type(value) is not int or not 1 <= value <= maximum:
            self.refuse(name, f"a whole number 1 to {maximum}", value)
        return value

    def share(self, name, default=None):
        """A number from 0 to 1, 1 excluded: a dropout rate."""
        value = self._required(name, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            self.refuse(name, "a number from 0 to below 1", value)
        return float(value)

    def handed_on(self, name):
        """A number that decides nothing here; None where there is none."""
        value = self.raw(name)
        known = type(value) in (int, float) and 0 <= value <= 1000
        return value if known else None

    def text(self, name, default=None):
        return self._typed(name, default, str, "a text")

    def boolean(self, name, default=None):
        return self._typed(name, default, bool, "true or false")

    def object(self, name, default=None):
        value = self._typed(name, default, dict, "a JSON object")
        return Fields(value, self.path)

    def texts(self, name, default=None):
        value = self._typed(name, default, list, "a list of texts")
        if not all(type(item) is str for item in value):
            self.refuse(name, "a list of texts", value)
        return value

    def refuse(self, name, expected, found):
        """Raises the error that the field is not what it must be."""
        raise WeightsError(
            self.path,
            f'the setting "{name}" cannot be used',
            "Correct the file or fetch it again",
            expected=expected,
            found=shortened(found),
        )

    def _typed(self, name, default, kind, expected):
        value = self._required(name, default)
        if type(value) is not kind:
            self.refuse(name, expected, value)
        return value

    def _required(self, name, default):
        value = self.raw(name, default)
        if value is None:
            self.refuse(name, "a value", "none")
        return value


def shortened(value, length=80):
    """A value for a message: never longer than a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."


# Numbers that lie in a file as they are in memory, read as far as needed.


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


# Safetensors files: the header checked, tensors read and written singly. The
# `safetensors` package maps the whole file into memory and wants all tensors at
# once to write; here one tensor at a time is in memory.

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
            file.write(np.ascontiguousarray(read(), "<f4"))


# HDF5 files: plain datasets only, found by their links, read by offset. The
# HDF5 library only says where each dataset lies. Whatever could lead out of the
# file, blow up on reading or loop is refused by name.

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
