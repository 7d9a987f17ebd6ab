"""SQuAD 1.1 and 2.0, and other questions in their form, such as TriviaQA.

From JSON to questions, to rows, and from logits to answers and their files.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.files import split_paths
from bert_keras.text.wordpiece import encodable
from official_tasks.tasks import metrics
from official_tasks.tasks.base import Defaults, Encoded, Option
from official_tasks.tasks.encoding import chunks, windowed_rows
from official_tasks.tasks.file_task import FileTask
from official_tasks.tasks.metrics import probabilities

QUESTION_LENGTH = 64  # tokens at most, as in the original
ANSWER_LENGTH = 30  # tokens; this and the number of answers: run_squad.py's
N_BEST = 20


class SquadRow(NamedTuple):
    """All about one of the data sets; see `DataRow` too.

    `may_be_none`: whether a question may have no answer, as in SQuAD 2.0.
    """

    name: str
    files: dict
    defaults: Defaults
    may_be_none: bool
    read_file: Callable | None = None
    read_data_set: Callable | None = None


SQUAD_1 = SquadRow(
    "squad1",
    {"train": ("train-v1.1.json",), "dev": ("dev-v1.1.json",)},
    Defaults(32, 3.0, 5e-5, 384),
    may_be_none=False,
)
SQUAD_2 = SquadRow(
    "squad2",
    {"train": ("train-v2.0.json",), "dev": ("dev-v2.0.json",)},
    Defaults(48, 2.0, 5e-5, 384),
    may_be_none=True,
)
# In SQuAD's form; the files have no names that all use.
TRIVIA_QA = SquadRow(
    "triviaqa", {}, Defaults(32, 1.0, 5e-5, 384), may_be_none=False
)
ROWS = (SQUAD_1, SQUAD_2, TRIVIA_QA)


class Question(NamedTuple):
    """A question on a context.

    `answers` are the true ones: none where the context has no answer, and
    None where they are unknown (a test file). `start` is the character of
    the context at which the first begins; None where unknown. `title` is
    that of the article the context is from.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None
    start: int | None
    title: str = ""


def read_squad_file(row, path, split, notes):
    """Return the questions of a file of SQuAD's JSON."""
    return read_questions(path)


def read_squad_data_set(row, source, split, notes):
    """Yield the questions of "tfds:squad/v2.0", "hf:rajpurkar/squad", ..."""
    from bert_keras.data.data_sets import data_set_rows

    for qa in data_set_rows(source, split):
        answers = qa["answers"]
        pairs = zip(answers["text"], answers["answer_start"], strict=True)
        listed = [{"text": t, "answer_start": int(n)} for t, n in pairs]
        yield _question(qa["context"], qa, listed, qa.get("title"))


