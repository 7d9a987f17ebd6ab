"""Reader of JSON and safetensors files from untrusted sources.

`tensor_bundle.py` reads TensorFlow checkpoints, and `hdf5.py` reads HDF5.
"""

import dataclasses
import functools
import hashlib
import math
import os
import threading
import weakref

import ml_dtypes
import numpy as np
import safetensors

from bert_keras import files, json_files
from bert_keras.interop.tensors import Tensor, WeightsError
from bert_keras.json_files import OBJECT, Kind

# Maximum number of lists and objects in a JSON file. Real files have hundreds.
# 15 MB of empty lists would take 0.8 GB of memory and 7 seconds to read.
MAX_LISTS = 100_000
# Maximum bytes of a JSON file. config.json names each label three times; with
# 100,000 labels of 50 characters it has 20 MB.
MAX_BYTES = 4 * json_files.MAX_JSON_BYTES


def read_json(path, kind=dict, optional=False):
    """Return the JSON object or list in a file as `Fields`.

    Args:
        path: the file.
        kind: the expected type, dict or list.
        optional: True if a missing file counts as an empty object.
    """
    if optional and not os.path.exists(path):
        return Fields({}, path)
    try:
        text = files.read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise WeightsError(
            path, f"the file cannot be read ({error.strerror})"
        ) from None
    lists = text.count(b"[") + text.count(b"{")
    if lists > MAX_LISTS:
        raise WeightsError(
            path,
            "the file holds too many lists and objects",
            expected=f"at most {MAX_LISTS}",
            found=lists,
        )
    try:
        value = json_files.parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise WeightsError(path, f"this is not JSON ({error})") from None
    if not isinstance(value, kind):
        raise WeightsError(
            path,
            "the file holds the wrong type of JSON value",
            expected=f"a JSON {'object' if kind is dict else 'array'}",
            found=f"a {type(value).__name__}",
        )
    return Fields(value, path)


def _refuse_constant(name):
    raise ValueError(f"JSON has no {name}")


# Such as a dropout rate.
FRACTION = Kind(
    "a number from 0 to below 1",
    lambda v: type(v) in (int, float) and 0 <= v < 1,
    float,
)
# Epsilon of a layer normalisation.
EPSILON = Kind(
    "a number above 0 and below 1", lambda v: type(v) is float and 0 < v < 1
)
# Standard deviation of random weights.
DEVIATION = Kind(
    "a number from 0 to 1000",
    lambda v: type(v) in (int, float) and 0 <= v <= 1000,
)


class Fields:
    """Access to the fields of a JSON object in a file, with their types.

    A field that is null counts as missing.
    """

    def __init__(self, values, path):
        self.values, self.path = values, path

    def __contains__(self, name):
        return self.values.get(name) is not None

    def get(self, name, kind=None, default=None):
        """Return a field.

        Args:
            name: the field's name.
            kind: a `Kind`, or a collection of the texts that are allowed. None
                returns the field as it is, or None.
            default: value of a missing field. None: the field is required.

        Raises:
            WeightsError: the field is not of this kind.
        """
        value = self.values.get(name)
        value = default if value is None else value
        if kind is None:
            return value
        if not isinstance(kind, Kind):
            texts = kind
            kind = Kind(
                " or ".join(texts), lambda v: type(v) is str and v in texts
            )
        if not kind.fits(value):
            found = "none" if value is None else value
            self.refuse(name, kind.words, found)
        return kind.cast(value)

    def object(self, name, default=None):
        """Return the `Fields` of an object inside this one."""
        return Fields(self.get(name, OBJECT, default), self.path)

    def refuse(self, name, expected, found):
        """Raise `WeightsError` for a field."""
        raise WeightsError(
            self.path,
            f'the setting "{name}" cannot be used',
            "Correct the file or fetch it again",
            expected=expected,
            found=shorten(found),
        )


