"""Make tasks from a user's tables of texts, questions, words or choices."""

import functools
import re
from collections import Counter

from bert_keras.errors import InputError, collect_faults, raise_all
from official_tasks.tasks.base import (
    Example,
    Examples,
    Option,
    fill_options,
)
from official_tasks.tasks.character_spans import tag_words
from official_tasks.tasks.classify import METRICS, TextTask
from official_tasks.tasks.conll import TaggedText, check_tags, split_words
from official_tasks.tasks.data_notes import (
    format_lines,
    note_labels,
    note_names,
)
from official_tasks.tasks.multiple_choice import ChoiceExample, ChoiceTask
from official_tasks.tasks.own_data import (
    DROP_UNLABELLED,
    TABLE_OPTIONS,
    Columns,
    Table,
    has_text,
)
from official_tasks.tasks.source import RECIPE_OPTIONS
from official_tasks.tasks.spans import SPAN_OPTIONS, Question, SpanTask
from official_tasks.tasks.table import (
    LARGEST_NUMBER,
    drop_zeros,
    read_index,
    read_number,
)
from official_tasks.tasks.tagging import FEATURE_OPTIONS, TagTask

TEXT_OPTIONS = {
    **TABLE_OPTIONS,
    "text": Option("text", "Column of the text."),
    "text_pair": Option(None, "Column of the second text."),
    "label": Option("label", "Column of the label."),
    "problem": Option(
        "single",
        f"One of {', '.join(METRICS)}, spans, tags, choices. The last three "
        "have other options: see --task=custom --problem=NAME --help.",
    ),
    "label_separator": Option(",", "Text between the labels in a cell."),
    "min_rows_per_class": Option(
        1, "Leave out classes with fewer training rows than this number."
    ),
    "rare_class": Option(
        None, "Class for the rows that --min_rows_per_class would leave out."
    ),
    "long_text": Option(
        None,
        "truncate: cut long texts; windows: split long texts into overlapping "
        "rows and average the predictions. By default, training truncates, and "
        "prediction uses the setting saved with the model.",
    ),
    **DROP_UNLABELLED,
    **RECIPE_OPTIONS,
}


def custom_task(train=None, dev=None, test=None, **options) -> TextTask:
    """Return a task that predicts a class, a set of labels or a number.

    The labels are the sorted values of the label column in `train`. Without
    `train`, the labels come from the model. Without `dev`, a tenth of the
    training texts becomes dev; for "single", a tenth of each class. The
    arguments are `TEXT_OPTIONS`.
    """
    files = {"train": train, "dev": dev, "test": test}
    chosen = fill_options(TEXT_OPTIONS, {**files, **options})
    problem = chosen.problem
    if problem not in METRICS:
        raise InputError(
            f"problem is {problem!r}: expected one of {', '.join(METRICS)}. "
            "--task=custom also has spans, tags and choices"
        )
    if problem == "multi" and not chosen.label_separator:
        raise InputError(
            "--label_separator is empty: expected text between labels, such as "
            "--label_separator=','"
        )
    if problem == "multi" and chosen.drop_unlabelled:
        raise InputError(
            "--drop_unlabelled does nothing with --problem=multi, because an "
            "empty cell means no labels. Leave --drop_unlabelled out."
        )
    if problem == "regression" and chosen.min_rows_per_class > 1:
        raise InputError(
            "--min_rows_per_class is for classes, and --problem=regression "
            "has none. Leave --min_rows_per_class out."
        )
    if chosen.rare_class is not None and chosen.min_rows_per_class < 2:
        raise InputError(
            f"--rare_class={chosen.rare_class} does nothing without "
            "--min_rows_per_class of 2 or more. Give both, or neither."
        )
    return TextTask(
        TextTable(chosen),
        problem,
        chosen.text_pair is not None,
        chosen.label_separator,
        standardises=problem == "regression",
        recipe=chosen.recipe,
        pooling=chosen.pooling,
        long_text=chosen.long_text,
    )