class SquadTask(FileTask):
    """Questions whose answer is a part of a text, or that have none.

    Long texts are read in windows. In training the first answer counts; a
    question whose answer cannot be placed in its text is left out, and a
    window without the answer points to `[CLS]`, as in the original.

    Args:
        row: `SquadRow`.
        skip_ids: file of ids, one a line, that training leaves out; several
            with commas between.
        stride: tokens from one window's beginning to the next.
        null_threshold: no answer is predicted where its score exceeds the
            best answer's by more than this.
        null_odds: file of these differences, to be read with predictions.
        files: `data_dir`, `train`, `dev` and `test`; see `FileTask`.
    """

    read_file, read_data_set = read_squad_file, read_squad_data_set
    metric = "f1"
    per_token = True
    loss_weights = {"start": 0.5, "end": 0.5}
    options = {
        **FileTask.options,
        "skip_ids": Option(None, "Files of question ids not to train on."),
        "stride": Option(128, "Tokens from one window to the next."),
        "null_threshold": Option(
            0.0,
            "Score by which no answer has to be better than the best answer.",
        ),
        "null_odds": Option(None, "The null_odds.json of --predictions."),
    }

    def __init__(
        self,
        row,
        *,
        skip_ids=None,
        stride=128,
        null_threshold=0.0,
        null_odds=None,
        **files,
    ):
        if stride < 1:
            raise InputError(f"stride is {stride}: expected 1 token or more")
        super().__init__(row, **files)
        self.skip_ids = [Path(p) for p in split_paths(skip_ids or "") if p]
        self.stride = stride
        self.null_threshold, self.null_odds = null_threshold, null_odds

    def read(self, split):
        questions = self.read_split(split)
        if split == "test":
            return questions
        self._check(questions, f"{split} file")
        return self._trainable(questions) if split == "train" else questions

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
        """Those whose answer can be placed; notes how many others there are."""
        skipped: set[str] = set()  # ids in files, one a line
        for path in self.skip_ids:
            if not path.is_file():
                raise InputError(f"{path}: no such file")
            skipped.update(path.read_text(encoding="utf-8").split())
        kept, problems = [], {"not found": [], "ambiguous": []}
        for question in questions:
            if question.id in skipped:
                continue
            span = question.answers and answer_span(question)
            if isinstance(span, str):
                problems[span].append(question)
            else:
                kept.append(question)
        if skipped:
            count = len({q.id for q in questions} & skipped)
            self.advice.append(f"{count} questions are left out by --skip_ids")
        for problem, left_out in problems.items():
            if left_out:
                self.advice.append(
                    f"{len(left_out)} questions are left out of training: "
                    f"their answer's place in the text is {problem}, the first "
                    f"is {self.format_question(left_out[0])}"
                )
        if not kept:
            raise InputError(f"{self.name}: no question is left to train on")
        return kept

    def format_question(self, question) -> str:
        """What notes call it."""
        return repr(question.id)

    def data_files(self):
        return [*super().data_files(), *self.skip_ids]

    def encode(self, examples, preprocess):
        windows, inputs, offsets = question_rows(
            examples, preprocess, self.stride
        )
        targets = weights = None
        if all(question.answers is not None for question in examples):
            targets, weights = span_targets(examples, windows, offsets)
        return Encoded(inputs, targets, weights, notes={"windows": windows})

    def build(self, encoder):
        from bert_keras import BertSpanPredictor

        return BertSpanPredictor(encoder, may_be_none=self.row.may_be_none)

    def loss(self):
        from bert_keras.modeling.task_models import span_losses

        return span_losses()

    def decode(self, examples, encoded, outputs):
        rows: list[list] = [[] for _ in examples]
        for window, start, end in zip(
            encoded.notes["windows"],
            outputs["start"],
            outputs["end"],
            strict=True,
        ):
            rows[window.example].append(
                (window, np.asarray(start), np.asarray(end))
            )
        return [
            best_answer(question.context, own, self.row.may_be_none)
            for question, own in zip(examples, rows, strict=True)
        ]

    def score(self, examples, predictions):
        self._check(examples, "file")
        answers = {q.id: q.answers for q in examples}
        given = _by_id(examples, predictions)
        texts = {key: answer.text for key, answer in given.items()}
        if self.row.may_be_none:
            odds = {key: answer.odds for key, answer in given.items()}
            known = None if None in odds.values() else odds
            scores = metrics.scores_v2(
                answers, texts, known, self.null_threshold
            )
        else:
            scores = metrics.scores_v1(answers, texts)
        # The best constant guess is no answer, right where there is none.
        empty = sum(not true for true in answers.values()) / len(answers)
        return {**scores, "majority_baseline": empty}

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
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        """predictions.json, nbest_predictions.json and null_odds.json.

        A question without an answer, None, stands in none of them.
        """
        given = _by_id(examples, predictions)
        files = {
            "predictions.json": {k: self._final(a) for k, a in given.items()},
            "nbest_predictions.json": {
                key: [candidate._asdict() for candidate in answer.candidates]
                for key, answer in given.items()
            },
        }
        if self.row.may_be_none:
            odds = {key: answer.odds for key, answer in given.items()}
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
        texts = _read_by_id(path, str, '{"question id": "answer", ...}')
        ids = {q.id for q in examples}
        if not ids & texts.keys():
            raise InputError(
                f"{path}: expected answers to questions such as "
                f"{min(ids)!r}, got none of the questions: is it a file of "
                "another data set?"
            )
        odds = {}
        if self.null_odds:
            odds = _read_by_id(
                self.null_odds, (int, float), '{"question id": 1.5, ...}'
            )
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


def _by_id(examples, predictions):
    """Question's id -> its `Answer`, of those that have one."""
    pairs = zip(examples, predictions, strict=True)
    return {q.id: answer for q, answer in pairs if answer is not None}


