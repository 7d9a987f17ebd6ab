"""What a request costs the model, and requests answered together.

Cost is counted in tokens that the model reads, before it reads them. A token
is one byte of text at least, so bytes say the most that a text can cost; the
tokenizer says it exactly. Requests that wait are answered together, those of
like length only. A large one is answered in slices, in turn with the others:
it neither takes the memory of all its rows at once nor keeps others waiting.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses

import numpy as np
import tensorflow as tf

from bert_keras.serving.load import as_tensor, parse_kind, spec_of
from bert_keras.serving.rest import Limits, RequestError

# Without it in the card: the longest row of the published models.
SEQUENCE_LENGTH = 512
FRAME = 3  # [CLS] and two [SEP]
# Windows in which `answer` reads a token, of rows of up to 384 tokens; in
# longer ones they begin 128 tokens apart. The other signatures: two at most.
ANSWER_WINDOWS, ANSWER_STRIDE = 3, 128
WINDOWED = ("classify", "embed", "tag")
TEXTS_AT_ONCE = 32
# Of a batch: 32 rows of 512. Most texts have four bytes a token, so that the
# bytes that are counted are a quarter as many tokens; ids are exact, and
# count four times.
BATCH_TOKENS, IDS_COUNT = 1 << 14, 4
# Requests that wait may cost so many times what one may.
WAITING_REQUESTS = 4


def row_tokens(name, inputs, card, length=len):
    """The most tokens that the model reads for each row of a request.

    Args:
        name: of the signature.
        inputs: input name -> list of rows, as `rest.parse` gives them.
        card: of the export.
        length: tokens of a text at most: its bytes, or as counted.

    Returns:
        list of int.
    """
    in_row = card.get("sequence_length", SEQUENCE_LENGTH)
    columns = list(inputs.values())
    kind = card["signatures"][name]["inputs"][next(iter(inputs))]
    if parse_kind(kind)[0] != "string":
        return [_longest(columns[0])] * len(columns[0])
    if name == "tokenize":
        return [length(text) for text in columns[0]]
    windows = card.get("options", {}).get("long_text") == "windows"
    if name == "answer":
        overlap = max(in_row / ANSWER_STRIDE, ANSWER_WINDOWS)
    else:
        overlap = 2 if windows and name in WINDOWED else 0
    return [
        _tokens(row, in_row, overlap, length) + _masks(name, row, in_row)
        for row in zip(*columns, strict=True)
    ]


def _longest(rows):
    """Ids of a row when all rows are as long as the longest."""
    longest = max(map(len, rows))
    if isinstance(rows[0][0], list):
        longest *= max(len(ids) for row in rows for ids in row)
    return longest


def _tokens(row, in_row, overlap, length):
    """Of one row: texts, or a text and the list of its choices."""
    *first, last = row
    before = sum(map(length, first)) + FRAME
    total = 0
    for text in last if isinstance(last, list) else [last]:
        tokens = before + length(text)
        if tokens > in_row:
            tokens = int(tokens * overlap) + in_row
        total += tokens
    return total


def _masks(name, row, in_row):
    """The product with the vocabulary for a mask is another token's worth.

    It takes 0.3 of what a token takes in BERT-Base and as much in 6 layers
    of width 384.
    """
    if name != "fill_mask":
        return 0
    return min(row[0].count(b"[MASK]"), in_row)


def counter(inputs, tokenize):
    """The `length` of `row_tokens` that knows each text's tokens exactly.

    Args:
        inputs: input name -> list of rows of texts.
        tokenize: that signature of the export.
    """
    rows = [row for column in inputs.values() for row in column]
    lists = [row if isinstance(row, list) else [row] for row in rows]
    texts = sorted({text for row in lists for text in row}, key=len)
    counts = {}
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        some = texts[first : first + TEXTS_AT_ONCE]
        count = tokenize(text=tf.constant(some))["count"].numpy()
        counts |= dict(zip(some, count.tolist(), strict=True))
    return counts.__getitem__


class OverloadedError(RequestError):
    """More waits than can be answered soon; come back later."""

    def __init__(self):
        super().__init__("Too many requests wait; try again.", 429)


class GoneError(RequestError):
    """The client left before it was answered."""

    def __init__(self):
        super().__init__("Gone.", 400)


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
        # Rows and tokens of requests in slices that are not in the queue yet.
        self._later = collections.Counter()
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
            is_gone: awaited between the slices: whether nobody waits for the
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
        slices = self._slices([each * count for count in tokens])
        if len(slices) > 1 and not is_text:
            inputs = await asyncio.to_thread(self._pad_ids, signature, inputs)
        left = collections.Counter(rows=rows, tokens=sum(tokens))
        self._later.update(left)
        answers = []
        try:
            for place in slices:
                if answers and is_gone and await is_gone():
                    raise GoneError
                own = {"rows": len(tokens[place]), "tokens": sum(tokens[place])}
                self._later.subtract(own)
                left.subtract(own)
                own_inputs = {key: x[place] for key, x in inputs.items()}
                answer = await self._ask(signature, own_inputs, **own)
                answers.append(answer)
                self._check_size(answer, own["rows"], rows)
        finally:
            self._later.subtract(left)
        return _concatenate(answers, self._padded(signature))

    def _tensors(self, signature, inputs):
        kinds = self.served.card["signatures"][signature]["inputs"]
        return {k: as_tensor(x, spec_of(kinds[k])) for k, x in inputs.items()}

    def _pad_ids(self, signature, inputs):
        """Rows of ids, all as long as the longest."""
        tensors = self._tensors(signature, inputs)
        return {name: x.numpy().tolist() for name, x in tensors.items()}

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

    def _slices(self, tokens):
        """Slices of the rows, each of which fits a batch or is one row."""
        slices, first, most = [], 0, 0
        for place, count in enumerate(tokens):
            most = max(most, count)
            size = place + 1 - first
            if place > first and (
                size > self.max_rows or size * most > BATCH_TOKENS
            ):
                slices.append(slice(first, place))
                first, most = place, count
        return [*slices, slice(first, len(tokens))]

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
        except Exception as error:  # of one of them, who gets it
            if len(batch) == 1:
                return [error]
            return [self._answer([item])[0] for item in batch]

    def _answer_together(self, batch):
        signature = batch[0].key[0]
        inputs = {
            name: [x for item in batch for x in item.inputs[name]]
            for name in batch[0].inputs
        }
        tensors = self._tensors(signature, inputs)
        outputs = self.served.loaded.signatures[signature](**tensors)
        outputs = {name: value.numpy() for name, value in outputs.items()}
        padded = self._padded(signature)
        answers, first = [], 0
        for item in batch:
            own = slice(first, first + item.rows)
            answers.append(_own_rows(outputs, own, padded))
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


def _own_rows(outputs, own, padded):
    """The own rows, not padded wider than they need."""
    rows = {name: value[own] for name, value in outputs.items()}
    if padded:
        width = int(rows["count"].max(initial=0))
        rows |= {name: rows[name][:, :width] for name in padded}
    return rows


def _is_text(rows):
    first = rows[0][0] if isinstance(rows[0], list) else rows[0]
    return isinstance(first, bytes)


def _concatenate(answers, padded):
    """The slices' outputs one after the other, padded to the widest."""
    if len(answers) == 1:
        return answers[0]
    outputs = {}
    for name in answers[0]:
        values = [answer[name] for answer in answers]
        if values[0].ndim > 1:
            # As the signatures pad: vectors, and what no `count` cuts, by 0.
            missing = -1 if name in padded and name != "features" else 0
            width = max(value.shape[1] for value in values)
            if name == "order":  # of passages: those that are none come last
                missing = np.arange(width)
            values = [_widen(value, width, missing) for value in values]
        outputs[name] = np.concatenate(values)
    return outputs


def _widen(value, width, missing):
    """The array (B, N, ...) with `width` as its second axis."""
    missing = b"" if value.dtype == object else missing
    shape = (len(value), width, *value.shape[2:])
    wide = np.full(shape, missing, value.dtype)
    wide[:, : value.shape[1]] = value
    return wide
