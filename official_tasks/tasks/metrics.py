"""Scores of predictions: classes, numbers, rankings, entities, answers.

A metric whose docstring names a reference implementation equals it, except
where the docstring says otherwise. For constant labels or predictions, SciPy's
correlations are NaN; here they are 0.
"""

import re
import string
from collections import Counter
from typing import NamedTuple

import numpy as np

from bert_keras.text.labels import BEGIN, END, OUTSIDE, split_label


def confusion_matrix(labels, predictions, num_classes: int) -> np.ndarray:
    """Return int64 `(C, C)`: rows are true classes, columns are predicted."""
    cells = np.asarray(labels) * num_classes + np.asarray(predictions)
    counts = np.bincount(cells, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


class ClassCounts(NamedTuple):
    """Counts of each class, int64 `(C,)`: right, true and predicted rows."""

    hits: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def count_classes(labels, predictions, num_classes: int) -> ClassCounts:
    """Return the `ClassCounts` of true and predicted classes."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    return ClassCounts(
        *(
            np.bincount(classes, minlength=num_classes)
            for classes in (labels[labels == predictions], labels, predictions)
        )
    )


def per_class(counts: ClassCounts) -> dict[str, np.ndarray]:
    """Return precision, recall, F1 and support of each class, each `(C,)`.

    A class that is never true or never predicted scores 0, as in
    scikit-learn with `zero_division=0`.
    """
    return _score_classes(*counts)


def per_label(labels, predictions) -> dict[str, np.ndarray]:
    """Return the metrics of `per_class` for multi-label predictions.

    Args:
        labels: bool `(R, C)`, the true labels of each text.
        predictions: bool `(R, C)`, the predicted labels.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    hits = (labels & predictions).sum(axis=0)
    return _score_classes(hits, labels.sum(axis=0), predictions.sum(axis=0))


def best_thresholds(labels, probabilities) -> list[float]:
    """Return for each label the threshold with the best F1.

    The candidates of a label lie halfway between neighbours in the sorted list
    of 0 and the label's probabilities. Among equally good candidates, the
    nearest to 0.5 is returned. A label that no text has gets 0.5.

    Args:
        labels: bool `(R, C)`, the true labels of each text.
        probabilities: float `(R, C)`; a label is predicted if its probability
            is at least its threshold.
    """
    thresholds = []
    for truth, column in zip(labels.T, probabilities.T, strict=True):
        halfway, hits, predicted = _count_from_each(truth, column)
        f1 = 2 * hits / (truth.sum() + predicted)
        best = halfway[f1 == f1.max()] if truth.any() else np.array([0.5])
        nearest = best[np.abs(best - 0.5).argmin()]
        thresholds.append(float(np.clip(nearest, 1e-6, 1 - 1e-6)))
    return thresholds


def lowest_threshold(is_right, confidence, precision) -> float:
    """Return the lowest threshold above which answers have a precision.

    The candidates are those of `best_thresholds`. If none has the precision,
    return a number just below 1.

    Args:
        is_right: bool `(R,)`, True if the answer to a row is right.
        confidence: float `(R,)`, the probability of each answer.
        precision: fraction of right answers among those of at least the
            threshold.
    """
    halfway, hits, answered = _count_from_each(is_right, confidence)
    enough = halfway[hits / answered >= precision]
    lowest = enough[0] if len(enough) else 1.0
    return float(np.clip(lowest, 1e-6, 1 - 1e-6))


def _count_from_each(truth, probabilities):
    """Return thresholds, ascending, and the hits and predictions with each.

    The thresholds lie halfway between neighbours in the sorted list of 0 and
    the probabilities.
    """
    ranked, counts = np.unique(probabilities, return_counts=True)  # ascending
    hits = np.bincount(np.searchsorted(ranked, probabilities), truth)
    halfway = (ranked + np.concatenate([[0.0], ranked[:-1]])) / 2
    return halfway, np.cumsum(hits[::-1])[::-1], np.cumsum(counts[::-1])[::-1]


def _score_classes(hits, true, predicted):
    hits = hits.astype(np.float64)
    return {
        "precision": hits / np.maximum(predicted, 1),
        "recall": hits / np.maximum(true, 1),
        "f1": 2 * hits / np.maximum(true + predicted, 1),
        "support": true,
    }


def accuracy(counts: ClassCounts) -> float:
    """Return the fraction of the rows that are right."""
    return float(counts.hits.sum() / max(counts.true.sum(), 1))


def macro_f1(counts: ClassCounts) -> float:
    """Return the mean F1 of the classes that occur as label or prediction."""
    occurs = (counts.true + counts.predicted) > 0
    return float(per_class(counts)["f1"][occurs].mean())


def f1(counts: ClassCounts) -> float:
    """Return the F1 of class 1 of two classes, as in GLUE's MRPC and QQP."""
    return float(per_class(counts)["f1"][1])


def matthews(counts: ClassCounts) -> float:
    """Return the Matthews correlation coefficient over all classes."""
    hits, true, predicted = (part.astype(np.float64) for part in counts)
    total = true.sum()
    covariance = hits.sum() * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread else 0.0


def majority_baseline(labels) -> float:
    """Return the accuracy of always predicting the most frequent label."""
    return float(np.bincount(np.asarray(labels)).max() / len(labels))


def micro_f1_baseline(labels) -> float:
    """Return the micro F1 of always predicting the best set of labels.

    The best set of k labels consists of the k most frequent labels.

    Args:
        labels: bool `(R, C)`, the labels of each text.
    """
    labels = np.asarray(labels)
    hits = np.cumsum(np.sort(labels.sum(axis=0))[::-1])
    predicted = len(labels) * np.arange(1, labels.shape[1] + 1)
    return float((2 * hits / (labels.sum() + predicted)).max())


def pearson(first, second) -> float:
    """Return Pearson's correlation; NaN if a value is NaN."""
    return _compute_correlation("pearsonr", first, second)


def spearman(first, second) -> float:
    """Return Spearman's correlation; equal values have their mean rank."""
    return _compute_correlation("spearmanr", first, second)


def _compute_correlation(name, first, second):
    from scipy import stats  # this import takes half a second

    first, second = (np.asarray(x, np.float64) for x in (first, second))
    if np.isnan(first).any() or np.isnan(second).any():
        return float("nan")
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(getattr(stats, name)(first, second).statistic)


def sigmoid(logits) -> np.ndarray:
    """Return the sigmoid of logits, float64."""
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


def probabilities(logits) -> np.ndarray:
    """Return the softmax of logits `(R, C)`, float64."""
    logits = np.asarray(logits, np.float64)
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


# The next functions score rankings of passages for queries.

MRR_DEPTH = 100  # MRR reads the first 100 passages of a ranking


def retrieval_scores(orders, relevant, cutoffs) -> dict:
    """Return the mean over queries of recall at each k, MRR and nDCG at 10.

    The keys are "mrr", "ndcg_at_10" and, for each k, "recall_at_<k>". Gains are
    linear, as in trec_eval. The reciprocal rank is 0 if no relevant passage is
    among the first `MRR_DEPTH` passages.

    Args:
        orders: for each query the passages, best first.
        relevant: for each query a non-empty dict of passage -> gain above 0.
        cutoffs: the values of k.
    """
    rows = []
    for order, gains in zip(orders, relevant, strict=True):
        ranked = np.array([gains.get(passage, 0.0) for passage in order])
        hits = np.flatnonzero(ranked)
        rows.append(
            {
                **{
                    f"recall_at_{k}": np.sum(hits < k) / len(gains)
                    for k in cutoffs
                },
                "mrr": 1 / (hits[0] + 1) if np.any(hits < MRR_DEPTH) else 0.0,
                "ndcg_at_10": _compute_dcg(ranked) / _compute_ideal_dcg(gains),
            }
        )
    return {name: float(np.mean([r[name] for r in rows])) for name in rows[0]}


def ndcg_of_chance(relevant, passages) -> float:
    """Return the expected mean nDCG at 10 of random rankings.

    Args:
        relevant: see `retrieval_scores`.
        passages: for each query, the number of passages to order.
    """
    expected = [
        sum(gains.values())
        / count
        * _compute_dcg(np.ones(count))
        / _compute_ideal_dcg(gains)
        for gains, count in zip(relevant, passages, strict=True)
    ]
    return float(np.mean(expected))


def _compute_dcg(gains):
    """Return the discounted cumulative gain of the first ten passages."""
    gains = gains[:10]
    return float(np.sum(gains / np.log2(np.arange(len(gains)) + 2)))


def _compute_ideal_dcg(gains):
    return _compute_dcg(np.sort(np.array([*gains.values()], np.float64))[::-1])


# Entities are found and scored as in the Perl script conlleval. An entity never
# continues in the next sentence. Scores are fractions of 1, not percent.
# conlleval knows neither S- nor L- nor U-. If one of them occurs, labels are
# read as BIOES or BILOU, as in seqeval.

BEYOND_PERL = ("S", "L", "U")


class Entity(NamedTuple):
    """An entity: words `start` to `end` (exclusive) of a sentence."""

    type: str
    start: int
    end: int


def entities(labels, is_perl: bool = False) -> list[Entity]:
    """Return the entities of a sentence with labels of any scheme.

    I- after O or after another type begins an entity, as in conlleval.

    Args:
        labels: labels of the words.
        is_perl: True if B- after E- of the same type continues the entity, as
            in conlleval. False if this B- begins another entity.
    """
    spans: list[Entity] = []
    last_prefix, last_kind = OUTSIDE, ""
    for word, label in enumerate(labels):
        prefix, kind = split_label(label)
        begins = (
            last_prefix == OUTSIDE
            or kind != last_kind
            or prefix in BEGIN
            or last_prefix in END
        )
        if is_perl and (last_prefix, prefix) == ("E", "B"):
            begins = kind != last_kind
        if prefix != OUTSIDE and begins:
            spans.append(Entity(kind, word, word + 1))
        elif prefix != OUTSIDE:
            spans[-1] = spans[-1]._replace(end=word + 1)
        last_prefix, last_kind = prefix, kind
    return spans


def entity_scores(truth, predicted) -> dict:
    """Return the scores that conlleval prints, and the F1 of tokens.

    Args:
        truth: the labels of each sentence, a list of lists.
        predicted: the predicted labels, in the same form.

    Returns:
        dict of "f1", "precision" and "recall" over all entities; "accuracy" of
        all labels, including O; "token_f1", "token_precision" and
        "token_recall" of single words whose label is not O; "entities", the
        number of true entities; and "classes", a dict of type -> precision,
        recall, f1 and support. Some papers report "token_f1" as F1.
    """
    hits, found, true = Counter(), Counter(), Counter()
    tokens = Counter()  # (true label, predicted label) -> count
    for labels, others in zip(truth, predicted, strict=True):
        tokens.update(zip(labels, others, strict=True))
    seen = {label for pair in tokens for label in pair}
    is_perl = not any(split_label(label)[0] in BEYOND_PERL for label in seen)
    for labels, others in zip(truth, predicted, strict=True):
        true_spans = entities(labels, is_perl)
        found_spans = entities(others, is_perl)
        true.update(entity.type for entity in true_spans)
        found.update(entity.type for entity in found_spans)
        both = {*true_spans} & {*found_spans}
        hits.update(entity.type for entity in both)
    same = sum(n for (label, other), n in tokens.items() if label == other)
    token_rates = _compute_rates(
        same - tokens[OUTSIDE, OUTSIDE],
        sum(n for (_, other), n in tokens.items() if other != OUTSIDE),
        sum(n for (label, _), n in tokens.items() if label != OUTSIDE),
    )
    return {
        **_compute_rates(hits.total(), found.total(), true.total()),
        "accuracy": same / max(tokens.total(), 1),
        **{f"token_{name}": rate for name, rate in token_rates.items()},
        "entities": true.total(),
        "classes": {
            kind: {
                **_compute_rates(hits[kind], found[kind], true[kind]),
                "support": true[kind],
            }
            for kind in sorted(true.keys() | found.keys())
        },
    }


def _compute_rates(hits, found, true):
    return {
        "f1": 2 * hits / max(found + true, 1),
        "precision": hits / max(found, 1),
        "recall": hits / max(true, 1),
    }


# The next functions score answers as SQuAD's evaluate-v1.1.py and
# evaluate-v2.0.py do. Scores are fractions of 1; the scripts print percent.

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only


def normalize_answer(answer: str) -> str:
    """Return the answer in lower case, without articles and punctuation."""
    text = answer.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, answer: str, empty_matches: bool) -> float:
    """Return the F1 of the words of a prediction and an answer.

    If the prediction or the answer has no words, the F1 is 0. Exception: in
    SQuAD 2.0 (`empty_matches`), the F1 is 1 if both have no words.
    """
    predicted, true = (
        normalize_answer(prediction).split(),
        normalize_answer(answer).split(),
    )
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
    """Return the best exact match and the best F1 over the true answers.

    In SQuAD 2.0 (`empty_matches`), true answers without words are dropped. If
    none is left, the true answer is "".
    """
    if empty_matches:
        answers = [text for text in answers if normalize_answer(text)] or [""]
    words = normalize_answer(prediction)
    return (
        float(any(normalize_answer(text) == words for text in answers)),
        max(token_f1(prediction, text, empty_matches) for text in answers),
    )