# Files: questions in SQuAD's JSON, ids, and predictions.


def read_questions(path) -> list[Question]:
    """The questions of a file in the form of SQuAD 1.1 or 2.0.

    Raises:
        InputError: no such file, not SQuAD's JSON, an id that comes twice.
    """
    content = _read_json(path, "SQuAD's JSON")
    try:
        questions = [
            _question(
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
        OverflowError,  # a start of 1e400
    ) as error:
        raise InputError(
            f'{path}: expected SQuAD\'s JSON, {{"data": [{{"paragraphs": '
            '[{"context": ..., "qas": [{"id": ..., "question": ..., '
            f'"answers": [...]}}]}}]}}]}}; it fails at {error}'
        ) from error
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


def _question(context, qa, answers, title):
    """Of JSON; answers as SQuAD writes them, a list of dicts or None."""
    texts = start = None
    if answers is not None:
        impossible = qa.get("is_impossible", False)
        texts = () if impossible else tuple(a["text"] for a in answers)
        texts = encodable(texts)
        if texts:
            start = answers[0].get("answer_start")
            start = None if start is None else int(start)
    return Question(
        str(qa["id"]),
        encodable(str(qa["question"])),
        encodable(str(context)),
        texts,
        start,
        str(title or ""),
    )


def _read_json(path, form):
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: expected {form}, got something else: {error}"
        ) from error


def _read_by_id(path, kind, form) -> dict:
    """id -> value, of `predictions.json` or `null_odds.json`."""
    content = _read_json(path, f"JSON, {form}")
    if not isinstance(content, dict) or not all(
        isinstance(value, kind) for value in content.values()
    ):
        raise InputError(f"{path}: expected {form}, got other JSON")
    return content


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
    # A negative start, which some data sets write for none, is no position.
    if start is None or start < 0 or not context.startswith(text, start):
        start = context.find(text)
        if start < 0:
            return "not found"
        if context.find(text, start + 1) >= 0:
            return "ambiguous"
    return start, start + len(text)


# Questions and their contexts as rows, and where the answers stand in them.


