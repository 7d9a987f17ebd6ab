import numpy as np
import pytest

from official_tasks import metrics


def restated(labels, predictions, num_classes):
    """Precision, recall and F1 from their definitions, one class a turn."""
    rows = []
    for one in range(num_classes):
        pairs = list(zip(labels, predictions, strict=True))
        hits = sum(t == one and p == one for t, p in pairs)
        predicted = sum(p == one for _, p in pairs)
        true = sum(t == one for t, _ in pairs)
        precision = hits / predicted if predicted else 0.0
        recall = hits / true if true else 0.0
        total = precision + recall
        f1 = 2 * precision * recall / total if total else 0.0
        rows.append((precision, recall, f1, true))
    return np.array(rows).T


@pytest.mark.parametrize("seed", range(5))
def test_per_class_scores_equal_their_definitions(seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, 50)
    predictions = generator.integers(0, 3, 50)  # class 3 never predicted
    confusion = metrics.confusion_matrix(labels, predictions, 5)
    scores = metrics.per_class(confusion)
    expected = restated(labels, predictions, 5)
    for name, row in zip(
        ("precision", "recall", "f1", "support"), expected, strict=True
    ):
        np.testing.assert_allclose(scores[name], row, atol=1e-12)
    assert metrics.accuracy(confusion) == np.mean(labels == predictions)


def test_macro_f1_leaves_out_classes_that_never_occur():
    confusion = metrics.confusion_matrix([0, 0, 1, 1], [0, 1, 1, 1], 3)
    # F1 of class 0: 2/3; of class 1: 4/5; class 2 is nowhere.
    assert metrics.macro_f1(confusion) == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_rows_of_the_confusion_matrix_are_the_truth():
    confusion = metrics.confusion_matrix([0, 0, 1], [1, 1, 1], 2)
    assert confusion.tolist() == [[0, 2], [0, 1]]


def test_the_majority_baseline_is_the_share_of_the_commonest_label():
    assert metrics.majority_baseline([2, 2, 2, 0]) == 0.75
