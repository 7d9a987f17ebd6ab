"""GLUE: nine tasks and the diagnostic set; one row says all about each."""

from typing import Any, NamedTuple

import numpy as np

from official_tasks import glue_files, metrics
from official_tasks.splits import FILE_OPTIONS, Splits
from official_tasks.task import Defaults
from official_tasks.text_task import TextTask, score_classes


class GlueRow(NamedTuple):
    """All about one of the tasks.

    name: on the command line.
    folder: of its files in the official distribution.
    text, text_pair: their columns in the official files; `text_pair` None
        where there is one text.
    label: the column of the label.
    labels: names of the classes, in the order of the logits, as TFDS has
        them; None for a number.
    spelled: the same in the official files and submissions.
    metrics: name -> function, all the official ones: of the confusion
        matrix, or of (truth, prediction) for a number.
    paper: the metric that the paper's table shows.
    header: the columns of train and dev files that have no header line.
    parts: split -> names of the TFDS splits, and of the official files,
        where there is more than one.
    tfds: the configuration of the TFDS data set "glue".
    tfds_texts: its fields of the texts, where they are called otherwise.
    submission: the file names, one a part of the test split.
    raw: names of files under which the set is distributed elsewhere.
    index: the column that numbers the rows of the test file.
    may_be_ragged: whether the official file has rows of the wrong width.
    """

    name: str
    folder: str
    text: str
    text_pair: str | None
    label: str
    labels: list[str] | None
    spelled: tuple[str, ...] | None
    metrics: dict[str, Any]
    paper: str
    submission: tuple[str, ...]
    tfds: str
    tfds_texts: tuple[str, ...] | None = None
    header: tuple[str, ...] | None = None
    parts: dict[str, tuple[str, ...]] = {}
    raw: dict[str, str] = {}
    index: str = "index"
    may_be_ragged: bool = False


BINARY = ("0", "1")
ACCURACY = {"accuracy": metrics.accuracy}
ENTAILED = ["entailment", "not_entailment"]
NLI = ["entailment", "neutral", "contradiction"]

COLA = GlueRow(
    name="cola",
    folder="CoLA",
    text="sentence",
    text_pair=None,
    label="label",
    labels=["unacceptable", "acceptable"],
    spelled=BINARY,
    metrics={"matthews": metrics.matthews, **ACCURACY},
    paper="matthews",
    submission=("CoLA.tsv",),
    tfds="cola",
    header=("source", "label", "mark", "sentence"),
)
SST_2 = GlueRow(
    name="sst2",
    folder="SST-2",
    text="sentence",
    text_pair=None,
    label="label",
    labels=["negative", "positive"],
    spelled=BINARY,
    metrics=ACCURACY,
    paper="accuracy",
    submission=("SST-2.tsv",),
    tfds="sst2",
)
MRPC = GlueRow(
    name="mrpc",
    folder="MRPC",
    text="#1 String",
    text_pair="#2 String",
    label="Quality",
    labels=["not_equivalent", "equivalent"],
    spelled=BINARY,
    metrics={**ACCURACY, "f1": metrics.f1},
    paper="f1",
    submission=("MRPC.tsv",),
    tfds="mrpc",
    tfds_texts=("sentence1", "sentence2"),
    raw={
        "train": "msr_paraphrase_train.txt",
        "dev": "msr_paraphrase_train.txt",
        "test": "msr_paraphrase_test.txt",
    },
)
STS_B = GlueRow(
    name="stsb",
    folder="STS-B",
    text="sentence1",
    text_pair="sentence2",
    label="score",
    labels=None,
    spelled=None,
    metrics={"pearson": metrics.pearson, "spearman": metrics.spearman},
    paper="spearman",
    submission=("STS-B.tsv",),
    tfds="stsb",
)
QQP = GlueRow(
    name="qqp",
    folder="QQP",
    text="question1",
    text_pair="question2",
    label="is_duplicate",
    labels=["not_duplicate", "duplicate"],
    spelled=BINARY,
    metrics={**ACCURACY, "f1": metrics.f1},
    paper="f1",
    submission=("QQP.tsv",),
    tfds="qqp",
    index="id",
    may_be_ragged=True,
)
MNLI = GlueRow(
    name="mnli",
    folder="MNLI",
    text="sentence1",
    text_pair="sentence2",
    label="gold_label",
    labels=NLI,
    spelled=tuple(NLI),
    metrics=ACCURACY,
    paper="accuracy",
    submission=("MNLI-m.tsv", "MNLI-mm.tsv"),
    tfds="mnli",
    tfds_texts=("premise", "hypothesis"),
    parts={
        "dev": ("dev_matched", "dev_mismatched"),
        "test": ("test_matched", "test_mismatched"),
    },
)
QNLI = GlueRow(
    name="qnli",
    folder="QNLI",
    text="question",
    text_pair="sentence",
    label="label",
    labels=ENTAILED,
    spelled=tuple(ENTAILED),
    metrics=ACCURACY,
    paper="accuracy",
    submission=("QNLI.tsv",),
    tfds="qnli",
)
RTE = GlueRow(
    name="rte",
    folder="RTE",
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=ENTAILED,
    spelled=tuple(ENTAILED),
    metrics=ACCURACY,
    paper="accuracy",
    submission=("RTE.tsv",),
    tfds="rte",
)
WNLI = GlueRow(
    name="wnli",
    folder="WNLI",
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=["not_entailment", "entailment"],
    spelled=BINARY,
    metrics=ACCURACY,
    paper="accuracy",
    submission=("WNLI.tsv",),
    tfds="wnli",
)
# The diagnostic set: predicted by a model of MNLI, never trained on.
AX = GlueRow(
    name="ax",
    folder="diagnostic",
    text="sentence1",
    text_pair="sentence2",
    label="gold_label",
    labels=NLI,
    spelled=tuple(NLI),
    metrics={"matthews": metrics.matthews, **ACCURACY},
    paper="matthews",
    submission=("AX.tsv",),
    tfds="ax",
    tfds_texts=("premise", "hypothesis"),
    parts={"test": ("diagnostic",)},
)
ROWS = (COLA, SST_2, MRPC, STS_B, QQP, MNLI, QNLI, RTE, WNLI, AX)


