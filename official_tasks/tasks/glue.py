"""GLUE: its nine tasks and the diagnostic set, a row for each.

The official files as distributed, or a data set, in; official metrics and the
files of a submission out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import SPLITS, Defaults, check_labelled
from official_tasks.tasks.file_task import FileTask
from official_tasks.tasks.table import read_number, read_text
from official_tasks.tasks.text_task import TextTask, score_classes

ACCURACY = {"accuracy": metrics.accuracy}
BINARY = ["0", "1"]
ENTAILED = ["entailment", "not_entailment"]
NLI = ["entailment", "neutral", "contradiction"]


class GlueRow(NamedTuple):
    """All about one of the tasks.

    name: on the command line, and the configuration of TFDS's "glue".
    folder: of its files in the official distribution.
    labels: names of the classes, in the order of the logits, as TFDS has
        them; None for a number.
    spelled: the same in the official files and submissions.
    text, text_pair: their columns in the official files; `text_pair` None
        where there is one text.
    label: the column of the label.
    metrics: name -> function, all the official ones: of the confusion
        matrix, or of (truth, prediction) for a number.
    paper: the metric that the paper's table shows.
    header: the columns of train and dev files that have no header line.
    parts: split -> names of the TFDS splits, and of the official files,
        where there is more than one.
    tfds_texts: TFDS's fields of the texts, where they are called otherwise.
    submission_parts: the file names, where it is not the folder's alone.
    raw: names of files under which the set is distributed elsewhere.
    index: the column that numbers the rows of the test file.
    may_be_ragged: whether the official file has rows of the wrong width.
    read_file, read_data_set: as of `DataRow`, and of the number of the part.
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
    tfds_texts: tuple[str, str] | None = None
    submission_parts: tuple[str, ...] = ()
    raw: dict[str, str] = {}
    index: str = "index"
    may_be_ragged: bool = False
    defaults: Defaults = Defaults(batch_size=32, epochs=3.0)
    read_file: Callable | None = None
    read_data_set: Callable | None = None

    @property
    def submission(self) -> tuple[str, ...]:
        """The file names of a submission, one a part of the test split."""
        return self.submission_parts or (f"{self.folder}.tsv",)

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """Split or part of one -> names of its file, in GLUE's folder too."""
        names = {}
        for split in SPLITS:
            for part in self.parts.get(split, (split,)):
                own = (f"{part}.tsv", *([self.raw[split]] if self.raw else []))
                names[part] = (*own, *(f"{self.folder}/{name}" for name in own))
        return names


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
    tfds_texts=("sentence1", "sentence2"),
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
    tfds_texts=("premise", "hypothesis"),
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
# The diagnostic set: predicted by a model of MNLI, never trained on.
AX = GlueRow(
    "ax",
    "diagnostic",
    NLI,
    NLI,
    label="gold_label",
    metrics={"matthews": metrics.matthews, **ACCURACY},
    paper="matthews",
    parts={"test": ("diagnostic",)},
    tfds_texts=("premise", "hypothesis"),
    submission_parts=("AX.tsv",),
)
# What the leaderboard takes, and nothing else.
BENCHMARK = (COLA, SST_2, MRPC, STS_B, QQP, MNLI, QNLI, RTE, WNLI, AX)
# Further tasks of GLUE's form stand behind these.
ROWS = (*BENCHMARK,)
HEADER = ("index", "prediction")  # of a submission's files


class GlueExample(NamedTuple):
    """A row of a task; `part` is 0 of MNLI's matched half, 1 of the other.

    `index` is the row's in the test file, as a submission has it.
    """

    text: str
    text_pair: str | None
    label: Any
    index: str
    part: int = 0


def read_tsv(row, path, split, notes, part=0):
    """Return the examples of one of GLUE's files, as it is distributed."""
    header, lines = _lines(row, path, split)
    text = _column(row, header, row.text, path)
    pair = row.text_pair and _column(row, header, row.text_pair, path)
    label = _label_column(row, header, path, split)
    index = header.index(row.index) if row.index in header else None
    in_split = _raw_rows(row, path, split)
    examples, ragged = [], []
    for number, cells in lines:
        if len(cells) != len(header):
            if not row.may_be_ragged:
                raise InputError(_wrong_width(path, number, header, cells))
            ragged.append(number)
        elif in_split(cells):
            examples.append(
                GlueExample(
                    cells[text],
                    None if pair is None else cells[pair],
                    None
                    if label is None
                    else _read_label(row, cells[label], path, number),
                    str(len(examples)) if index is None else cells[index],
                    part,
                )
            )
    if ragged:
        notes.append(
            f"{path}: {len(ragged)} rows of the wrong width are left out, "
            f"as the file is distributed; the first is line {ragged[0]}"
        )
    return examples


