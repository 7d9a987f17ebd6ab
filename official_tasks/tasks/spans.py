"""Extractive question answering: spans of a context, or "no answer"."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError, format_count
from official_tasks.options import option
from official_tasks.tasks import metrics
from official_tasks.tasks.answers import Answer, best_answer
from official_tasks.tasks.base import (
    Defaults,
    Encoded,
    Examples,
    list_metrics,
)
from official_tasks.tasks.character_spans import from_utf16
from official_tasks.tasks.encoding import chunks, windowed_rows
from official_tasks.tasks.forms.text_files import read_json
from official_tasks.tasks.source import Problem

QUESTION_LENGTH = 64  # maximum number of tokens, as in the original


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanOptions:
    """Windows of a long context, and the score of no answer."""

    stride: int = option(
        128, "Tokens between the starts of successive windows."
    )
    null_threshold: float = option(
        0.0,
        "Predict 'no answer' if its score exceeds the best answer's score by "
        "more than this number. A trained model may have another default.",
    )


class Question(NamedTuple):
    """A question, and the text that may answer it: the context.

    Attributes:
        id: unique in a dev or test split; may repeat in training.
        answers: the true answers, () if the context has no answer, or None if
            they are unknown, as in a test file.
        start: the stated index of the first answer's first character in the
            context. None without an answer; None or negative if unknown. It may
            be wrong; see `answer_span`.
        title: title of the article that contains the context.
        row_id: see `Example`. If those of a split differ, they take the place
            of `id` in files of predictions.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None
    start: int | None
    title: str = ""
    row_id: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts; see `Example`."""
        return self.question, self.context

    @property
    def label(self):
        """The answers; see `Example`."""
        return self.answers

    @property
    def group(self):
        """The context. Rows with equal groups go to the same split."""
        return self.context


class SpanTask(Problem):
    """A task that finds answer spans with a `BertSpanPredictor`.

    Long contexts are read in windows. Training uses the first answer and leaves
    out a question whose answer has no known position. In a window without the
    answer, the target is `[CLS]`, as in the original.

    Args:
        source: `Source` that reads `Question`s.
        may_be_none: True if questions may have no answer, as in SQuAD 2.0.
            None: the model or the questions of train and dev decide.
        stride: number of tokens between the starts of successive windows.
        null_threshold: "no answer" is predicted if its score exceeds the best
            answer's score by more than this number. None takes the model's
            threshold, which is 0 for a new model.
        null_odds: path of a null_odds.json for `read_predictions`.
        defaults: `Defaults`.
    """

    defaults = Defaults(32, 3.0, 5e-5, 384)
    per_token = True
    loss_weights = {"start": 0.5, "end": 0.5}

    def __init__(
        self,
        source,
        may_be_none=None,
        *,
        stride=128,
        null_threshold=None,
        null_odds=None,
        defaults=None,
    ):
        if stride < 1:
            raise InputError(f"`stride` is {stride}: expected 1 token or more")
        super().__init__(source)
        self.defaults = defaults or self.defaults
        self.may_be_none, self.is_fixed = may_be_none, may_be_none is not None
        self.stride = stride
        self.is_threshold_fixed = null_threshold is not None
        self.null_threshold = null_threshold or 0.0
        self.null_odds = null_odds

    @property
    def metrics(self):
        """The metrics of SQuAD 1.1, or those of 2.0; see `Task`."""
        names = ["f1", "exact_match"]
        if self.may_be_none is not False:
            kinds = ("answerable_", "unanswerable_", "best_")
            names += [kind + name for kind in kinds for name in names]
        return list_metrics(*names)

    def take_arguments(self, arguments):
        # A test file has no answers, so take `may_be_none` from the model.
        if "may_be_none" in arguments:
            self.may_be_none = self.may_be_none or arguments["may_be_none"]
        if not self.is_threshold_fixed:
            self.null_threshold = arguments.get("null_threshold", 0.0)

    def can_tune(self):
        return self.may_be_none and not self.is_threshold_fixed

    def tune(self, examples, predictions):
        """Return a dict with the "null_threshold" that has the best F1.

        The dict is empty if `may_be_none` is False, or if the user set the
        threshold.
        """
        if not self.can_tune():
            return {}
        answers = {question.id: question.answers for question in examples}
        predicted = _index_answers([q.id for q in examples], predictions)
        texts = {key: answer.text for key, answer in predicted.items()}
        odds = {key: answer.odds for key, answer in predicted.items()}

        def score(threshold):
            return metrics.scores_v2(answers, texts, odds, threshold)

        # If "no answer" to all questions gives the best F1, the official script
        # returns the threshold 0. But 0 keeps answers with odds of at most 0.
        # So also try a threshold below all odds, which keeps no answer.
        thresholds = score(0.0)["best_f1_threshold"], min(odds.values()) - 1
        return {"null_threshold": max(thresholds, key=lambda t: score(t)["f1"])}

    def read(self, split):
        questions = self.source.read(split)
        if split != "train":
            self._refuse_repeated_ids(questions, split)
        if split == "test":
            return questions
        if not self.is_fixed:
            is_none = any(question.answers == () for question in questions)
            self.may_be_none = self.may_be_none or is_none
        self._check(questions, f"{split} file")
        return (
            self._select_trainable(questions) if split == "train" else questions
        )

    def _refuse_repeated_ids(self, questions, split):
        # Scores and written files have one entry for each id.
        seen: set[str] = set()
        for question in questions:
            if question.id in seen:
                raise InputError(
                    f"The {split} split of {self.name}: expected each "
                    f"question once, got the id {question.id!r} again. If the "
                    "split has several files, give their questions "
                    "different ids"
                )
            seen.add(question.id)

    def _check(self, questions, file):
        for question in questions:
            if question.answers is None:
                raise InputError(
                    f"The {file} of {self.name} has no answers for the "
                    f"question with the id {question.id!r}. A file without "
                    f"answers can only be used to predict{self.to_score}"
                )
            if not question.answers and not self.may_be_none:
                raise InputError(
                    f"The {file} of {self.name} has questions with no "
                    f"answer, such as {question.id!r}, but this task needs an "
                    "answer to each question: give --task=squad2"
                )

    def _select_trainable(self, questions):
        kept, problems = [], {"not found": [], "ambiguous": []}
        for question in questions:
            span = question.answers and answer_span(question)
            if isinstance(span, str):
                problems[span].append(question)
            else:
                kept.append(question)
        notes = list(questions.notes)
        notes += [
            f"{format_count(len(left_out), 'question')} left out of training, "
            f"with the position of the answer {problem}; the first is "
            f"{self.source.describe(left_out[0])}"
            for problem, left_out in problems.items()
            if left_out
        ]
        stated = [(q, _find_stated(q)) for q in kept if q.answers]
        stated = [(q, start) for q, start in stated if _has_start(q)]
        if moved := [q for q, start in stated if start is None]:
            notes.append(
                f"{format_count(len(moved), 'answer')} not at the start (an "
                "index of characters, from 0), but once elsewhere in the "
                "context. Training uses that position; the first is "
                f"{self.source.describe(moved[0])}"
            )
        if units := [q for q, x in stated if x not in (None, q.start)]:
            notes.append(
                f"the start of {format_count(len(units), 'answer')} counts "
                "UTF-16 units, and is converted to characters; the first is "
                f"{self.source.describe(units[0])}"
            )
        if not kept:
            raise InputError(
                f"{self.name}: no question is left to train on: "
                f"{'; '.join(notes)}"
            )
        return Examples(kept, notes)

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

        return BertSpanPredictor(
            encoder,
            may_be_none=bool(self.may_be_none),
            null_threshold=self.null_threshold,
        )

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
            best_answer(question.context, windows, self.may_be_none)
            for question, windows in zip(examples, rows, strict=True)
        ]

    def check_labels(self, examples):
        self._check(examples, "file")

    def score(self, examples, predictions):
        self.check_labels(examples)
        answers = {q.id: q.answers for q in examples}
        predicted = _index_answers([q.id for q in examples], predictions)
        texts = {key: answer.text for key, answer in predicted.items()}
        if self.may_be_none:
            odds = {key: answer.odds for key, answer in predicted.items()}
            known = None if None in odds.values() else odds
            scores = metrics.scores_v2(
                answers, texts, known, self.null_threshold
            )
        else:
            scores = metrics.scores_v1(answers, texts)
        # The baseline always predicts "no answer".
        empty = sum(not true for true in answers.values()) / len(answers)
        return {**scores, "majority_baseline": empty}

    def mistakes(self, examples, predictions):
        wrong = []
        for question, answer in zip(examples, predictions, strict=True):
            final = self._final(answer)
            exact, _ = metrics.answer_scores(
                final, question.answers, self.may_be_none
            )
            if exact or not answer.candidates:
                continue
            truth = " | ".join(dict.fromkeys(question.answers))
            probability = {c.text: c.probability for c in answer.candidates}
            wrong.append(
                {
                    "text": question.question,
                    "truth": truth or "(no answer)",
                    "predicted": final or "(no answer)",
                    "probability": probability[final],
                }
            )
        return sorted(wrong, key=lambda mistake: -mistake["probability"])

    def write(self, examples, predictions, folder):
        """Write predictions.json and nbest_predictions.json.

        With `may_be_none`, write null_odds.json too. The files leave out
        questions whose prediction is None.
        """
        answers = _index_answers(_list_keys(examples), predictions)
        files = {
            "predictions.json": {k: self._final(a) for k, a in answers.items()},
            "nbest_predictions.json": {
                key: [candidate._asdict() for candidate in answer.candidates]
                for key, answer in answers.items()
            },
        }
        if self.may_be_none:
            odds = {key: answer.odds for key, answer in answers.items()}
            files["null_odds.json"] = odds
        for name, content in files.items():
            with open(Path(folder) / name, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1, ensure_ascii=False)

    def _final(self, answer):
        if answer.odds is not None and answer.odds > self.null_threshold:
            return ""
        return answer.text

    def read_predictions(self, path, examples):
        """Return each question's `Answer`, or None if the file lacks it."""
        texts = _read_by_id(path, str, '{"question id": "answer", ...}')
        keys = _list_keys(examples)
        ids = {*keys}
        if not texts.keys() <= ids and texts.keys() <= {q.id for q in examples}:
            raise InputError(
                f"{path} names questions by the number of their row, and the "
                "questions have ids: predict them again"
            )
        if not ids & texts.keys():
            raise InputError(
                f"{path}: expected answers to questions such as "
                f"{min(ids)!r}, got other questions. Is this a file of another "
                "data set?"
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
            Answer(texts[key], odds.get(key)) if key in texts else None
            for key in keys
        ]


