"""Scores of predictions, in NumPy; each equals its reference implementation."""

import numpy as np


def confusion_matrix(labels, predictions, num_classes: int) -> np.ndarray:
    """int64 `(C, C)`: rows are the true class, columns the predicted one."""
    cells = np.asarray(labels) * num_classes + np.asarray(predictions)
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def per_class(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall, F1 and support of each class, each `(C,)`.

    A class that is never true or never predicted scores 0, as in
    scikit-learn with `zero_division=0`.
    """
    hits = np.diag(confusion).astype(np.float64)
    true, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    precision = hits / np.maximum(predicted, 1)
    recall = hits / np.maximum(true, 1)
    f1 = 2 * hits / np.maximum(true + predicted, 1)
    return {
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "support": true,
    }


def accuracy(confusion: np.ndarray) -> float:
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def macro_f1(confusion: np.ndarray) -> float:
    """The mean F1 of the classes that occur as truth or as prediction."""
    occurs = (confusion.sum(axis=0) + confusion.sum(axis=1)) > 0
    return float(per_class(confusion)["f1"][occurs].mean())


def majority_baseline(labels) -> float:
    """The accuracy of always guessing the commonest of `labels`."""
    return float(np.bincount(np.asarray(labels)).max() / len(labels))
