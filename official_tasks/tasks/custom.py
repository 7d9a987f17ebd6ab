"""The user's own texts, spans, tags and choices, from tables; no code needed.

A class for each problem: how a row of cells becomes an example. What the rows
of all have in common is in `own_data.py`.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from bert_keras.errors import InputError, collected, raise_all
from official_tasks.tasks import metrics
from official_tasks.tasks.base import Defaults, Example, Option
from official_tasks.tasks.file_task import DataRow
from official_tasks.tasks.multiple_choice import (
    ChoiceExample,
    ChoiceRow,
    ChoiceTask,
)
from official_tasks.tasks.own_data import (
    DROP_UNLABELLED,
    TABLE_OPTIONS,
    OwnData,
    advice_on_labels,
    advice_on_names,
    format_lines,
)
from official_tasks.tasks.squad import Question, SquadRow, SquadTask
from official_tasks.tasks.table import (
    LARGEST_NUMBER,
    read_index,
    read_number,
    write_csv,
)
from official_tasks.tasks.tagging import (
    NerTask,
    TaggedText,
    check_tags,
    split_words,
)
from official_tasks.tasks.text_task import TextTask

# Problem -> the metric by which runs are compared.
METRICS = {"single": "accuracy", "multi": "micro_f1", "regression": "pearson"}


class CustomTask(OwnData, TextTask):
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
        min_rows_per_class: rows with a label that fewer rows of `train` have
            are left out; of "multi", the label is.
        rare_class: name that such labels get instead.
        own: see `OwnData`; `drop_unlabelled` is not for "multi", whose texts
            may have none of the labels.
    """

    options = {
        **TABLE_OPTIONS,
        "text": Option("text", "Column of the text."),
        "text_pair": Option(None, "Column of the second text."),
        "label": Option("label", "Column of the label."),
        "problem": Option(
            "single",
            f"One of {', '.join(METRICS)}, spans, tags, choices; the last "
            "three have columns of their own.",
        ),
        "label_separator": Option(",", "What separates the labels of a text."),
        "min_rows_per_class": Option(
            1, "Leave out classes that fewer training rows have."
        ),
        "rare_class": Option(
            None, "Class into which --min_rows_per_class merges them instead."
        ),
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
        min_rows_per_class=1,
        rare_class=None,
        **own,
    ):
        if problem not in METRICS:
            raise InputError(
                f"problem is {problem!r}: expected one of {', '.join(METRICS)}"
            )
        if problem == "multi" and not label_separator:
            raise InputError("--label_separator: expected text, got none")
        if problem == "multi" and own.get("drop_unlabelled"):
            raise InputError(
                "--drop_unlabelled does nothing with --problem=multi: a row "
                "without a label has none of them. Leave it out."
            )
        if min_rows_per_class > 1 and problem == "regression":
            raise InputError(
                "--min_rows_per_class is for classes, and --problem=regression "
                "has none. Leave it out."
            )
        if rare_class is not None and min_rows_per_class < 2:
            raise InputError(
                f"--rare_class={rare_class} does nothing without "
                "--min_rows_per_class. Give both or none."
            )
        self.min_rows, self.rare_class = min_rows_per_class, rare_class
        self.rare = set()
        row = DataRow("custom", {})
        super().__init__(row, train=train, dev=dev, test=test, **own)
        self.problem, self.label_separator = problem, label_separator
        self.metric = METRICS[problem]
        self.standardises = problem == "regression"
        self.needs_label = problem != "multi"
        self.text_columns = [text, *([text_pair] if text_pair else [])]
        self.pair = len(self.text_columns) == 2
        self.label_column = label
        self.lists = (label,) if problem == "multi" else ()
        if train:
            # Now, before there is a run folder that knows these columns.
            splits: dict[str, list] = {}
            faults: list[str] = []
            for split in ("train", "dev"):
                if split in self.files or not faults:
                    with collected(faults):
                        splits[split] = self.read(split)
            if faults:
                raise InputError("\n".join(faults))
            self.advice += advice_on_labels(
                problem, splits["train"], self.labels
            )

    def columns_of(self):
        return self.text_columns, [self.label_column]

    def example_of(self, place, number, cells):
        """With the label's name, or names; `read_placed` numbers them."""
        texts = [cells[column] for column in self.text_columns]
        label = cells.get(self.label_column)
        if label is not None:
            label = self._parse_label(place, label)
        return Example(texts[0], texts[1] if self.pair else None, label)

    def _parse_label(self, place, cell):
        """A cell as a name, a set of names or a number."""
        if self.problem == "multi":
            listed = isinstance(cell, list)  # of JSONL
            names = cell if listed else cell.split(self.label_separator)
            return {name.strip() for name in names} - {""}
        if self.problem == "single":
            return cell.strip()
        number = read_number(cell)
        if number is None:
            raise InputError(
                f"{format_lines([place])}: expected a number from "
                f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g} in column "
                f"{self.label_column!r}, got {cell!r}"
            )
        return number

    def is_missing(self, label):
        is_nan = self.problem == "regression" and label.strip().lower() == "nan"
        return is_nan or super().is_missing(label)

    def texts_and_label(self, example):
        texts = (example.text, example.text_pair)
        return texts[: len(self.text_columns)], example.label

    def group_of(self, example):
        return example.text, example.text_pair

    def stratum_of(self, example):
        return example.label if self.problem == "single" else None

    def read_placed(self, split):
        placed = super().read_placed(split)
        if self.problem == "regression" or split == "test":
            return placed
        if split == "train":
            self.rare = self._find_rare(placed)
        elif self.min_rows > 1 and self.labels:
            seen = (self._names(example) for _, example in placed)
            self.rare |= set().union(*seen) - set(self.labels)
        if self.rare:
            placed = list(filter(None, map(self._without_rare, placed)))
        if split == "train":
            self.labels = self._names_of(placed)
            self.advice += advice_on_names(self.labels, self.label_column)
        elif self.labels is None and "train" in self.files:
            return placed  # the training file was refused
        index = {name: i for i, name in enumerate(self.labels or [])}
        numbered, faults = [], []
        for place, example in placed:
            with collected(faults):
                label = self._index(place, example, index)
                numbered.append((place, example._replace(label=label)))
        raise_all(faults)
        return numbered

    def _find_rare(self, placed) -> set:
        """Return the labels of fewer rows than are asked for; note them."""
        counts = Counter(
            name for _, example in placed for name in self._names(example)
        )
        rare = {name for name in counts if counts[name] < self.min_rows}
        if rare:
            named = ", ".join(f"{n!r} ({counts[n]})" for n in sorted(rare)[:20])
            to = "left out"
            if self.rare_class is not None:
                to = f"merged into {self.rare_class!r}"
            self.advice.append(
                f"{len(rare)} classes with fewer than {self.min_rows} rows are "
                f"{to}: {named}"
            )
        return rare

    def _without_rare(self, row):
        """Return a row with its rare labels merged or left out, or None."""
        place, example = row
        names = self._names(example)
        if names & self.rare:
            names = names - self.rare | {self.rare_class} - {None}
            is_multi = self.problem == "multi"
            if not (is_multi or names):
                return None
            label = names if is_multi else self.rare_class
            example = example._replace(label=label)
        return place, example

    def _names(self, example) -> set:
        is_multi = self.problem == "multi"
        return set(example.label if is_multi else [example.label])

    def _names_of(self, placed):
        names = set().union(*(self._names(example) for _, example in placed))
        if len(names) < 2:
            raise InputError(
                f"{self.files['train']}: expected at least 2 classes in column "
                f"{self.label_column!r}, got {len(names)}"
            )
        return sorted(names)

    def _index(self, place, example, index):
        if not index:
            raise InputError(
                f"{format_lines([place])}: which labels there are is not "
                "known: give --train, or a --model that was fine-tuned on them"
            )
        multi = self.problem == "multi"
        names = sorted(example.label) if multi else [example.label]
        for name in names:
            if name not in index:
                raise InputError(
                    f"{format_lines([place])}: expected the labels of the "
                    f"training file ({', '.join(index)}), got {name!r}"
                )
        numbers = frozenset(index[name] for name in names)
        return numbers if multi else index[names[0]]

    def write(self, examples, predictions, folder):
        """predictions.csv: the row, what was predicted, and its score."""
        texts = ["text", "text_pair"][: len(self.text_columns)]
        headings, columns = self._prediction_columns(predictions)
        rows = [[*texts, "label", "predicted", *headings]]
        for example, row in zip(examples, columns, strict=True):
            texts, _ = self.texts_and_label(example)
            rows.append([*texts, self._write_label(example), *row])
        write_csv(Path(folder) / "predictions.csv", rows)

    def _prediction_columns(self, predictions):
        """Headings and cells that stand behind "predicted", and its own."""
        if self.problem == "regression":
            return [], [[f"{row[0]:.6g}"] for row in predictions]
        if self.problem == "single":
            return ["score"], [
                [self.labels[row.argmax()], f"{row.max():.4f}"]
                for row in metrics.probabilities(predictions)
            ]
        return self.labels, [
            [
                self._join_labels(np.flatnonzero(row > 0.5)),
                *(f"{share:.4f}" for share in row),
            ]
            for row in metrics.sigmoid(predictions)
        ]

    def _write_label(self, example):
        if example.label is None:
            return ""
        if self.problem == "single":
            return self.labels[example.label]
        if self.problem == "multi":
            return self._join_labels(sorted(example.label))
        return f"{example.label:.6g}"

    def _join_labels(self, indices):
        return self.label_separator.join(self.labels[i] for i in indices)


