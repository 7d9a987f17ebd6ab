"""What every reader of a format returns: a description and lazy tensors.

A reader looks at headers only. It gives each tensor the library's name and
shape, and says which arguments the encoder and the head take. Reading a
tensor's numbers comes last, one by one. Also here: the licence of weights,
tables of names, and the shapes that follow from the settings.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError, cut_middle
from bert_keras.interop.head_table import HEADS, count_outputs
from bert_keras.modeling.memory import paged_zeros

# The licence of weights: what their folder says of it, and its text.

STATED = re.compile(r"^license:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
LICENSE = "LICENSE"  # under which it is written
FILES = (LICENSE, "LICENSE.txt", "LICENSE.md", "COPYING")
MOST = 200_000  # bytes of a file that are read


@dataclasses.dataclass(frozen=True)
class License:
    """A licence's name, such as "apache-2.0", and its text; either or both."""

    name: str | None = None
    text: str | None = None


def license_of(folder):
    """The `License` that a folder of weights states, or None.

    Its name is in the front matter of README.md, as Hugging Face's model
    cards state it: `license: apache-2.0` between two lines of `---`. Its text
    is in one of `FILES`.
    """
    name = _stated(_read(folder, "README.md"))
    text = next(filter(None, (_read(folder, file) for file in FILES)), None)
    return License(name, text) if name or text else None


def write_license(license, folder):
    """Writes the text of a `License`, if there is one, into the folder."""
    if license is not None and license.text:
        path = os.path.join(folder, LICENSE)
        with open(path, "w", encoding="utf-8") as file:
            file.write(license.text)


def _stated(readme):
    if not readme or not readme.startswith("---"):
        return None
    found = STATED.search(readme.partition("---")[2].partition("\n---")[0])
    return found[1] if found else None


def _read(folder, name):
    try:
        path = os.path.join(folder, name)
        with files.open_file(path, inside=folder) as file:
            return file.read(MOST).decode("utf-8", "replace")
    except OSError:
        return None


# Errors, tensors and their description.

LONGEST = 400  # characters of each part of a message
FETCH = "Fetch the file again"
SLICE = 256 * 1024  # numbers that are read at once: 1 MB


