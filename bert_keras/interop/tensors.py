"""Description of a checkpoint, which the reader of each format returns.

A reader reads only headers and settings. It returns each tensor with its name
and shape in bert_keras, and the arguments of the encoder and the head. Values
are read later, one tensor at a time. This file also reads licenses and makes
tables of names.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError, cut_middle
from bert_keras.modeling.memory import paged_zeros

# Forms: `license: mit`, `license: [mit, gpl]`, or a list with lines `- mit`.
LICENSE_LINE = re.compile(
    r"^license:[ \t]*(?:\r?\n[ \t]*-|\[)?[ \t]*['\"]?([^\s'\"#\[\],]+)",
    re.MULTILINE,
)
LICENSE = "LICENSE"  # name of the license file that bert_keras writes
LICENSE_FILES = (LICENSE, "LICENSE.txt", "LICENSE.md", "COPYING")
MAX_BYTES = 200_000  # maximum bytes read from a text file


@dataclasses.dataclass(frozen=True)
class License:
    """A license: its name, such as "apache-2.0", its text, or both."""

    name: str | None = None
    text: str | None = None


def read_license(folder):
    """Return the `License` of a folder of weights; None if it states none.

    The name is in the front matter of README.md (the lines between two `---`),
    for example `license: apache-2.0`. The first name of a list is used. The
    text is in one of `LICENSE_FILES`.
    """
    readme, name = _read_start(folder, "README.md") or "", None
    if readme.startswith("---"):
        front_matter = readme.partition("---")[2].partition("\n---")[0]
        match = LICENSE_LINE.search(front_matter)
        name = match and match[1]
    texts = (_read_start(folder, file) for file in LICENSE_FILES)
    text = next(filter(None, texts), None)
    return License(name, text) if name or text else None


def write_license(license, folder):
    if license is not None and license.text:
        path = os.path.join(folder, LICENSE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(license.text)


def _read_start(folder, name):
    try:
        path = os.path.join(folder, name)
        with files.open_file(path) as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in files.TEMPORARY:
            raise  # the license may be there
        return None


MAX_PART_LENGTH = 400  # maximum characters of a part of a message
FETCH = "Fetch the file again"
SLICE = 256 * 1024  # number of values read at once, 1 MB in float32


class WeightsError(InputError):
    """Raised when a file of weights or settings cannot be used.

    The message states the file, the problem and the fix. If known, it also
    states the tensor, the expected value and the found value. Programs can read
    the attributes `file`, `tensor`, `expected` and `found`.
    """

    def __init__(
        self,
        file,
        problem,
        fix=FETCH,
        *,
        tensor=None,
        expected=None,
        found=None,
    ):
        problem, tensor, expected, found = (
            part if part is None else cut_middle(str(part), MAX_PART_LENGTH)
            for part in (problem, tensor, expected, found)
        )
        self.file, self.tensor = str(file), tensor
        self.expected, self.found = expected, found
        where = f"{file}, {tensor}" if tensor else f"{file}"
        parts = [f"{where}: {problem}"]
        if expected is not None:
            parts.append(f"Expected {expected}, found {found}")
        elif found is not None:
            parts.append(f"Found {found}")
        super().__init__(". ".join([*parts, fix]) + ".")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a file, whose values are not read yet.

    Attributes:
        file: path, for messages.
        name: name in the file.
        shape: shape of the array that `load` returns.
        read: function that returns the values as the file stores them.
        rows: function; `rows(first, last)` returns `read()[first:last]`. None
            if the values can only be read whole.
        checks: functions that raise if the file or the weight cannot be used,
            for example if the file's hash is wrong. `load_model` calls them
            before the model is built.
        is_transposed: True if the file stores the array transposed.
        source: `OpenFile` that the values are read from; None if a reader
            opens the file by its path.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    rows: Callable[[int, int], np.ndarray] | None = None
    checks: tuple[Callable[[], None], ...] = ()
    is_transposed: bool = False
    source: object = None

    def load(self):
        """Return the values as float32 or float64; refuse NaN and infinity.

        If the tensor has `rows`, the array is aligned for TensorFlow, which can
        then use float32 values without a copy.
        """
        if self.rows is None:
            array = self._check_finite(self.read())
            return array.T if self.is_transposed else array
        stored = self.shape[::-1] if self.is_transposed else self.shape
        step = max(1, SLICE // math.prod(stored[1:]))
        array = None
        for first in range(0, stored[0], step):
            last = min(first + step, stored[0])
            part = self._check_finite(self.rows(first, last))
            if array is None:
                array = paged_zeros(self.shape, part.dtype)
            if not self.is_transposed:
                array[first:last] = part
                continue
            for at in range(0, len(part), 16):  # 16 float32: a cache line
                some = part[at : at + 16]
                array[:, first + at : first + at + len(some)] = some.T
        return array

    def _check_finite(self, array):
        """Return the values, at least 32-bit; refuse NaN and infinity."""
        if array.dtype.itemsize < 4:
            array = array.astype("float32")
        # `min` and `max` return NaN if a value is NaN, and allocate no array.
        ends = (array.min(), array.max()) if array.size else ()
        if not all(map(np.isfinite, ends)):
            raise WeightsError(
                self.file,
                "the values are damaged",
                "Fetch the file again, or take an earlier checkpoint",
                tensor=self.name,
                expected="finite values",
                found="NaN or infinity",
            )
        return array

    def equals(self, other):
        """Return True if shape, `is_transposed` and values are the same."""
        same = (
            self.shape == other.shape
            and self.is_transposed == other.is_transposed
        )
        return same and np.array_equal(self.load(), other.load())

    def map_values(self, shape, function):
        """Return a `Tensor` of `shape` that loads `function(self.load())`."""
        return dataclasses.replace(
            self,
            shape=tuple(shape),
            read=lambda: function(self.load()),
            rows=None,
            is_transposed=False,
        )

    def transpose(self):
        return dataclasses.replace(
            self, shape=self.shape[::-1], is_transposed=not self.is_transposed
        )


def run_checks(found):
    """Run the checks of each `Tensor` of a dict of name -> `Tensor`."""
    for tensor in found.values():
        for check in tensor.checks:
            check()


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The description of one checkpoint.

    Attributes:
        path: path that was opened: a folder, or the prefix of a TensorFlow
            checkpoint.
        source: path or name of the preset, for messages.
        format: name of the format in `opening.FORMATS`.
        encoder: arguments of `BertEncoder`.
        encoder_arguments: arguments that only a subclass of `BertEncoder` has.
        head: name of the model class that the weights belong to.
        head_arguments: arguments of the model class, without the encoder.
        tensors: dict of weight name in bert_keras -> `Tensor`.
        skipped: names of stored tensors that match no known weight.
        embedding: dict of `BertEmbedder` arguments ("pooling", "normalize" and
            maybe "truncate_dim"); None if the files state no pooling.
        origin: source of the weights that training began from: a Hub name with
            commit, "hf://org/name@commit", or a name in this package; None
            if unknown.
        license: `License` of the weights; None if unknown.
        initializer_range: `initializer_range` of the source config, or None.
        untrained: names of weights that were saved while still random.
        head_fault: `WeightsError` that says why the head cannot be used, or
            None. The encoder can be used in both cases.
        fitting_heads: names of the classes that fit the tensors, if the files
            name no class and several fit. `head` is then "BertEncoder".
        check_unchanged: function that raises `InputError` if the files have
            changed since they were opened.
    """

    path: str
    source: str
    format: str
    encoder: dict
    head: str
    head_arguments: dict
    tensors: dict
    skipped: list
    embedding: dict | None = None
    origin: str | None = None
    license: License | None = None
    initializer_range: float | None = None
    untrained: tuple = ()
    head_fault: InputError | None = None
    fitting_heads: tuple = ()
    check_unchanged: Callable = lambda: None
    encoder_arguments: dict = dataclasses.field(default_factory=dict)