class CustomSpans(OwnData, SquadTask):
    """Answers that are a part of a text; an empty one says there is none.

    Args:
        question, context, answer, start: their columns; without `start`, the
            first character of the answer, it must stand in one place only.
        own: see `OwnData`, and `stride` and `null_threshold` of `SquadTask`.
    """

    needs_label = False
    options = {
        **TABLE_OPTIONS,
        "question": Option("question", "Column of the question."),
        "context": Option("context", "Column of the text with the answer."),
        "answer": Option("answer", "Column of the answer; empty: none."),
        "start": Option(None, "Column of the answer's first character."),
        "stride": SquadTask.options["stride"],
        "null_threshold": SquadTask.options["null_threshold"],
    }

    def __init__(
        self,
        question="question",
        context="context",
        answer="answer",
        start=None,
        **own,
    ):
        defaults = Defaults(32, 3.0, 5e-5, 384)
        super().__init__(SquadRow("customspans", {}, defaults, False), **own)
        self.columns = (question, context, answer, start)

    def columns_of(self):
        question, context, answer, start = self.columns
        return [question, context], [answer, *([start] if start else [])]

    def example_of(self, place, number, cells):
        question, context, answer, start = self.columns
        answers = first = None
        if answer in cells:
            answers = (cells[answer],) if cells[answer].strip() else ()
        if answers and start:
            try:
                first = int(cells[start])
            except ValueError:
                raise InputError(
                    f"{format_lines([place])}: expected a whole number in "
                    f"column {start!r}, got {cells[start]!r}"
                ) from None
        return Question(
            str(number), cells[question], cells[context], answers, first
        )

    def texts_and_label(self, question):
        return (question.question, question.context), question.answers

    def group_of(self, question):
        return question.context

    def format_question(self, question):
        return format_lines([self.placed["train"][int(question.id)][0]])

    def read_split(self, split):
        questions = super().read_split(split)
        if any(question.answers == () for question in questions):
            self.row = self.row._replace(may_be_none=True)
        return questions

    def take_arguments(self, arguments):
        # A test file does not say whether a question may have no answer.
        if arguments.get("may_be_none"):
            self.row = self.row._replace(may_be_none=True)


