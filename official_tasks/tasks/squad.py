"""SQuAD 1.1 and 2.0, and other questions in their form, such as TriviaQA."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text.wordpiece import encodable
from official_tasks.tasks import metrics
from official_tasks.tasks.base import (
    FILE_OPTIONS,
    Defaults,
    Encoded,
    Option,
    Splits,
    Task,
    tfds_rows,
)
from official_tasks.tasks.encoding import rows_by_example, windowed_rows
from official_tasks.tasks.metrics import probabilities

# Questions from files in SQuAD's JSON, and from TFDS.


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


def questions_from_tfds(rows) -> list[Question]:
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


# From the logits of windows to answers: the n best, and none at all.

ANSWER_LENGTH = 30  # tokens; this and the number of answers: run_squad.py's
N_BEST = 20
NOWHERE = -np.inf


class Candidate(NamedTuple):
    """An answer, cut from the context; "" is no answer."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self):
        return self.start_logit + self.end_logit


class Answer(NamedTuple):
    """What is predicted for a question.

    Attributes:
        text: the best answer that is not empty; "" where there is none.
        odds: the score of no answer less that of `text`; None where no
            answer is not a choice, or not known.
        candidates: the best answers, best first, none twice.
    """

    text: str
    odds: float | None = None
    candidates: tuple[Candidate, ...] = ()


class Window(NamedTuple):
    """Logits of a row, and where the tokens of its context stand in it.

    Attributes:
        start, end: float `(T,)`, the logits of the row.
        before: the number of tokens in front of the context.
        begins, ends: int `(L,)`, of each token of the context in the row its
            first character and the one after its last.
        counts: bool `(L,)`, whether an answer may begin with the token here.
    """

    start: np.ndarray
    end: np.ndarray
    before: int
    begins: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def best_answer(context: str, windows: list[Window], may_be_none: bool):
    """The `Answer` to a question, from all windows of its context.

    Every span of at most 30 tokens is compared, not only those of the 20
    best starts and ends; no answer scores as the window that thinks least of
    it does. The answer is cut out of the context by its offsets, where the
    original's `run_squad.py` aligns normalised text, and is "" where no span
    is left, there "empty". Otherwise as there.
    """
    found = _distinct(context, windows)
    text = found[0].text if found else ""
    odds = None
    if may_be_none:
        none = min(
            (
                Candidate("", float(w.start[0]), float(w.end[0]))
                for w in windows
            ),
            key=lambda candidate: candidate.score,
        )
        # Without any answer to compare with, as with one that scores 0.
        odds = none.score - (found[0].score if found else 0.0)
        found.append(none)
        found.sort(key=lambda candidate: -candidate.score)
    return Answer(text, odds, _with_probabilities(found))


def _distinct(context, windows):
    """The best spans with distinct texts, `N_BEST` of them at most."""
    most = 5 * N_BEST
    while True:
        spans = sorted(
            (span for window in windows for span in _spans(window, most)),
            reverse=True,
        )
        found: dict[str, Candidate] = {}
        for _, start_logit, end_logit, begin, end in spans:
            text = context[begin:end]
            found.setdefault(text, Candidate(text, start_logit, end_logit))
            if len(found) == N_BEST:
                return list(found.values())
        if all(most >= w.counts.size * ANSWER_LENGTH for w in windows):
            return list(found.values())
        most *= 10


def _spans(window, most):
    """(score, start and end logit, first character, the one after)."""
    length = window.counts.size
    if not length:
        return []
    own = slice(window.before, window.before + length)
    start = np.where(window.counts, window.start[own], NOWHERE)
    end = np.concatenate([window.end[own], np.full(ANSWER_LENGTH - 1, NOWHERE)])
    ends = np.lib.stride_tricks.sliding_window_view(end, ANSWER_LENGTH)
    sums = (start[:, np.newaxis] + ends).ravel()  # (L, lengths)
    most = min(most, sums.size)
    best = np.argpartition(-sums, most - 1)[:most]
    best = best[sums[best] > NOWHERE]
    first = best // ANSWER_LENGTH
    last = first + best % ANSWER_LENGTH
    return zip(
        sums[best].tolist(),
        start[first].tolist(),
        end[last].tolist(),
        window.begins[first].tolist(),
        window.ends[last].tolist(),
        strict=True,
    )


def _with_probabilities(candidates):
    if not candidates:
        return ()
    shares = probabilities([candidate.score for candidate in candidates])
    return tuple(
        candidate._replace(probability=float(share))
        for candidate, share in zip(candidates, shares, strict=True)
    )


