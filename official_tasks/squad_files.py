"""Questions from files in SQuAD's JSON, and from TFDS."""

import json
from pathlib import Path
from typing import NamedTuple

from bert_keras.errors import InputError
from bert_keras.text.encodable import encodable


class Question(NamedTuple):
    """A question on a context.

    `answers` are the true ones: none where the context has no answer, and
    None where they are not told (a test file). `start` is the character of
    the context at which the first begins; None where not told. `title` is
    that of the article the context is from.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None
    start: int | None
    title: str = ""


def read_questions(path) -> list[Question]:
    """The questions of a file in the form of SQuAD 1.1 or 2.0.

    Raises:
        InputError: no such file, not SQuAD's JSON, an id that comes twice.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected SQuAD's JSON, got something else: {error}"
        ) from error
    try:
        questions = list(_questions(content["data"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f'{path}: expected SQuAD\'s JSON, {{"data": [{{"paragraphs": '
            '[{"context": ..., "qas": [{"id": ..., "question": ..., '
            f'"answers": [...]}}]}}]}}]}}; it fails at {error}'
        ) from error
    return _checked(path, questions)


def _questions(articles):
    for article in articles:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for asked in paragraph["qas"]:
                yield _question(
                    context, asked, asked.get("answers"), article.get("title")
                )


def _question(context, asked, answers, title):
    """A row; answers as SQuAD writes them, a list of dicts or None."""
    texts = start = None
    if answers is not None:
        impossible = asked.get("is_impossible", False)
        texts = () if impossible else tuple(a["text"] for a in answers)
        texts = encodable(texts)
        if texts:
            start = answers[0].get("answer_start")
            start = None if start is None else int(start)
    return Question(
        str(asked["id"]),
        encodable(str(asked["question"])),
        encodable(str(context)),
        texts,
        start,
        str(title or ""),
    )


def _checked(path, questions):
    if not questions:
        raise InputError(f"{path}: expected at least one question, got none")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise InputError(
                f"{path}: expected each question once, got the id "
                f"{question.id!r} again"
            )
        seen.add(question.id)
    return questions


def answer_span(question: Question) -> tuple[int, int] | str:
    """First character of the first answer and the one after it, or why not.

    Where the text does not stand at its `start`, the one place where it does
    stand is taken.

    Returns:
        The span; or "not found" or "ambiguous".
    """
    text, context = question.answers[0], question.context
    if not text.strip():
        return "not found"
    start = question.start
    if start is None or context[start : start + len(text)] != text:
        start = context.find(text)
        if start < 0:
            return "not found"
        if context.find(text, start + 1) >= 0:
            return "ambiguous"
    return start, start + len(text)


def read_predictions(path) -> dict[str, str]:
    """id -> answer, of a `predictions.json` in the official form."""
    return _read_by_id(path, str, '{"question id": "answer", ...}')


def read_odds(path) -> dict[str, float]:
    """id -> score of no answer, of a `null_odds.json`."""
    return _read_by_id(path, (int, float), '{"question id": 1.5, ...}')


def read_ids(paths: str) -> set[str]:
    """The ids in files, one a line; paths with commas between."""
    ids: set[str] = set()
    for path in map(Path, paths.split(",")):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        ids.update(path.read_text(encoding="utf-8").split())
    return ids


def _read_by_id(path, kind, form):
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected JSON, {form}, got something else: {error}"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(value, kind) for value in content.values()
    ):
        raise InputError(f"{path}: expected {form}, got other JSON")
    return content


def from_tfds(rows) -> list[Question]:
    """The questions of TFDS's "squad" and "squad/v2.0"."""
    questions = []
    for row in rows:
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        answers = [
            {"text": text, "answer_start": int(start)}
            for text, start in zip(texts, starts, strict=True)
        ]
        questions.append(
            _question(
                row["context"],
                {**row, "is_impossible": row.get("is_impossible", False)},
                answers,
                row.get("title"),
            )
        )
    return questions
