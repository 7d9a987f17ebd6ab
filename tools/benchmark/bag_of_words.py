"""Scores a bag of words on a task of one text or a pair: the first baseline.

For tools/benchmark/results_table.py --words. Words and pairs of words, weighted
by TF-IDF, go into a logistic regression (scikit-learn, both with their defaults
but for the pairs of words); of two texts each has weights of its own, and so
has what both share. Where the label is a number, the cosine of the two texts'
words stands for it. Nothing is drawn at random.
"""

import numpy as np

from bert_keras.errors import InputError


def score(task) -> dict:
    """The metrics on dev of a bag of words that read train.

    Args:
        task: a `Task` whose examples have "text", "text_pair" and "label":
            an index, or of pairs a number.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, dev = task.read("train"), task.read("dev")  # then it has its labels
    of_numbers = task.labels is None
    if not hasattr(train[0], "text_pair") or (
        of_numbers and train[0].text_pair is None
    ):
        raise InputError(
            f"The task {task.name} has neither one class for each text nor a "
            "number for each pair. Name a task of classes or of similarity."
        )
    words = TfidfVectorizer(ngram_range=(1, 2))
    words.fit([text for row in train for text in _texts(row)])
    if of_numbers:  # rows of unit length
        first, second = map(
            words.transform, zip(*map(_texts, dev), strict=True)
        )
        return task.score(dev, np.asarray(first.multiply(second).sum(1)))
    model = LogisticRegression(max_iter=1000)
    model.fit(_vectors(words, train), [row.label for row in train])
    logits = model.predict_log_proba(_vectors(words, dev))
    return task.score(dev, logits)


def _texts(row):
    return [row.text] if row.text_pair is None else [row.text, row.text_pair]


def _vectors(words, rows):
    """Sparse (rows, features): each text's, and of pairs what both share."""
    from scipy.sparse import hstack

    parts = [
        words.transform(texts) for texts in zip(*map(_texts, rows), strict=True)
    ]
    if len(parts) == 2:
        parts.append(parts[0].multiply(parts[1]).sqrt())
    return hstack(parts).tocsr()