class TextTable(Table):
    """Table of texts and labels that converts class names to indices.

    Args:
        options: values of `TEXT_OPTIONS`.
    """

    def __init__(self, options):
        self.options, self.problem = options, options.problem
        pair = options.text_pair
        columns = Columns(
            "custom",
            [options.text, *([pair] if pair else [])],
            [options.label],
            self._parse,
            lists=(options.label,) if self.problem == "multi" else (),
            has_label=self._has_label,
            is_stratified=self.problem == "single",
        )
        super().__init__(columns, options)

    def _parse(self, where, number, cells):
        options, label = self.options, None
        if options.label in cells:
            label = self._parse_label(where, cells[options.label])
        return Example(cells[options.text], cells.get(options.text_pair), label)

    def _parse_label(self, where, cell):
        """Return a class name, a set of class names, or a number."""
        if self.problem == "multi":
            is_list = isinstance(cell, list)
            names = (
                cell if is_list else cell.split(self.options.label_separator)
            )
            return {name.strip() for name in names} - {""}
        if self.problem == "single":
            return cell.strip()
        value = read_number(cell)
        if value is None:
            raise InputError(
                f"{where}: expected a number from {-LARGEST_NUMBER:g} to "
                f"{LARGEST_NUMBER:g} in column {self.options.label!r}, got "
                f"{cell!r}"
            )
        return value

    def _has_label(self, cell):
        if self.problem == "multi":
            return True  # an empty cell means no labels
        is_nan = self.problem == "regression" and cell.strip().lower() == "nan"
        return has_text(cell) and not is_nan

    @functools.cached_property
    def labels(self) -> list[str] | None:
        """Sorted names of the classes in `train`.

        None in regression, and if there is no training file.
        """
        if self.problem == "regression" or "train" not in self.files:
            return None
        rows = self._replace_rare("train")
        names = set().union(*(self._get_names(example) for _, example in rows))
        if len(names) < 2:
            raise InputError(
                f"{self.files['train']}: expected at least 2 classes in column "
                f"{self.options.label!r}, got {len(names)}"
            )
        return sorted(names)

    def _get_names(self, example) -> set:
        is_multi = self.problem == "multi"
        return set(example.label if is_multi else [example.label])

    def read_files(self, split):
        """Return the rows of `Table.read_files`; labels 1.0 and 1 are one."""
        rows = super().read_files(split)
        if self.problem == "regression" or split == "test":
            return rows
        names = set().union(*(self._get_names(example) for _, example in rows))
        new = {n: name for n, name in self._spell(split, names) if n != name}
        if not new:
            return rows
        renamed, changed = [], []
        for location, example in rows:
            old = self._get_names(example)
            if old & new.keys():
                changed.append(location)
                label = {new.get(name, name) for name in old}
                if self.problem == "single":
                    (label,) = label
                example = example._replace(label=label)
            renamed.append((location, example))
        old, name = min(new.items())
        note = (
            f"{format_lines(changed)}: the labels of {len(changed)} rows are "
            f"whole numbers, so {old!r} is read as {name!r}"
        )
        return Examples(renamed, [*rows.notes, note])

    def _spell(self, split, names):
        """Yield (name in the file, name of the class), such as "1.0", "1".

        If the classes are unknown, ".0" is dropped if all names are whole
        numbers.
        """
        # The labels of `train` are unknown unless a model set them.
        is_train = split == "train"
        known = vars(self).get("labels") if is_train else self.labels
        if known is None:
            short = [drop_zeros(name) for name in names]
            if all(re.fullmatch("-?[0-9]+", name) for name in short):
                yield from zip(names, short, strict=True)
            return
        by_number = {drop_zeros(name): name for name in known}
        for name in names - {*known}:
            yield name, by_number.get(drop_zeros(name), name)

    def read(self, split):
        examples = super().read(split)
        if split == "train":
            examples.notes += note_labels(self.problem, examples, self.labels)
        return examples

    def prepare(self, split, rows):
        """Return the rows with class indices in place of class names.

        Rare classes are first replaced or left out, and notes are added. For
        regression and for the test split, return `rows` unchanged.
        """
        if self.problem == "regression" or split == "test":
            return rows
        notes = list(rows.notes)
        if split == "train":
            notes += self._note_rare()
            notes += note_names(self.labels, self.options.label)
        elif self.options.min_rows_per_class > 1 and self.labels:
            notes += self._note_others(split, rows)
        index = {name: i for i, name in enumerate(self.labels or [])}
        numbered = Examples(notes=notes)
        faults: list[str] = []
        for location, example in self._replace_rare(split):
            with collect_faults(faults):
                where = format_lines([location])
                label = self._find_index(where, example, index)
                numbered.append((location, example._replace(label=label)))
        raise_all(faults)
        return numbered

    def _find_index(self, where, example, index):
        if not index:
            raise InputError(
                f"{where}: the names of the labels are unknown: give --train "
                "or a fine-tuned --model"
            )
        names = sorted(self._get_names(example))
        for name in names:
            if name not in index:
                raise InputError(
                    f"{where}: expected one of the labels {', '.join(index)}, "
                    f"got {name!r}"
                )
        numbers = frozenset(index[name] for name in names)
        return numbers if self.problem == "multi" else index[names[0]]

    @functools.cached_property
    def _rare(self) -> dict[str, int]:
        """Label -> number of training rows, if below `min_rows_per_class`."""
        if "train" not in self.files:
            return {}
        counts = Counter(
            name
            for _, example in self.read_files("train")
            for name in self._get_names(example)
        )
        return {
            name: n
            for name, n in counts.items()
            if n < self.options.min_rows_per_class
        }

    def _note_rare(self) -> list[str]:
        if not self._rare:
            return []
        rare = [f"{name!r} ({self._rare[name]})" for name in sorted(self._rare)]
        return [
            f"{len(self._rare)} classes with fewer than "
            f"{self.options.min_rows_per_class} rows are {self._rare_fate()}: "
            f"{_join(rare)}"
        ]

    def _note_others(self, split, rows) -> list[str]:
        """Return a note on the rows with a class that is rare or unknown."""
        labels = {*self.labels}
        each = [self._get_names(row) - labels for _, row in rows]
        others = set().union(*each)
        if not others:
            return []
        return [
            f"{sum(map(bool, each))} rows of the {split} file have rare or "
            f"unknown classes, which are {self._rare_fate()}: "
            f"{_join(map(repr, sorted(others)))}"
        ]

    def _rare_fate(self):
        name = self.options.rare_class
        return "left out" if name is None else f"merged into {name!r}"

    def _replace_rare(self, split) -> list[tuple]:
        rows = self.read_files(split)
        if self.options.min_rows_per_class < 2:
            return rows
        if split == "train":
            rare = set(self._rare)
        else:
            names = (self._get_names(example) for _, example in rows)
            known = set(self.labels or ())
            # If `rare_class` is no label of the model, keep unknown classes.
            # `_find_index` then raises an error that names an unknown class.
            is_label = self.options.rare_class in (None, *known)
            rare = set().union(*names) - known if known and is_label else set()
        result = []
        for location, example in rows:
            names = self._get_names(example)
            if names & rare:
                names = names - rare | {self.options.rare_class} - {None}
                if self.problem == "single" and not names:
                    continue
                label = (
                    names
                    if self.problem == "multi"
                    else self.options.rare_class
                )
                example = example._replace(label=label)
            result.append((location, example))
        return result


