"""Class weights that balance the loss, and label smoothing.

As in scikit-learn's "balanced", a row of class c gets the weight R / (C R_c),
for R rows in total, C classes that occur, and R_c rows of class c. If the rows
have weights, R and R_c are sums of weights.
"""

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError


def balance(task, encoded):
    """Return `Encoded` rows with weights, and the loss to train with.

    If each row or token has one class, its weight is multiplied by the class
    weight. If a text may have several labels, the weights stay the same, and
    the returned loss balances texts with and without each label.

    Args:
        task: `Task`.
        encoded: rows to train on.

    Raises:
        InputError: the task has no classes for rows or tokens.
    """
    targets = encoded.targets
    values = getattr(targets, "flat_values", targets)
    values = None if isinstance(values, dict) else np.asarray(values)
    if task.labels is not None and values is not None:
        if np.issubdtype(values.dtype, np.integer):
            return _weight_rows(task, encoded, values), task.loss()
        if values.shape[1:] == (len(task.labels),):
            return encoded, BalancedLabels(values, encoded.weights)
    raise InputError(
        f"`class_weights` is 'balanced', but the task {task.name} has no "
        "classes for rows or tokens. Leave `class_weights` out."
    )


def _weight_rows(task, encoded, classes):
    weights = encoded.weights
    if weights is None:
        weights = np.ones(classes.shape, np.float32)
        if hasattr(encoded.targets, "with_flat_values"):  # a class per token
            weights = encoded.targets.with_flat_values(weights)
    each = np.asarray(getattr(weights, "flat_values", weights))
    counts = np.bincount(classes, each, minlength=len(task.labels))
    factors = counts.sum() / np.count_nonzero(counts) / np.maximum(counts, 1e-9)
    # The mean of the weights need not be 1, because `training_batches` scales
    # the weights of each batch.
    each = (each * factors[classes]).astype(np.float32)
    if hasattr(weights, "with_flat_values"):
        each = weights.with_flat_values(each)
    return encoded._replace(weights=each)


def smooth(task, loss, fraction):
    """Return the cross-entropy with labels smoothed by `fraction`.

    Args:
        task: `Task`.
        loss: loss of the task.
        fraction: see `SmoothedLabels` (Szegedy et al. 2016, section 7).

    Raises:
        InputError: the task does not have one class for each row or token.
    """
    name = getattr(loss, "name", None)
    if task.labels is None or name != "sparse_categorical_crossentropy":
        raise InputError(
            f"`label_smoothing` is {fraction}, but the task {task.name} does "
            "not have one class for each row or token. Leave "
            "`label_smoothing` out."
        )
    return SmoothedLabels(fraction)


class SmoothedLabels(keras.losses.Loss):
    """Cross-entropy of logits with smoothed labels.

    Args:
        fraction: part of each label that is spread evenly over all classes.
    """

    def __init__(self, fraction):
        super().__init__(name="smoothed_labels")
        self.fraction = fraction

    def call(self, y_true, y_pred):
        logs = ops.log_softmax(y_pred)  # (..., C)
        classes = ops.cast(y_true, "int32")[..., None]
        at_label = ops.take_along_axis(logs, classes, axis=-1)[..., 0]
        spread = ops.mean(logs, axis=-1)
        return -(1 - self.fraction) * at_label - self.fraction * spread


class BalancedLabels(keras.losses.Loss):
    """Binary cross-entropy of logits, balanced for each label.

    Args:
        targets: float `(R, C)` of the training texts, 1 for each label that a
            text has. They give the frequency of each label.
        weights: `(R,)`, weights of the training texts; None means 1.
    """

    def __init__(self, targets, weights=None):
        super().__init__(name="balanced_labels")
        if weights is None:
            weights = np.ones(len(targets), np.float32)
        total, weights = weights.sum(), weights[:, None]
        each = weights * (1 - targets), weights * targets
        counts = np.stack([rows.sum(axis=0) for rows in each])  # (2, C)
        occurring = np.count_nonzero(counts, axis=0)
        factors = total / occurring / np.maximum(counts, 1e-9)
        self.absent, self.present = factors.astype(np.float32)

    def call(self, y_true, y_pred):
        losses = ops.binary_crossentropy(y_true, y_pred, from_logits=True)
        weights = y_true * self.present + (1 - y_true) * self.absent
        return ops.mean(weights * losses, axis=-1)  # (B, C) to (B,)
