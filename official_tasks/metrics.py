"""Scores of predictions; each equals its reference implementation.

Where scikit-learn or SciPy would answer "not a number" (constant
predictions), the answer here is 0: nothing was learned.
"""

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
    true, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    return _of_counts(np.diag(confusion), true, predicted)


def per_label(labels, predictions) -> dict[str, np.ndarray]:
    """As `per_class`, where a text may have any number of labels.

    Args:
        labels: bool `(R, C)`, which labels each text has.
        predictions: bool `(R, C)`, which it was given.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    hits = (labels & predictions).sum(axis=0)
    return _of_counts(hits, labels.sum(axis=0), predictions.sum(axis=0))


def _of_counts(hits, true, predicted):
    hits = hits.astype(np.float64)
    return {
        "precision": hits / np.maximum(predicted, 1),
        "recall": hits / np.maximum(true, 1),
        "f1": 2 * hits / np.maximum(true + predicted, 1),
        "support": true,
    }


def accuracy(confusion: np.ndarray) -> float:
    return float(np.trace(confusion) / max(confusion.sum(), 1))


def macro_f1(confusion: np.ndarray) -> float:
    """The mean F1 of the classes that occur as truth or as prediction."""
    occurs = (confusion.sum(axis=0) + confusion.sum(axis=1)) > 0
    return float(per_class(confusion)["f1"][occurs].mean())


def f1(confusion: np.ndarray) -> float:
    """F1 of class 1 of two, as GLUE scores MRPC and QQP."""
    return float(per_class(confusion)["f1"][1])


def matthews(confusion: np.ndarray) -> float:
    """Matthews' correlation of truth and prediction, over all classes."""
    counts = confusion.astype(np.float64)
    true, predicted = counts.sum(axis=1), counts.sum(axis=0)
    total = counts.sum()
    covariance = np.trace(counts) * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def majority_baseline(labels) -> float:
    """The accuracy of always guessing the commonest of `labels`."""
    return float(np.bincount(np.asarray(labels)).max() / len(labels))


def micro_f1_baseline(labels) -> float:
    """The micro F1 of always guessing the best set of labels.

    Of all sets of k labels that of the k commonest is best.

    Args:
        labels: bool `(R, C)`, which labels each text has.
    """
    labels = np.asarray(labels)
    hits = np.cumsum(np.sort(labels.sum(axis=0))[::-1])
    guessed = len(labels) * np.arange(1, labels.shape[1] + 1)
    return float((2 * hits / (labels.sum() + guessed)).max())


def pearson(first, second) -> float:
    """The correlation of two lists of numbers; nan if one of them is nan."""
    return _correlation("pearsonr", first, second)


def spearman(first, second) -> float:
    """The correlation of the ranks; equals share their mean rank."""
    return _correlation("spearmanr", first, second)


def _correlation(name, first, second):
    from scipy import stats  # half a second, of which --help needs nothing

    first, second = (np.asarray(x, np.float64) for x in (first, second))
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(getattr(stats, name)(first, second).statistic)


def probabilities(logits) -> np.ndarray:
    """The softmax of logits `(R, C)`."""
    logits = np.asarray(logits, np.float64)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
