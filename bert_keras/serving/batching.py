"""Requests that wait are answered together, those of like length only.

A large one is answered in pieces, in turn with the others: it neither takes
the memory of all its rows at once nor keeps the others waiting for long.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses

import numpy as np

from bert_keras.serving.loading import as_tensor
from bert_keras.serving.rest import Limits, RequestError
from bert_keras.serving.work import counter, row_tokens

# Of a batch: 32 rows of 512. Most texts have four bytes a token, so that the
# bytes that are counted are a quarter as many tokens; ids are exact, and
# count four times.
BATCH_TOKENS, IDS_COUNT = 1 << 14, 4
# Requests that wait may cost so many times what one may.
WAITING_REQUESTS = 4


class OverloadedError(Exception):
    """More waits than can be answered soon; come back later."""


class GoneError(Exception):
    """The client left before it was answered."""


@dataclasses.dataclass
class _Waiting:
    key: tuple
    inputs: dict
    rows: int
    tokens: int
    answer: asyncio.Future


class Batcher:
    """Calls a served model with as many waiting rows as are alike.

    A batch costs its longest text, so rows go together whose lengths are
    within a factor of two, and of one signature. The oldest goes first;
    nothing waits for more to come while the model is free.

    Args:
        served: a `ServedModel`.
        max_rows: rows of a batch.
        max_waiting: rows that may wait; more are refused.
        limits: `Limits` of a request.
    """

    def __init__(self, served, max_rows=32, max_waiting=256, limits=None):
        self.served = served
        self.max_rows = max_rows
        self.max_waiting = max_waiting
        self.limits = limits or Limits()
        self.batch_sizes = collections.Counter()
        self._queue = collections.deque()
        self._later = collections.Counter()  # of requests that are in pieces
        self._work = None
        # One at a time: TensorFlow itself uses every core for a batch.
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    @property
    def waiting(self):
        """Rows that wait."""
        return self._later["rows"] + sum(item.rows for item in self._queue)

    @property
    def _waiting_tokens(self):
        return self._later["tokens"] + sum(item.tokens for item in self._queue)

    async def ask(self, signature, inputs, is_gone=None):
        """Outputs of the signature, name -> NumPy array, for these rows.

        Args:
            signature: its name.
            inputs: input name -> list of rows, as `parse` gives them.
            is_gone: awaited between the pieces: whether nobody waits for the
                answer any more.

        Raises:
            RequestError: it costs more than the limits allow.
            OverloadedError: too much waits.
            GoneError: `is_gone`.
        """
        tokens = await self._tokens(signature, inputs)
        rows = len(tokens)
        most = WAITING_REQUESTS * self.limits.tokens
        if self.waiting and (
            self.waiting + rows > self.max_waiting
            or self._waiting_tokens + sum(tokens) > most
        ):
            raise OverloadedError
        is_text = _is_text(next(iter(inputs.values())))
        each = 1 if is_text else IDS_COUNT
        pieces = self._pieces([each * count for count in tokens])
        if len(pieces) > 1 and not is_text:
            inputs = await asyncio.to_thread(_filled, inputs)
        left = collections.Counter(rows=rows, tokens=sum(tokens))
        self._later.update(left)
        answers = []
        try:
            for piece in pieces:
                if answers and is_gone and await is_gone():
                    raise GoneError
                own = {"rows": len(tokens[piece]), "tokens": sum(tokens[piece])}
                self._later.subtract(own)
                left.subtract(own)
                part = {name: rows[piece] for name, rows in inputs.items()}
                answers.append(await self._ask(signature, part, **own))
                self._check_size(answers[-1], own["rows"], rows)
        finally:
            self._later.subtract(left)
        return _joined(answers, self._padded(signature))

    def _padded(self, signature):
        return self.served.card["signatures"][signature]["padded"]

    async def _tokens(self, signature, inputs):
        """What each row costs.

        By bytes; exactly where that would be too much, which takes longer.
        """
        card, most = self.served.card, self.limits.tokens
        tokens = row_tokens(signature, inputs, card)
        if signature == "tokenize" or sum(tokens) <= most:
            return tokens
        tokenize = self.served.loaded.signatures.get("tokenize")
        if tokenize and _is_text(next(iter(inputs.values()))):
            loop = asyncio.get_running_loop()
            length = await loop.run_in_executor(
                self._thread, counter, inputs, tokenize
            )
            tokens = row_tokens(signature, inputs, card, length)
        if sum(tokens) > most:
            raise RequestError(
                f"The model would read {sum(tokens)} tokens for the request; "
                f"{most} are read at once. Send fewer rows or shorter ones.",
                413,
            )
        return tokens

    def _check_size(self, answer, rows, all_rows):
        """Refuses what, with all rows as wide as these, is too large."""
        size = sum(value.size for value in answer.values()) // rows
        if size * all_rows > self.limits.values:
            raise RequestError(
                f"The answer has over {self.limits.values} numbers and texts, "
                "rows filled up to the longest. Send fewer rows or shorter "
                "ones.",
                413,
            )

    def _pieces(self, tokens):
        """Slices of the rows, each of which fits a batch or is one row."""
        pieces, first, most = [], 0, 0
        for place, count in enumerate(tokens):
            most = max(most, count)
            size = place + 1 - first
            if place > first and (
                size > self.max_rows or size * most > BATCH_TOKENS
            ):
                pieces.append(slice(first, place))
                first, most = place, count
        return [*pieces, slice(first, len(tokens))]

    async def _ask(self, signature, inputs, rows, tokens):
        answer = asyncio.get_running_loop().create_future()
        key = (signature, _size(inputs))
        self._queue.append(_Waiting(key, inputs, rows, tokens, answer))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._answer_all())
        return await answer

    async def _answer_all(self):
        loop = asyncio.get_running_loop()
        while self._queue:
            batch = self._next_batch()
            if not batch:
                continue
            self.batch_sizes[sum(item.rows for item in batch)] += 1
            answers = await loop.run_in_executor(
                self._thread, self._answer, batch
            )
            for item, answer in zip(batch, answers, strict=True):
                if item.answer.done():  # its client has gone
                    continue
                if isinstance(answer, Exception):
                    item.answer.set_exception(answer)
                else:
                    item.answer.set_result(answer)

    def _next_batch(self):
        """The oldest that is still wanted, and those alike that fit."""
        batch, rows, tokens, rest = [], 0, 0, collections.deque()
        for item in self._queue:
            if item.answer.done():
                continue
            fits = (
                rows + item.rows <= self.max_rows
                and tokens + item.tokens <= BATCH_TOKENS
            )
            if not batch or (item.key == batch[0].key and fits):
                batch.append(item)
                rows += item.rows
                tokens += item.tokens
            else:
                rest.append(item)
        self._queue = rest
        return batch

    def _answer(self, batch):
        """The answer to each waiting request of a batch, or its error."""
        try:
            return self._answer_together(batch)
        except Exception as error:  # of one of them, who is told
            if len(batch) == 1:
                return [error]
            return [self._answer([item])[0] for item in batch]

    def _answer_together(self, batch):
        signature = batch[0].key[0]
        inputs = {
            name: as_tensor([x for item in batch for x in item.inputs[name]])
            for name in batch[0].inputs
        }
        outputs = self.served.loaded.signatures[signature](**inputs)
        outputs = {name: value.numpy() for name, value in outputs.items()}
        padded = self._padded(signature)
        answers, first = [], 0
        for item in batch:
            own = slice(first, first + item.rows)
            answers.append(_cut(outputs, own, padded))
            first += item.rows
        return answers


def _size(inputs):
    """What must be alike: lengths of texts roughly, of lists exactly."""
    return tuple(
        _list_size(rows)
        if isinstance(rows[0], list)
        else max(max(len(row) for row in rows), 64).bit_length()
        for rows in inputs.values()
    )


def _list_size(rows):
    inner = [len(x) for row in rows for x in row if isinstance(x, list)]
    return max(len(row) for row in rows), max(inner, default=0)


def _cut(outputs, own, padded):
    """The own rows, not padded wider than they need."""
    rows = {name: value[own] for name, value in outputs.items()}
    if padded:
        width = int(rows["count"].max(initial=0))
        rows |= {name: rows[name][:, :width] for name in padded}
    return rows


def _filled(inputs):
    """Rows of ids, all as long as the longest."""
    return {
        name: as_tensor(rows).numpy().tolist() for name, rows in inputs.items()
    }


def _is_text(rows):
    first = rows[0][0] if isinstance(rows[0], list) else rows[0]
    return isinstance(first, bytes)


def _joined(answers, padded):
    """The pieces' outputs one after the other, padded to the widest."""
    if len(answers) == 1:
        return answers[0]
    joined = {}
    for name in answers[0]:
        values = [answer[name] for answer in answers]
        if values[0].ndim > 1:
            # As the signatures pad: vectors, and what no `count` cuts, by 0.
            missing = -1 if name in padded and name != "features" else 0
            values = [_widened(value, values, missing) for value in values]
        joined[name] = np.concatenate(values)
    return joined


def _widened(value, values, missing):
    """With its second axis as wide as that of the widest."""
    width = max(other.shape[1] for other in values)
    missing = b"" if value.dtype == object else missing
    shape = (len(value), width, *value.shape[2:])
    widened = np.full(shape, missing, value.dtype)
    widened[:, : value.shape[1]] = value
    return widened
