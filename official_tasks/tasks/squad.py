"""SQuAD 1.1 and 2.0, and data sets in their form, such as TriviaQA."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from bert_keras.data.data_sets import is_data_set
from bert_keras.errors import InputError
from bert_keras.text.wordpiece import encodable
from official_tasks.options import option
from official_tasks.tasks.base import Defaults
from official_tasks.tasks.forms.text_files import read_json
from official_tasks.tasks.source import FileOptions, Official
from official_tasks.tasks.spans import Question, SpanOptions, SpanTask


def read_squad(row, path, split, notes):
    """Return the `Question`s of a file or of a data set; see `Official`."""
    if is_data_set(path):
        return list(_read_data_set(path, split))
    return read_questions(path)


def _read_data_set(source, split):
    """Yield the questions of a data set such as "tfds:squad/v1.1"."""
    from bert_keras.data.data_sets import data_set_rows

    columns = ["id", "question", "context", "answers"]
    for qa in data_set_rows(source, columns, split):
        answers = qa["answers"]
        if isinstance(answers, dict):  # a dict of lists, as in data sets
            pairs = zip(answers["text"], answers["answer_start"], strict=True)
            answers = [{"text": t, "answer_start": n} for t, n in pairs]
        yield _make_question(qa["context"], qa, answers, qa.get("title"))


def read_questions(path) -> list[Question]:
    """Return the questions of a file in the form of SQuAD 1.1 or 2.0.

    Raises:
        InputError: the file is missing, not SQuAD's JSON, or has no question.
    """
    content = read_json(path, "SQuAD's JSON")
    try:
        questions = [
            _make_question(
                paragraph["context"],
                qa,
                qa.get("answers"),
                article.get("title"),
            )
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,  # raised by int() for an `answer_start` of 1e400
    ) as error:
        raise InputError(
            f'{path}: expected SQuAD\'s JSON, {{"data": [{{"paragraphs": '
            '[{"context": ..., "qas": [{"id": ..., "question": ..., '
            f'"answers": [...]}}]}}]}}]}}; reading fails at {error}'
        ) from error
    if not questions:
        raise InputError(f"{path}: expected at least one question, got none")
    return questions


def _make_question(context, qa, answers, title):
    """Return a `Question`; `answers` is SQuAD's list of dicts, or None."""
    texts = start = None
    if answers is not None:
        impossible = qa.get("is_impossible", False)
        texts = (
            ()
            if impossible
            else tuple(_read_text(a["text"], qa) for a in answers)
        )
        if texts:
            start = answers[0].get("answer_start")
            start = None if start is None else int(start)
    return Question(
        str(qa["id"]),
        _read_text(qa["question"], qa),
        _read_text(context, qa),
        texts,
        start,
        str(title or ""),
    )


def _read_text(value, qa):
    if not isinstance(value, str | int | float):
        raise InputError(
            f"question {qa['id']!r}: expected a text, got {value!r}"
        )
    return encodable(str(value))


class SquadRow(NamedTuple):
    """Description of a data set; see `Official`.

    Attributes:
        may_be_none: True if a question may have no answer.
        tfds: the data set in TensorFlow Datasets, or None.
    """

    name: str
    files: dict
    defaults: Defaults
    may_be_none: bool
    tfds: str | None = None
    read: Callable = read_squad


SQUAD_1 = SquadRow(
    "squad1",
    {"train": ("train-v1.1.json",), "dev": ("dev-v1.1.json",)},
    Defaults(32, 3.0, 5e-5, 384),
    may_be_none=False,
    tfds="tfds:squad/v1.1",
)
SQUAD_2 = SquadRow(
    "squad2",
    {"train": ("train-v2.0.json",), "dev": ("dev-v2.0.json",)},
    Defaults(48, 2.0, 5e-5, 384),
    may_be_none=True,
    tfds="tfds:squad/v2.0",
)
# TriviaQA's files have no usual names.
TRIVIA_QA = SquadRow(
    "triviaqa", {}, Defaults(32, 1.0, 5e-5, 384), may_be_none=False
)
ROWS = (SQUAD_1, SQUAD_2, TRIVIA_QA)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(FileOptions, SpanOptions):
    """Options of SQuAD and TriviaQA."""

    null_odds: str | None = option(
        None, "File null_odds.json of the run that wrote --predictions."
    )


def squad_task(
    row, data_dir=None, train=None, dev=None, test=None, **options
) -> SpanTask:
    """Return the `SpanTask` of a `SquadRow`; `Official` explains the files."""
    source = Official(row, data_dir, train, dev, test)
    return SpanTask(source, row.may_be_none, defaults=row.defaults, **options)
