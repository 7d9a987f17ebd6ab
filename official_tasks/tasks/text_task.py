"""Classes, several labels, or a number of a text or of a pair of texts."""

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import Encoded, Task
from official_tasks.tasks.encoding import encode_texts

THRESHOLD = 0.5  # of the probability, from which on a text has a label


class TextTask(Task):
    """One row a text, `BertClassifier` on it; a subclass reads and writes.

    Examples are like `Example`: a text, a second one or None, and a label:
    an index for "single", a set of indices for "multi", a number for
    "regression", None where unknown.

    Attributes:
        problem: "single", "multi" or "regression", as `BertClassifier` says.
        pair: whether each example has a second text; kept with the model.
    """

    problem = "single"
    pair = False
    metric = "accuracy"

    def encode(self, examples, preprocess):
        segments = [[example.text for example in examples]]
        if examples and examples[0].text_pair is not None:
            segments.append([example.text_pair for example in examples])
        inputs, cut = encode_texts(preprocess, *segments)
        return Encoded(inputs, self._targets(examples), cut=cut)

    def _targets(self, examples):
        labels = [example.label for example in examples]
        if any(label is None for label in labels):
            return None
        if self.problem == "single":
            return np.array(labels, np.int32)
        if self.problem == "regression":
            return np.array(labels, np.float32)[:, None]
        return self._indicators(labels).astype(np.float32)

    def _indicators(self, labels):
        """bool `(R, C)`: which labels each text has."""
        rows = np.zeros((len(labels), len(self.labels)), bool)
        for row, indices in zip(rows, labels, strict=True):
            row[list(indices)] = True
        return rows

    def build(self, encoder):
        from bert_keras import BertClassifier

        return BertClassifier(
            encoder, labels=self.labels, problem=self.problem, pair=self.pair
        )

    def loss(self):
        import keras

        if self.problem == "regression":
            return keras.losses.MeanSquaredError()
        if self.problem == "multi":
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def check_labels(self, examples):
        """Refuses examples that cannot be scored, as of most test files."""
        if any(example.label is None for example in examples):
            raise InputError(
                f"The file of {self.name} has no labels: expected one for "
                "each row; without, it can only be predicted" + self.to_score
            )

    def score(self, examples, predictions):
        self.check_labels(examples)
        truth = [example.label for example in examples]
        if self.problem == "regression":
            return score_numbers(truth, predictions[:, 0])
        if self.problem == "multi":
            return score_labels(
                self._indicators(truth), predictions > 0, self.labels
            )
        return score_classes(truth, predictions.argmax(axis=-1), self.labels)

    def mistakes(self, examples, predictions):
        if self.problem == "regression":
            return _far_off(examples, predictions[:, 0])
        if self.problem == "multi":
            return _wrong_labels(
                examples,
                self._indicators([example.label for example in examples]),
                predictions,
                self.labels,
            )
        return _wrong_classes(examples, predictions, self.labels)


def score_classes(truth, predicted, labels) -> dict:
    """Accuracy, macro F1, a table per class, and the confusion matrix."""
    confusion = metrics.confusion_matrix(truth, predicted, len(labels))
    return {
        "accuracy": metrics.accuracy(confusion),
        "macro_f1": metrics.macro_f1(confusion),
        "majority_baseline": metrics.majority_baseline(truth),
        "classes": _table(metrics.per_class(confusion), labels),
        "confusion": confusion.tolist(),
    }


def score_labels(truth, predicted, labels) -> dict:
    """Of texts with any number of labels, bool `(R, C)` both.

    "accuracy" counts the texts whose labels are all right and no others;
    micro F1 takes all decisions together; macro F1 is the mean over the labels
    that occur on either side (scikit-learn counts the others as 0).
    """
    each = metrics.per_label(truth, predicted)
    hits = (truth & predicted).sum()
    occurs = (truth | predicted).any(axis=0)
    return {
        "accuracy": float((truth == predicted).all(axis=1).mean()),
        "micro_f1": float(2 * hits / max(truth.sum() + predicted.sum(), 1)),
        "macro_f1": float(each["f1"][occurs].mean()) if occurs.any() else 0.0,
        "majority_baseline": metrics.micro_f1_baseline(truth),
        "classes": _table(each, labels),
    }


def score_numbers(truth, predicted) -> dict:
    """Both correlations and the mean squared error of numbers."""
    truth = np.asarray(truth, np.float64)
    return {
        "pearson": metrics.pearson(truth, predicted),
        "spearman": metrics.spearman(truth, predicted),
        "mean_squared_error": float(np.mean((truth - predicted) ** 2)),
        "majority_baseline": 0.0,
    }


def _table(columns, labels):
    return {
        label: {key: float(column[row]) for key, column in columns.items()}
        for row, label in enumerate(labels)
    }


def _wrong_classes(examples, logits, labels):
    shares = metrics.probabilities(logits)
    chosen = shares.argmax(axis=-1)
    wrong = [
        (shares[row, chosen[row]], row)
        for row, example in enumerate(examples)
        if chosen[row] != example.label
    ]
    return [
        _shown(examples[row])
        | {
            "truth": labels[examples[row].label],
            "predicted": labels[chosen[row]],
            "probability": float(share),
        }
        for share, row in sorted(wrong, key=lambda pair: (-pair[0], pair[1]))
    ]


def _wrong_labels(examples, truth, logits, labels):
    shares = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    surprise = np.where(truth, 1 - shares, shares)  # of each decision
    wrong = np.flatnonzero((surprise > THRESHOLD).any(axis=1))
    by_surprise = wrong[np.argsort(-surprise[wrong].max(axis=1), kind="stable")]
    return [
        _shown(examples[row])
        | {
            "truth": _names(truth[row], labels),
            "predicted": _names(shares[row] > THRESHOLD, labels),
            "probability": float(surprise[row].max()),
        }
        for row in by_surprise
    ]


def _names(chosen, labels):
    return ", ".join(labels[i] for i in np.flatnonzero(chosen)) or "(none)"


def _far_off(examples, predicted):
    truth = np.array([example.label for example in examples])
    farthest = np.argsort(-np.abs(truth - predicted), kind="stable")
    return [
        _shown(examples[row])
        | {
            "truth": f"{truth[row]:.3g}",
            "predicted": f"{predicted[row]:.3g}",
            "off by": float(abs(truth[row] - predicted[row])),
        }
        for row in farthest
    ]


def _shown(example):
    pair = {} if example.text_pair is None else {"second": example.text_pair}
    return {"text": example.text, **pair}