class GlueTask(TextTask):
    """One of the tasks of GLUE, from the official files or from TFDS.

    Args:
        row: `GlueRow`.
        data_dir: folder of the task's official files, or the one of GLUE in
            which that folder stands, or "tfds:glue".
        train, dev, test: files that stand in place of those in `data_dir`.
    """

    options = FILE_OPTIONS

    def __init__(self, row, data_dir=None, train=None, dev=None, test=None):
        self.row = row
        self.name = row.name
        self.labels = row.labels
        self.problem = "regression" if row.labels is None else "single"
        self.metric = row.paper
        self.defaults = Defaults(batch_size=32, epochs=3.0)
        files = {"train": train, "dev": dev, "test": test}
        names = glue_files.names(row)
        self.splits = Splits(row.name, names, data_dir, files)
        self.advice: list[str] = []

    def read(self, split):
        return glue_files.read(self.row, self.splits, split, self.advice)

    def score(self, examples, predictions):
        """The official metrics; of MNLI the matched part's, "mismatched_"
        before those of the other."""
        scores = {}
        for part, prefix in ((0, ""), (1, "mismatched_")):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            if rows:
                chosen = [examples[row] for row in rows]
                figures = self._scores(chosen, predictions[rows])
                scores |= {prefix + name: v for name, v in figures.items()}
        return scores

    def _scores(self, examples, predictions):
        truth = [example.label for example in examples]
        if self.labels is None:
            return {
                name: metric(truth, predictions[:, 0])
                for name, metric in self.row.metrics.items()
            } | {"majority_baseline": 0.0}
        told = score_classes(truth, predictions.argmax(axis=-1), self.labels)
        return told | {
            **_metrics(self.row, told["confusion"]),
            "majority_baseline": self._baseline(truth),
        }

    def _baseline(self, truth):
        """The metric of the best constant guess."""
        return max(
            _metrics(
                self.row,
                metrics.confusion_matrix(
                    truth, [guess] * len(truth), len(self.labels)
                ),
            )[self.metric]
            for guess in range(len(self.labels))
        )

    def write(self, examples, predictions, folder):
        """The files of a GLUE submission, one a part of the split."""
        for part, name in enumerate(self.row.submission):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            if rows:
                glue_files.write_submission(
                    folder,
                    name,
                    [examples[row].index for row in rows],
                    self.spell(predictions[rows]),
                )

    def spell(self, predictions) -> list[str]:
        """Predictions as a submission has them."""
        if self.labels is None:
            return [
                f"{value:.3f}" for value in np.clip(predictions[:, 0], 0, 5)
            ]
        return [self.row.spelled[i] for i in predictions.argmax(axis=-1)]

    def read_predictions(self, path, examples):
        return glue_files.read_submission(self.row, path, examples)


def _metrics(row, confusion):
    confusion = np.asarray(confusion)
    return {name: metric(confusion) for name, metric in row.metrics.items()}
