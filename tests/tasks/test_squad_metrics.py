import re
import string

import numpy as np
import pytest

from official_tasks.tasks.metrics import (
    answer_scores,
    best_threshold,
    normalized,
    scores_v1,
    scores_v2,
    token_f1,
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("a", ""),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),  # an article is a word of its own
        ("the-rapist", "therapist"),  # punctuation goes before articles
        ("A.", ""),
        ("U.S.A.", "usa"),
        ("“quoted”", "“quoted”"),  # ASCII punctuation only
        ("1990–95", "1990–95"),
        ("a–b", "–b"),  # but a dash still ends the word "a"
        ("$1,000.50", "100050"),
        ("to\u00a0be\tor\n", "to be or"),
        ("ÉTÉ", "été"),
        ("", ""),
    ],
)
def test_answers_are_normalised_as_the_official_scripts_do(answer, expected):
    assert normalized(answer) == expected


def test_empty_answers_match_in_2_0_and_score_nothing_in_1_1():
    assert token_f1("the", "a", empty_matches=True) == 1
    assert token_f1("the", "a", empty_matches=False) == 0
    assert answer_scores("the", ["a"], empty_matches=False) == (1, 0)
    assert answer_scores("", [], empty_matches=True) == (1, 1)
    assert answer_scores("x", [], empty_matches=True) == (0, 0)
    # A true answer without words does not count beside one that has some.
    assert answer_scores("", ["the", "cat"], empty_matches=True) == (0, 0)
    assert answer_scores("", ["the"], empty_matches=True) == (1, 1)


def test_f1_counts_repeated_words_and_takes_the_nearest_answer():
    assert token_f1("to be or not", "be not be", False) == pytest.approx(4 / 7)
    exact, f1 = answer_scores("The cat sat", ["dog", "cat"], False)
    assert (exact, f1) == (0, pytest.approx(2 / 3))


def test_missing_predictions_score_0_in_1_1_and_do_not_count_in_2_0():
    answers = {"1": ("cat",), "2": ("dog",), "3": ("cow",)}
    found = scores_v1(answers, {"1": "a cat", "2": "bird"})
    assert found == {
        "exact_match": 1 / 3,
        "f1": 1 / 3,
        "total": 3,
        "missing": 1,
    }
    found = scores_v2({**answers, "3": ()}, {"1": "cat", "3": "milk"})
    assert found["exact_match"] == 1 / 2
    assert found["answerable_f1"] == 1
    assert found["unanswerable_exact_match"] == 0
    assert found["missing"] == 1


def test_the_threshold_decides_who_is_answered():
    answers = {"1": ("cat",), "2": (), "3": ("dog",), "4": ()}
    predictions = {"1": "cat", "2": "milk", "3": "bird", "4": "x"}
    odds = {"1": -2.0, "2": -1.0, "3": 0.5, "4": 3.0}
    found = scores_v2(answers, predictions, odds, threshold=0.0)
    # 1 right, 2 answered wrongly, 3 withheld wrongly, 4 withheld rightly.
    assert found["exact_match"] == 2 / 4
    assert found["best_exact_match"] == 3 / 4
    assert found["best_exact_match_threshold"] == -2.0
    assert scores_v2(answers, predictions, odds, -2.0)["exact_match"] == 3 / 4


def official_f1(prediction, answer, version):
    """Another way to the same numbers: regular expressions and sorted lists."""

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
    words = [
        "a",
        "the",
        "An",
        "cat",
        "Cat.",
        "dog",
        "–",
        "…",
        "(",
        "é",
        "the.",
        "",
    ]

    def text():
        return " ".join(random.choice(words, random.integers(0, 5)))

    for _ in range(2000):
        prediction, answers = text(), [text(), text()]
        for version in (1, 2):
            kept = [a for a in answers if version == 1 or normalized(a)]
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