def _list_keys(questions) -> list[str]:
    """Return the name of each question in files of predictions."""
    ids = [question.row_id for question in questions]
    if all(ids) and len({*ids}) == len(ids):
        return ids
    return [question.id for question in questions]


def _index_answers(keys, predictions) -> dict:
    pairs = zip(keys, predictions, strict=True)
    return {key: answer for key, answer in pairs if answer is not None}


def _read_by_id(path, kind, form) -> dict:
    content = read_json(path, f"JSON, {form}")
    if not isinstance(content, dict) or not all(
        isinstance(value, kind) for value in content.values()
    ):
        raise InputError(f"{path}: expected {form}, got other JSON")
    return content


def answer_span(question: Question) -> tuple[int, int] | str:
    """Return (start, end) of `answers[0]` in characters, end exclusive.

    If `question.start` is unknown or wrong, search the context. Then return
    "not found" if the answer does not occur, and "ambiguous" if the answer
    occurs several times. A blank answer is always "not found". White space at
    the end of the answer does not count, as in the original.
    """
    text, context = question.answers[0].rstrip(), question.context
    if not text:
        return "not found"
    question = question._replace(answers=(text, *question.answers[1:]))
    start = _find_stated(question)
    if start is None:
        start = context.find(text)
        if start < 0:
            return "not found"
        if context.find(text, start + 1) >= 0:
            return "ambiguous"
    return start, start + len(text)


