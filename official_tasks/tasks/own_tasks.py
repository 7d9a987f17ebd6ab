"""Make tasks from a user's tables of texts, questions, words or choices."""

import dataclasses

from bert_keras.errors import InputError
from official_tasks.options import option
from official_tasks.tasks.classify import TextTask
from official_tasks.tasks.forms.cells import drop_zeros, read_index
from official_tasks.tasks.multiple_choice import ChoiceExample, ChoiceTask
from official_tasks.tasks.own_data import (
    Columns,
    DropUnlabelled,
    Table,
    TableOptions,
)
from official_tasks.tasks.source import RecipeOptions
from official_tasks.tasks.spans import Question, SpanOptions, SpanTask
from official_tasks.tasks.tagging import FeatureOptions, TagTask
from official_tasks.tasks.text_table import TextTable
from official_tasks.tasks.word_table import SpanTable, WordTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions(TableOptions, RecipeOptions):
    """Columns of texts."""

    text: str = option("text", "Column of the text.")
    text_pair: str | None = option(None, "Column of the second text.")
    label: str = option("label", "Column of the label.")
    long_text: str | None = option(
        None,
        "truncate: cut long texts; windows: split long texts into overlapping "
        "rows and average the predictions. By default, training truncates, and "
        "prediction uses the setting saved with the model.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyOptions(TextOptions, DropUnlabelled):
    """Options of `classify_task`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultilabelOptions(TextOptions):
    """Options of `multilabel_task`."""

    label: str = option(
        "label",
        "Column of the labels, or columns with 0 or 1 for each label, "
        "separated by commas.",
    )
    label_separator: str = option(",", "Text between the labels in a cell.")
    classes: str | None = option(
        None,
        "Names of the labels, separated by commas, if --label has a list with "
        "0 or 1 for each of them.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressOptions(TextOptions, DropUnlabelled):
    """Options of `regress_task`."""

    label: str = option("label", "Column of the number.")


def classify_task(train=None, dev=None, test=None, **options) -> TextTask:
    """Return a task that predicts a class for each text.

    The labels are the sorted values of the label column in `train`. Without
    `train`, the labels come from the model. Without `dev`, a tenth of the
    training texts of each class becomes dev. The arguments are
    `ClassifyOptions`.
    """
    chosen = ClassifyOptions(train=train, dev=dev, test=test, **options)
    return _text_task("classify", "single", chosen)


def multilabel_task(train=None, dev=None, test=None, **options) -> TextTask:
    """Return a task that predicts a set of labels for each text.

    Labels and dev are as in `classify_task`, but dev is a tenth of all texts.
    The arguments are `MultilabelOptions`.
    """
    chosen = MultilabelOptions(train=train, dev=dev, test=test, **options)
    if not chosen.label_separator:
        raise InputError(
            "--label_separator is empty: expected text between labels, such as "
            "--label_separator=','"
        )
    if chosen.classes and "," in chosen.label:
        raise InputError(
            "--classes only applies with one column as --label. Leave "
            "--classes out."
        )
    return _text_task(
        "multilabel", "multi", chosen, label_separator=chosen.label_separator
    )


def regress_task(train=None, dev=None, test=None, **options) -> TextTask:
    """Return a task that predicts a number for each text.

    Without `dev`, a tenth of the training texts becomes dev. The arguments are
    `RegressOptions`.
    """
    chosen = RegressOptions(train=train, dev=dev, test=test, **options)
    return _text_task("regress", "regression", chosen, standardises=True)


def _text_task(name, problem, chosen, **arguments):
    return TextTask(
        TextTable(name, problem, chosen),
        problem,
        chosen.text_pair is not None,
        recipe=chosen.recipe,
        pooling=chosen.pooling,
        long_text=chosen.long_text,
        **arguments,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpansOptions(TableOptions, SpanOptions):
    """Options of `spans_task`."""

    question: str = option("question", "Column of the question.")
    context: str = option("context", "Column of the text with the answer.")
    answer: str = option(
        "answer", "Column of the answer. An empty cell means no answer."
    )
    start: str | None = option(
        None, "Column of the character index where the answer starts, from 0."
    )


def spans_task(**options) -> SpanTask:
    """Return a task that answers questions with spans of a context.

    Without `start`, training leaves out questions whose answer occurs several
    times in the context. The arguments are `SpansOptions`.
    """
    chosen = SpansOptions(**options)
    question, context, answer = chosen.question, chosen.context, chosen.answer
    start = chosen.start

    def parse(where, number, cells):
        answers = first = None
        if answer in cells:
            answers = (cells[answer],) if cells[answer].strip() else ()
        if answers and start:
            try:
                first = int(drop_zeros(cells[start].strip().replace("_", "x")))
            except ValueError:
                raise InputError(
                    f"{where}: expected a whole number in column {start!r}, "
                    f"got {cells[start]!r}"
                ) from None
        return Question(
            str(number), cells[question], cells[context], answers, first
        )

    columns = Columns(
        "spans",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagsOptions(TableOptions, DropUnlabelled, FeatureOptions):
    """Options of `tags_task`."""

    words: str = option("words", "Column of the words.")
    tags: str = option("tags", "Column of the words' labels.")
    sentence: str | None = option(
        None,
        "Column with a number or name of the sentence, if each row has one "
        "word. An empty cell continues the sentence.",
    )
    text: str = option("text", "Column of the text; only for --spans.")
    spans: str | None = option(
        None,
        "Column of entities as character spans (start, end, label). It "
        "replaces --words and --tags.",
    )


def tags_task(**options) -> TagTask:
    """Return a task that predicts a label for each word.

    A cell of words or tags is a list, or a string that is split at blanks. With
    the option `sentence`, each row is a word. With the option `spans`, words
    and labels come from the columns `text` and `spans`; see the function
    `label_words`. The arguments are `TagsOptions`.
    """
    chosen = TagsOptions(**options)
    unused = ("words", "tags") if chosen.spans else ("text",)
    for name in options.keys() & set(unused):
        raise InputError(
            f"--{name} only applies {'without' if chosen.spans else 'with'} "
            f"--spans. Leave --{name} out."
        )
    if chosen.sentence and (chosen.spans or chosen.drop_unlabelled):
        other = "--spans" if chosen.spans else "--drop_unlabelled"
        raise InputError(
            f"--sentence only applies without {other}. Leave one of them out."
        )
    source = WordTable(chosen)
    if chosen.spans:
        source = SpanTable(chosen)
    # None if --lstm_dim is not set: `TagTask` then chooses the width.
    lstm_dim = options.get("lstm_dim")
    return TagTask(source, recipe=chosen.recipe, lstm_dim=lstm_dim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoicesOptions(TableOptions, DropUnlabelled, RecipeOptions):
    """Options of `choices_task`."""

    prompt: str = option("prompt", "Column of the text before the choices.")
    choices: str = option(
        "choice0,choice1", "Columns of the choices, separated by commas."
    )
    label: str = option(
        "label", "Column of the index (from 0) or the text of the right choice."
    )


def choices_task(**options) -> ChoiceTask:
    """Return a task that chooses the best continuation of a text.

    The label is the index, from 0, or the text of the right choice. The
    arguments are `ChoicesOptions`.
    """
    chosen = ChoicesOptions(**options)
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

    columns = Columns("choices", [prompt, *names], [label], parse)
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
