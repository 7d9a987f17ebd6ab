"""A temperature that makes probabilities agree with accuracy on dev.

The logits are divided by the temperature (Guo et al. 2017, "On Calibration of
Modern Neural Networks", section 4.2). The predicted class of a text can change
only if the text has several windows, whose probabilities are averaged.
"""

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.classify import TextTask
from official_tasks.tasks.metrics import probabilities

BINS = 15  # as in Guo et al. 2017
LOWEST, HIGHEST = 0.05, 20.0  # bounds of the search for the temperature


def fit_temperature(loss) -> float:
    """Return the temperature from 0.05 to 20 with the lowest loss.

    `loss` is a function of the temperature with a single minimum, because a
    ternary search looks for it.
    """
    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(40):  # narrows high - low from 6 to 5e-7
        third = (high - low) / 3
        if loss(np.exp(low + third)) < loss(np.exp(high - third)):
            high -= third
        else:
            low += third
    return float(np.exp((low + high) / 2))


def calibrate(task, examples, encoded, outputs) -> float:
    """Return the temperature with the lowest negative log-likelihood on dev.

    Args:
        task: `TextTask` with one class for each text.
        examples: the examples of dev.
        encoded: the `Encoded` rows of the examples.
        outputs: outputs of the model, see `Task.decode`.
    """
    labels = np.array([example.label for example in examples])

    def loss(temperature):
        logits = task.decode(examples, encoded, outputs / temperature)
        each = probabilities(logits)[np.arange(len(labels)), labels]
        return -np.mean(np.log(np.maximum(each, 1e-300)))

    return fit_temperature(loss)


def check_task(task, name, value):
    """Raise InputError unless each text of the task has one class.

    `name` is the argument that needs it, with this `value`.
    """
    if not isinstance(task, TextTask) or task.problem != "single":
        raise InputError(
            f"`{name}` is {value}, but the task {task.name} does not have one "
            f"class for each text. Leave `{name}` out."
        )


def describe(examples, before, after) -> dict:
    """Return the calibration errors and the bins before and after calibration.

    "ece" and "reliability" (the bins) are computed from `after`,
    "ece_uncalibrated" and "reliability_uncalibrated" from `before`.

    Args:
        examples: the examples of dev.
        before: logits `(R, C)` before calibration.
        after: calibrated logits `(R, C)`.
    """
    labels = np.array([example.label for example in examples])
    uncalibrated, calibrated = (
        count_bins(probabilities(logits), labels) for logits in (before, after)
    )
    return {
        "ece": calibration_error(calibrated),
        "ece_uncalibrated": calibration_error(uncalibrated),
        "reliability": calibrated,
        "reliability_uncalibrated": uncalibrated,
    }


def count_bins(probabilities, labels) -> list[dict]:
    """Return a dict for each confidence bin that contains rows.

    The confidence of a row is the probability of its predicted class. A dict
    has "from" (the bin's lower bound), "rows" (number of rows), "confidence"
    (mean) and "accuracy".
    """
    confidence = probabilities.max(axis=-1)
    is_right = probabilities.argmax(axis=-1) == labels
    edges = np.linspace(0, 1, BINS + 1)
    bins = np.searchsorted(edges[1:-1], confidence)
    return [
        {
            "from": float(edges[number]),
            "rows": int(np.sum(bins == number)),
            "confidence": float(confidence[bins == number].mean()),
            "accuracy": float(is_right[bins == number].mean()),
        }
        for number in np.unique(bins)
    ]


def calibration_error(bins) -> float:
    """Return the mean |confidence - accuracy| over bins, weighted by rows."""
    rows = sum(one["rows"] for one in bins)
    distances = (
        one["rows"] * abs(one["confidence"] - one["accuracy"]) for one in bins
    )
    return sum(distances) / rows
