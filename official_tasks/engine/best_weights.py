"""Save the best weights of a run; standardize the targets of a regression."""

import contextlib
import os
from typing import NamedTuple

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    describe_files,
    read_manifest,
    write_manifest,
)

BEST = "best.json"
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
    check_fields(record, {"step": int, "value": float, "files": dict})
    check_entries(record["files"])


class TargetScale(NamedTuple):
    """Mean and standard deviation of the regression targets.

    The model learns targets of mean 0 and standard deviation 1. For an output x
    of the trained head, the saved head returns x * std + mean.
    """

    mean: float
    std: float

    @classmethod
    def fit(cls, targets):
        """Return the `TargetScale` of the training targets."""
        targets = np.asarray(targets, np.float64)
        # If all targets are equal, use 1: `standardize` cannot divide by 0.
        return cls(float(targets.mean()), float(targets.std()) or 1.0)

    def standardize(self, targets):
        """Return targets of mean 0 and standard deviation 1."""
        values = np.asarray(targets, np.float64)
        return ((values - self.mean) / self.std).astype(targets.dtype)

    def restore(self, outputs):
        """Return outputs in the units of the data."""
        return outputs * self.std + self.mean

    def put_into(self, head):
        """Rescale a head's outputs from z-scores to the data's units."""
        head.kernel.assign(head.kernel * self.std)
        head.bias.assign(self.restore(head.bias))

    def take_out_of(self, head):
        """Rescale a head's outputs from the data's units to z-scores."""
        head.kernel.assign(head.kernel / self.std)
        head.bias.assign((head.bias - self.mean) / self.std)


@contextlib.contextmanager
def scaled_head(scale, head):
    """Rescale `head` during a `with` block, unless `scale` is None."""
    if scale is None:
        yield
        return
    before = head.kernel.numpy(), head.bias.numpy()
    scale.put_into(head)
    try:
        yield
    finally:
        # Assign the old values: `take_out_of` would only approximate them.
        head.kernel.assign(before[0])
        head.bias.assign(before[1])
