"""The served model over HTTP, in TensorFlow Serving's REST form."""

import asyncio
import base64
import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.resources
import ipaddress
import json
import re
import reprlib
import socket
import time
import urllib.parse

import numpy as np
import tensorflow as tf
import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bert_keras.serving.load import as_tensor
from bert_keras.serving.rest import Limits, RequestError, parse, spelled

# uvicorn with an end to its patience. It has no time-out for a request's
# headers or for a client that does not read, and no limit to the headers' size
# or to requests that are sent ahead.

HEAD_AT_MOST = 1 << 16  # bytes of a request's first line and headers
# Bytes of a request: the largest body that is read and dropped, and what
# chunks and trailers put around it.
REQUEST_AT_MOST = 128 << 20
AHEAD_AT_MOST = 100  # requests sent before those in front are answered


def server_config(app, host, port, slow_client):
    """The `uvicorn.Config` of the application.

    Args:
        app: the ASGI application.
        host: name or address to listen on.
        port: 0 for a free one.
        slow_client: seconds in which a client sends its headers, and in which
            it reads at least something of its answer.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=functools.partial(_Connection, slow_client),
        ws="none",
        log_level="warning",
        access_log=False,
    )


class _Connection(HttpToolsProtocol):
    """One connection, looked at every so many seconds.

    Once its headers are read, `web.py` gives a body its own time.
    """

    def __init__(self, seconds, **arguments):
        super().__init__(**arguments)
        self.seconds = seconds
        self._received = 0  # bytes since the last request was done
        self._seen = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._seen = self._state()
        self._look = self.loop.call_later(self.seconds, self._look_again)

    def connection_lost(self, exc):
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self):
        self._received = 0
        super().on_response_complete()

    def data_received(self, data):
        request = self.cycle
        super().data_received(data)
        if self.cycle is not request:
            self._received = 0
        self._received += len(data)
        if self.transport.is_closing():
            return
        if self._awaits_head() and self._received > HEAD_AT_MOST:
            self.send_400_response(
                f"The headers are larger than {HEAD_AT_MOST} bytes."
            )
        elif (
            self._received > REQUEST_AT_MOST
            or len(self.pipeline) > AHEAD_AT_MOST
        ):
            self.transport.abort()

    def _awaits_head(self):
        return self.cycle is None or self.cycle.response_complete

    def _state(self):
        """What it does, for which request, and what the client has to read."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return "sends", self.cycle, unsent
        return "waits" if self._awaits_head() else "works", self.cycle, 0

    def _look_again(self):
        *before, unread = self._seen
        self._seen = self._state()
        *now, unsent = self._seen
        if now == before and now[0] != "works" and unsent >= unread:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(self.seconds, self._look_again)


# What a request costs the model, counted before it is answered. Counted in
# tokens that the model reads. A token is one byte of text at least, so bytes
# tell the most that a text can cost; the tokenizer tells it exactly.

# Without it in the card: the longest row of the published models.
SEQUENCE_LENGTH = 512
FRAME = 3  # [CLS] and two [SEP]
# Windows in which `answer` reads a token, of rows of up to 384 tokens; in
# longer ones they begin 128 tokens apart. The other signatures: two at most.
ANSWER_WINDOWS, ANSWER_STRIDE = 3, 128
WINDOWED = ("classify", "embed", "tag")
TEXTS_AT_ONCE = 32


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
    if card["signatures"][name]["inputs"][next(iter(inputs))][:3] == "int":
        return [_padded(columns[0])] * len(columns[0])
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


def _padded(rows):
    """Ids of a row when all rows are as long as the longest."""
    longest = max(map(len, rows))
    if isinstance(rows[0][0], list):
        longest *= max(len(ids) for row in rows for ids in row)
    return longest


def _tokens(row, in_row, overlap, length):
    """Of one row: texts, or a text and the list of its choices."""
    *first, last = row
    before = sum(map(length, first)) + FRAME
    texts = last if isinstance(last, list) else [last]
    found = 0
    for text in texts:
        tokens = before + length(text)
        if tokens > in_row:
            tokens = int(tokens * overlap) + in_row
        found += tokens
    return found


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


