"""Text classification, multi-label classification and regression."""

from pathlib import Path

import numpy as np

from official_tasks.tasks import metrics
from official_tasks.tasks.base import Encoded, Metric, list_metrics
from official_tasks.tasks.encoding import (
    average_windows,
    encode_texts,
    encode_windows,
)
from official_tasks.tasks.forms.delimited import add_ids, write_csv
from official_tasks.tasks.source import Problem

# Value of `problem` -> `metrics` of the task.
METRICS = {
    "single": list_metrics("accuracy", "macro_f1", "matthews", "coverage"),
    "multi": list_metrics("micro_f1", "macro_f1", "accuracy"),
    "regression": (
        *list_metrics("pearson", "spearman"),
        Metric("mean_squared_error", higher_is_better=False),
    ),
}
EPSILON = 1e-15  # clips mean probabilities, so that their logits are finite
# With more classes than this, the results have the 100 most frequent errors
# instead of a confusion matrix, which takes 19 MB of JSON for 1,500 classes.
MAX_CLASSES = 100


class TextTask(Problem):
    """Task that predicts a class, a set of labels or a number for each text.

    A `BertClassifier` learns from `Example`s. The label of an example is an
    index for "single", a set of indices for "multi", a number for "regression".

    Args:
        source: `Source`.
        problem: "single", "multi" or "regression"; see `BertClassifier`.
        pair: whether each example has a second text; saved with the model.
        label_separator: text between several labels in predictions.csv.
        standardises: see `Task`.
        long_text: "truncate" cuts each text to one row. "windows" splits a long
            text into overlapping rows and averages their probabilities or
            predicted values. None: training uses "truncate", and prediction
            uses the setting saved with the model.
        recipe, pooling: see `Problem`.
    """

    def __init__(
        self,
        source,
        problem="single",
        pair=False,
        label_separator=",",
        standardises=False,
        long_text=None,
        recipe=None,
        pooling=None,
    ):
        from bert_keras.modeling.heads import check_long_text

        super().__init__(source, recipe, pooling)
        if long_text is not None:
            check_long_text(long_text, pair)
            self.overrides = ("long_text",)
        self.long_text = long_text
        self.problem, self.pair = problem, pair
        self.label_separator = label_separator
        self.standardises = standardises
        self.metrics = METRICS[problem]
        self.thresholds = None  # a list of floats, see `BertClassifier`

    def take_arguments(self, arguments):
        super().take_arguments(arguments)
        self.thresholds = arguments.get("thresholds")
        self.long_text = self.long_text or arguments.get("long_text")

    def encode(self, examples, preprocess):
        if self.long_text == "windows":
            texts = [example.text for example in examples]
            inputs, text = encode_windows(preprocess, texts)
            targets = self._targets(examples)
            if targets is not None:
                targets = targets[text]
            # The weights of a text's windows add up to 1.
            weights = (1 / np.bincount(text)[text]).astype(np.float32)
            return Encoded(inputs, targets, weights, notes={"text": text})
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
        return self._to_indicators(labels).astype(np.float32)

    def _to_indicators(self, labels):
        """Return bool `(R, C)`: True for the labels of each text."""
        rows = np.zeros((len(labels), len(self.labels)), bool)
        for row, indices in zip(rows, labels, strict=True):
            row[list(indices)] = True
        return rows

    def build(self, encoder):
        from bert_keras import BertClassifier

        return BertClassifier(
            encoder,
            labels=self.labels,
            problem=self.problem,
            pair=self.pair,
            recipe=self.recipe,
            pooling=self.pooling,
            long_text=self.long_text or "truncate",
        )

    def loss(self):
        import keras

        if self.problem == "regression":
            return keras.losses.MeanSquaredError()
        if self.problem == "multi":
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return super().loss()

    def decode(self, examples, encoded, outputs):
        """Return logits `(R, C)` of R texts; for regression, values `(R, 1)`.

        For a text with several windows, probabilities are averaged, not logits.
        """
        if self.long_text != "windows":
            return outputs
        answers = outputs
        if self.problem == "single":
            answers = metrics.probabilities(outputs)
        elif self.problem == "multi":
            answers = metrics.sigmoid(outputs)
        mean = average_windows(encoded, answers, len(examples))
        if self.problem == "regression":
            return mean
        mean = np.clip(mean, EPSILON, 1 - EPSILON)
        # Return logits whose softmax ("single") or sigmoid ("multi") is `mean`.
        logs = np.log(mean)
        return logs - np.log1p(-mean) if self.problem == "multi" else logs

    def score(self, examples, predictions):
        self.check_labels(examples)
        truth = [example.label for example in examples]
        if self.problem == "regression":
            return score_numbers(truth, predictions[:, 0])
        if self.problem == "multi":
            predicted = self._decide(predictions)
            return score_labels(
                self._to_indicators(truth), predicted, self.labels
            )
        predicted = predictions.argmax(axis=-1)
        count = len(self.labels)
        counts = metrics.count_classes(truth, predicted, count)
        return {
            **score_classes(truth, predicted, self.labels),
            "matthews": metrics.matthews(counts),
            **self._score_sure(truth, predictions),
        }

    def _score_sure(self, truth, logits):
        """Return the fraction of sure answers, and of right ones among them."""
        if self.thresholds is None:
            return {}
        sure, right = self._is_sure(logits), logits.argmax(axis=-1) == truth
        return {
            "coverage": float(sure.mean()),
            "precision": float(right[sure].mean()) if sure.any() else 0.0,
        }

    def _is_sure(self, logits):
        """Return bool `(R,)`: True if the answer reaches its threshold."""
        confidence = metrics.probabilities(logits).max(axis=-1)
        return confidence >= np.take(self.thresholds, logits.argmax(axis=-1))

    def _decide(self, logits):
        """Return bool `(R, C)`: True for the predicted labels of each text."""
        if self.thresholds is None:
            return logits >= 0  # probability of at least 0.5, as in an export
        return metrics.sigmoid(logits) >= self.thresholds

    def can_tune(self):
        return self.problem == "multi"

    def tune(self, examples, predictions, min_precision=None):
        """Return a dict of the "thresholds", one per label.

        For "multi", they have the best F1. For "single", they are equal, and
        the sure answers have at least `min_precision`. Otherwise, the dict is
        empty.
        """
        if self.problem == "single" and min_precision is not None:
            right = predictions.argmax(axis=-1) == [e.label for e in examples]
            confidence = metrics.probabilities(predictions).max(axis=-1)
            lowest = metrics.lowest_threshold(right, confidence, min_precision)
            return {"thresholds": [lowest] * len(self.labels)}
        if self.problem != "multi":
            return {}
        truth = self._to_indicators([example.label for example in examples])
        probabilities = metrics.sigmoid(predictions)
        return {"thresholds": metrics.best_thresholds(truth, probabilities)}

    def mistakes(self, examples, predictions):
        truth = [example.label for example in examples]
        heading = "probability"
        if self.problem == "regression":
            predicted, heading = predictions[:, 0], "off by"
            error = np.abs(np.array(truth) - predicted)
            wrong = np.ones(len(error), bool)
        elif self.problem == "multi":
            truth = self._to_indicators(truth)
            predicted = self._decide(predictions)
            probabilities = metrics.sigmoid(predictions)
            # (R,): the largest error among the probabilities of each text.
            error = np.where(truth, 1 - probabilities, probabilities)
            error = error.max(axis=1)
            wrong = (truth != predicted).any(axis=1)
        else:
            probabilities = metrics.probabilities(predictions)
            predicted = probabilities.argmax(axis=-1)
            error = probabilities.max(axis=-1)
            wrong = predicted != truth
        order = np.argsort(-error, kind="stable")
        return [
            {
                **dict(
                    zip(("text", "second"), examples[row].texts, strict=False)
                ),
                "truth": self._show(truth[row]),
                "predicted": self._show(predicted[row]),
                heading: float(error[row]),
            }
            for row in order[wrong[order]]
        ]

    def _show(self, label) -> str:
        if self.problem == "regression":
            return f"{label:.3g}"
        if self.problem == "multi":
            names = [self.labels[index] for index in np.flatnonzero(label)]
            return ", ".join(names) or "(none)"
        return self.labels[label]

    def write(self, examples, predictions, folder, more=None):
        """Write predictions.csv; `more` maps further headings to columns."""
        more = more or {}
        texts = ["text", "text_pair"][: 1 + self.pair]
        headings, columns = self._prediction_columns(predictions)
        rows = [[*texts, "label", "predicted", *headings, *more]]
        for example, row, *cells in zip(
            examples, columns, *more.values(), strict=True
        ):
            label = self._spell(example.label)
            rows.append([*example.texts, label, *row, *cells])
        path = Path(folder) / "predictions.csv"
        write_csv(path, add_ids(rows, examples))

    def _prediction_columns(self, predictions):
        """Return (score headings, rows); a row has a prediction and scores."""
        if self.problem == "regression":
            return [], [[f"{row[0]:.6g}"] for row in predictions]
        if self.problem == "single":
            rows = [
                [self.labels[row.argmax()], f"{row.max():.4f}"]
                for row in metrics.probabilities(predictions)
            ]
            if self.thresholds is None:
                return ["score"], rows
            sure = self._is_sure(predictions)
            flags = ["" if is_sure else "unsure" for is_sure in sure]
            return ["score", "unsure"], [
                [*row, flag] for row, flag in zip(rows, flags, strict=True)
            ]
        rows = zip(
            self._decide(predictions),
            metrics.sigmoid(predictions),
            strict=True,
        )
        return self.labels, [
            [
                self._spell(np.flatnonzero(decisions)),
                *(f"{probability:.4f}" for probability in probabilities),
            ]
            for decisions, probabilities in rows
        ]

    def _spell(self, label) -> str:
        if label is None:
            return ""
        if self.problem == "single":
            return self.labels[label]
        if self.problem == "multi":
            names = (self.labels[index] for index in sorted(label))
            return self.label_separator.join(names)
        return f"{label:.6g}"


