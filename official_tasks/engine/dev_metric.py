"""The metric on dev that decides the best weights and early stopping."""

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks.base import Metric

LOSS = "loss"  # loss on dev, only for tasks with `has_dev_loss`
# Hyperparameter -> metrics that only a run with it has. The engine computes the
# first two.
_ONLY_WITH = {
    "calibrate": ("ece", "ece_uncalibrated"),
    "min_precision": ("coverage",),
}


def choose_metric(task, name=None) -> Metric:
    """Return the task's first metric, or the one with this name.

    Raises:
        InputError: the task has no such metric, or does not state its metrics.
    """
    stated = getattr(task, "metrics", None) or [None]
    if wrong := [one for one in stated if not isinstance(one, Metric)]:
        raise InputError(
            f"A metric of the task {task.name} is {wrong[0]!r}. Expected "
            "metrics = (Metric(NAME, higher_is_better=True), ...), with False "
            "for an error. Metric is in official_tasks.tasks.base."
        )
    if name is None:
        return stated[0]
    names = (LOSS,) * task.has_dev_loss + _ONLY_WITH["calibrate"]
    known = [*stated, *(Metric(n, higher_is_better=False) for n in names)]
    for metric in known:
        if metric.name == name:
            return metric
    conditional = [n for names in _ONLY_WITH.values() for n in names]
    shown = [one.name for one in known if one.name not in conditional]
    raise InputError(
        f"--metric={name} is not a metric of --task={task.name}, or the "
        "task's `metrics` do not state if a higher value is better. Name one "
        f"of {', '.join(shown)}"
    )


def check_metric(metric, task, hyperparameters):
    """Raise InputError if the run computes no such metric, or tunes nothing."""
    for needed, names in _ONLY_WITH.items():
        is_set = needed in hyperparameters.changed()
        if metric.name in names and not is_set:
            raise InputError(
                f"--metric={metric.name} needs `{needed}`. Set it, or name "
                "another metric."
            )
    chooses = task.can_tune() or hyperparameters.min_precision is not None
    if hyperparameters.tune_thresholds and not chooses:
        raise InputError(
            f"`tune_thresholds` is True, but the task {task.name} has no "
            "threshold to choose. Expected a task with several labels for each "
            "text, or a task with unanswerable questions and without "
            "`null_threshold`. Leave `tune_thresholds` out; with one class a "
            "text, set `min_precision`."
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
