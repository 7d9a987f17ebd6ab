"""Classes, several labels, or a number of a text or of a pair of texts."""

import numpy as np

from official_tasks.tasks import metrics
from official_tasks.tasks.base import Encoded, Task, check_labelled
from official_tasks.tasks.encoding import encode_texts


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
        return super().loss()

    def score(self, examples, predictions):
        truth = [example.label for example in examples]
        check_labelled(self, truth)
        if self.problem == "regression":
            return score_numbers(truth, predictions[:, 0])
        if self.problem == "multi":
            return score_labels(
                self._indicators(truth), predictions > 0, self.labels
            )
        return score_classes(truth, predictions.argmax(axis=-1), self.labels)

    def mistakes(self, examples, predictions):
        truth = [example.label for example in examples]
        if self.problem == "regression":
            predicted, heading = predictions[:, 0], "off by"
            error = np.abs(np.array(truth) - predicted)
            wrong = np.ones(len(error), bool)
        elif self.problem == "multi":
            heading = "probability"
            truth, predicted = self._indicators(truth), predictions > 0
            shares = metrics.sigmoid(predictions)
            # How sure the model is of the worst of its decisions on a text.
            error = np.where(truth, 1 - shares, shares).max(axis=1)
            wrong = (truth != predicted).any(axis=1)
        else:
            heading = "probability"
            shares = metrics.probabilities(predictions)
            predicted, error = shares.argmax(axis=-1), shares.max(axis=-1)
            wrong = predicted != truth
        order = np.argsort(-error, kind="stable")
        return [
            {
                "text": examples[row].text,
                **(
                    {}
                    if examples[row].text_pair is None
                    else {"second": examples[row].text_pair}
                ),
                "truth": self._format_label(truth[row]),
                "predicted": self._format_label(predicted[row]),
                heading: float(error[row]),
            }
            for row in order[wrong[order]]
        ]

    def _format_label(self, label):
        if self.problem == "regression":
            return f"{label:.3g}"
        if self.problem == "multi":
            names = [self.labels[index] for index in np.flatnonzero(label)]
            return ", ".join(names) or "(none)"
        return self.labels[label]


# Classes up to which the confusion matrix is written; of more, so many of the
# most frequent errors. A matrix of 1,500 classes takes 19 MB of JSON.
MOST_CLASSES = 100


def score_classes(truth, predicted, labels) -> dict:
    """Accuracy, macro F1, a table per class, and the confusion matrix."""
    confusion = metrics.confusion_matrix(truth, predicted, len(labels))
    return {
        "accuracy": metrics.accuracy(confusion),
        "macro_f1": metrics.macro_f1(confusion),
        "majority_baseline": metrics.majority_baseline(truth),
        "classes": _table(metrics.per_class(confusion), labels),
        **_confusions(confusion, labels),
    }


def _confusions(confusion, labels) -> dict:
    """Return the matrix of few classes, the most frequent errors of many."""
    if len(labels) <= MOST_CLASSES:
        return {"confusion": confusion.tolist()}
    errors = confusion * (1 - np.eye(len(labels), dtype=confusion.dtype))
    order = np.argsort(-errors, axis=None, kind="stable")[:MOST_CLASSES]
    places = zip(*np.unravel_index(order, errors.shape), strict=True)
    return {
        "confusions": [
            {
                "label": labels[truth],
                "predicted": labels[guess],
                "rows": int(errors[truth, guess]),
            }
            for truth, guess in places
            if errors[truth, guess]
        ]
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
