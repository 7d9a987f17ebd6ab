"""The nine tasks of GLUE and the diagnostic set, each as a `GlueRow`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import SPLITS, list_metrics
from official_tasks.tasks.classify import TextTask, score_classes
from official_tasks.tasks.glue_files import (
    read_glue,
    read_label,
    read_lines,
    wrong_width,
)
from official_tasks.tasks.source import Official

ACCURACY = {"accuracy": metrics.accuracy}
BINARY = ["0", "1"]
ENTAILED = ["entailment", "not_entailment"]
NLI = ["entailment", "neutral", "contradiction"]


class GlueRow(NamedTuple):
    """Description of a task of GLUE; see also `Official`.

    Attributes:
        name: name of the task, and of its configuration in data sets.
        folder: folder of the task's files in the official distribution.
        labels: names of the classes, in the order of the logits and of data
            sets; None for regression.
        spelled: names of the classes in the official files and submissions, in
            the order of `labels`.
        text, text_pair: columns of the texts in the official files;
            `text_pair` is None if the task has one text.
        label: the column of the label.
        metrics: name of each official metric -> function of `ClassCounts`, or
            of (truth, prediction) for regression.
        paper: name of the metric that compares runs. It is the metric of the
            paper's table 1, if the table has the task.
        header: the columns of train and dev files without a header line.
        parts: split -> names of its official files, without .tsv. A split
            without an entry has one file, which has the split's name.
        data_set_texts: fields of the texts in data sets; None: as in the files.
        submission_parts: file names of a submission; () for `folder`.tsv.
        raw: split -> name of the original file, from which GLUE made its file.
        index: the column that numbers the rows of the test file.
        may_be_ragged: True to leave out rows with the wrong number of columns,
            because the official files have such rows. False to raise an error.
    """

    name: str
    folder: str
    labels: list[str] | None
    spelled: list[str] | None
    text: str = "sentence1"
    text_pair: str | None = "sentence2"
    label: str = "label"
    metrics: dict[str, Any] = ACCURACY
    paper: str = "accuracy"
    header: tuple[str, ...] | None = None
    parts: dict[str, tuple[str, ...]] = {}
    data_set_texts: tuple[str, str] | None = None
    submission_parts: tuple[str, ...] = ()
    raw: dict[str, str] = {}
    index: str = "index"
    may_be_ragged: bool = False
    read: Callable = read_glue

    @property
    def tfds(self) -> str:
        """The task's data set in TensorFlow Datasets."""
        return f"tfds:glue/{self.name}"

    @property
    def submission(self) -> tuple[str, ...]:
        """The file names of a submission, one for each part of test."""
        return self.submission_parts or (f"{self.folder}.tsv",)

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """Dict of split or part -> possible paths in the data folder."""
        files = {}
        for split in SPLITS:
            for part in self.parts.get(split, (split,)):
                names = [f"{part}.tsv", self.raw.get(split)]
                names = list(filter(None, names))
                names += [f"{self.folder}/{name}" for name in names]
                files[part] = tuple(names)
        return files


COLA = GlueRow(
    "cola",
    "CoLA",
    ["unacceptable", "acceptable"],
    BINARY,
    text="sentence",
    text_pair=None,
    metrics={"matthews": metrics.matthews, **ACCURACY},
    paper="matthews",
    header=("source", "label", "mark", "sentence"),
)
SST_2 = GlueRow(
    "sst2",
    "SST-2",
    ["negative", "positive"],
    BINARY,
    text="sentence",
    text_pair=None,
)
MRPC = GlueRow(
    "mrpc",
    "MRPC",
    ["not_equivalent", "equivalent"],
    BINARY,
    text="#1 String",
    text_pair="#2 String",
    label="Quality",
    metrics={**ACCURACY, "f1": metrics.f1},
    paper="f1",
    data_set_texts=("sentence1", "sentence2"),
    raw={
        "train": "msr_paraphrase_train.txt",
        "dev": "msr_paraphrase_train.txt",
        "test": "msr_paraphrase_test.txt",
    },
)
STS_B = GlueRow(
    "stsb",
    "STS-B",
    None,
    None,
    label="score",
    metrics={"pearson": metrics.pearson, "spearman": metrics.spearman},
    paper="spearman",
)
QQP = GlueRow(
    "qqp",
    "QQP",
    ["not_duplicate", "duplicate"],
    BINARY,
    text="question1",
    text_pair="question2",
    label="is_duplicate",
    metrics={**ACCURACY, "f1": metrics.f1},
    paper="f1",
    index="id",
    may_be_ragged=True,
)
MNLI = GlueRow(
    "mnli",
    "MNLI",
    NLI,
    NLI,
    label="gold_label",
    parts={
        "dev": ("dev_matched", "dev_mismatched"),
        "test": ("test_matched", "test_mismatched"),
    },
    data_set_texts=("premise", "hypothesis"),
    submission_parts=("MNLI-m.tsv", "MNLI-mm.tsv"),
)
QNLI = GlueRow(
    "qnli",
    "QNLI",
    ENTAILED,
    ENTAILED,
    text="question",
    text_pair="sentence",
)
RTE = GlueRow("rte", "RTE", ENTAILED, ENTAILED)
WNLI = GlueRow("wnli", "WNLI", ["not_entailment", "entailment"], BINARY)
# The diagnostic set has no training split. A model trained on MNLI predicts it.
AX = GlueRow(
    "ax",
    "diagnostic",
    NLI,
    NLI,
    label="gold_label",
    metrics={"matthews": metrics.matthews, **ACCURACY},
    paper="matthews",
    parts={"test": ("diagnostic",)},
    data_set_texts=("premise", "hypothesis"),
    submission_parts=("AX.tsv",),
)
# A submission has all these tasks. The paper's average omits WNLI and AX.
BENCHMARK = (COLA, SST_2, MRPC, STS_B, QQP, MNLI, QNLI, RTE, WNLI, AX)
ROWS = (*BENCHMARK,)  # add further tasks in GLUE's form here
_OTHER_PART = "mismatched_"  # prefix of the metrics of MNLI's second part
HEADER = ("index", "prediction")  # columns of a submission's files