def scores_v1(answers: dict, predictions: dict) -> dict:
    """Return SQuAD 1.1's mean scores; a question without prediction scores 0.

    Args:
        answers: question's id -> its true answers.
        predictions: id -> the predicted answer.

    Returns:
        dict. "exact_match" and "f1" are means, 0 to 1. "total" is the number of
        questions, "missing" the number of questions without a prediction.
    """
    pairs = _answer_scores_by_id(answers, predictions, empty_matches=False)
    means = _compute_means(pairs.values(), total=len(answers))
    return {**means, "missing": len(answers) - len(pairs)}


def scores_v2(
    answers: dict, predictions: dict, odds=None, threshold: float = 0.0
) -> dict:
    """Return SQuAD 2.0 scores: overall, answerable only, unanswerable only.

    As in the official script, a question without a prediction does not count.
    Exception: in the best scores, an unanswerable one adds to the sum, but not
    to the number of questions that divides it. So a best score may exceed 1.

    Args:
        answers: question's id -> its true answers, empty if unanswerable.
        predictions: id -> the predicted answer, "" for "no answer".
        odds: id -> score of "no answer" minus score of the prediction; None if
            unknown.
        threshold: if the odds are higher, the prediction counts as "".

    Returns:
        dict of "exact_match", "f1" and "total" for all questions. These keys
        with the prefix "answerable_" or "unanswerable_" are for such questions,
        if any. "missing" is the number of questions without a prediction. With
        `odds`, "best_exact_match" and "best_f1" are the best scores over all
        thresholds, at "best_exact_match_threshold" and "best_f1_threshold".
    """
    answered = _answer_scores_by_id(answers, predictions, empty_matches=True)
    pairs = dict(answered)
    for key in pairs:
        if odds is not None and odds[key] > threshold:
            pairs[key] = 2 * (float(not answers[key]),)
    scores = {
        **_compute_means(pairs.values()),
        "missing": len(answers) - len(pairs),
    }
    for name, has_answer in (("answerable", True), ("unanswerable", False)):
        part = [
            pair
            for key, pair in pairs.items()
            if bool(answers[key]) == has_answer
        ]
        if part:
            scores |= {
                f"{name}_{k}": v for k, v in _compute_means(part).items()
            }
    for column, name in enumerate(("exact_match", "f1")):
        if odds is not None:
            by_id = {key: pair[column] for key, pair in answered.items()}
            best, at = best_threshold(answers, predictions, by_id, odds)
            scores |= {f"best_{name}": best, f"best_{name}_threshold": at}
    return scores


def best_threshold(answers, predictions, scores, odds) -> tuple[float, float]:
    """Return the best mean score over all thresholds, and its threshold.

    A question keeps its prediction if its odds of "no answer" are at most the
    threshold. The loop starts with "no answer" for all questions. Each step
    adds the prediction with the next higher odds. If no step gives a higher
    score than the start, the threshold is 0, as in the official script.

    Args:
        answers: see `scores_v2`.
        predictions: see `scores_v2`.
        scores: id -> score of the prediction, exact match or F1.
        odds: see `scores_v2`.
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


def _answer_scores_by_id(answers, predictions, empty_matches) -> dict:
    return {
        key: answer_scores(predictions[key], true, empty_matches)
        for key, true in answers.items()
        if key in predictions
    }


def _compute_means(pairs, total=None) -> dict:
    pairs = list(pairs)
    total = len(pairs) if total is None else total
    return {
        "exact_match": sum(pair[0] for pair in pairs) / max(total, 1),
        "f1": sum(pair[1] for pair in pairs) / max(total, 1),
        "total": total,
    }
