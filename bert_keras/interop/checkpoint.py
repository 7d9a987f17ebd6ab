"""What every reader of a format returns: a description and lazy tensors.

A reader looks at headers only. It gives each tensor the library's name
(`names.py`) and the library's shape, and says which arguments the
encoder and the head take. Reading a tensor's numbers comes last, one by one.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from bert_keras.errors import InputError, cut_middle
from bert_keras.interop.license import License

LONGEST = 400  # characters of each part of a message


class WeightsError(InputError):
    """A weights file that cannot be used; nothing of it was loaded.

    The message names the file, the tensor or setting where there is one,
    what was expected, what was found, and the way out. `file`, `tensor`,
    `expected` and `found` hold the same, for programs.
    """

    def __init__(
        self, file, problem, way_out, *, tensor=None, expected=None, found=None
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

    `shape` is the library's shape; `read()` returns the numbers in it, and
    `rows(first, last)`, where the format allows it, some rows of them.
    `check()`, if there is one, comes before `rows` and before the model is
    built: it reads all and raises where a checksum does not hold.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    rows: Callable[[int, int], np.ndarray] | None = None
    check: Callable[[], None] | None = None

    def numbers(self, first=None, last=None):
        """The numbers, or some rows; NaN and infinity are refused.

        They come as float32 at least.
        """
        array = self.read() if first is None else self.rows(first, last)
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

    def transposed(self):
        return dataclasses.replace(
            self,
            shape=self.shape[::-1],
            read=lambda: np.ascontiguousarray(self.read().T),
            rows=None,
            check=None,
        )

    def reordered(self, order):
        """The same numbers, the last axis in another order."""
        return dataclasses.replace(
            self, read=lambda: self.read()[..., order], rows=None, check=None
        )

    def reshaped(self, shape):
        """The same numbers in another shape of as many elements."""
        return dataclasses.replace(
            self,
            shape=tuple(shape),
            read=lambda: self.read().reshape(shape),
            rows=None,
            check=None,
        )


@dataclasses.dataclass
class Checkpoint:
    """One folder of weights, described.

    Args:
        source: the folder or file, as the user named it.
        format: the format's name, for messages.
        encoder: the arguments of `BertEncoder`.
        head: the name of the model class that the weights belong to.
        head_arguments: its arguments beside the encoder.
        tensors: dict of the library's weight name -> `Tensor`.
        skipped: names of tensors in the files that no model has.
        read_text: returns the `TextSide`; None where there is no vocabulary.
        embedding: how sentence embeddings are pooled, or None.
        origin: the name and commit on the Hub that it began as, or None.
        license: the `License` of the weights, where the folder states one.
        initializer_range: the deviation of new weights that it states.
        untrained: names of weights that were saved as they began, at random.
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
    of_class: dict = dataclasses.field(default_factory=dict)
    keep: object = None