def glue_task(row, data_dir=None, train=None, dev=None, test=None, **options):
    """Return the `GlueTask` of a `GlueRow`; see `Official` and `Problem`.

    `data_dir` may also be the folder that contains the folders of all tasks.
    """
    return GlueTask(Official(row, data_dir, train, dev, test), **options)


class GlueTask(TextTask):
    """A task of GLUE, with official metrics and submission files.

    Args:
        source: `Official` of a `GlueRow`.
        recipe, pooling: see `Problem`.
    """

    def __init__(self, source, recipe=None, pooling=None):
        row = source.row
        problem = "regression" if row.labels is None else "single"
        pair = row.text_pair is not None
        super().__init__(source, problem, pair, recipe=recipe, pooling=pooling)
        self.row, self.labels = row, row.labels
        names = [row.paper, *row.metrics]
        if row.labels:
            names += ["accuracy", "macro_f1"]
        if len(row.parts.get("dev", ())) > 1:
            names += [f"{_OTHER_PART}{name}" for name in names]
        self.metrics = list_metrics(*names)

    def score(self, examples, predictions):
        """Return the official metrics and the baseline.

        For classes, the dict also has the metrics of `score_classes`. If there
        are rows of both parts of MNLI, metrics of the mismatched part have the
        prefix "mismatched_".
        """
        self.check_labels(examples)
        scores: dict = {}
        for part in sorted({example.part for example in examples}):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            truth = [examples[row].label for row in rows]
            prefix = _OTHER_PART if scores else ""
            values = self._score_part(truth, predictions[rows])
            scores |= {prefix + name: v for name, v in values.items()}
        return scores

    def _score_part(self, truth, predictions):
        if self.labels is None:
            return {
                name: metric(truth, predictions[:, 0])
                for name, metric in self.row.metrics.items()
            } | {"majority_baseline": 0.0}
        predicted, count = predictions.argmax(axis=-1), len(self.labels)
        scores = score_classes(truth, predicted, self.labels)
        official = self._official(
            metrics.count_classes(truth, predicted, count)
        )
        # The baseline is the score of the best constant prediction.
        baseline = max(
            self._official(
                metrics.count_classes(truth, [label] * len(truth), count)
            )[self.row.paper]
            for label in range(count)
        )
        return {**scores, **official, "majority_baseline": baseline}

    def _official(self, counts):
        return {
            name: metric(counts) for name, metric in self.row.metrics.items()
        }

    def write(self, examples, predictions, folder):
        """Write the files of a GLUE submission, one for each part."""
        for part, name in enumerate(self.row.submission):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            if not rows:
                continue
            labels = self._spell_all(predictions[rows])
            indices = (examples[row].index for row in rows)
            pairs = zip(indices, labels, strict=True)
            lines = ["\t".join(pair) + "\n" for pair in (HEADER, *pairs)]
            path = Path(folder) / name
            path.write_text("".join(lines), encoding="utf-8", newline="\n")

    def _spell_all(self, predictions) -> list[str]:
        if self.labels is None:
            return [
                f"{value:.3f}" for value in np.clip(predictions[:, 0], 0, 5)
            ]
        return [self.row.spelled[i] for i in predictions.argmax(axis=-1)]

    def read_predictions(self, path, examples):
        """Return the predictions in a submission's file, as model outputs.

        Returns:
            Array `(R, C)`, 1 at the predicted class and 0 elsewhere; for
            regression `(R, 1)`, the predicted numbers.
        """
        row = self.row
        (_, header), *rows = read_lines(path)
        if tuple(header) != HEADER:
            raise InputError(
                f"{path}: expected the header {' TAB '.join(HEADER)}, got "
                f"{' TAB '.join(header)!r}"
            )
        labels = {}
        for number, cells in rows:
            if len(cells) != len(HEADER):
                raise wrong_width(path, number, header, cells)
            if cells[0] in labels:
                raise InputError(
                    f"{path}, line {number}: expected each index once, got "
                    f"{cells[0]} again. Give one prediction for each row"
                )
            labels[cells[0]] = (cells[1], path, number)
        if len({example.part for example in examples}) > 1:
            raise InputError(
                f"{path} has the predictions of one part of {row.name}, but "
                f"dev has the parts {' and '.join(row.parts['dev'])}. Give "
                f"this part's dev file, as in --dev={row.parts['dev'][0]}.tsv"
            )
        missing = [e.index for e in examples if e.index not in labels]
        if missing or len(rows) != len(examples):
            raise InputError(
                f"{path}: expected a prediction for each of {len(examples)} "
                f"rows, got {len(rows)}"
                + (f"; index {missing[0]} is missing" if missing else "")
            )
        values = [read_label(row, *labels[e.index]) for e in examples]
        if row.labels is None:
            return np.array(values, np.float32)[:, None]
        return np.eye(len(row.labels), dtype=np.float32)[values]