def read_glue_data_set(row, source, split, notes, part=0):
    """Return the examples of "tfds:glue", "hf:nyu-mll/glue/NAME", ..."""
    from bert_keras.data.data_sets import data_set_rows

    if "/" not in source:
        source = f"{source}/{row.name}"
    if len(row.parts.get(split, ())) > 1:
        split = row.parts[split][part].replace("dev", "validation")
    text, pair = row.tfds_texts or (row.text, row.text_pair)
    number = float if row.labels is None else int
    return [
        GlueExample(
            values[text],
            values[pair] if row.text_pair else None,
            # -1 is written where the label is not public.
            None if values["label"] < 0 else number(values["label"]),
            str(int(values["idx"])),
            part,
        )
        for values in data_set_rows(source, split)
    ]


class GlueTask(FileTask, TextTask):
    """One of the tasks of GLUE, from the official files or a data set.

    Args:
        row: `GlueRow`.
        data_dir: folder of the task's official files, or the one of GLUE in
            which that folder stands, "tfds:glue" or "hf:nyu-mll/glue/NAME".
        train, dev, test: files that stand in place of those in `data_dir`.
    """

    read_file, read_data_set = read_tsv, read_glue_data_set

    def __init__(self, row, data_dir=None, train=None, dev=None, test=None):
        super().__init__(row, data_dir, train, dev, test)
        self.labels = row.labels
        self.problem = "regression" if row.labels is None else "single"
        self.pair = row.text_pair is not None
        self.metric = row.paper

    def read_split(self, split):
        """MNLI's two parts one behind the other."""
        examples = []
        for number, part in enumerate(self._parts(split)):
            source = self.data_set(split)
            for path in [source] if source else self.paths(part):
                examples += self.examples_in(path, split, number)
        if not examples:
            raise InputError(f"The {split} split of {self.name} has no rows.")
        return examples

    def _parts(self, split) -> tuple[str, ...]:
        if split in self.files:
            return (split,)  # one file that the caller named
        return self.row.parts.get(split, (split,))

    def data_files(self):
        return self.existing_files(
            *(p for split in ("train", "dev") for p in self._parts(split))
        )

    def score(self, examples, predictions):
        """The official metrics; of MNLI the matched part's, "mismatched_"
        before those of the other."""
        check_labelled(self, [example.label for example in examples])
        scores = {}
        for part, prefix in ((0, ""), (1, "mismatched_")):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            if rows:
                truth = [examples[row].label for row in rows]
                figures = self._scores(truth, predictions[rows])
                scores |= {prefix + name: v for name, v in figures.items()}
        return scores

    def _scores(self, truth, predictions):
        if self.labels is None:
            return {
                name: metric(truth, predictions[:, 0])
                for name, metric in self.row.metrics.items()
            } | {"majority_baseline": 0.0}
        scores = score_classes(truth, predictions.argmax(axis=-1), self.labels)
        official = self._official(np.asarray(scores["confusion"]))
        # The metric of the best constant guess.
        count = len(self.labels)
        baseline = max(
            self._official(
                metrics.confusion_matrix(truth, [guess] * len(truth), count)
            )[self.metric]
            for guess in range(count)
        )
        return {**scores, **official, "majority_baseline": baseline}

    def _official(self, confusion):
        return {
            name: metric(confusion) for name, metric in self.row.metrics.items()
        }

    def write(self, examples, predictions, folder):
        """The files of a GLUE submission, one a part of the split."""
        for part, name in enumerate(self.row.submission):
            rows = [i for i, e in enumerate(examples) if e.part == part]
            if not rows:
                continue
            labels = self._spell(predictions[rows])
            indices = (examples[row].index for row in rows)
            pairs = zip(indices, labels, strict=True)
            lines = ["\t".join(pair) + "\n" for pair in (HEADER, *pairs)]
            path = Path(folder) / name
            path.write_text("".join(lines), encoding="utf-8", newline="\n")

    def _spell(self, predictions) -> list[str]:
        """Predictions as a submission has them."""
        if self.labels is None:
            return [
                f"{value:.3f}" for value in np.clip(predictions[:, 0], 0, 5)
            ]
        return [self.row.spelled[i] for i in predictions.argmax(axis=-1)]

    def read_predictions(self, path, examples):
        """A submission's file as a model's outputs.

        Returns:
            `(R, C)`, 1 at the predicted class; or `(R, 1)`, the numbers.
        """
        row = self.row
        (_, header), *rows = _cells(path)
        if tuple(header) != HEADER:
            raise InputError(
                f"{path}: expected the header {' TAB '.join(HEADER)}, got "
                f"{' TAB '.join(header)!r}"
            )
        given = {}
        for number, cells in rows:
            if len(cells) != len(HEADER):
                raise InputError(_wrong_width(path, number, header, cells))
            given[cells[0]] = (cells[1], path, number)
        if len({example.part for example in examples}) > 1:
            raise InputError(
                f"{path}: a submission's file is of one part of {row.name}, "
                f"and the split has both, {' and '.join(row.parts['dev'])}. "
                "Name the part's file, such as "
                f"--dev={row.parts['dev'][0]}.tsv"
            )
        missing = [e.index for e in examples if e.index not in given]
        if missing or len(rows) != len(examples):
            raise InputError(
                f"{path}: expected a prediction for each of {len(examples)} "
                f"rows, got {len(rows)}"
                + (f"; row {missing[0]} is missing" if missing else "")
            )
        labels = [_read_label(row, *given[e.index]) for e in examples]
        if row.labels is None:
            return np.array(labels, np.float32)[:, None]
        return np.eye(len(row.labels), dtype=np.float32)[labels]


