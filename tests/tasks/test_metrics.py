"""Metrics against scikit-learn, SciPy, seqeval and restated definitions."""

import itertools
import re
import string
import warnings

import numpy as np
import pytest
from scipy import stats
from seqeval import metrics as seqeval
from sklearn import metrics as reference

from official_tasks.tasks import metrics
from official_tasks.tasks.metrics import (
    Entity,
    answer_scores,
    best_threshold,
    entities,
    entity_scores,
    normalize_answer,
    scores_v1,
    scores_v2,
    token_f1,
)

pytestmark = pytest.mark.fast

# Case -> true and predicted classes, 0 or 1: hard cases, then random ones.
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
        f"random {n}": tuple(np.random.default_rng(n).integers(0, 2, (2, n)))
        for n in (2, 7, 100, 5000)
    },
}


@pytest.mark.parametrize("case", BINARY)
def test_scores_of_two_classes_equal_scikit_learn(case):
    truth, predicted = BINARY[case]
    counts = metrics.count_classes(truth, predicted, 2)
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
        got = getattr(metrics, name)(counts)
        assert got == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(2))
def test_scores_of_several_classes_equal_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 4, 50)
    predicted = generator.integers(0, 3, 50)  # class 3 is never predicted
    counts = metrics.count_classes(truth, predicted, 5)
    expected = reference.precision_recall_fscore_support(
        truth, predicted, labels=range(5), zero_division=0
    )
    scores = metrics.per_class(counts)
    for name, row in zip(
        ("precision", "recall", "f1", "support"), expected, strict=True
    ):
        np.testing.assert_allclose(scores[name], row, atol=1e-12)
    assert metrics.matthews(counts) == pytest.approx(
        reference.matthews_corrcoef(truth, predicted), abs=1e-12
    )
    assert metrics.macro_f1(counts) == pytest.approx(
        reference.f1_score(truth, predicted, average="macro"), abs=1e-12
    )


def test_scores_of_texts_with_several_labels_equal_scikit_learn(random):
    truth, predicted = random.random((2, 60, 4)) < 0.3
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
    "random": tuple(np.random.default_rng(0).normal(size=(2, 500))),
    "random with ties": tuple(
        np.random.default_rng(0).integers(0, 6, (2, 500)) / 5
    ),
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
    # SciPy returns NaN for a constant.
    constant = np.full(7, value, np.float32)
    for metric in (metrics.pearson, metrics.spearman):
        assert metric(range(7), constant) == 0.0
        assert metric(constant, range(7)) == 0.0
        assert np.isnan(metric(constant, [np.nan, *range(6)]))


def test_probabilities_of_large_logits_are_finite():
    shares = metrics.probabilities([[1000.0, 0.0], [-1000.0, -1000.0]])
    np.testing.assert_allclose(shares, [[1, 0], [0.5, 0.5]])


# The next tests score entities.

