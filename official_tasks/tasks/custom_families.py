"""The user's own spans, tags and choices: rows of CSV, TSV or JSONL files."""

from bert_keras.errors import InputError
from official_tasks.tasks.base import Defaults, Option
from official_tasks.tasks.custom import (
    DROP_UNLABELLED,
    FILES,
    OwnRows,
    choice_place,
    told_place,
    whole_number,
    word_list,
)
from official_tasks.tasks.multiple_choice import (
    ChoiceExample,
    ChoiceRow,
    ChoiceTask,
)
from official_tasks.tasks.squad import Question, SquadRow, SquadTask
from official_tasks.tasks.tagging import NerRow, NerTask, Sentence, is_label


class CustomSpans(OwnRows, SquadTask):
    """Answers that are a part of a text; an empty one says there is none.

    Args:
        question, context, answer, start: their columns; without `start`, the
            first character of the answer, it must stand in one place only.
        own: `train`, `dev` and `test`, files, of which the last needs no
            answers; `split_seed`; `separator`, `encoding`; `stride` and
            `null_threshold`, see `SquadTask`.
    """

    needs_label = False
    options = {
        **FILES,
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
        super().__init__(SquadRow("customspans", False, {}, defaults), **own)
        self.columns = (question, context, answer, start)

    def _columns(self):
        question, context, answer, start = self.columns
        return [question, context], [answer, *([start] if start else [])]

    def _row(self, place, number, cells):
        question, context, answer, start = self.columns
        answers = first = None
        if answer in cells:
            answers = (cells[answer],) if cells[answer].strip() else ()
        if answers and start:
            first = whole_number(place, start, cells[start])
        return Question(number, cells[question], cells[context], answers, first)

    def _compared(self, question):
        return (question.question, question.context), question.answers

    def _named(self, question):
        return told_place(self.placed["train"][int(question.id)][0])

    def _group(self, question):
        return question.context

    def _questions(self, split):
        rows = self._rows(split)
        if any(question.answers == () for question in rows):
            self.row = self.row._replace(may_be_none=True)
        return rows

    def take_arguments(self, arguments):
        # A test file does not tell whether a question may have no answer.
        if arguments.get("may_be_none"):
            self.row = self.row._replace(may_be_none=True)


class CustomTags(OwnRows, NerTask):
    """A label for each word of texts that come as lists of words.

    In JSONL both columns are lists; in CSV and TSV, words and tags with
    blanks between.

    Args:
        words, tags: their columns.
        own: `train`, `dev` and `test`, files, of which the last needs no
            tags; `split_seed`; `recipe` and `lstm_dim`, see `NerTask`.
    """

    options = {
        **FILES,
        "words": Option("words", "Column of the words."),
        "tags": Option("tags", "Column of their labels."),
        **DROP_UNLABELLED,
        "recipe": NerTask.options["recipe"],
        "lstm_dim": NerTask.options["lstm_dim"],
    }

    def __init__(self, words="words", tags="tags", **own):
        super().__init__(NerRow("customtags", {}), **own)
        self.columns = self.lists = (words, tags)

    def _columns(self):
        return [self.columns[0]], [self.columns[1]]

    def _row(self, place, number, cells):
        words, tags = self.columns
        found = word_list(cells[words])
        labels = word_list(cells[tags]) if tags in cells else None
        if not found:
            raise InputError(f"{place}: expected at least one word, got none")
        if labels is not None and len(labels) != len(found):
            raise InputError(
                f"{place}: expected a label for each of the {len(found)} "
                f"words, got {len(labels)}"
            )
        for label in labels or ():
            if not is_label(label):
                raise InputError(
                    f"{place}: expected labels O, B-TYPE, I-TYPE, E-TYPE, "
                    f"S-TYPE, got {label!r}"
                )
        return Sentence(found, labels)

    def _compared(self, sentence):
        return (" ".join(sentence.words),), sentence.labels

    def _group(self, sentence):
        return sentence.words

    def _sentences(self, split):
        return self._rows(split)


class CustomChoices(OwnRows, ChoiceTask):
    """The best of several continuations of a text.

    The label is the number of the right choice, from 0, or its own text.

    Args:
        prompt: the column of the text.
        choices: the columns of the choices, with commas between.
        label: the column of the right one.
        own: `train`, `dev` and `test`, files, of which the last needs no
            labels; `split_seed`.
    """

    options = {
        **FILES,
        "prompt": Option("prompt", "Column of the text that goes on."),
        "choices": Option(
            "choice0,choice1", "Columns of the choices, commas between."
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
            names={},
            prompt=prompt,
            lead=None,
            choices=columns,
            label=label,
            labels=tuple(map(str, range(len(columns)))),
            written=("predictions.csv", ("pred",)),
        )
        super().__init__(row, **own)

    def _columns(self):
        return [self.row.prompt, *self.row.choices], [self.row.label]

    def _row(self, place, number, cells):
        choices = tuple(cells[name] for name in self.row.choices)
        label = cells.get(self.row.label)
        if label is not None:
            label = choice_place(place, label.strip(), choices)
        return ChoiceExample(number, cells[self.row.prompt], choices, label)

    def _compared(self, example):
        return (example.prompt, *example.choices), example.label

    def _group(self, example):
        return example.prompt

    def read(self, split):
        return self._rows(split)
