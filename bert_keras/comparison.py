"""Comparison of outputs, and checks that weights and answers are finite."""

import reprlib

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


def check_finite_answers(signature, request, outputs):
    """Raise `InputError` if an answer has NaN or infinity; name its row.

    Args:
        signature: name of the signature that gave the answers.
        request: dict of input name -> rows.
        outputs: dict of output name -> array or tensor, rows first.
    """
    for name, values in outputs.items():
        array = np.asarray(values)
        if array.dtype.kind != "f":
            continue
        is_finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        for row in np.flatnonzero(~is_finite)[:1]:
            first = next(iter(request.values()))[row]
            if isinstance(first, bytes):
                first = first.decode("utf-8", "replace")
            raise InputError(
                f"The model answers row {row}, {reprlib.repr(first)}, with NaN "
                f"or infinity in `{name}` of {signature}. Its weights are too "
                "large for its dtype: use an earlier checkpoint, or train with "
                "a lower learning rate."
            )
