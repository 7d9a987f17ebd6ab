"""The metric on dev that decides the best weights and early stopping."""

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import LOSS, Metric

# Scores that measure no quality, besides those that end in "_threshold".
NO_METRICS = ("majority_baseline", "temperature")


def choose_metric(task, name=None) -> Metric:
    """Return the task's metric, or the metric of another score.

    Raises:
        InputError: the task does not state the direction of the metric.
    """
    stated = getattr(task, "metric", None)
    if not isinstance(stated, Metric):
        raise InputError(
            f"The metric of the task {task.title} is {stated!r}. Expected "
            f"Metric(NAME, higher_is_better=True), or False for an error. "
            "Metric is in official_tasks.tasks.base."
        )
    metric = task.metric if name is None else task.find_metric(name)
    if metric is None:
        known = [one.name for one in (task.metric, *task.other_metrics)]
        raise InputError(
            f"--metric={name}: the task {task.title} does not state if a "
            "higher value is better. Name one of "
            f"{', '.join([*known, LOSS])}, or add a Metric to the task's "
            "other_metrics."
        )
    return metric


def check_metric(task, metric, scores):
    """Raise InputError unless `metric` is in `scores` and measures quality.

    `scores` is the dict of all scores on dev.
    """
    names = [
        name
        for name, value in scores.items()
        if isinstance(value, float)
        and name not in NO_METRICS
        and not name.endswith("_threshold")
    ]
    if metric not in names:
        if task.has_dev_loss and LOSS not in names:
            names.append(LOSS)
        raise InputError(
            f"--metric={metric} is not a metric of --task={task.title}. Name "
            f"one of {', '.join(names)}"
        )


def compute_loss(task, encoded, outputs) -> float:
    """Return the mean loss of rows or tokens: sum(weight x loss) / sum(weight).

    For several outputs, each mean loss is multiplied by its factor in the
    task's `loss_weights`, and the products are added. Without `loss_weights`,
    each factor is 1, as in `compile`.

    Args:
        task: `Task`.
        encoded: `Encoded` rows.
        outputs: outputs of the model, see `Task.decode`.
    """
    losses = task.loss()
    if not isinstance(losses, dict):
        return _mean_loss(losses, encoded.targets, encoded.weights, outputs)
    weights = encoded.weights or dict.fromkeys(losses)
    factors = task.loss_weights or dict.fromkeys(losses, 1.0)
    return sum(
        factors[name]
        * _mean_loss(loss, encoded.targets[name], weights[name], outputs[name])
        for name, loss in losses.items()
    )


def _mean_loss(loss, targets, weights, outputs):
    if hasattr(targets, "flat_values"):  # each token has a target
        outputs = np.concatenate(outputs)  # (tokens, C)
        targets = targets.flat_values.numpy()
        weights = None if weights is None else weights.flat_values.numpy()
    elif isinstance(outputs, list):  # a target is a token's index in its row
        padded = np.full((len(outputs), max(map(len, outputs))), -1e9, "f4")
        for row, values in zip(padded, outputs, strict=True):
            row[: len(values)] = values
        outputs = padded  # (R, T)
    value = float(loss(targets, outputs, weights))
    # Replace Keras's divisor, the number of targets, by the sum of weights.
    return value if weights is None else value / float(np.mean(weights))