def shorten(value):
    """Return the value as a text of at most 80 characters for a message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class OpenFile:
    """A file that is opened once, so that all reads are from the same file.

    Another program may put a new file at the path meanwhile. The file is closed
    when the object is no longer used.

    Attributes:
        path: the path.
        size: number of bytes.
        metadata: metadata of a safetensors file, a dict of str -> str.
    """

    def __init__(self, path):
        files.check_file(path)
        # Without a buffer, a file that is cut later is noticed.
        file = open(path, "rb", buffering=0)  # noqa: SIM115
        weakref.finalize(self, file.close)
        self.path, self._file, self._lock = path, file, threading.Lock()
        self.size = os.fstat(file.fileno()).st_size
        self.metadata: dict = {}

    def read_into(self, offset, buffer):
        """Read bytes at `offset` into a buffer; return their number."""
        with self._lock:
            self._file.seek(offset)
            view, count = memoryview(buffer), 0
            # The system may return less than is asked for.
            while read := self._file.readinto(view[count:]):
                count += read
            return count

    def sha256(self):
        """Return the SHA-256 of the content, in hexadecimal."""
        with self._lock:
            self._file.seek(0)
            return hashlib.file_digest(self._file, "sha256").hexdigest()


def stored_tensor(file, name, dtype, shape, offset):
    """Return the `Tensor` whose values start at byte `offset`, in C order.

    The caller must check that the values lie inside the `OpenFile` `file`.
    """
    width = math.prod(shape[1:])

    def rows(first, last):
        array = np.empty((last - first, *shape[1:]), dtype)
        start = offset + first * width * dtype.itemsize
        count = file.read_into(start, array.reshape(-1).view("uint8"))
        if count != array.nbytes:
            raise WeightsError(
                file.path,
                "the file was cut while it was read",
                tensor=name,
                expected=f"{array.nbytes} bytes",
                found=f"{count} bytes",
            )
        return array

    def whole():
        return rows(0, shape[0]) if shape else rows(0, 1).reshape(())

    # A scalar and an empty tensor have no rows.
    some = rows if shape and all(shape) else None
    return Tensor(file.path, name, shape, whole, some, source=file)


# Safetensors files. The `safetensors` package checks the header. It refuses
# gaps, overlaps, shapes that contradict the bytes, and a cut file. But it reads
# values from a memory map, so the process crashes if another program cuts the
# file meanwhile. `stored_tensor` reads the values without a memory map.

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


# Maximum bytes of a header. BERT-large has 50 KB. The `safetensors` package
# allows 100 MB: a million names, which take minutes and gigabytes to read.
MAX_HEADER = 4 * 1024 * 1024


def read_safetensors(path):
    """Return dict of name -> `Tensor`; only the header is read."""
    try:
        source, start = OpenFile(path), bytearray(8)
        source.read_into(0, start)
        length = int.from_bytes(start, "little")
        largest = min(source.size - 8, MAX_HEADER)
        if length > largest:
            raise WeightsError(
                path,
                "this is not a safetensors file, or it was cut",
                expected=f"a header of at most {largest} bytes",
                found=f"{length}",
            )
        offset = 8 + length
        with safetensors.safe_open(path, framework="numpy") as file:
            source.metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            entries = {
                name: (found.get_dtype(), tuple(found.get_shape()))
                for name, found in slices.items()
            }
    except OSError as error:
        raise WeightsError(
            path, f"the file cannot be read ({error.strerror or error})"
        ) from None
    except (safetensors.SafetensorError, UnicodeDecodeError) as error:
        raise WeightsError(
            path,
            "this is not a safetensors file, or it was cut or damaged "
            f"({error})",
        ) from None
    tensors = {}
    # `entries` is sorted by offset, and safetensors refuses gaps. So each
    # tensor begins where the tensor before it ends.
    for name, (dtype, shape) in entries.items():
        if dtype not in DTYPES:
            raise WeightsError(
                path,
                "unknown dtype",
                tensor=shorten(name),
                expected=" ".join(DTYPES),
                found=dtype,
            )
        dtype = DTYPES[dtype]
        tensor = stored_tensor(source, name, dtype, shape, offset)
        if dtype.kind in "iub":
            refuse = functools.partial(_refuse_integers, tensor)
            tensor = dataclasses.replace(tensor, checks=(refuse,))
        tensors[name] = tensor
        offset += math.prod(shape) * dtype.itemsize
    return tensors


def _refuse_integers(tensor):
    """Raise `WeightsError`: the weight has integers or booleans.

    This is a check of a tensor. It runs only for weights that a model has.
    Many files also contain integer position ids, which no model has.
    """
    raise WeightsError(
        tensor.file,
        "the weight has integers or booleans, as after quantization",
        "Load the unquantized checkpoint",
        tensor=tensor.name,
        expected="F32, F16, BF16 or F64",
        found="another dtype",
    )