def score_classes(truth, predicted, labels) -> dict:
    """Return a dict of the metrics of a classifier with one class per text.

    The keys are "accuracy", "macro_f1", "majority_baseline", "classes" (label
    -> precision, recall, F1 and support), and "confusion", the matrix of
    `metrics.confusion_matrix`. With more than `MAX_CLASSES` classes,
    "confusions", a list of the most frequent errors, replaces the matrix.
    """
    counts = metrics.count_classes(truth, predicted, len(labels))
    return {
        "accuracy": metrics.accuracy(counts),
        "macro_f1": metrics.macro_f1(counts),
        "majority_baseline": metrics.majority_baseline(truth),
        "classes": _table(metrics.per_class(counts), labels),
        **_count_confusions(np.asarray(truth), np.asarray(predicted), labels),
    }


def _count_confusions(truth, predicted, labels) -> dict:
    if len(labels) <= MAX_CLASSES:
        matrix = metrics.confusion_matrix(truth, predicted, len(labels))
        return {"confusion": matrix.tolist()}
    errors = np.stack([truth, predicted], axis=1)[truth != predicted]
    # The matrix of 100,000 classes would not fit in memory.
    pairs, counts = np.unique(errors, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MAX_CLASSES]
    return {
        "confusions": [
            {
                "label": labels[pairs[i, 0]],
                "predicted": labels[pairs[i, 1]],
                "rows": int(counts[i]),
            }
            for i in order
        ]
    }


def score_labels(truth, predicted, labels) -> dict:
    """Return the metrics of a multi-label classifier.

    "accuracy" is the fraction of texts for which exactly the true labels are
    predicted. "micro_f1" pools the decisions on all labels. "macro_f1" is the
    mean F1 of the labels that occur in `truth` or `predicted`. scikit-learn
    also counts labels that do not occur, with an F1 of 0. "majority_baseline"
    is the micro F1 of the best constant prediction. "classes" has the scores of
    each label.

    Args:
        truth: bool `(R, C)`, True for the labels of each text.
        predicted: bool `(R, C)`, True for the predicted labels.
        labels: names of the C labels.
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
    """Return a dict of "pearson", "spearman" and "mean_squared_error".

    The "majority_baseline" is 0, the correlation of a constant prediction.
    """
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
