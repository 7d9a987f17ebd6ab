"""Save the best weights of a run, and rescale the outputs of its head."""

import contextlib
import os
from typing import NamedTuple

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.json_files import NATURAL, OBJECT, Kind
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    describe_files,
    read_manifest,
    write_manifest,
)

BEST = "best.json"
_SCORE = Kind("a float", lambda v: type(v) is float)  # may be infinite
RESTORE_FILES = (
    "Restore the file that the run wrote, or remove the run's folder and start "
    "again."
)


class BestWeights:
    """Record of the best weights on dev so far.

    The weights are in model/. The record is best.json, next to model/.

    Args:
        folder: the run's `RunFolder`.
    """

    def __init__(self, folder):
        self.folder = folder
        self.path = folder.file(BEST)

    def update(self, step, score, save, is_first) -> bool:
        """Call `save` and record the step if `score` is the best so far.

        Args:
            step: step of the evaluation.
            score: score of the evaluation; higher is better.
            save: function that writes model/.
            is_first: True if no evaluation is in the run's state, so that there
                may be no record.

        Returns:
            True if `save` was called.
        """
        is_new = is_first and not files.is_file(self.path)
        best = {"step": step} if is_new else self._read()
        # A resumed run may score a step again. The new record then replaces a
        # record of the same step or of a later step.
        if best["step"] < step and score <= best["value"]:
            return False
        save()
        paths = files.walk(self.folder.file("model"))
        names = [os.path.relpath(path, self.folder.path) for path in paths]
        described = describe_files(self.folder.path, names)
        record = {"step": step, "value": score, "files": described}
        write_manifest(self.path, record)
        return True

    def check(self) -> int:
        """Return the step of the best weights; raise if files are damaged."""
        best = self._read()
        check_files(self.folder.path, best["files"], RESTORE_FILES)
        return best["step"]

    def _read(self):
        try:
            return read_manifest(self.path, "evaluation", _check_record)
        except InputError as error:
            raise InputError(f"{error} {RESTORE_FILES}") from None


def _check_record(record):
    check_fields(record, {"step": NATURAL, "value": _SCORE, "files": OBJECT})
    check_entries(record["files"])


class Rescale(NamedTuple):
    """A change of a head's outputs: output * `scale` + `shift`.

    A regression learns targets of mean 0 and standard deviation 1; `scale` and
    `shift` are the deviation and the mean. Calibration divides logits by a
    temperature; `scale` is 1 / temperature.
    """

    scale: float
    shift: float = 0.0

    @classmethod
    def fit(cls, targets):
        """Return the `Rescale` from z-scores to the training targets."""
        targets = np.asarray(targets, np.float64)
        # If all targets are equal, use 1: `undo` cannot divide by 0.
        return cls(float(targets.std()) or 1.0, float(targets.mean()))

    def apply(self, outputs):
        """Return the changed outputs."""
        return outputs * self.scale + self.shift

    def undo(self, outputs):
        """Return the outputs before the change."""
        return (outputs - self.shift) / self.scale

    def put_into(self, head):
        """Change a head's weights, and so its outputs."""
        head.kernel.assign(head.kernel * self.scale)
        head.bias.assign(self.apply(head.bias))

    def take_out_of(self, head):
        """Undo `put_into`."""
        head.kernel.assign(head.kernel / self.scale)
        head.bias.assign(self.undo(head.bias))


@contextlib.contextmanager
def rescaled_head(rescale, head):
    """Change `head` during a `with` block, unless `rescale` is None."""
    if rescale is None:
        yield
        return
    before = head.kernel.numpy(), head.bias.numpy()
    rescale.put_into(head)
    try:
        yield
    finally:
        # Assign the old values: `take_out_of` would only approximate them.
        head.kernel.assign(before[0])
        head.bias.assign(before[1])
