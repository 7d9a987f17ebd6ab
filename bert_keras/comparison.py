"""Comparison of outputs, and a check that weights are finite."""

import numpy as np

from bert_keras.errors import InputError


def greatest_difference(first, second, relative=False):
    """Return the greatest absolute difference between two sets of outputs.

    Args:
        first: dict of name -> NumPy array, or one array.
        second: the other outputs, in the same form.
        relative: True to divide each output's differences by the larger of 1
            and the output's greatest absolute value in `first`.

    Returns:
        float; infinity if names, shapes, integers or strings differ, or if an
        output has NaN or infinity.
    """
    if not isinstance(first, dict):
        first, second = {"": first}, {"": second}
    if first.keys() != second.keys():
        return np.inf
    differences = [
        _measure_difference(
            np.asarray(first[name]), np.asarray(second[name]), relative
        )
        for name in first
    ]
    return max(differences, default=0.0)


def _measure_difference(first, second, relative):
    if first.shape != second.shape:
        return np.inf
    kinds = {first.dtype.kind, second.dtype.kind}
    if "f" not in kinds or kinds - set("fiu"):
        return 0.0 if np.array_equal(first, second) else np.inf
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return np.inf
    first, second = first.astype("float64"), second.astype("float64")
    size = np.abs(first).max(initial=1.0) if relative else 1.0
    return float(np.abs(first - second).max(initial=0.0) / size)


def check_finite(name, array):
    """Raise `InputError` if a weight has NaN or infinity."""
    # min and max return NaN if the array has NaN, and allocate no array.
    with np.errstate(invalid="ignore"):
        ends = [array.min(), array.max()] if array.size else []
    if not np.isfinite(ends).all():
        raise InputError(
            f"The weight {name} has NaN or infinity. Nothing was saved. Train "
            "again from an earlier step's weights with a lower learning rate."
        )