SPANS_OPTIONS = {
    **TABLE_OPTIONS,
    "question": Option("question", "Column of the question."),
    "context": Option("context", "Column of the text with the answer."),
    "answer": Option(
        "answer", "Column of the answer. An empty cell means no answer."
    ),
    "start": Option(
        None, "Column of the character index where the answer starts, from 0."
    ),
    **SPAN_OPTIONS,
}


def custom_spans(**options) -> SpanTask:
    """Return a task that answers questions with spans of a context.

    Without `start`, training leaves out questions whose answer occurs several
    times in the context. The arguments are `SPANS_OPTIONS`.
    """
    chosen = fill_options(SPANS_OPTIONS, options)
    question, context, answer = chosen.question, chosen.context, chosen.answer
    start = chosen.start

    def parse(where, number, cells):
        answers = first = None
        if answer in cells:
            answers = (cells[answer],) if cells[answer].strip() else ()
        if answers and start:
            try:
                first = int(drop_zeros(cells[start].strip()))
            except ValueError:
                raise InputError(
                    f"{where}: expected a whole number in column {start!r}, "
                    f"got {cells[start]!r}"
                ) from None
        return Question(
            str(number), cells[question], cells[context], answers, first
        )

    columns = Columns(
        "customspans",
        [question, context],
        [answer, *([start] if start else [])],
        parse,
        has_label=lambda cell: True,  # an empty cell means no answer
    )
    return SpanTask(
        Table(columns, chosen),
        stride=chosen.stride,
        null_threshold=options.get("null_threshold"),
    )


TAGS_OPTIONS = {
    **TABLE_OPTIONS,
    "words": Option("words", "Column of the words."),
    "tags": Option("tags", "Column of the words' labels."),
    "text": Option("text", "Column of the text; only for --spans."),
    "spans": Option(
        None,
        "Column of entities as character spans (start, end, label). It "
        "replaces --words and --tags.",
    ),
    **DROP_UNLABELLED,
    **FEATURE_OPTIONS,
}