# The columns of the official files, and what is wrong with another file.


def _lines(row, path, split):
    """The header, and (line number, cells) of the rows."""
    rows = _cells(path)
    first = rows[0][1]
    if row.header and row.text not in first:
        return list(row.header), rows
    others = [
        o.name for o in ROWS if not o.header and first == [o.text, o.label]
    ]
    if row.header and split != "test" and others:
        raise InputError(
            f"{path} is no file of the task {row.name}: expected rows of "
            f"{', '.join(row.header)} and no header, got the header "
            f"{', '.join(first)}, as a file of {' or '.join(others)} has"
        )
    return first, rows[1:]


def _cells(path):
    """(line number, cells) of each line that is not empty; no quoting.

    Lines end where the file says "newline" and nowhere else: the texts hold
    other characters that Python would break a line at.
    """
    lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    rows = [
        (number, line.split("\t"))
        for number, line in enumerate(lines, 1)
        if line
    ]
    if not rows:
        raise InputError(f"{path}: the file is empty")
    return rows


def _wrong_width(path, number, header, cells):
    hint = ""
    if len(cells) == 1 and "," in cells[0]:
        hint = ": the file seems to have commas where GLUE's have tabs"
    return (
        f"{path}, line {number}: expected {len(header)} columns with tabs "
        f"between, got {len(cells)}{hint}"
    )


def _column(row, header, name, path):
    if name in header:
        return header.index(name)
    others = [
        other.name
        for other in ROWS
        if {other.text, other.text_pair or other.text} <= set(header)
    ]
    hint = f"; a file of {' or '.join(others)} has these" if others else ""
    if len(header) == 1 and "," in header[0]:
        hint = "; it seems to have commas where GLUE's files have tabs"
    raise InputError(
        f"{path} is no file of the task {row.name}: it has no column "
        f"{name!r}, but {', '.join(map(repr, header[:12]))}{hint}"
    )


def _label_column(row, header, path, split):
    if row.label in header:
        return header.index(row.label)
    if split == "test":
        return None
    raise InputError(
        f"{path} has no column {row.label!r}, so no labels: it seems to be "
        f"the test file of {row.name}, which can only be predicted. Give a "
        f"{split} file"
    )


def _read_label(row, text, path, number):
    """The index of a label, or the number that it is."""
    if row.spelled is None:
        number = read_number(text)
        if number is not None:
            return number
        expected = "a number"
    else:
        if text in row.spelled:
            return row.spelled.index(text)
        expected = f"one of {', '.join(row.spelled)}"
    raise InputError(
        f"{path}, line {number}: expected {expected} as the label of the "
        f"task {row.name}, got {text[:40]!r}: is it a file of another task?"
    )


def _raw_rows(row, path, split):
    """Which rows of a file are this split's: a function of their cells.

    All, but where train and dev share a file: MRPC's dev split is a part of
    its raw training file, the pairs of ids in the file dev_ids.tsv that
    GLUE's download script fetches.
    """
    path = Path(path)
    if split == "test" or path.name != row.raw.get(split):
        return lambda cells: True
    listed = path.parent / "dev_ids.tsv"
    if not listed.is_file():
        raise InputError(
            f"{path} holds train and dev together: put GLUE's list of the "
            "dev rows, dev_ids.tsv, next to it, or give --train and --dev"
        )
    lines = read_text(listed).split("\n")
    ids = {tuple(line.split("\t")[:2]) for line in lines if line.strip()}
    return lambda cells: ((cells[1], cells[2]) in ids) == (split == "dev")