class CustomTags(OwnData, NerTask):
    """A label for each word of texts that come as lists of words.

    In JSONL both columns are lists; in CSV and TSV, words and tags with
    blanks between.

    Args:
        words, tags: their columns.
        own: see `OwnData`, and `recipe` and `lstm_dim` of `NerTask`.
    """

    options = {
        **TABLE_OPTIONS,
        "words": Option("words", "Column of the words."),
        "tags": Option("tags", "Column of their labels."),
        **DROP_UNLABELLED,
        "recipe": NerTask.options["recipe"],
        "lstm_dim": NerTask.options["lstm_dim"],
    }

    def __init__(self, words="words", tags="tags", **own):
        super().__init__(DataRow("customtags", {}), **own)
        self.lists = (words, tags)

    def columns_of(self):
        words, tags = self.lists
        return [words], [tags]

    def example_of(self, place, number, cells):
        words, labels = (_words_of(cells.get(name)) for name in self.lists)
        if not words:
            raise InputError(
                f"{format_lines([place])}: expected at least one word, got none"
            )
        if labels is not None and len(labels) != len(words):
            raise InputError(
                f"{format_lines([place])}: expected a label for each of the "
                f"{len(words)} words, got {len(labels)}"
            )
        check_tags(format_lines([place]), labels or ())
        return TaggedText(words, labels)

    def texts_and_label(self, text):
        return (" ".join(text.words),), text.labels

    def group_of(self, text):
        return text.words


