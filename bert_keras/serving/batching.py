"""Requests that wait are answered together, those of like length only."""

import asyncio
import collections
import concurrent.futures
import dataclasses

from bert_keras.serving.loading import as_tensor


class OverloadedError(Exception):
    """More waits than can be answered soon; come back later."""


@dataclasses.dataclass
class _Waiting:
    key: tuple
    inputs: dict
    rows: int
    answer: asyncio.Future


class Batcher:
    """Calls a served model with as many waiting rows as are alike.

    A batch costs its longest text, so rows go together whose lengths are
    within a factor of two, and of one signature. The oldest goes first;
    nothing waits for more to come while the model is free.

    Args:
        served: a `ServedModel`.
        max_rows: rows of a batch; a larger request goes alone.
        max_waiting: rows that may wait; more are refused.
    """

    def __init__(self, served, max_rows=32, max_waiting=256):
        self.served = served
        self.max_rows = max_rows
        self.max_waiting = max_waiting
        self.batch_sizes = collections.Counter()
        self._queue = collections.deque()
        self._work = None
        # One at a time: TensorFlow itself uses every core for a batch.
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    @property
    def waiting(self):
        """Rows that wait."""
        return sum(item.rows for item in self._queue)

    async def ask(self, signature, inputs):
        """Outputs of the signature, name -> NumPy array, for these rows.

        Raises:
            OverloadedError: too many rows wait.
        """
        rows = len(next(iter(inputs.values())))
        if self._queue and self.waiting + rows > self.max_waiting:
            raise OverloadedError
        answer = asyncio.get_running_loop().create_future()
        key = (signature, _size(inputs))
        self._queue.append(_Waiting(key, inputs, rows, answer))
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
        batch, rows, rest = [], 0, collections.deque()
        for item in self._queue:
            if item.answer.done():
                continue
            is_alike = not batch or item.key == batch[0].key
            if is_alike and (not batch or rows + item.rows <= self.max_rows):
                batch.append(item)
                rows += item.rows
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
        padded = self.served.card["signatures"][signature]["padded"]
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