def hide_default_label(labels, problem):
    """Return the labels; None for regression or ranking with "LABEL_0" only."""
    has_one = problem in ("regression", "ranking")
    return None if has_one and labels == ["LABEL_0"] else labels


def unnamed_labels(count, problem=None):
    """Return dict of "labels" and "problem" for a head without label names.

    `from_preset(labels=[...])` accepts any `count` names for such a head. By
    default, a head with one output is a regression.
    """
    labels = [f"LABEL_{index}" for index in range(count)]
    problem = problem or ("regression" if count == 1 else "single")
    return {"labels": hide_default_label(labels, problem), "problem": problem}


# A table of names is a dict of weight name in bert_keras -> name in another
# format. In both names, {} stands for the number of a layer.


def expand_names(dense, norm=None, ends=None):
    """Return a table of weight names from two tables of layer names.

    The weights of a dense layer are kernel and bias. The weights of a layer
    normalisation are gamma and beta.

    Args:
        dense: dict of dense layer in bert_keras -> layer in the format.
        norm: the same for layer normalisations.
        ends: endings of the two weight names in the format, for example
            (".weight", ".bias"); None for the names in bert_keras.
    """
    table = {}
    for layers, names in (
        (dense, ("kernel", "bias")),
        (norm or {}, ("gamma", "beta")),
    ):
        others = ends or [f"/{name}" for name in names]
        for left, right in layers.items():
            for name, end in zip(names, others, strict=True):
                table[f"{left}/{name}"] = f"{right}{end}"
    return table


def map_name(name, table):
    """Return the entry for a name; None if the table has no entry.

    The layer number in the name replaces {} in the entry.
    """
    entry = table.get(name)
    if entry is not None:
        return entry
    for number in re.finditer(r"\d+", name):
        pattern = name[: number.start()] + "{}" + name[number.end() :]
        if pattern in table:
            return table[pattern].format(number[0])
    return None


def rename_tensors(tensors, table, source, normalize=lambda name: name):
    """Return dict of name in bert_keras -> `Tensor`, and the unmatched names.

    Args:
        tensors: dict of name in the file -> `Tensor`.
        table: dict of name in bert_keras -> name in the format.
        source: the folder, for messages.
        normalize: function that gets a name in the file. It returns the name
            in the format, or None to skip the tensor.
    """
    table = {right: left for left, right in table.items()}
    found, skipped = {}, []
    for stored, tensor in tensors.items():
        normalized = normalize(stored)
        name = normalized and map_name(normalized, table)
        if not name:
            skipped.append(stored)
            continue
        if name in found:
            raise WeightsError(
                source,
                f"{stored} and {found[name].name} are the same weight",
                "Remove one of the two tensors from the file",
            )
        found[name] = tensor
    return found, skipped


_PATTERN = re.compile(r"/attention/(query|key|value|output)/(kernel|bias)$")


def merge_heads(name, tensor):
    """Merge the axes for heads and head size of an attention weight.

    A tensor without these axes is returned unchanged.
    """
    match, shape = _PATTERN.search(name), tensor.shape
    if not match or len(shape) != {"bias": 2, "kernel": 3}[match[2]]:
        return tensor
    if match[1] == "output" or match[2] == "bias":
        # (N, H, D) or (N, H) -> (N * H, D) or (N * H)
        shape = (shape[0] * shape[1], *shape[2:])
    else:  # (D, N, H) -> (D, N * H)
        shape = (shape[0], shape[1] * shape[2])
    return tensor.map_values(shape, lambda x: x.reshape(shape))