class WeightsError(InputError):
    """A weights file that cannot be used; nothing of it was loaded.

    The message names the file, the tensor or setting where there is one,
    what was expected, what was found, and the way out. `file`, `tensor`,
    `expected` and `found` hold the same, for programs.
    """

    def __init__(
        self,
        file,
        problem,
        way_out=FETCH,
        *,
        tensor=None,
        expected=None,
        found=None,
    ):
        problem, tensor, expected, found = (
            part if part is None else cut_middle(str(part), LONGEST)
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
        super().__init__(". ".join([*parts, way_out]) + ".")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not yet read.

    `shape` is the library's shape. `read()` returns the numbers as they are in
    the file, and `rows(first, last)`, where the format allows it, some rows of
    them; `turned` says that the library's rows are their columns. `check()`, if
    there is one, comes before `rows` and before the model is built: it reads
    all and raises where a checksum does not hold.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    rows: Callable[[int, int], np.ndarray] | None = None
    check: Callable[[], None] | None = None
    turned: bool = False

    def numbers(self):
        """The numbers, as float32 at least; NaN and infinity are refused.

        Where they come by rows, in memory that TensorFlow's variables can take.
        """
        if self.rows is None:
            array = self._checked(self.read())
            return array.T if self.turned else array
        stored = self.shape[::-1] if self.turned else self.shape
        step = max(1, SLICE // math.prod(stored[1:]))
        array = None
        for first in range(0, stored[0], step):
            last = min(first + step, stored[0])
            part = self._checked(self.rows(first, last))
            if array is None:
                array = paged_zeros(self.shape, part.dtype)
            if not self.turned:
                array[first:last] = part
                continue
            for at in range(0, len(part), 16):  # 64 bytes: a line of the cache
                some = part[at : at + 16]
                array[:, first + at : first + at + len(some)] = some.T
        return array

    def _checked(self, array):
        if array.dtype.itemsize < 4:
            array = array.astype("float32")
        # min and max pass a NaN on and allocate nothing.
        ends = (array.min(), array.max()) if array.size else ()
        if not all(map(np.isfinite, ends)):
            raise WeightsError(
                self.file,
                "the numbers are damaged",
                "Fetch the file again, or take an earlier checkpoint",
                tensor=self.name,
                expected="finite numbers",
                found="NaN or infinity",
            )
        return array

    def equals(self, other):
        """Return True if both hold the same values."""
        same = self.shape == other.shape and self.turned == other.turned
        return same and np.array_equal(self.numbers(), other.numbers())

    def changed(self, shape, change):
        """Of this shape, the numbers that `change` makes of all of these."""
        return dataclasses.replace(
            self,
            shape=tuple(shape),
            read=lambda: change(self.numbers()),
            rows=None,
            turned=False,
        )

    def checked_by(self, check):
        """Return the tensor with one more check, which comes first."""
        others = [check, self.check]

        def check_all():
            for each in filter(None, others):
                each()

        return dataclasses.replace(self, check=check_all)

    def transposed(self):
        return dataclasses.replace(
            self, shape=self.shape[::-1], turned=not self.turned
        )


@dataclasses.dataclass
class Checkpoint:
    """One folder of weights, described.

    Args:
        source: the folder or file, as the user named it.
        format: the format's name, for messages.
        encoder: the arguments of `BertEncoder`.
        head: the name of the model class that the weights belong to.
        head_arguments: its arguments beyond the encoder.
        tensors: dict of the library's weight name -> `Tensor`.
        skipped: names of tensors in the files that no model has.
        read_text: returns the `TextSide`; None where there is no vocabulary.
        embedding: how sentence embeddings are pooled, or None.
        origin: the name and commit on the Hub that it began as, or None.
        license: the `License` of the weights, where the folder states one.
        initializer_range: the deviation of new weights that it states.
        untrained: names of weights that were saved as they began, at random.
        head_fault: the `WeightsError` for which the head cannot be used; the
            encoder can.
        of_class: where the files fit the heads of several classes and name
            none: dict of class name -> function that returns the
            `Checkpoint` of it. `head` is then the encoder's.
        keep: what must live as long as the tensors are read.
    """

    source: str
    format: str
    encoder: dict
    head: str
    head_arguments: dict
    tensors: dict
    skipped: list
    read_text: Callable | None = None
    embedding: dict | None = None
    origin: str | None = None
    license: License | None = None
    initializer_range: float | None = None
    untrained: list = dataclasses.field(default_factory=list)
    head_fault: InputError | None = None
    of_class: dict = dataclasses.field(default_factory=dict)
    keep: object = None


def named(labels, problem):
    """The labels of a head; None where its one output has no name."""
    has_one = problem in ("regression", "ranking")
    return None if has_one and labels == ["LABEL_0"] else labels


def unnamed_labels(count):
    """Return labels and problem of a classifier whose file names no labels.

    A caller's `labels=` of this number take their place.
    """
    labels = [f"LABEL_{index}" for index in range(count)]
    problem = "regression" if count == 1 else "single"
    return {"labels": named(labels, problem), "problem": problem}


# Tables of names: the library's on the left, another format's on the right. In
# a table, {} stands for the number of the layer. A table is written for whole
# layers: `dense` gives kernel and bias, `norm` gamma and beta.


def expanded(dense, norm=None, theirs=None):
    """A table of weights from two of layers, with both endings of each.

    Args:
        dense: dict of the library's prefix -> the other format's prefix, of
            dense layers.
        norm: likewise, of layer normalisations.
        theirs: the other format's two endings; the library's where None.
    """
    return {
        f"{left}/{mine}": f"{right}{yours}"
        for table, ours in (
            (dense, ("kernel", "bias")),
            (norm or {}, ("gamma", "beta")),
        )
        for left, right in table.items()
        for mine, yours in zip(
            ours, theirs or [f"/{end}" for end in ours], strict=True
        )
    }


def mapped(name, table):
    """What the table has for the name, the layer's number carried over."""
    found = table.get(name)
    if found is not None:
        return found
    for number in re.finditer(r"\d+", name):
        pattern = name[: number.start()] + "{}" + name[number.end() :]
        if pattern in table:
            return table[pattern].format(number[0])
    return None


# A file's tensors under the library's names.


def renamed(tensors, table, source, theirs=lambda name: name):
    """Returns the tensors by library name, and the names that have none.

    Args:
        tensors: dict of the file's names -> `Tensor`.
        table: the library's names -> the format's.
        source: the folder, for messages.
        theirs: the format's name for a name in the file; None skips it.
    """
    table = {theirs: ours for ours, theirs in table.items()}
    found, skipped = {}, []
    for name, tensor in tensors.items():
        plain = theirs(name)
        ours = plain and mapped(plain, table)
        if not ours:
            skipped.append(name)
            continue
        if ours in found:
            raise WeightsError(
                source,
                f"{name} and {found[ours].name} are the same weight",
                "Remove one of them from the file",
            )
        found[ours] = tensor
    return found, skipped


# The library's names and shapes of BERT's weights, without a model. They are
# the paths that the models' docstrings list. Every converter maps its format's
# names to these; a kernel is (inputs, outputs). Shapes follow from the settings
# alone, so that a file is checked before anything is allocated.


def encoder_shapes(encoder):
    """Dict of name -> shape of every weight of an encoder of these sizes."""
    hidden, wide = encoder["hidden_dim"], encoder["intermediate_dim"]
    tables = {
        "token": encoder["vocabulary_size"],
        "position": encoder["max_sequence_length"],
        "segment": encoder["num_segments"],
    }
    shapes = {
        f"encoder/embeddings/{name}/embeddings": (rows, hidden)
        for name, rows in tables.items()
    }
    shapes |= _norm("encoder/embeddings/norm", hidden)
    for index in range(encoder["num_layers"]):
        layer = f"encoder/layer_{index}"
        for part in ("query", "key", "value", "output"):
            shapes |= _dense(f"{layer}/attention/{part}", hidden, hidden)
        shapes |= _norm(f"{layer}/attention_norm", hidden)
        shapes |= _dense(f"{layer}/intermediate", hidden, wide)
        shapes |= _dense(f"{layer}/output", wide, hidden)
        shapes |= _norm(f"{layer}/output_norm", hidden)
    return shapes | _dense("encoder/pooler", hidden, hidden)


def head_shapes(head, arguments, encoder):
    """Dict of name -> shape of the weights of a model class's head.

    A class that is not ours has none. `arguments` is what the constructor
    takes beyond the encoder, whose sizes are `encoder`.
    """
    hidden = encoder["hidden_dim"]
    row = HEADS.get(head)
    if row is not None and row.is_tied:
        return {
            **_dense("mlm/dense", hidden, hidden),
            **_norm("mlm/norm", hidden),
            "mlm/bias": (encoder["vocabulary_size"],),
            **_dense("nsp", hidden, 2),
        }
    if row is None or row.layer is None:
        return {}
    layer, outputs = row.layer, count_outputs(row, arguments.get("labels"))
    units = arguments.get("bilstm_dim")
    if not units:
        return _dense(layer, hidden, outputs)
    shapes = _dense(layer, 2 * units, outputs)
    for direction in ("forward", "backward"):
        # Four gates side by side.
        cell = f"bilstm/both/{direction}_lstm/lstm_cell"
        shapes |= _dense(cell, hidden, 4 * units)
        shapes[f"{cell}/recurrent_kernel"] = (units, 4 * units)
    return shapes


def _norm(prefix, size):
    return {f"{prefix}/gamma": (size,), f"{prefix}/beta": (size,)}


def _dense(prefix, inputs, outputs):
    return {f"{prefix}/kernel": (inputs, outputs), f"{prefix}/bias": (outputs,)}


# Attention weights of formats that give each head an axis of its own.

_PATTERN = re.compile(r"/attention/(query|key|value|output)/(kernel|bias)$")


def joined(name, tensor):
    """The `Tensor` as the library has it: the heads side by side."""
    match, shape = _PATTERN.search(name), tensor.shape
    if not match or len(shape) != {"bias": 2, "kernel": 3}[match[2]]:
        return tensor
    if match[1] == "output" or match[2] == "bias":  # (N, H, D) or (N, H)
        shape = (shape[0] * shape[1], *shape[2:])
    else:  # (D, N, H)
        shape = (shape[0], shape[1] * shape[2])
    return tensor.changed(shape, lambda x: x.reshape(shape))
