"""Questions and their contexts as rows of numbers, and where answers stand."""

from typing import Any, NamedTuple

import numpy as np

from official_tasks import squad_files
from official_tasks.squad_answers import Window
from official_tasks.windowed import windowed_rows

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


def targets(questions, rows: QuestionRows) -> tuple[dict, dict]:
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
    span = squad_files.answer_span(question)
    if isinstance(span, str):
        return None
    begins, ends = contexts.spans(question)
    first = int(np.searchsorted(ends, span[0], side="right"))
    last = int(np.searchsorted(begins, span[1], side="left")) - 1
    return (first, last) if first <= last else None