# Requests that wait are answered together, those of like length only. A large
# one is answered in pieces, in turn with the others: it neither takes the
# memory of all its rows at once nor keeps the others waiting for long.

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


# The served model over HTTP, in TensorFlow Serving's REST form. An ASGI
# application on Starlette. For trying a model and for small loads; for
# production TensorFlow Serving speaks the same form.

DROPPED_AT_MOST = 64 << 20  # bytes read of a body that is too large
# What was not read of a body would be taken for the next request.
CLOSE = {"Connection": "close"}
PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(/versions/\d+)?")


LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = "any address"  # a site's name cannot be one
EVERYWHERE = ("0.0.0.0", "::", "")


def hosts_of(host):
    """The hosts that requests ask for where a server listens on `host`."""
    if host in EVERYWHERE:
        own = socket.gethostname(), socket.getfqdn()
        return [*LOOPBACK, *dict.fromkeys(own), ANY_ADDRESS]
    return [*LOOPBACK] if host in LOOPBACK else [host]


def create_app(
    served,
    name="model",
    limits=None,
    max_waiting=256,
    slow_client=10.0,
    allowed_hosts=LOOPBACK,
):
    """The ASGI application.

    Args:
        served: a `ServedModel`.
        name: what the model is called in the addresses.
        limits: `Limits` of a request.
        max_waiting: rows that may wait; beyond them the answer is 429.
        slow_client: seconds in which a client sends its body; else 408.
        allowed_hosts: names and addresses that a request may ask for in its
            `Host`, without ports; "*" is any; see also `hosts_of`.
    """
    service = _Service(
        served, name, limits or Limits(), max_waiting, slow_client
    )
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/card", service.card),
            Route("/health", service.health),
            Route("/metrics", service.metrics),
            Route("/v1/models/{rest:path}", service.model, methods=["GET"]),
            Route("/v1/models/{rest:path}", service.predict, methods=["POST"]),
        ],
        middleware=[Middleware(_FromHere, allowed_hosts)],
    )


class _FromHere:
    """Refuses what a page of another site made a browser send.

    By `Origin`; and by `Host`, for a site may have its name point to this
    machine and is then the same origin for a browser. (Starlette's
    TrustedHostMiddleware does not say what it expects.)
    """

    def __init__(self, app, allowed_hosts):
        self.app = app
        self.allowed_hosts = [host.lower() for host in allowed_hosts]

    async def __call__(self, scope, receive, send):
        refusal = None
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope))
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, headers):
        asked = headers.get("host", "").lower()
        host, allowed = _host_of(asked), self.allowed_hosts
        is_address = ANY_ADDRESS in allowed and _is_address(host)
        if not (host in allowed or is_address or "*" in allowed):
            message = (
                f"The host {reprlib.repr(host)} is not served here. Expected "
                f"one of {', '.join(allowed)}; --allowed_hosts of "
                "tools/serve.py names more."
            )
            return JSONResponse({"error": message}, 421, CLOSE)
        origin = headers.get("origin")
        if origin and origin.lower().partition("://")[2] != asked:
            message = (
                f"A page of {reprlib.repr(origin)} may not ask here; only "
                f"the server's own page may."
            )
            return JSONResponse({"error": message}, 403, CLOSE)
        return None


def _host_of(asked):
    """A `Host` without its port and an address's brackets; or None."""
    try:
        return urllib.parse.urlsplit(f"//{asked}").hostname
    except ValueError:
        return None


def _is_address(host):
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