def _words_of(cell):
    """The words of a list, of JSONL, or of text with blanks between."""
    if cell is None:
        return None
    return tuple(cell if isinstance(cell, list) else split_words(cell))


class CustomChoices(OwnData, ChoiceTask):
    """The best of several continuations of a text.

    The label is the number of the right choice, from 0, or its own text.

    Args:
        prompt: the column of the text.
        choices: the columns of the choices, with commas between.
        label: the column of the right one.
        own: see `OwnData`.
    """

    options = {
        **TABLE_OPTIONS,
        "prompt": Option(
            "prompt", "Column of the text that a choice continues."
        ),
        "choices": Option(
            "choice0,choice1", "Columns of the choices, separated by commas."
        ),
        "label": Option("label", "Column of the label."),
        **DROP_UNLABELLED,
    }

    def __init__(
        self,
        prompt="prompt",
        choices="choice0,choice1",
        label="label",
        **own,
    ):
        columns = tuple(name.strip() for name in choices.split(","))
        if len(columns) < 2:
            raise InputError(
                f"--choices={choices}: expected the names of at least 2 "
                "columns with commas between"
            )
        row = ChoiceRow(
            name="customchoices",
            files={},
            prompt=prompt,
            choices=columns,
            label=label,
        )
        super().__init__(row, **own)

    def columns_of(self):
        return [self.row.prompt, *self.row.choices], [self.row.label]

    def example_of(self, place, number, cells):
        choices = tuple(cells[name] for name in self.row.choices)
        label = cells.get(self.row.label)
        if label is not None:
            label = _choice_index(place, label.strip(), choices)
        prompt = cells[self.row.prompt]
        return ChoiceExample(prompt, choices, label)

    def texts_and_label(self, example):
        return (example.prompt, *example.choices), example.label

    def group_of(self, example):
        return example.prompt


def _choice_index(place, label, choices) -> int:
    """The number of the choice that a label names, by number or text."""
    readings = {choices.index(label)} if label in choices else set()
    number = read_index(label, len(choices))
    if number is not None:
        readings.add(number)
    if len(readings) == 1:
        return readings.pop()
    if readings:
        raise InputError(
            f"{format_lines([place])}: expected a label that says one thing, "
            f"got {label!r}, the text of choice {choices.index(label)} and "
            f"the number of {choices[number]!r}: write the choices in "
            "other words"
        )
    raise InputError(
        f"{format_lines([place])}: expected the number of a choice from 0 to "
        f"{len(choices) - 1}, or its text, got {label!r}"
    )
