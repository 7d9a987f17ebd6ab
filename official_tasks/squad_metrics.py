"""SQuAD's exact match and F1, as the official scripts count them.

Equals evaluate-v1.1.py and evaluate-v2.0.py; scores are shares of 1, where
the scripts print percent.
"""

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only


def normalized(answer: str) -> str:
    """Lower case; no ASCII punctuation, articles or repeated white space."""
    text = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, answer: str, empty_matches: bool) -> float:
    """F1 of the words that two answers share.

    Where one of them has no words, SQuAD 2.0 (`empty_matches`) counts two
    empty ones as equal; 1.1 gives 0.
    """
    predicted, true = normalized(prediction).split(), normalized(answer).split()
    if not predicted or not true:
        return float(empty_matches and predicted == true)
    shared = (Counter(predicted) & Counter(true)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(true)
    return 2 * precision * recall / (precision + recall)


def answer_scores(
    prediction: str, answers, empty_matches: bool
) -> tuple[float, float]:
    """Exact match and F1 with the nearest of the true answers.

    In SQuAD 2.0 (`empty_matches`) answers without words do not count, and
    where none is left the empty answer is the true one.
    """
    if empty_matches:
        answers = [text for text in answers if normalized(text)] or [""]
    wanted = normalized(prediction)
    return (
        float(any(normalized(text) == wanted for text in answers)),
        max(token_f1(prediction, text, empty_matches) for text in answers),
    )


def scores_v1(answers: dict, predictions: dict) -> dict:
    """SQuAD 1.1: the means over all questions; unanswered ones score 0.

    Args:
        answers: question's id -> its true answers.
        predictions: id -> the predicted answer.
    """
    found = [
        answer_scores(predictions[key], true, empty_matches=False)
        for key, true in answers.items()
        if key in predictions
    ]
    total = len(answers)
    return {
        "exact_match": sum(pair[0] for pair in found) / total,
        "f1": sum(pair[1] for pair in found) / total,
        "total": total,
        "missing": total - len(found),
    }


def scores_v2(
    answers: dict, predictions: dict, odds=None, threshold: float = 0.0
) -> dict:
    """SQuAD 2.0, over all questions and over those with and without answer.

    As in the official script, questions without a prediction do not count;
    "missing" says how many.

    Args:
        answers: question's id -> its true answers, none if unanswerable.
        predictions: id -> the predicted answer, "" for none.
        odds: id -> how much better no answer is than the prediction; where
            given, questions above `threshold` count as not answered, and the
            thresholds that are best for exact match and F1 are added.
        threshold: see `odds`.

    Returns:
        dict of "exact_match", "f1", "total", "missing", the first three also
        behind "answerable_" and "unanswerable_" (where there are such), and
        with `odds` "best_exact_match", "best_f1" and their "_threshold".
    """
    raw = {
        key: answer_scores(predictions[key], true, empty_matches=True)
        for key, true in answers.items()
        if key in predictions
    }
    kept = raw
    if odds is not None:
        kept = {
            key: (2 * (float(not answers[key]),))
            if odds[key] > threshold
            else pair
            for key, pair in raw.items()
        }
    result = _means(kept.values())
    result["missing"] = len(answers) - len(raw)
    for name, has_answer in (("answerable", True), ("unanswerable", False)):
        part = [
            v for key, v in kept.items() if bool(answers[key]) == has_answer
        ]
        if part:
            result |= {f"{name}_{k}": v for k, v in _means(part).items()}
    if odds is not None:
        for place, name in enumerate(("exact_match", "f1")):
            best, at = best_threshold(
                answers,
                predictions,
                {key: pair[place] for key, pair in raw.items()},
                odds,
            )
            result |= {f"best_{name}": best, f"best_{name}_threshold": at}
    return result


def best_threshold(answers, predictions, scores, odds) -> tuple[float, float]:
    """The best mean score that a threshold on `odds` reaches, and it.

    Begins with nothing answered, then answers the surest question first.
    """
    best = current = float(sum(not true for true in answers.values()))
    threshold = 0.0
    for key in sorted(odds, key=odds.__getitem__):
        if key not in scores:
            continue
        if answers[key]:
            current += scores[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, odds[key]
    return best / max(len(scores), 1), float(threshold)


def _means(pairs) -> dict:
    pairs = list(pairs)
    total = max(len(pairs), 1)
    return {
        "exact_match": sum(pair[0] for pair in pairs) / total,
        "f1": sum(pair[1] for pair in pairs) / total,
        "total": len(pairs),
    }