LABELS = "O B-PER I-PER B-LOC I-LOC".split()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),  # I- after O begins an entity
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),  # so does a new type
        ("I-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),  # B- as in IOB1
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("S-PER B-PER I-PER E-PER", [("PER", 0, 1), ("PER", 1, 4)]),
        ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        # In BILOU, U is the S of BIOES, and L is its E.
        ("B-X U-X I-X", [("X", 0, 1), ("X", 1, 2), ("X", 2, 3)]),
        ("U-X B-X L-X I-X", [("X", 0, 1), ("X", 1, 3), ("X", 3, 4)]),
        ("PER PER LOC", [("PER", 0, 2), ("LOC", 2, 3)]),  # types without prefix
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_are_found_in_labels_of_every_scheme(labels, expected):
    assert entities(labels.split()) == [Entity(*e) for e in expected]


def conlleval(labels):
    """Return entities of conlleval.pl, by the rules of its `startOfChunk`."""
    spans, before, kind_before = [], "O", ""
    for place, label in enumerate(labels):
        tag, _, kind = label.partition("-")
        pair = before + tag
        other = kind != kind_before
        if pair in ("BB", "IB", "OB", "OI", "OE", "EE", "EI") or (
            tag != "O" and other
        ):
            spans.append([kind, place, place + 1])
        elif tag != "O":
            spans[-1][2] = place + 1
        before, kind_before = tag, kind
    return [Entity(*span) for span in spans]


def test_every_transition_is_counted_as_by_conlleval():
    tags = ["O", *(f"{p}-{kind}" for p in "BIE" for kind in "XY")]
    for labels in itertools.product(tags, repeat=3):
        expected = conlleval(labels)
        assert entities(labels, is_perl=True) == expected, labels
        scores = entity_scores([labels], [labels])
        assert scores["entities"] == len(expected), labels


def test_b_after_e_begins_an_entity_where_one_word_has_its_own_label():
    labels = "B-X E-X B-X E-X S-X".split()
    assert entity_scores([labels], [labels])["entities"] == 3
    # One S- in the labels or predictions selects BIOES for all sentences.
    rows = [labels[:4], ["O"]]
    scores = entity_scores(rows, [labels[:4], ["S-X"]])
    assert scores["entities"] == 2
    assert entity_scores(rows, rows)["entities"] == 1


def random_labels(seed, labels, sentences=40):
    random = np.random.default_rng(seed)
    truth, guess = [], []
    for _ in range(sentences):
        gold = random.choice(labels, random.integers(1, 9))
        keep = random.random(gold.size) < 0.7
        other = random.choice(labels, gold.size)
        truth.append(gold.tolist())
        guess.append(np.where(keep, gold, other).tolist())
    return truth, guess


# seqeval counts like conlleval, even for labels that break their scheme.
@pytest.mark.parametrize("more", [[], "E-PER S-PER E-LOC S-LOC".split()])
def test_entity_scores_equal_seqeval(more):
    labels = LABELS + more
    for seed in range(5):
        truth, guess = random_labels(seed, labels)
        scores = entity_scores(truth, guess)
        assert scores["f1"] == pytest.approx(seqeval.f1_score(truth, guess))
        table = seqeval.classification_report(truth, guess, output_dict=True)
        for kind, own in scores["classes"].items():
            assert own["precision"] == pytest.approx(table[kind]["precision"])
            assert own["recall"] == pytest.approx(table[kind]["recall"])
            assert own["f1"] == pytest.approx(table[kind]["f1-score"])
            assert own["support"] == table[kind]["support"]


def test_token_scores_equal_scikit_learn():
    truth, guess = random_labels(3, LABELS)
    scores = entity_scores(truth, guess)
    flat = [[x for row in rows for x in row] for rows in (truth, guess)]
    *rates, _ = reference.precision_recall_fscore_support(
        *flat, labels=LABELS[1:], average="micro"
    )
    assert [
        scores["token_precision"],
        scores["token_recall"],
        scores["token_f1"],
    ] == pytest.approx(rates)
    assert scores["accuracy"] == reference.accuracy_score(*flat)


def test_no_entity_crosses_the_end_of_a_sentence():
    together = entity_scores([["B-PER", "I-PER"]], [["B-PER", "I-PER"]])
    apart = entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])
    assert (together["entities"], apart["entities"]) == (1, 2)


def test_nothing_true_or_predicted_scores_0():
    nothing, one = [["O", "O"]], [["B-PER", "O"]]
    for truth, guess in ((nothing, nothing), (nothing, one), (one, nothing)):
        scores = entity_scores(truth, guess)
        assert scores["f1"] == scores["precision"] == scores["recall"] == 0
    assert entity_scores(nothing, one)["classes"]["PER"]["support"] == 0


# The next tests score answers of SQuAD.


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a", ""),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),  # articles are whole words
        ("the-rapist", "therapist"),  # punctuation is removed first
        ("A.", ""),
        ("U.S.A.", "usa"),
        ("“quoted”", "“quoted”"),  # only ASCII punctuation is removed
        ("1990–95", "1990–95"),
        ("a–b", "–b"),  # "a" before the dash is an article
        ("$1,000.50", "100050"),
        ("to\u00a0be\tor\n", "to be or"),
        ("ÉTÉ", "été"),
        ("", ""),
    ],
)
def test_answers_are_normalised_as_the_official_scripts_do(answer, expected):
    assert normalize_answer(answer) == expected


def test_empty_answers_match_in_2_0_and_score_nothing_in_1_1():
    assert token_f1("the", "a", empty_matches=True) == 1
    assert token_f1("the", "a", empty_matches=False) == 0
    assert answer_scores("the", ["a"], empty_matches=False) == (1, 0)
    assert answer_scores("", [], empty_matches=True) == (1, 1)
    assert answer_scores("x", [], empty_matches=True) == (0, 0)
    # A true answer without words is dropped if another answer has words.
    assert answer_scores("", ["the", "cat"], empty_matches=True) == (0, 0)
    assert answer_scores("", ["the"], empty_matches=True) == (1, 1)


def test_f1_counts_repeated_words_and_takes_the_nearest_answer():
    assert token_f1("to be or not", "be not be", False) == pytest.approx(4 / 7)
    exact, f1 = answer_scores("The cat sat", ["dog", "cat"], False)
    assert (exact, f1) == (0, pytest.approx(2 / 3))


def test_missing_predictions_score_0_in_1_1_and_do_not_count_in_2_0():
    answers = {"1": ("cat",), "2": ("dog",), "3": ("cow",)}
    scores = scores_v1(answers, {"1": "a cat", "2": "bird"})
    assert scores == {
        "exact_match": 1 / 3,
        "f1": 1 / 3,
        "total": 3,
        "missing": 1,
    }
    scores = scores_v2({**answers, "3": ()}, {"1": "cat", "3": "milk"})
    assert scores["exact_match"] == 1 / 2
    assert scores["answerable_f1"] == 1
    assert scores["unanswerable_exact_match"] == 0
    assert scores["missing"] == 1