def _has_start(question):
    # In some data sets, a negative start means unknown.
    return question.start is not None and question.start >= 0


def _find_stated(question) -> int | None:
    """Return the index of `answers[0]` that `start` states, in characters.

    `start` may also count UTF-16 units, as browsers do. Return None if `start`
    is unknown, or if the answer is at neither index.
    """
    if not _has_start(question):
        return None
    text, context = question.answers[0], question.context
    if context.startswith(text, question.start):
        return question.start
    start = from_utf16(context).get(question.start)
    is_there = start is not None and context.startswith(text, start)
    return start if is_there else None


class Window(NamedTuple):
    """A row: the question, then L tokens of its context.

    Attributes:
        example: the index of the question.
        start: the index of the window's first token in the context.
        before: the number of tokens in the row before the window.
        begins, ends: int `(L,)`, start and end (exclusive) of each token, as
            indices of characters of the context.
        counts: bool `(L,)`, True where an answer may begin. Each token of the
            context counts in exactly one window.
    """

    example: int
    start: int
    before: int
    begins: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def question_rows(questions, preprocess, stride: int):
    """Encode rows; each row has a question and a window of its context.

    A question is cut to 64 tokens, or to half of the row if this is shorter.

    Args:
        questions: list of `Question`.
        preprocess: `BertPreprocessor`.
        stride: number of tokens between the starts of successive windows.

    Returns:
        `(windows, inputs, offsets)`. `windows` is a list of R `Window`s.
        `inputs` is a dict of ragged `int32 (R, None)`. `offsets` has two arrays
        for each question: the start and the end (exclusive) of each token of
        the context, in characters.
    """
    import tensorflow as tf

    tokenizer = preprocess.tokenizer
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
    pairs = list(zip(_split_by_row(begins), _split_by_row(ends), strict=True))
    offsets = [pairs[number] for number in number_of]
    columns = (rows.text, rows.start, rows.before)
    lists = [column.numpy().tolist() for column in columns]
    windows = []
    for example, start, before, counts in zip(
        *lists, _split_by_row(rows.counts), strict=True
    ):
        begin, end = (x[start : start + counts.size] for x in offsets[example])
        windows.append(Window(example, start, before, begin, end, counts))
    return windows, rows.inputs, offsets