class Window(NamedTuple):
    """A row: the question, then these tokens of its context, L of them.

    Attributes:
        example: the number of the question.
        start: the window's first token in the context.
        before: the tokens of the row in front of the window.
        begins, ends: int `(L,)`, of each token its first character in the
            context and the one after its last.
        counts: bool `(L,)`, whether an answer may begin with the token here.
    """

    example: int
    start: int
    before: int
    begins: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def question_rows(questions, preprocess, stride: int):
    """Each question, cut to 64 tokens, before each window of its context.

    Returns:
        `(windows, inputs, offsets)`: a `Window` a row; dict of ragged
        `int32 (R, None)`; and for each question the first characters of its
        context's tokens, and the ones after their last.
    """
    import tensorflow as tf

    tokenizer = preprocess.tokenizer
    # Each distinct context is tokenised once.
    contexts = list(dict.fromkeys(question.context for question in questions))
    numbers = {context: number for number, context in enumerate(contexts)}
    number_of = [numbers[question.context] for question in questions]
    parts = [
        tokenizer.tokenize_with_offsets(tf.constant(contexts[chunk]))
        for chunk in chunks(len(contexts))
    ]
    ids, begins, ends = (
        tf.concat(list(column), axis=0) for column in zip(*parts, strict=True)
    )
    lead = tf.concat(
        [
            tokenizer(tf.constant([q.question for q in questions[chunk]]))
            for chunk in chunks(len(questions))
        ],
        axis=0,
    )
    most = min(QUESTION_LENGTH, (preprocess.sequence_length - 3) // 2)
    rows = windowed_rows(
        preprocess, tf.gather(ids, number_of), stride, lead[:, :most]
    )
    pairs = list(zip(_by_row(begins), _by_row(ends), strict=True))
    offsets = [pairs[number] for number in number_of]
    columns = (rows.text, rows.start, rows.before)
    lists = [column.numpy().tolist() for column in columns]
    windows = []
    for example, start, before, own in zip(
        *lists, _by_row(rows.counts), strict=True
    ):
        begin, end = (x[start : start + own.size] for x in offsets[example])
        windows.append(Window(example, start, before, begin, end, own))
    return windows, rows.inputs, offsets


def _by_row(ragged):
    """A ragged `(R, None)` as R arrays."""
    return np.split(ragged.values.numpy(), ragged.row_splits.numpy()[1:-1])


def span_targets(questions, windows, offsets) -> tuple[dict, dict]:
    """First and last token of the answer in each row, and their weights.

    `[CLS]`, place 0, where the window lacks a part of the answer; of weight 0
    where the answer's place in the context is unknown.
    """
    spans = list(map(_token_span, questions, offsets))
    places = np.zeros((len(windows), 2), np.int32)
    weights = np.ones(len(windows), np.float32)
    for row, window in enumerate(windows):
        span, start = spans[window.example], window.start
        if span is None:
            weights[row] = 0
        elif start <= span[0] and span[1] < start + window.counts.size:
            places[row] = np.array(span) - start + window.before
    targets = {"start": places[:, 0], "end": places[:, 1]}
    return targets, {"start": weights, "end": weights}


def _token_span(question, offsets):
    """First and last token of the answer; (-1, -1) where there is none."""
    if not question.answers:
        return -1, -1
    span = answer_span(question)
    if isinstance(span, str):
        return None
    begins, ends = offsets
    first = int(np.searchsorted(ends, span[0], side="right"))
    last = int(np.searchsorted(begins, span[1], side="left")) - 1
    return (first, last) if first <= last else None


# From the logits of windows to answers: the n best, and none at all.


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


def best_answer(context: str, rows, may_be_none: bool) -> Answer:
    """The `Answer` to a question, from all windows of its context.

    Every span of at most 30 tokens is compared, not only those of the 20
    best starts and ends; no answer scores as the window that thinks least of
    it does. The answer is cut out of the context by its offsets, where the
    original's `run_squad.py` aligns normalised text, and is "" where no span
    is left, there "empty". Otherwise as there.

    Args:
        rows: list of (`Window`, logits of the start, logits of the end), the
            logits float `(T,)` of the row.
    """
    candidates = _best_spans(context, rows)
    text = candidates[0].text if candidates else ""
    odds = None
    if may_be_none:
        none = min(
            (
                Candidate("", float(start[0]), float(end[0]))  # at [CLS]
                for _, start, end in rows
            ),
            key=lambda candidate: candidate.score,
        )
        # Without any answer to compare with, as with one that scores 0.
        odds = none.score - (candidates[0].score if candidates else 0.0)
        candidates.append(none)
        candidates.sort(key=lambda candidate: -candidate.score)
    if not candidates:
        return Answer(text, odds)
    shares = probabilities([candidate.score for candidate in candidates])
    return Answer(
        text,
        odds,
        tuple(
            candidate._replace(probability=float(share))
            for candidate, share in zip(candidates, shares, strict=True)
        ),
    )


def _best_spans(context, rows) -> list[Candidate]:
    """The best spans with distinct texts, `N_BEST` of them at most."""
    most = 5 * N_BEST
    while True:
        spans = sorted(
            (span for row in rows for span in _spans(*row, most)),
            reverse=True,
        )
        best: dict[str, Candidate] = {}
        for _, start_logit, end_logit, begin, end in spans:
            text = context[begin:end]
            best.setdefault(text, Candidate(text, start_logit, end_logit))
            if len(best) == N_BEST:
                return list(best.values())
        if all(most >= w.counts.size * ANSWER_LENGTH for w, *_ in rows):
            return list(best.values())
        most *= 10  # too many of the spans had the same texts


def _spans(window, start, end, most):
    """(score, start and end logit, first character, the one after)."""
    length = window.counts.size
    if not length:
        return []
    own = slice(window.before, window.before + length)
    start = np.where(window.counts, start[own], -np.inf)
    end = np.concatenate([end[own], np.full(ANSWER_LENGTH - 1, -np.inf)])
    ends = np.lib.stride_tricks.sliding_window_view(end, ANSWER_LENGTH)
    sums = (start[:, np.newaxis] + ends).ravel()  # (L, lengths of answers)
    most = min(most, sums.size)
    best = np.argpartition(-sums, most - 1)[:most]
    best = best[sums[best] > -np.inf]
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