def custom_tags(**options) -> TagTask:
    """Return a task that predicts a label for each word.

    A cell of words or tags is a list, or a string that is split at blanks. With
    the option `spans`, words and labels come from the columns `text` and
    `spans`; see the function `tag_words`. The arguments are `TAGS_OPTIONS`.
    """
    chosen = fill_options(TAGS_OPTIONS, options)
    unused = ("words", "tags") if chosen.spans else ("text",)
    for name in options.keys() & set(unused):
        raise InputError(
            f"--{name} only applies {'without' if chosen.spans else 'with'} "
            f"--spans. Leave --{name} out."
        )
    columns = _span_columns(chosen) if chosen.spans else _word_columns(chosen)
    source = Table(columns, chosen)
    # None if --lstm_dim is not set: `TagTask` then chooses the width.
    lstm_dim = options.get("lstm_dim")
    return TagTask(source, recipe=chosen.recipe, lstm_dim=lstm_dim)


def _join(names):
    """Return at most 20 names in a line, and "..." in place of the others."""
    names = list(names)
    return ", ".join(names[:20] + ["..."] * (len(names) > 20))


def _word_columns(chosen) -> Columns:
    def split(cell):
        is_list = cell is None or isinstance(cell, list)
        return cell if is_list else split_words(cell)

    def parse(where, number, cells):
        words, labels = (
            split(cells[chosen.words]),
            split(cells.get(chosen.tags)),
        )
        if not words:
            raise InputError(f"{where}: expected at least one word, got none")
        if labels is not None:
            for tag in labels:
                if not {*"\t\r\n"}.isdisjoint(tag):
                    raise InputError(
                        f"{where}: expected labels without tabs and line "
                        f"breaks, got {tag!r}"
                    )
            if len(labels) != len(words):
                raise InputError(
                    f"{where}: expected a label for each of the {len(words)} "
                    f"words, got {len(labels)}"
                )
            check_tags(where, labels)
            labels = tuple(labels)
        return TaggedText(tuple(words), labels)

    lists = chosen.words, chosen.tags
    return Columns("customtags", [lists[0]], [lists[1]], parse, lists=lists)


def _span_columns(chosen) -> Columns:
    def parse(where, number, cells):
        return tag_words(cells[chosen.text], cells.get(chosen.spans), where)

    return Columns(
        "customtags",
        [chosen.text],
        [chosen.spans],
        parse,
        lists=(chosen.spans,),
        objects=(chosen.spans,),
        has_label=lambda cell: cell != "",  # "[]" means no entities
    )


CHOICES_OPTIONS = {
    **TABLE_OPTIONS,
    "prompt": Option("prompt", "Column of the text before the choices."),
    "choices": Option(
        "choice0,choice1", "Columns of the choices, separated by commas."
    ),
    "label": Option(
        "label", "Column of the index (from 0) or the text of the right choice."
    ),
    **DROP_UNLABELLED,
    **RECIPE_OPTIONS,
}


def custom_choices(**options) -> ChoiceTask:
    """Return a task that chooses the best continuation of a text.

    The label is the index, from 0, or the text of the right choice. The
    arguments are `CHOICES_OPTIONS`.
    """
    chosen = fill_options(CHOICES_OPTIONS, options)
    prompt, choices, label = chosen.prompt, chosen.choices, chosen.label
    names = [name.strip() for name in choices.split(",")]
    if len(names) < 2:
        raise InputError(
            f"--choices={choices}: expected the names of at least 2 columns "
            "separated by commas"
        )

    def parse(where, number, cells):
        texts = tuple(cells[name] for name in names)
        cell = cells.get(label)
        index = None if cell is None else _choose(where, cell, texts)
        return ChoiceExample(cells[prompt], texts, index)

    columns = Columns("customchoices", [prompt, *names], [label], parse)
    table = Table(columns, chosen)
    return ChoiceTask(table, len(names), chosen.recipe, chosen.pooling)


def _choose(where, label, choices) -> int:
    label, *choices = (text.strip() for text in (label, *choices))
    if label not in choices:
        label = drop_zeros(label)
    readings = {choices.index(label)} if label in choices else set()
    number = read_index(label, len(choices))
    if number is not None:
        readings.add(number)
    if len(readings) == 1:
        return readings.pop()
    if readings:
        raise InputError(
            f"{where}: the label {label!r} is ambiguous. It is both the text "
            f"of choice {choices.index(label)} and the index of the choice "
            f"{choices[number]!r}. Reword the choices"
        )
    raise InputError(
        f"{where}: expected the index of a choice, from 0 to "
        f"{len(choices) - 1}, or the text of a choice, got {label!r}"
    )
