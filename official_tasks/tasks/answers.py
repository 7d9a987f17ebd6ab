"""The best answers to a question, from the logits of its windows."""

from typing import NamedTuple

import numpy as np

from official_tasks.tasks.metrics import probabilities

# Defaults of the original's run_squad.py.
ANSWER_LENGTH = 30  # tokens
N_BEST = 20


class Candidate(NamedTuple):
    """A possible answer: a span of the context, or "" for "no answer"."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self):
        return self.start_logit + self.end_logit


class Answer(NamedTuple):
    """The prediction for a question.

    Attributes:
        text: the best answer that is not empty, or "" if there is none.
        odds: the score of "no answer" minus the score of `text`; None if every
            question has an answer, or if the score is unknown.
        candidates: the best answers with distinct texts, best first.
    """

    text: str
    odds: float | None = None
    candidates: tuple[Candidate, ...] = ()


def best_answer(context: str, rows, may_be_none: bool) -> Answer:
    """Return the `Answer` to a question, from all windows of its context.

    This follows the original's `run_squad.py`, with three differences. Every
    span of at most 30 tokens is compared, not only spans between the 20 best
    starts and ends. The answer is cut out of the context by character offsets,
    not by aligning normalized text. Without any span, the answer is "", not
    "empty". As in the original, "no answer" gets its lowest score over the
    windows.

    Args:
        context: text of the question's context.
        rows: list of (`Window`, start logits, end logits); the logits are
            float `(T,)`.
        may_be_none: whether "no answer" is a candidate.
    """
    candidates = _select_best_spans(context, rows)
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
        # If there is no span, the score of "no answer" is compared with 0.
        odds = none.score - (candidates[0].score if candidates else 0.0)
        candidates.append(none)
        candidates.sort(key=lambda candidate: -candidate.score)
    if not candidates:
        return Answer(text, odds)
    values = probabilities([candidate.score for candidate in candidates])
    return Answer(
        text,
        odds,
        tuple(
            candidate._replace(probability=float(value))
            for candidate, value in zip(candidates, values, strict=True)
        ),
    )


def _select_best_spans(context, rows) -> list[Candidate]:
    most = 5 * N_BEST
    while True:
        spans = sorted(
            (span for row in rows for span in _list_spans(*row, most)),
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
        most *= 10  # too few spans had distinct texts


def _list_spans(window, start, end, most):
    """Return the `most` best spans of a window.

    A span is (score, start logit, end logit, first character, end character).
    """
    length = window.counts.size
    if not length:
        return []
    tokens = slice(window.before, window.before + length)
    start = np.where(window.counts, start[tokens], -np.inf)
    end = np.concatenate([end[tokens], np.full(ANSWER_LENGTH - 1, -np.inf)])
    # (L, ANSWER_LENGTH)
    ends = np.lib.stride_tricks.sliding_window_view(end, ANSWER_LENGTH)
    sums = (start[:, np.newaxis] + ends).ravel()
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
