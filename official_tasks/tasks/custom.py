"""The user's own data: rows of a CSV, TSV or JSONL file, no code needed."""

import csv
from collections import Counter
from pathlib import Path

import numpy as np

from bert_keras.errors import InputError
from official_tasks.tasks import metrics
from official_tasks.tasks.base import Example, Option
from official_tasks.tasks.table import dialect, read_rows
from official_tasks.tasks.text_task import TextTask

# What in the user's own rows deserves a look, told with line numbers.

SHOWN = 5  # line numbers that a note names
RARE = 0.2  # of an even share, under which a class is rare
MOST_CLASSES = 20  # of numbers for names


def advice_on_rows(rows) -> list[str]:
    """Notes on empty texts and on texts that are there twice.

    Args:
        rows: list of `((file, line), texts, label)`.
    """
    found = []
    empty = [
        place
        for place, texts, _ in rows
        if not all(text.strip() for text in texts)
    ]
    if empty:
        found.append(f"{lines_of(empty)}: the text is empty")
    first: dict = {}
    again, contradicting = [], []
    for row in rows:
        place, texts, label = row
        before = first.setdefault(tuple(texts), row)
        if before is not row:
            same = before[2] == label
            (again if same else contradicting).append(place)
    if again:
        found.append(
            f"{lines_of(again)}: {len(again)} rows repeat an earlier one"
        )
    if contradicting:
        found.append(
            f"{lines_of(contradicting)}: {len(contradicting)} rows repeat an "
            "earlier text under another label"
        )
    return found


def advice_on_overlap(train, dev) -> list[str]:
    """A note on texts that stand in train and in dev; rows as `on_rows`'s."""
    known = {tuple(texts) for _, texts, _ in train}
    both = [row for row in dev if tuple(row[1]) in known]
    if not both:
        return []
    (_, (first, *_), _), places = both[0], [place for place, _, _ in both]
    return [
        f"{lines_of(places)}: {len(both)} texts stand in train and in dev, "
        f"which flatters the score: the first is {first[:60]!r}"
    ]


def on_names(names, column) -> list[str]:
    """Notes on labels that may be one, or numbers; `names` are sorted."""
    alike: dict = {}
    for name in names:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    found = [
        f"the labels {', '.join(map(repr, same))} in column {column!r} differ "
        "in case or blanks only and are learned as different classes: write "
        "them alike if they are one"
        for same in alike.values()
        if len(same) > 1
    ]
    return found + number_hint(names)


