import itertools
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from official_tasks.tasks import metrics

GENERATOR = np.random.default_rng(0)
# Truth and prediction of two classes: hard cases, then random ones.
BINARY = {
    "all right": ([0, 1, 1], [0, 1, 1]),
    "all wrong": ([0, 1, 1], [1, 0, 0]),
    "one class in the truth": ([1, 1, 1], [0, 1, 1]),
    "the other class alone in the truth": ([0, 0, 0], [0, 1, 1]),
    "constant predictions": ([0, 1, 0, 1], [1, 1, 1, 1]),
    "constant predictions of class 0": ([0, 1, 0, 1], [0, 0, 0, 0]),
    "one class everywhere": ([0, 0], [0, 0]),
    "a single example": ([1], [1]),
    **{
        f"random {n}": tuple(GENERATOR.integers(0, 2, (2, n)))
        for n in (2, 7, 100, 5000)
    },
}


def confusion_of(case):
    truth, predicted = BINARY[case]
    return metrics.confusion_matrix(truth, predicted, 2)


@pytest.mark.parametrize("case", BINARY)
def test_scores_of_two_classes_equal_scikit_learn(case):
    truth, predicted = BINARY[case]
    confusion = confusion_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": reference.accuracy_score(truth, predicted),
            "f1": reference.f1_score(truth, predicted, zero_division=0),
            "matthews": reference.matthews_corrcoef(truth, predicted),
            "macro_f1": reference.f1_score(
                truth, predicted, average="macro", zero_division=0
            ),
        }
    for name, value in expected.items():
        got = getattr(metrics, name)(confusion)
        assert got == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_several_classes_equal_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 4, 50)
    predicted = generator.integers(0, 3, 50)  # class 3 never predicted
    confusion = metrics.confusion_matrix(truth, predicted, 5)
    expected = reference.precision_recall_fscore_support(
        truth, predicted, labels=range(5), zero_division=0
    )
    scores = metrics.per_class(confusion)
    for name, row in zip(
        ("precision", "recall", "f1", "support"), expected, strict=True
    ):
        np.testing.assert_allclose(scores[name], row, atol=1e-12)
    assert metrics.matthews(confusion) == pytest.approx(
        reference.matthews_corrcoef(truth, predicted), abs=1e-12
    )
    assert metrics.macro_f1(confusion) == pytest.approx(
        reference.f1_score(truth, predicted, average="macro"), abs=1e-12
    )


def test_scores_of_texts_with_several_labels_equal_scikit_learn():
    truth, predicted = GENERATOR.random((2, 60, 4)) < 0.3
    truth[:, 3] = predicted[:, 2] = False  # never true, never predicted
    expected = reference.precision_recall_fscore_support(
        truth, predicted, zero_division=0
    )
    scores = metrics.per_label(truth, predicted)
    for name, row in zip(
        ("precision", "recall", "f1", "support"), expected, strict=True
    ):
        np.testing.assert_allclose(scores[name], row, atol=1e-12)


def test_the_best_constant_guess_of_labels_is_that_of_all_sets():
    truth = np.random.default_rng(1).random((40, 4)) < [0.1, 0.6, 0.3, 0.5]
    guesses = itertools.product([False, True], repeat=4)
    best = max(
        reference.f1_score(
            truth, [guess] * 40, average="micro", zero_division=0
        )
        for guess in guesses
    )
    assert metrics.micro_f1_baseline(truth) == pytest.approx(best, abs=1e-12)
    assert metrics.micro_f1_baseline(truth & False) == 0.0


NUMBERS = {
    "a line": ([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]),
    "upside down": ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]),
    "ties in the truth": ([1.0, 1.0, 2.0, 2.0], [0.1, 0.3, 0.2, 0.9]),
    "ties on both sides": ([1.0, 1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 9.0]),
    "far from zero": ([1e9, 1e9 + 1, 1e9 + 2], [0.0, 3.0, 1.0]),
    "tiny": ([1e-200, 2e-200, 4e-200], [3e-180, 1e-180, 9e-180]),
    "of both scales": ([1e-300, 1.0, 1e150], [1e-9, 1e150, 2e150]),
    "not a number among them": ([1.0, 2.0, 3.0], [1.0, np.nan, 3.0]),
    "random": tuple(GENERATOR.normal(size=(2, 500))),
    "random with ties": tuple(GENERATOR.integers(0, 6, (2, 500)) / 5),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_correlations_equal_scipy(case):
    first, second = NUMBERS[case]
    assert metrics.pearson(first, second) == pytest.approx(
        stats.pearsonr(first, second)[0], abs=1e-9, nan_ok=True
    )
    assert metrics.spearman(first, second) == pytest.approx(
        stats.spearmanr(first, second)[0], abs=1e-9, nan_ok=True
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, 3e7])
def test_a_constant_correlates_with_nothing(value):
    # SciPy answers nan here.
    constant = np.full(7, value, np.float32)
    for metric in (metrics.pearson, metrics.spearman):
        assert metric(range(7), constant) == 0.0
        assert metric(constant, range(7)) == 0.0
        assert np.isnan(metric(constant, [np.nan, *range(6)]))


def test_macro_f1_leaves_out_classes_that_never_occur():
    confusion = metrics.confusion_matrix([0, 0, 1, 1], [0, 1, 1, 1], 3)
    # F1 of class 0: 2/3; of class 1: 4/5; class 2 is nowhere.
    assert metrics.macro_f1(confusion) == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_rows_of_the_confusion_matrix_are_the_truth():
    confusion = metrics.confusion_matrix([0, 0, 1], [1, 1, 1], 2)
    assert confusion.tolist() == [[0, 2], [0, 1]]


def test_the_majority_baseline_is_the_share_of_the_commonest_label():
    assert metrics.majority_baseline([2, 2, 2, 0]) == 0.75


def test_probabilities_of_large_logits_are_finite():
    shares = metrics.probabilities([[1000.0, 0.0], [-1000.0, -1000.0]])
    np.testing.assert_allclose(shares, [[1, 0], [0.5, 0.5]])
