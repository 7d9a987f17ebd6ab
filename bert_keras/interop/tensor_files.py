"""Files of strangers, checked before use: JSON, safetensors, HDF5, pickles.

TensorFlow's checkpoints are in `tensor_bundle.py`.
"""

import functools
import math
import os
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import safetensors

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensors import FETCH, FILES, Tensor, WeightsError
from bert_keras.safetensors_files import write_safetensors

# JSON from strangers: bounded in size and depth, each field checked.


# Settings have some hundred. 15 MB of them would take 0.8 GB and 7 seconds.
MOST_LISTS = 100_000


def read_json(path, kind=dict, optional=False):
    """The JSON object in the file, as `Fields`; a list with `kind=list`.

    Args:
        path: the file, no link out of its folder.
        kind: dict or list.
        optional: whether a file that is not there counts as an empty object.
    """
    if optional and not os.path.exists(path):
        return Fields({}, path)
    try:
        text = files.read_bytes(path, files.MOST_JSON, os.path.dirname(path))
    except OSError as error:
        raise WeightsError(
            path, f"the file cannot be read ({error.strerror})"
        ) from None
    lists = text.count(b"[") + text.count(b"{")
    if lists > MOST_LISTS:
        raise WeightsError(
            path,
            "the file holds too many lists and objects",
            expected=f"at most {MOST_LISTS}",
            found=lists,
        )
    try:
        value = files.parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise WeightsError(path, f"this is not JSON ({error})") from None
    if not isinstance(value, kind):
        raise WeightsError(
            path,
            "the file holds no settings",
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

    def epsilon(self, name):
        """What a normalisation adds to the variance; 1e-12 if not stated."""
        value = self.raw(name, 1e-12)
        if type(value) is not float or not 0 < value < 1:
            self.refuse(name, "a number above 0, below 1", value)
        return value

    def handed_on(self, name):
        """A number that decides nothing here; None where there is none."""
        value = self.raw(name)
        known = type(value) in (int, float) and 0 <= value <= 1000
        return value if known else None

    def text(self, name, default=None):
        return self._typed(name, default, str, "a text")

    def choice(self, name, choices, default=None):
        """One of the texts that are known."""
        value = self.text(name, default)
        if value not in choices:
            self.refuse(name, " or ".join(choices), value)
        return value

    def boolean(self, name, default=None):
        return self._typed(name, default, bool, "true or false")

    def boolean_or_none(self, name):
        return self.boolean(name) if name in self else None

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


def shortened(value):
    """A value for a message: never longer than a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# Numbers that lie in a file as they are in memory, read as far as needed.


def stored_tensor(path, name, dtype, shape, offset):
    """The `Tensor` of numbers in C order from byte `offset` on.

    Whoever makes it has checked that it lies inside the file.
    """
    width = math.prod(shape[1:])

    def rows(first, last):
        array = np.empty((last - first, *shape[1:]), dtype)
        with open(path, "rb") as file:
            file.seek(offset + first * width * dtype.itemsize)
            count = file.readinto(array.reshape(-1).view("uint8"))
        if count != array.nbytes:
            raise WeightsError(
                path,
                "the file was cut while it was read",
                tensor=name,
                expected=f"{array.nbytes} bytes",
                found=f"{count} bytes",
            )
        return array

    def whole():
        return rows(0, shape[0]) if shape else rows(0, 1).reshape(())

    # A scalar and an empty tensor have no rows.
    by_rows = bool(shape) and all(shape)
    return Tensor(path, name, shape, whole, rows if by_rows else None)


# Safetensors files. The `safetensors` package checks the header: gaps,
# overlaps, cuts, shapes that contradict the bytes. It would map the file into
# memory to read: a file that is cut meanwhile ends the process. Here one tensor
# at a time is read.

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


# 400 tensors of a large model take 50 KB. The library allows 100 MB, whose
# million names would take minutes and gigabytes.
MAX_HEADER = 4 * 1024 * 1024


def read_safetensors(path):
    """Returns dict of name -> `Tensor`; only the header is read."""
    try:
        size = files.check_file(path, inside=os.path.dirname(path))
        with files.open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
        largest = min(size - 8, MAX_HEADER)
        if length > largest:
            raise WeightsError(
                path,
                "this is not a safetensors file, or it was cut",
                expected=f"a header of at most {largest} bytes",
                found=f"{length}",
            )
        offset = 8 + length
        with safetensors.safe_open(path, framework="numpy") as file:
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
    # In the order of the bytes, where each begins at the end of the last.
    for name, (dtype, shape) in entries.items():
        if dtype not in DTYPES:
            raise WeightsError(
                path,
                "unknown kind of number",
                tensor=shortened(name),
                expected=" ".join(DTYPES),
                found=dtype,
            )
        dtype = DTYPES[dtype]
        tensor = stored_tensor(path, name, dtype, shape, offset)
        if dtype.kind in "iub":
            tensor = tensor.checked_by(functools.partial(_refuse_whole, tensor))
        tensors[name] = tensor
        offset += math.prod(shape) * dtype.itemsize
    return tensors


def _refuse_whole(tensor):
    """Raise for whole numbers: they are no weights, but position numbers."""
    raise WeightsError(
        tensor.file,
        "a weight is stored as whole numbers or booleans",
        "Take the checkpoint that it was made from",
        tensor=tensor.name,
        expected="F32, F16, BF16 or F64",
        found="another dtype",
    )


def read_metadata(path):
    """dict of the texts in a file that `read_safetensors` has accepted."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata() or {}


# HDF5 files: plain datasets only, found by their links, read by offset. The
# HDF5 library only says where each dataset lies. Whatever could lead out of the
# file, blow up on reading or loop is refused by name. Not by h5py's own
# traversal: that passes over links in silence, takes the cube of the depth
# (300 nested groups: 5.6 seconds) and loses an exception of its callback.

# The large model has 400 datasets in 500 groups, nested up to 8 deep.
MOST_NODES, DEEPEST = 20_000, 16


def read_h5(path):
    """Returns dict of dataset path -> `Tensor`, of those that hold floats."""
    import h5py

    try:
        files.check_file(path, inside=os.path.dirname(path))
        with h5py.File(path, "r") as file:
            if file.userblock_size:
                raise WeightsError(path, "something stands before the data")
            found = {}
            _walk(path, file, "", found, [0])
            return found
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise WeightsError(
            path, f"this is not HDF5, or it is damaged ({reason})"
        ) from None


def _walk(path, group, prefix, found, seen):
    import h5py

    for key in group:
        name = f"{prefix}{key}"
        seen[0] += 1
        if seen[0] > MOST_NODES or name.count("/") > DEEPEST:
            raise WeightsError(
                path, "the groups do not end", tensor=shortened(name)
            )
        link = group.get(key, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise WeightsError(
                path,
                "it is a link that can lead out of the file",
                "Copy what it leads to into the file",
                tensor=shortened(name),
            )
        node = group[key]
        if isinstance(node, h5py.Group):
            _walk(path, node, f"{name}/", found, seen)
        elif isinstance(node, h5py.Dataset):
            dtype = _float_dtype(node)
            if dtype is not None:
                found[name] = _tensor(path, name, node, dtype)


def _float_dtype(dataset):
    """Return the dtype of a dataset of floats, None of any other.

    HDF5 has no bfloat16: Keras writes two bytes and an attribute.
    """
    if dataset.dtype.kind == "f":
        return dataset.dtype
    if dataset.dtype == np.dtype("V2"):
        is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16"
        return np.dtype(ml_dtypes.bfloat16) if is_bfloat16 else None
    return None


def _tensor(path, name, dataset, dtype):
    shape = dataset.shape
    size, offset = math.prod(shape) * dtype.itemsize, dataset.id.get_offset()
    problem, way_out = None, "Store the numbers in the file as they are"
    if dataset.external or dataset.is_virtual:
        problem = "its numbers stand in another file"
    elif dataset.chunks or dataset.compression:
        problem = "its numbers are compressed or in pieces"
    elif (
        offset is None
        or offset + size > os.path.getsize(path)
        or dataset.id.get_storage_size() != size
    ):
        problem, way_out = f"its shape {shape} exceeds the file", FETCH
    if problem:
        raise WeightsError(path, problem, way_out, tensor=shortened(name))
    return stored_tensor(path, name, dtype, shape, offset)


# pytorch_model*.bin to safetensors, in a process of its own. A pickle can run
# any code when it is read. PyTorch's restricted loader lets tensors through and
# nothing else; whatever still goes wrong ends with the child process.

PREFIX, END = "pytorch_model", ".bin"
# Settings, vocabularies, the licence: of the folder and of the modules in it.
COPIED = (".json", ".txt", ".md")


def is_pickle(name):
    """Whether a file of this name is PyTorch's weights, or a shard of them."""
    return name.startswith(PREFIX) and name.endswith(END)


def pickles_in(folder):
    """Paths of the pickles in a folder, whole or in shards, in order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [
        os.path.join(folder, name) for name in sorted(filter(is_pickle, names))
    ]


def unpickle_folder(folder, target, inner=""):
    """Writes `target`: the folder with safetensors in the pickle's place.

    Needs PyTorch, in the child process only.

    Args:
        folder: with the pickle, or its shards, in it or in `inner`.
        target: where to.
        inner: the folder's module that has the weights, if it has modules.
    """
    files.check_inside(os.path.join(folder, inner), folder)
    pickles = pickles_in(os.path.join(folder, inner))
    if not pickles:
        raise InputError(f"{folder} holds no {PREFIX}{END}.")
    for path in pickles:
        files.check_file(path, inside=os.path.dirname(path))
    _copy_small(folder, target)
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)):
            files.check_inside(os.path.join(folder, name), folder)
            _copy_small(os.path.join(folder, name), os.path.join(target, name))
    _run_child(pickles, os.path.join(target, inner, "model.safetensors"))


def _copy_small(folder, target):
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        is_copied = name.endswith(COPIED) or name in FILES
        if (
            is_copied
            and os.path.isfile(path)
            and files.check_file(path, inside=folder) <= files.MOST_JSON
        ):
            shutil.copyfile(path, os.path.join(target, name))


def _run_child(pickles, target):
    done = subprocess.run(
        [sys.executable, "-m", __name__, target, *pickles],
        capture_output=True,
        text=True,
    )
    if "No module named 'torch'" in done.stderr:
        raise InputError(
            f"Reading {pickles[0]} needs PyTorch, which is not installed: "
            "pip install torch."
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it ended"]
        raise WeightsError(
            pickles[0],
            f"the restricted loader refuses it ({lines[-1][:300]})",
            "Take a folder with safetensors",
        )


def main(target, *pickles):
    """In the child: load with the restricted loader, write safetensors."""
    import torch

    tensors = {}
    for path in pickles:
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name, value in state.items():
            if value.is_floating_point():
                array = value.to(torch.float32).contiguous().numpy()
                tensors[name] = "float32", array.shape, lambda a=array: a
    # One at a time, where the library holds the bytes of all once more.
    write_safetensors(target, tensors, {"format": "pt"})


if __name__ == "__main__":
    main(*sys.argv[1:])