def number_hint(names) -> list[str]:
    """A note on labels that seem to be numbers, not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return []
    fractions = [n for n in numbers if not n.is_integer()]
    if not fractions and len(numbers) <= MOST_CLASSES:
        return []
    return [
        f"the labels are {len(names)} different numbers, such as {names[0]}, "
        "and each is a class of its own: to predict a number give "
        "--problem=regression"
    ]


def advice_on_labels(problem, examples, labels) -> list[str]:
    """A note on rare classes, or on numbers that are all the same."""
    if problem == "regression":
        first = examples[0].label
        if any(example.label != first for example in examples):
            return []
        return [
            f"every number of the training rows is {first:g}: there is "
            "nothing to learn"
        ]
    if problem == "multi":
        counts = Counter(i for example in examples for i in example.label)
    else:
        counts = Counter(example.label for example in examples)
    rare = min(range(len(labels)), key=lambda index: counts[index])
    share = counts[rare] / len(examples)
    if share * len(labels) >= RARE:
        return []
    return [
        f"the class {labels[rare]!r} has {share:.1%} of the rows: look at "
        "macro_f1 rather than accuracy, and add or repeat rows of it"
    ]


def lines_of(places):
    """The first few places, the file named once: "a.csv, line 4, 7, ..."."""
    (file, _), shown = places[0], places[:SHOWN]
    numbers = [str(number) for path, number in shown if path == file]
    if len(numbers) < len(places):
        numbers.append("...")
    return f"{file}, line {', '.join(numbers)}"


# Rows of the user's own files, for tasks that are more than one text.

HELD_OUT_SHARE_OF_GROUPS = (
    0.1  # of the contexts, texts or prompts, without a dev file
)
# A test file is read without its labels, whether it has any or not.
TO_SCORE = ". Score a file that has labels by --dev=FILE"
FILES = {
    "train": Option(None, "File to learn from; several with commas between."),
    "dev": Option(None, "File to score on."),
    "test": Option(None, "File to predict."),
    "split_seed": Option(0, "Of what is held out without --dev."),
    "separator": Option(
        None, "Between the columns of CSV, where it is no comma."
    ),
    "encoding": Option("utf-8", "Of the files."),
}
DROP_UNLABELLED = {
    "drop_unlabelled": Option(False, "Leave rows without a label out."),
}


class OwnRows:
    """Splits of rows of the user's own; a tenth is held out without --dev.

    A subclass says what `_columns` are needed, and needed but for a test
    file; which `_row` their cells make; by which texts and which label it is
    `_compared` with others; and which `_group` a row is of: rows of one, such
    as questions on one context, are held out together.

    Args:
        row: what the family's task takes as its first argument.
        split_seed: of what is held out.
        separator, encoding: of the files.
        drop_unlabelled: whether rows without a label are left out.
        own: of the family's task.
    """

    to_score = TO_SCORE
    lists: tuple[str, ...] = ()  # columns that JSONL may have as lists
    needs_label = True  # else an empty cell of the label says something

    def __init__(
        self,
        row,
        split_seed=0,
        separator=None,
        encoding=None,
        drop_unlabelled=False,
        **own,
    ):
        super().__init__(row, **own)
        self.split_seed = checked_seed(split_seed)
        self.dialect = dialect(separator, encoding)
        self.drop_unlabelled = drop_unlabelled
        self.advice: list[str] = []
        self.placed: dict[str, list] = {}  # split -> ((file, line), row)

    def _rows(self, split):
        if split == "dev" and not self.splits.files.get("dev"):
            return self._held_out()[1]
        rows = self._read_files(split)
        if split == "train" and not self.splits.files.get("dev"):
            return self._held_out()[0]
        return rows

    def _read_files(self, split):
        if split not in self.placed:
            self.placed[split] = self._placed_rows(split)
            self._advise(split)
        return [row for _, row in self.placed[split]]

    def _advise(self, split):
        noted = {
            name: [(place, *self._compared(row)) for place, row in rows]
            for name, rows in self.placed.items()
        }
        self.advice += advice_on_rows(noted[split])
        if split != "test" and {"train", "dev"} <= noted.keys():
            self.advice += advice_on_overlap(noted["train"], noted["dev"])

    def _placed_rows(self, split):
        rows: list = []
        unlabelled = []
        needed, labels = self._columns()
        labels = labels if split != "test" else []
        columns = [*needed, *labels]
        for path in self.splits.paths(split):
            for line, values in read_rows(
                path,
                columns,
                self.lists,
                own=self.dialect,
                notes=self.advice,
            ):
                cells = dict(zip(columns, values, strict=True))
                place = (str(path), line)
                if self.needs_label and not all(
                    map(has_text, map(cells.get, labels))
                ):
                    unlabelled.append(place)
                    continue
                row = self._row(told_place(place), str(len(rows)), cells)
                rows.append((place, row))
        self.advice += left_out(
            unlabelled, ", ".join(labels), self.drop_unlabelled
        )
        if not rows:
            raise InputError(f"The {split} file has no rows: expected one")
        return rows

    def _held_out(self):
        rows = self._read_files("train")
        groups = list(dict.fromkeys(self._group(row) for row in rows))
        if len(groups) < 2:
            raise InputError(
                "The train file has one context, text or prompt, expected at "
                "least 2 to hold one out: add rows or give --dev"
            )
        count = max(1, round(HELD_OUT_SHARE_OF_GROUPS * len(groups)))
        order = np.random.default_rng(self.split_seed).permutation(len(groups))
        held = {groups[i] for i in order[:count]}
        return (
            [row for row in rows if self._group(row) not in held],
            [row for row in rows if self._group(row) in held],
        )


def has_text(cell) -> bool:
    """Whether there is more in a cell, or a list of them, than blanks."""
    return bool(cell if isinstance(cell, list) else cell.strip())


def left_out(places, column: str, drop: bool) -> list[str]:
    """A note on rows without a label, which are refused unless `drop`."""
    if not places:
        return []
    told = (
        f"{lines_of(places)}: {len(places)} rows have no label "
        f"in column {column!r}"
    )
    if drop:
        return [f"{told} and are left out"]
    raise InputError(
        f"{told}: fill them in, or leave these rows out by --drop_unlabelled"
    )


def told_place(place: tuple[str, int]) -> str:
    """A file and a line as messages name them."""
    return f"{place[0]}, line {place[1]}"


def checked_seed(seed: int) -> int:
    if seed < 0:
        raise InputError(f"split_seed is {seed}: expected 0 or more")
    return seed


def choice_place(place: str, label: str, choices) -> int:
    """The number of the choice that a label names, by number or text."""
    readings = {choices.index(label)} if label in choices else set()
    if label.isdecimal() and int(label) < len(choices):
        readings.add(int(label))
    if len(readings) == 1:
        return readings.pop()
    if readings:
        raise InputError(
            f"{place}: expected a label that says one thing, got {label!r}, "
            f"the text of choice {choices.index(label)} and the number of "
            f"{choices[int(label)]!r}: write the choices in other words"
        )
    raise InputError(
        f"{place}: expected the number of a choice from 0 to "
        f"{len(choices) - 1}, or its text, got {label!r}"
    )


def whole_number(place: str, column: str, text: str) -> int:
    """The number in a cell."""
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"{place}: expected a whole number in column {column!r}, got "
            f"{text!r}"
        ) from None


def word_list(cell) -> tuple[str, ...]:
    """The words of a cell: a list, of JSONL, or text with blanks between."""
    return tuple(cell if isinstance(cell, list) else cell.split())


# The user's own data: rows of a CSV, TSV or JSONL file, no code needed.

HELD_OUT_SHARE = 0.1  # of each class, where no dev file is given
PROBLEMS = ("single", "multi", "regression")
METRICS = {"single": "accuracy", "multi": "micro_f1", "regression": "pearson"}


class CustomTask(TextTask):
    """Classes, several labels, or a number for the rows of `train`.

    Labels are the distinct values of the label column, sorted; without
    `train` they come from the model. Without `dev` a tenth of the texts (of
    each class), drawn by `split_seed`, is held out.

    Args:
        train, dev, test: files; `test` needs no column of labels.
        text, text_pair, label: their columns.
        problem: "single" (one class a text), "multi" (any number of labels)
            or "regression".
        label_separator: what stands between the labels of a text, "multi".
        split_seed: of what is held out.
        separator: what stands between the columns of CSV, None: a comma.
        encoding: of the files.
        drop_unlabelled: whether rows without a label are left out, which are
            refused otherwise; of "multi" they have none of the labels.
    """

    name = "custom"
    to_score = TO_SCORE
    options = {
        **FILES,
        "text": Option("text", "Column of the text."),
        "text_pair": Option(None, "Column of the second text."),
        "label": Option("label", "Column of the label."),
        "problem": Option(
            "single",
            f"One of {', '.join(PROBLEMS)}, spans, tags, choices; the last "
            "three have columns of their own.",
        ),
        "label_separator": Option(",", "Between the labels of a text."),
        **DROP_UNLABELLED,
    }

    def __init__(
        self,
        train=None,
        dev=None,
        test=None,
        text="text",
        text_pair=None,
        label="label",
        problem="single",
        label_separator=",",
        split_seed=0,
        separator=None,
        encoding=None,
        drop_unlabelled=False,
    ):
        if problem not in PROBLEMS:
            raise InputError(
                f"problem is {problem!r}: expected one of {', '.join(PROBLEMS)}"
            )
        if problem == "multi" and not label_separator:
            raise InputError("--label_separator: expected text, got none")
        if problem == "multi" and drop_unlabelled:
            raise InputError(
                "--drop_unlabelled does nothing with --problem=multi: a row "
                "without a label has none of them. Leave it out."
            )
        self.dialect = dialect(separator, encoding)
        self.drop_unlabelled = drop_unlabelled
        self.problem, self.separator = problem, label_separator
        self.metric = METRICS[problem]
        self.standardises = problem == "regression"
        self.columns = [text, *([text_pair] if text_pair else [])]
        self.pair = len(self.columns) == 2
        self.label_column = label
        self.advice: list[str] = []
        self.files = {"train": train, "dev": dev, "test": test}
        self.splits: dict[str, list[Example]] = {}
        if train:
            self._read_train(train, checked_seed(split_seed))

    def read(self, split):
        if split not in self.splits:
            path = self.files[split]
            if path is None:
                raise InputError(f"No {split} file: give --{split}=FILE")
            rows = self._rows(path, labelled=split != "test")
            self.splits[split] = self._noted(rows)
        return self.splits[split]

    def data_files(self):
        given = [self.files["train"], self.files["dev"]]
        return [
            path.strip()
            for paths in given
            if paths
            for path in str(paths).split(",")
        ]

    def write(self, examples, predictions, folder):
        """predictions.csv: the row, what was predicted, and its score."""
        path = Path(folder) / "predictions.csv"
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = ["text", "text_pair"][: len(self.columns)]
            writer.writerow([*names, "label", *self._headings()])
            rows = zip(examples, self._columns(predictions), strict=True)
            for example, columns in rows:
                label = "" if example.label is None else self._told(example)
                texts = [example.text, example.text_pair][: len(names)]
                writer.writerow([*texts, label, *columns])

    def _headings(self):
        if self.problem == "regression":
            return ["predicted"]
        if self.problem == "multi":
            return ["predicted", *self.labels]
        return ["predicted", "score"]

    def _columns(self, predictions):
        """What stands in a row of predictions.csv behind the label."""
        if self.problem == "regression":
            return [[f"{row[0]:.6g}"] for row in predictions]
        if self.problem == "single":
            return [
                [self.labels[row.argmax()], f"{row.max():.4f}"]
                for row in metrics.probabilities(predictions)
            ]
        shares = 1 / (1 + np.exp(-predictions.astype(np.float64)))
        return [
            [
                self._joined(np.flatnonzero(row > 0.5)),
                *(f"{share:.4f}" for share in row),
            ]
            for row in shares
        ]

    def _told(self, example):
        if self.problem == "single":
            return self.labels[example.label]
        if self.problem == "multi":
            return self._joined(sorted(example.label))
        return f"{example.label:.6g}"

    def _joined(self, indices):
        return self.separator.join(self.labels[index] for index in indices)

    def _read_train(self, train, split_seed):
        rows = self._rows(train, labelled=True)
        if self.problem != "regression":
            self.labels = self._discovered(train, rows)
            self.advice += on_names(self.labels, self.label_column)
        examples = self._noted(rows)
        if self.files["dev"]:
            dev = self._rows(self.files["dev"], labelled=True)
            self.splits = {"train": examples, "dev": self._noted(dev)}
            self.advice += advice_on_overlap(rows, dev)
        else:
            held = self._held_out(train, examples, split_seed)
            for split, wanted in (("train", False), ("dev", True)):
                self.splits[split] = [
                    example
                    for i, example in enumerate(examples)
                    if (i in held) == wanted
                ]
        self.advice += advice_on_labels(
            self.problem, self.splits["train"], self.labels
        )

    def _noted(self, rows):
        """The examples of rows that deserve a look or not, which is noted."""
        examples = self._examples(rows)
        self.advice += advice_on_rows(rows)
        return examples

    def _rows(self, paths, labelled):
        """((file, line), texts, label) of each row; label None without."""
        wanted = [*self.columns, *([self.label_column] if labelled else [])]
        lists = [self.label_column] if self.problem == "multi" else []
        rows, unlabelled = [], []
        for path in map(str.strip, str(paths).split(",")):
            for number, values in read_rows(
                path, wanted, lists, own=self.dialect, notes=self.advice
            ):
                place = (path, number)
                label = values.pop() if labelled else None
                if label is not None and self._is_missing(label):
                    unlabelled.append(place)
                else:
                    rows.append((place, values, self._parsed(place, label)))
        self.advice += left_out(
            unlabelled, self.label_column, self.drop_unlabelled
        )
        if not rows:
            raise InputError(f"{paths}: expected at least one row, got none")
        return rows

    def _is_missing(self, label):
        if self.problem == "multi":
            return False
        is_number = self.problem == "regression"
        return not has_text(label) or (
            is_number and label.strip().lower() == "nan"
        )

    def _parsed(self, place, label):
        """A label as a name, a list of names or a number."""
        if label is None:
            return None
        if self.problem == "multi":
            listed = isinstance(label, list)  # of JSONL
            names = label if listed else label.split(self.separator)
            return sorted({name.strip() for name in names} - {""})
        if self.problem == "single":
            return label.strip()
        try:
            number = float(label)
        except ValueError:
            number = float("nan")
        if not np.isfinite(number):
            raise InputError(
                f"{told_place(place)}: expected a number in column "
                f"{self.label_column!r}, got {label!r}"
            )
        return number

    def _discovered(self, path, rows):
        names = {
            name
            for _, _, label in rows
            for name in (label if self.problem == "multi" else [label])
        }
        if len(names) < 2:
            raise InputError(
                f"{path}: expected at least 2 classes in column "
                f"{self.label_column!r}, got {len(names)}"
            )
        return sorted(names)

    def _examples(self, rows):
        index = {name: i for i, name in enumerate(self.labels or [])}
        return [
            Example(
                texts[0],
                texts[1] if len(texts) == 2 else None,
                self._indexed(place, label, index),
            )
            for place, texts, label in rows
        ]

    def _indexed(self, place, label, index):
        if label is None or self.problem == "regression":
            return label
        names = label if self.problem == "multi" else [label]
        if not index:
            raise InputError(
                f"{told_place(place)}: which labels there are is not known: "
                "give --train, or a --model that was fine-tuned on them"
            )
        for name in names:
            if name not in index:
                raise InputError(
                    f"{told_place(place)}: expected the labels of the "
                    f"training file ({', '.join(index)}), got {name!r}"
                )
        if self.problem == "multi":
            return frozenset(index[name] for name in names)
        return index[label]

    def _held_out(self, path, examples, split_seed):
        """Indices of the rows of a tenth of the texts, of each class alike.

        A text that is there under several classes counts as of the first.
        """
        generator = np.random.default_rng(split_seed)
        together: dict = {}
        for row, example in enumerate(examples):
            texts = example.text, example.text_pair
            together.setdefault(texts, []).append(row)
        groups: dict = {}
        for rows in together.values():
            label = examples[rows[0]].label
            key = label if self.problem == "single" else None
            groups.setdefault(key, []).append(rows)
        held: set[int] = set()
        for key in sorted(groups, key=lambda label: label or 0):
            units = groups[key]
            if len(units) < 2:  # of one text alone, some of its rows
                units = [[row] for row in units[0]]
            if len(units) < 2:
                which = "" if key is None else f"class {self.labels[key]!r}"
                hint = number_hint(self.labels or ["-"])
                raise InputError(
                    f"{path}: the {which or 'file'} has one row, expected at "
                    "least 2 to hold one out: "
                    + (hint[0] if hint else "add rows or give --dev")
                )
            count = max(1, round(HELD_OUT_SHARE * len(units)))
            for unit in generator.permutation(len(units))[:count]:
                held.update(units[unit])
        return held
