"""Select the best answers to a question from the logits of its windows."""

from typing import NamedTuple

import numpy as np

from official_tasks.tasks.metrics import probabilities

# Defaults of run_squad.py, the original's script.
ANSWER_LENGTH = 30  # maximum number of tokens of an answer
N_BEST = 20  # maximum number of candidate spans of a question


class Candidate(NamedTuple):
    """A possible answer: a span of the context, or "" for "no answer"."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0  # softmax over the candidates of a question

    @property
    def score(self):
        return self.start_logit + self.end_logit


class Answer(NamedTuple):
    """The prediction for a question.

    Attributes:
        text: the best answer that is not empty, or "" if there is none.
        odds: the score of "no answer" minus the score of `text`. None if each
            question of the task has an answer, or if the scores are unknown.
        candidates: the best candidates with distinct texts, best first; "no
            answer" has the text "". The tuple is empty if there is no
            candidate, or if the answer comes from a file of predictions.
    """

    text: str
    odds: float | None = None
    candidates: tuple[Candidate, ...] = ()


def best_answer(context: str, rows, may_be_none: bool) -> Answer:
    """Return the `Answer` to a question, from all windows of its context.

    As in the original's `run_squad.py`, the score of "no answer" is its lowest
    score over the windows. Three things differ. Every span of at most 30 tokens
    is compared, not only spans between the 20 best starts and ends. Character
    offsets cut the answer out of the context; the original aligns normalized
    text. If there is no span, the answer is "", not the word "empty".

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
        # The logits of [CLS], at index 0, are the logits of "no answer".
        none = min(
            (
                Candidate("", float(start[0]), float(end[0]))
                for _, start, end in rows
            ),
            key=lambda candidate: candidate.score,
        )
        # If there is no span, the score of the best span counts as 0.
        odds = none.score - (candidates[0].score if candidates else 0.0)
        candidates.append(none)
        candidates.sort(key=lambda candidate: -candidate.score)
        if candidates[-1] is not none:
            del candidates[N_BEST:]  # "no answer" is kept even at rank 21
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
    limit = 5 * N_BEST
    while True:
        spans = sorted(
            (span for row in rows for span in _list_spans(*row, limit)),
            reverse=True,
        )
        best: dict[str, Candidate] = {}
        for _, start_logit, end_logit, begin, end in spans:
            text = context[begin:end]
            best.setdefault(text, Candidate(text, start_logit, end_logit))
            if len(best) == N_BEST:
                return list(best.values())
        if all(limit >= w.counts.size * ANSWER_LENGTH for w, *_ in rows):
            return list(best.values())
        limit *= 10  # too few distinct texts, so list more spans


def _list_spans(window, start, end, limit):
    """Return the `limit` best spans of a window, in any order.

    A span is (score, start logit, end logit, start, end). Its start and end
    (exclusive) are indices of characters of the context.
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
    limit = min(limit, sums.size)
    best = np.argpartition(-sums, limit - 1)[:limit]
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