def test_the_threshold_decides_who_is_answered():
    answers = {"1": ("cat",), "2": (), "3": ("dog",), "4": ()}
    predictions = {"1": "cat", "2": "milk", "3": "bird", "4": "x"}
    odds = {"1": -2.0, "2": -1.0, "3": 0.5, "4": 3.0}
    scores = scores_v2(answers, predictions, odds, threshold=0.0)
    # 1 is answered rightly, 2 wrongly; 3 is withheld wrongly, 4 rightly.
    assert scores["exact_match"] == 2 / 4
    assert scores["best_exact_match"] == 3 / 4
    assert scores["best_exact_match_threshold"] == -2.0
    assert scores_v2(answers, predictions, odds, -2.0)["exact_match"] == 3 / 4


def official_f1(prediction, answer, version):
    """Compute exact match and F1 with regular expressions and lists."""

    def words(text):
        text = re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower())
        text = re.sub(r"(?<!\w)(?:a|an|the)(?!\w)", " ", text)
        return text.split()

    left, right = words(prediction), words(answer)
    if version == 2 and not (left and right):
        return float(left == right), float(left == right)
    rest, shared = list(right), 0
    for word in left:
        if word in rest:
            rest.remove(word)
            shared += 1
    exact = float(left == right)
    if not shared:
        return exact, 0.0
    return exact, 2 * shared / (len(left) + len(right))


def test_scores_equal_a_restatement_on_random_answers():
    random = np.random.default_rng(0)
    words = ["", *"a the An cat Cat. dog – … ( é the.".split()]

    def text():
        return " ".join(random.choice(words, random.integers(0, 5)))

    for _ in range(500):
        prediction, answers = text(), [text(), text()]
        for version in (1, 2):
            kept = [a for a in answers if version == 1 or normalize_answer(a)]
            pairs = [official_f1(prediction, a, version) for a in kept or [""]]
            assert answer_scores(
                prediction, answers, empty_matches=version == 2
            ) == pytest.approx(
                (max(p[0] for p in pairs), max(p[1] for p in pairs))
            )


def test_the_best_threshold_is_the_best_of_all_cuts():
    random = np.random.default_rng(1)
    for _ in range(50):
        keys = [str(i) for i in range(12)]
        answers = {k: ("x",) if random.random() < 0.6 else () for k in keys}
        predictions = {k: "x" if random.random() < 0.9 else "" for k in keys}
        scores = {
            k: random.random() if answers[k] else float(predictions[k] == "")
            for k in keys
        }
        odds = {k: float(random.normal()) for k in keys}
        best, threshold = best_threshold(answers, predictions, scores, odds)

        def mean(cut, answers=answers, odds=odds, scores=scores):
            return np.mean(
                [
                    float(not answers[k]) if odds[k] > cut else scores[k]
                    for k in answers
                ]
            )

        assert best == pytest.approx(
            max(mean(cut) for cut in [-99, *odds.values()])
        )
        if best > mean(-99):
            assert mean(threshold) == pytest.approx(best)
        else:
            assert threshold == 0


def test_rankings_equal_scikit_learn_and_the_definitions(random):
    orders, relevant, gains = [], [], []
    for _ in range(20):
        scores = random.normal(size=15)
        true = random.integers(0, 4, 15) * (random.random(15) < 0.4)
        true[3] = 2  # at least one passage is relevant
        orders.append(np.argsort(-scores).tolist())
        relevant.append({i: float(g) for i, g in enumerate(true) if g})
        gains.append(true)
        ndcg = reference.ndcg_score([true], [scores], k=10)
        found = metrics.retrieval_scores(orders[-1:], relevant[-1:], (1, 4))
        assert found["ndcg_at_10"] == pytest.approx(ndcg)
        places = [orders[-1].index(i) for i in relevant[-1]]
        assert found["mrr"] == 1 / (1 + min(places))
        assert found["recall_at_4"] == np.mean(np.array(places) < 4)
    every = metrics.retrieval_scores(orders, relevant, (1, 4))
    alone = [
        metrics.retrieval_scores([o], [r], (1, 4))
        for o, r in zip(orders, relevant, strict=True)
    ]
    assert every["ndcg_at_10"] == pytest.approx(
        np.mean([one["ndcg_at_10"] for one in alone])
    )
    drawn = [
        metrics.retrieval_scores([random.permutation(15)], [r], (1,))
        for r in relevant * 200
    ]
    chance = metrics.ndcg_of_chance(relevant, [15] * 20)
    mean = np.mean([one["ndcg_at_10"] for one in drawn])
    assert mean == pytest.approx(chance, abs=0.02)
    far = metrics.retrieval_scores([range(150)] * 2, [{99: 1}, {100: 1}], ())
    assert far["mrr"] == (1 / 100 + 0) / 2
    # A relevant passage that the ranking lacks counts as not found.
    assert metrics.retrieval_scores([[0]], [{1: 1.0}], (1,)) == {
        "recall_at_1": 0.0,
        "mrr": 0.0,
        "ndcg_at_10": 0.0,
    }