# Questions and their contexts as rows of numbers, and where answers stand.

QUESTION_LENGTH = 64  # tokens at most, as in the original
CHUNK = 1024  # texts that are tokenised at a time


class Place(NamedTuple):
    """A row: its question, its window's place, the tokens that count in it.

    `start` is the window's first token in the context, `before` the tokens
    of the row in front of it.
    """

    example: int
    start: int
    before: int
    counts: np.ndarray


class QuestionRows(NamedTuple):
    """The rows of questions, in the order of the questions."""

    inputs: dict
    windows: list[Place]
    contexts: Any

    def with_logits(self, question, number, start, end) -> Window:
        """Row `number`, one of the question's, with its logits."""
        place = self.windows[number]
        begins, ends = self.contexts.spans(question)
        own = slice(place.start, place.start + place.counts.size)
        return Window(
            np.asarray(start[number]),
            np.asarray(end[number]),
            place.before,
            begins[own],
            ends[own],
            place.counts,
        )


def question_rows(questions, preprocess, stride: int) -> QuestionRows:
    """Each question, cut to 64 tokens, before each window of its context."""
    import tensorflow as tf

    contexts = Contexts(questions, preprocess.tokenizer)
    most = min(QUESTION_LENGTH, (preprocess.sequence_length - 3) // 2)
    inputs, places = [], []
    for begin in range(0, len(questions), CHUNK):
        chunk = questions[begin : begin + CHUNK]
        asked = preprocess.tokenizer(tf.constant([q.question for q in chunk]))
        rows = windowed_rows(
            preprocess, contexts.ids(chunk), stride, asked[:, :most]
        )
        inputs.append(rows.inputs)
        places += _places(rows, begin)
    joined = {
        name: tf.concat([part[name] for part in inputs], axis=0)
        for name in inputs[0]
    }
    return QuestionRows(joined, places, contexts)


def _places(rows, first_question):
    counts = np.split(
        rows.counts.values.numpy(), rows.counts.row_splits.numpy()[1:-1]
    )
    columns = (rows.text, rows.start, rows.before)
    texts, starts, before = (column.numpy().tolist() for column in columns)
    return [
        Place(first_question + text, *numbers)
        for text, *numbers in zip(texts, starts, before, counts, strict=True)
    ]


class Contexts:
    """The distinct contexts of questions, tokenised once each."""

    def __init__(self, questions, tokenizer):
        import tensorflow as tf

        texts = list(dict.fromkeys(question.context for question in questions))
        self._numbers = {text: number for number, text in enumerate(texts)}
        parts = [
            tokenizer.tokenize_with_offsets(tf.constant(texts[i : i + CHUNK]))
            for i in range(0, len(texts), CHUNK)
        ]
        self._ids, begins, ends = (
            tf.concat(list(column), axis=0)
            for column in zip(*parts, strict=True)
        )
        self._splits = begins.row_splits.numpy()
        self._begins, self._ends = begins.values.numpy(), ends.values.numpy()

    def ids(self, questions):
        """Ragged ids `(B, None)` of the contexts of questions."""
        import tensorflow as tf

        return tf.gather(
            self._ids, [self._numbers[q.context] for q in questions]
        )

    def spans(self, question):
        """First character of each token, and the one after its last."""
        number = self._numbers[question.context]
        own = slice(self._splits[number], self._splits[number + 1])
        return self._begins[own], self._ends[own]


def span_targets(questions, rows: QuestionRows) -> tuple[dict, dict]:
    """First and last token of the answer in each row, and their weights.

    `[CLS]`, place 0, where the window has not the whole answer; of weight 0
    where the answer's place in the context is not known.
    """
    spans = [_token_span(question, rows.contexts) for question in questions]
    places = np.zeros((len(rows.windows), 2), np.int32)
    weights = np.ones(len(rows.windows), np.float32)
    for number, window in enumerate(rows.windows):
        span, start = spans[window.example], window.start
        if span is None:
            weights[number] = 0
        elif start <= span[0] and span[1] < start + window.counts.size:
            places[number] = np.array(span) - start + window.before
    ends = {"start": places[:, 0], "end": places[:, 1]}
    return ends, {"start": weights, "end": weights}


def _token_span(question, contexts):
    """First and last token of the answer; (-1, -1) where there is none."""
    if not question.answers:
        return -1, -1
    span = answer_span(question)
    if isinstance(span, str):
        return None
    begins, ends = contexts.spans(question)
    first = int(np.searchsorted(ends, span[0], side="right"))
    last = int(np.searchsorted(begins, span[1], side="left")) - 1
    return (first, last) if first <= last else None


# SQuAD 1.1 and 2.0, and other questions in their form, such as TriviaQA.


class SquadRow(NamedTuple):
    """All about one of the data sets.

    `may_be_none`: whether a question may have no answer, as in SQuAD 2.0.
    `names`: split -> names of its official file.
    """

    name: str
    may_be_none: bool
    names: dict
    defaults: Defaults


SQUAD_1 = SquadRow(
    "squad1",
    False,
    {"train": ("train-v1.1.json",), "dev": ("dev-v1.1.json",)},
    Defaults(32, 3.0, 5e-5, 384),
)
SQUAD_2 = SquadRow(
    "squad2",
    True,
    {"train": ("train-v2.0.json",), "dev": ("dev-v2.0.json",)},
    Defaults(48, 2.0, 5e-5, 384),
)
# In SQuAD's form; the files have no names that all use.
TRIVIA_QA = SquadRow("triviaqa", False, {}, Defaults(32, 1.0, 5e-5, 384))


class SquadTask(Task):
    """Questions whose answer is a part of a text, or that have none.

    Long texts are read in windows. In training the first answer counts; a
    question whose answer cannot be placed in its text is left out, and a
    window without the answer points to `[CLS]`, as in the original.

    Args:
        row: `SquadRow`.
        data_dir, train, dev, test: where the files are.
        skip_ids: file of ids, one a line, that training leaves out; several
            with commas between.
        stride: tokens from one window's beginning to the next.
        null_threshold: no answer is predicted where its score exceeds the
            best answer's by more than this.
        null_odds: file of these differences, to be read beside predictions.
    """

    metric = "f1"
    per_token = True
    loss_weights = {"start": 0.5, "end": 0.5}
    options = {
        **FILE_OPTIONS,
        "skip_ids": Option(None, "Files of question ids not to train on."),
        "stride": Option(128, "Tokens from one window to the next."),
        "null_threshold": Option(0.0, "No answer if better by more than it."),
        "null_odds": Option(None, "null_odds.json beside --predictions."),
    }

    def __init__(
        self,
        row,
        data_dir=None,
        train=None,
        dev=None,
        test=None,
        skip_ids=None,
        stride=128,
        null_threshold=0.0,
        null_odds=None,
    ):
        if stride < 1:
            raise InputError(f"stride is {stride}: expected 1 token or more")
        self.row = row
        self.name = row.name
        self.defaults = row.defaults
        files = {"train": train, "dev": dev, "test": test}
        self.splits = Splits(row.name, row.names, data_dir, files)
        self.skip_ids = skip_ids
        self.stride = stride
        self.null_threshold = null_threshold
        self.null_odds = null_odds
        self.advice = []

    def read(self, split):
        questions = self._questions(split)
        if split == "test":
            return questions
        self._check(questions, f"{split} file")
        return self._trainable(questions) if split == "train" else questions

    def _questions(self, split):
        name = self.splits.tfds(split)
        if name:
            return questions_from_tfds(tfds_rows(name, split))
        return [
            question
            for path in self.splits.paths(split)
            for question in read_questions(path)
        ]

    def _check(self, questions, file):
        for question in questions:
            if question.answers is None:
                raise InputError(
                    f"The {file} of {self.name} has a question without "
                    f"answers, {question.id!r}: expected a file with them "
                    f"(a test file can only be predicted){self.to_score}"
                )
            if not question.answers and not self.row.may_be_none:
                raise InputError(
                    f"The {file} of {self.name} has questions that have "
                    f"no answer, such as {question.id!r}, as SQuAD 2.0 has: "
                    "give --task=squad2"
                )

    def _trainable(self, questions):
        """Those whose answer can be placed; tells about the others."""
        left_out = read_ids(self.skip_ids) if self.skip_ids else set()
        kept, problems = [], {"not found": [], "ambiguous": []}
        for question in questions:
            if question.id in left_out:
                continue
            span = question.answers and answer_span(question)
            if isinstance(span, str):
                problems[span].append(question)
            else:
                kept.append(question)
        if left_out:
            count = len({q.id for q in questions} & left_out)
            self.advice.append(f"{count} questions are left out by --skip_ids")
        for problem, those in problems.items():
            if those:
                self.advice.append(
                    f"{len(those)} questions are left out of training: their "
                    f"answer's place in the text is {problem}, the first is "
                    f"{self._named(those[0])}"
                )
        if not kept:
            raise InputError(f"{self.name}: no question is left to train on")
        return kept

    def _named(self, question):
        return repr(question.id)

    def data_files(self):
        left_out = self.skip_ids.split(",") if self.skip_ids else []
        return [*self.splits.found("train", "dev"), *map(Path, left_out)]

    def encode(self, examples, preprocess):
        rows = question_rows(examples, preprocess, self.stride)
        targets = weights = None
        if all(question.answers is not None for question in examples):
            targets, weights = span_targets(examples, rows)
        example = np.array([window.example for window in rows.windows])
        notes = {"rows": rows}
        return Encoded(rows.inputs, targets, weights, example, notes=notes)

    def build(self, encoder):
        from bert_keras import BertSpanPredictor

        return BertSpanPredictor(encoder, may_be_none=self.row.may_be_none)

    def loss(self):
        from bert_keras.modeling.span import span_losses

        return span_losses()

    def decode(self, examples, encoded, outputs):
        rows = encoded.notes["rows"]
        own = rows_by_example(encoded.example, len(examples))
        return [
            best_answer(
                question.context,
                [
                    rows.with_logits(
                        question, i, outputs["start"], outputs["end"]
                    )
                    for i in numbers
                ],
                self.row.may_be_none,
            )
            for question, numbers in zip(examples, own, strict=True)
        ]

    def score(self, examples, predictions):
        self._check(examples, "file")
        answers = {q.id: q.answers for q in examples}
        given = {
            q.id: answer
            for q, answer in zip(examples, predictions, strict=True)
            if answer is not None
        }
        texts = {key: answer.text for key, answer in given.items()}
        # The best constant guess is no answer, right where there is none.
        empty = sum(not true for true in answers.values()) / len(answers)
        return {
            **self._scores(answers, texts, given),
            "majority_baseline": empty,
        }

    def _scores(self, answers, texts, given):
        if not self.row.may_be_none:
            return metrics.scores_v1(answers, texts)
        odds = {key: answer.odds for key, answer in given.items()}
        if None in odds.values():
            odds = None
        return metrics.scores_v2(answers, texts, odds, self.null_threshold)

    def mistakes(self, examples, predictions):
        wrong = []
        for question, answer in zip(examples, predictions, strict=True):
            final = self._final(answer)
            exact, _ = metrics.answer_scores(
                final, question.answers, self.row.may_be_none
            )
            if exact or not answer.candidates:
                continue
            shares = {c.text: c.probability for c in answer.candidates}
            wrong.append(
                {
                    "text": question.question,
                    "truth": " | ".join(dict.fromkeys(question.answers))
                    or "(no answer)",
                    "predicted": final or "(no answer)",
                    "probability": shares[final],
                }
            )
        return sorted(wrong, key=lambda shown: -shown["probability"])

    def write(self, examples, predictions, folder):
        """predictions.json, nbest_predictions.json and null_odds.json.

        A question without an answer, None, stands in none of them.
        """
        by_id = {
            question.id: answer
            for question, answer in zip(examples, predictions, strict=True)
            if answer is not None
        }
        files = {
            "predictions.json": {k: self._final(a) for k, a in by_id.items()},
            "nbest_predictions.json": {
                key: [candidate._asdict() for candidate in answer.candidates]
                for key, answer in by_id.items()
            },
        }
        if self.row.may_be_none:
            odds = {key: answer.odds for key, answer in by_id.items()}
            files["null_odds.json"] = odds
        for name, content in files.items():
            with open(Path(folder) / name, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, ensure_ascii=False)

    def _final(self, answer):
        if answer.odds is not None and answer.odds > self.null_threshold:
            return ""
        return answer.text

    def read_predictions(self, path, examples):
        """An `Answer` for each question; None where the file has none."""
        texts = read_predictions(path)
        ids = {q.id for q in examples}
        if not ids & texts.keys():
            raise InputError(
                f"{path}: expected answers to questions such as "
                f"{min(ids)!r}, got none of the questions: is it a file of "
                "another data set?"
            )
        odds = {}
        if self.null_odds:
            odds = read_odds(self.null_odds)
            absent = sorted((ids & texts.keys()) - odds.keys())
            if absent:
                raise InputError(
                    f"{self.null_odds}: expected a number for each predicted "
                    f"question, got none for {absent[0]!r}"
                )
        return [
            Answer(texts[q.id], odds.get(q.id)) if q.id in texts else None
            for q in examples
        ]
