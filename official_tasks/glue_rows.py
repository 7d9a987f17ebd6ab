"""GLUE's nine tasks and the diagnostic set; one row says all about each."""

from typing import Any, NamedTuple

from official_tasks import metrics


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