class _Service:
    def __init__(self, served, name, limits, max_waiting, slow_client):
        self.served, self.name, self.limits = served, name, limits
        self.slow_client = slow_client
        self.batcher = Batcher(served, max_waiting=max_waiting, limits=limits)
        page = importlib.resources.files("bert_keras.serving") / "page.html"
        self.html = page.read_text(encoding="utf-8")
        self.policy = _policy(self.html)
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "bert_requests",
            "Requests answered.",
            ["signature", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "bert_request_seconds",
            "Time from a request's last byte to its answer.",
            ["signature"],
            registry=self.registry,
        )
        waiting = Gauge(
            "bert_rows_waiting", "Rows that wait.", registry=self.registry
        )
        waiting.set_function(lambda: self.batcher.waiting)

    async def page(self, request):
        policy = {"Content-Security-Policy": self.policy}
        return HTMLResponse(self.html, headers=policy)

    async def card(self, request):
        return JSONResponse({**self.served.card, "name": self.name})

    async def health(self, request):
        return JSONResponse({"status": "ok", "waiting": self.batcher.waiting})

    async def metrics(self, request):
        return Response(
            generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST
        )

    async def model(self, request):
        path = request.url.path
        found = PATH.match(path)
        if not found or found["name"] != self.name:
            return self._refused("", self._no_model(path))
        if path.endswith("/metadata"):
            return JSONResponse(
                {
                    "model_spec": {"name": self.name, "version": "1"},
                    "metadata": {
                        "signature_def": self.served.card["signatures"]
                    },
                }
            )
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": "1", "state": "AVAILABLE", "status": status}
        return JSONResponse({"model_version_status": [version]})

    async def predict(self, request):
        signature = ""
        try:
            path = request.url.path
            found = PATH.match(path)
            is_ours = found and found["name"] == self.name
            if not is_ours or path != found[0] + ":predict":
                raise self._no_model(path)
            body = await self._body(request)
            began = time.perf_counter()
            asked = parse(body, self.served.card, self.limits)
            signature = asked.signature
            outputs = await self.batcher.ask(
                signature, asked.inputs, request.is_disconnected
            )
            # Spelling a large answer takes a while: beside the event loop.
            content = await asyncio.to_thread(
                lambda: json.dumps(spelled(outputs, asked.by_row)).encode()
            )
        except RequestError as error:
            return self._refused(signature, error)
        except OverloadedError:
            error = RequestError("Too many requests wait; try again.", 429)
            return self._refused(signature, error)
        except (ClientDisconnect, GoneError):
            return self._refused(signature, RequestError("Gone.", 400))
        except tf.errors.InvalidArgumentError as error:
            return self._refused(signature, _not_taken(error))
        except tf.errors.ResourceExhaustedError:
            error = RequestError("No memory is left for it; send less.", 503)
            return self._refused(signature, error)
        self.seconds.labels(signature).observe(time.perf_counter() - began)
        self.requests.labels(signature, 200).inc()
        return Response(content, media_type="application/json")

    def _no_model(self, path):
        return RequestError(
            f"There is nothing at {reprlib.repr(path)}. Expected "
            f"/v1/models/{self.name}:predict.",
            404,
        )

    def _refused(self, signature, error):
        self.requests.labels(signature, error.status).inc()
        again = {"Retry-After": "1"} if error.status == 429 else {}
        content = {"error": str(error)}
        return JSONResponse(content, error.status, {**CLOSE, **again})

    async def _body(self, request):
        """The body, if it is small and comes soon.

        One that is too large is read and dropped: a client that is cut off
        while it sends never reads why.
        """
        most = self.limits.body
        dropped = max(DROPPED_AT_MOST, most)
        too_large = RequestError(f"The body is larger than {most} bytes.", 413)
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > dropped:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.slow_client):
                async for part in request.stream():
                    size += len(part)
                    if size > dropped:
                        raise too_large
                    if size <= most:
                        parts.append(part)
        except TimeoutError:
            raise RequestError(
                f"The body did not come within {self.slow_client:g} seconds.",
                408,
            ) from None
        if size > most:
            raise too_large
        return b"".join(parts)


def _policy(html):
    """A Content-Security-Policy that runs the page's own script alone."""

    def own(tag):
        text = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = hashlib.sha256(text.encode()).digest()
        return f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'"

    return "; ".join(
        [
            "default-src 'none'",
            own("script"),
            own("style"),
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _not_taken(error):
    """What the graph says of ids that it does not take, in one line."""
    return RequestError(f"The model takes no such input: {error.message}")