def _split_by_row(ragged):
    """Return a ragged tensor `(R, None)` as a list of R arrays."""
    return np.split(ragged.values.numpy(), ragged.row_splits.numpy()[1:-1])


def span_targets(questions, windows, offsets) -> tuple[dict, dict]:
    """Return targets and weights, both a dict of "start" and "end" -> `(R,)`.

    Targets are the positions of the answer's first and last token in the row,
    or 0 (`[CLS]`) if there is no answer or the window lacks part of the answer.
    The weight is 0 if the answer has no known position or no token.
    """
    spans = list(map(_find_token_span, questions, offsets))
    positions = np.zeros((len(windows), 2), np.int32)
    weights = np.ones(len(windows), np.float32)
    for row, window in enumerate(windows):
        span, start = spans[window.example], window.start
        if span is None:
            weights[row] = 0
        elif start <= span[0] and span[1] < start + window.counts.size:
            positions[row] = np.array(span) - start + window.before
    targets = {"start": positions[:, 0], "end": positions[:, 1]}
    return targets, {"start": weights, "end": weights}


def _find_token_span(question, offsets):
    """Return the indices of the answer's first and last token.

    Return (-1, -1) if there is no answer. Return None if the position of the
    answer is unknown, or if the answer has no token.
    """
    if not question.answers:
        return -1, -1
    span = answer_span(question)
    if isinstance(span, str):
        return None
    begins, ends = offsets
    first = int(np.searchsorted(ends, span[0], side="right"))
    last = int(np.searchsorted(begins, span[1], side="left")) - 1
    return (first, last) if first <= last else None
