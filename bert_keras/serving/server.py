"""Trial server for an export, with a part of TensorFlow Serving's REST API."""

import asyncio
import base64
import concurrent.futures
import dataclasses
import functools
import importlib.resources
import json
import os
import reprlib

import numpy as np
import tensorflow as tf
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from bert_keras import json_files
from bert_keras.comparison import check_finite_answers
from bert_keras.errors import InputError, format_count
from bert_keras.parallel import count_at_once
from bert_keras.serving.load import (
    clean_message,
    read_columns,
    read_signatures,
    to_tensors,
)

KEYS = {"signature_name", "instances", "inputs"}
MAX_VALUES = 1 << 21  # values of an output, with padding; 40 MB of JSON
MAX_DROPPED = 64 << 20  # maximum bytes to read of a body that is too large
BODY_SECONDS = 10
MAX_WAITING = 4  # limit for all bodies that wait or run, in `max_bytes`
SEND_LESS = "Send fewer or shorter rows."
INVALID_ARGUMENT = tf.errors.InvalidArgumentError
REFUSED = InputError, ClientDisconnect, HTTPException, INVALID_ARGUMENT


class RequestError(InputError):
    """Raised when a request is refused with the HTTP `status_code`."""

    def __init__(self, message, status_code=400):
        super().__init__(message)
        self.status_code = status_code


@dataclasses.dataclass
class Limits:
    """Limits of one request.

    Attributes:
        max_rows: largest number of rows.
        max_bytes: largest number of bytes of all texts that the model reads. A
            text before a list is read with each entry of the list.
    """

    max_rows: int = 64
    max_bytes: int = 1 << 17


def create_app(served, name="model", limits=None, hosts=("*",)):
    """Return the ASGI application.

    Args:
        served: a `ServedModel`.
        name: name of the model in the URLs.
        limits: `Limits` of a request.
        hosts: values that the `Host` header of a request may have.
    """
    service = _Service(served, limits or Limits())
    page = importlib.resources.files("bert_keras.serving") / "page.html"
    constant = {
        "/": HTMLResponse(page.read_bytes()),
        "/card": JSONResponse({**served.card, "name": name}),
        # Always "ok": tools/serve.py calls each signature before it serves.
        "/health": JSONResponse({"status": "ok"}),
    }
    routes = []
    number = os.path.basename(served.folder)
    number = number if number.isdecimal() else "1"
    base = f"/v1/models/{name}"
    for path in (base, f"{base}/versions/{number}"):
        descriptions = _describe(served, name, number)
        constant[path], constant[f"{path}/metadata"] = descriptions
        routes.append(
            Route(f"{path}:predict", service.predict, methods=["POST"])
        )
    routes += [Route(path, x, methods=["GET"]) for path, x in constant.items()]
    # Prevent DNS rebinding: refuse host names that are not in `hosts`.
    allowed = {"allowed_hosts": hosts, "www_redirect": False}
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, **allowed)],
        exception_handlers=dict.fromkeys(
            REFUSED, functools.partial(_refuse, f"{base}:predict")
        ),
    )


def _describe(served, name, number):
    """Return TensorFlow Serving's two descriptions: status and metadata.

    `number` is the model's version.
    """
    status = {"error_code": "OK", "error_message": ""}
    version = {"version": number, "state": "AVAILABLE", "status": status}
    model = {"name": name, "signature_name": "", "version": number}
    signatures = {"signature_def": read_signatures(served.folder)}
    metadata = {"signature_def": signatures}
    return (
        JSONResponse({"model_version_status": [version]}),
        JSONResponse({"model_spec": model, "metadata": metadata}),
    )


def _refuse(predict, request, error):
    """Return the response to a request that failed."""
    status, message = getattr(error, "status_code", 400), str(error)
    if isinstance(error, HTTPException):
        message = (
            f"{error.detail}: {request.method} {request.url.path[:200]}. "
            f"Expected POST {predict}."
        )
    message = clean_message(message)
    # Without "close", the unread rest of a body would be read as the next
    # request.
    return JSONResponse({"error": message}, status, {"Connection": "close"})


class _Service:
    def __init__(self, served, limits):
        self.served, self.limits = served, limits
        count = count_at_once()
        self.workers = concurrent.futures.ThreadPoolExecutor(count)
        self.turn = asyncio.Semaphore(count)
        self.waiting = 0  # bytes of the requests that wait or run

    async def predict(self, request):
        origin = request.headers.get("origin", "://" + request.url.netloc)
        if origin.partition("://")[2] != request.url.netloc:
            raise RequestError(
                f"A page of {reprlib.repr(origin)} sent the request. Use this "
                "server's page, or a program that is not a browser.",
                403,
            )
        body = await self._read_body(request)
        most = MAX_WAITING * self.limits.max_bytes
        if self.waiting and self.waiting + len(body) > most:
            raise RequestError("Too many requests wait. Try again.", 429)
        self.waiting += len(body)
        try:
            async with self.turn:
                if await request.is_disconnected():
                    raise ClientDisconnect
                answer = self.workers.submit(self._answer, body)
                content = await asyncio.wrap_future(answer)
        finally:
            self.waiting -= len(body)
        return Response(content, media_type="application/json")

    async def _read_body(self, request):
        """Return the body; raise `RequestError` if it is too large or slow."""
        # Clients send the whole body before they read an error. So a body that
        # is too large is read too, up to `MAX_DROPPED` bytes.
        # JSON may write one byte of text as 6 bytes, such as "\u0061" for "a".
        most = 6 * self.limits.max_bytes + (1 << 16)
        chunks, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= most:
                        chunks.append(chunk)
                    elif size > MAX_DROPPED:
                        break
        except TimeoutError:
            raise RequestError(
                f"The body took more than {BODY_SECONDS} seconds.", 408
            ) from None
        if size > most:
            raise RequestError(f"The body has more than {most} bytes.", 413)
        return b"".join(chunks)

    def _answer(self, body):
        """Return the answer as JSON. This runs in a thread of `workers`."""
        signatures, card = self.served.loaded.signatures, self.served.card
        name, columns, by_row = parse(body, card, self.limits)
        tensors = to_tensors(card["signatures"][name], columns)
        outputs = signatures[name](**tensors)
        try:
            check_finite_answers(name, columns, outputs)
        except InputError as error:
            raise RequestError(str(error), 500) from None
        size = max(int(tf.size(output)) for output in outputs.values())
        if size > MAX_VALUES:
            raise RequestError(
                f"An output has {size} values; expected at most {MAX_VALUES}. "
                f"{SEND_LESS}",
                413,
            )
        return json.dumps(to_json(outputs, by_row)).encode()


def parse(body, card, limits):
    """Return the signature's name, dict of input name -> rows, and `by_row`.

    `by_row` is True if the body has `instances`, False if it has `inputs`.
    """
    try:
        content = json_files.parse_json(body, object_hook=_decode)
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RequestError("The body is not a JSON object.")
    name = content.get("signature_name", "serving_default")
    name = card["default"] if name == "serving_default" else name
    if not isinstance(name, str) or name not in card["signatures"]:
        raise RequestError(
            f"There is no signature {reprlib.repr(name)}. Expected one of "
            f"{', '.join(sorted(card['signatures']))}.",
            404,
        )
    entry, by_row = card["signatures"][name], "instances" in content
    if set(content) - KEYS or by_row == ("inputs" in content):
        raise RequestError(
            f"The body has the keys {reprlib.repr(sorted(content))}. Expected "
            "`instances` or `inputs`, and optionally `signature_name`."
        )
    content = content["instances" if by_row else "inputs"]
    # Count the rows before the checks of each row, which take longer.
    lists = content.values() if isinstance(content, dict) else [content]
    count = max((len(x) for x in lists if isinstance(x, list)), default=1)
    if not 1 <= count <= limits.max_rows:
        raise RequestError(
            f"{format_count(count, 'row')}; expected 1 to {limits.max_rows}."
        )
    columns = _collect_columns(content, entry["input_order"], by_row)
    columns = read_columns(name, entry, columns)
    columns = {key: _encode(rows) for key, rows in columns.items()}
    size = _count_bytes(columns)
    if size > limits.max_bytes:
        raise RequestError(
            f"{size} bytes of text to read; expected at most "
            f"{limits.max_bytes}. {SEND_LESS}",
            413,
        )
    return name, columns, by_row


def _decode(value):
    """Return the bytes of {"b64": ...}, or another JSON object as it is."""
    if set(value) != {"b64"}:
        return value
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (TypeError, ValueError):
        raise ValueError("a value of `b64` is not base64") from None


def _encode(value):
    """Return a string, or the strings in nested lists, as bytes."""
    if isinstance(value, list):
        return [_encode(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def _collect_columns(content, order, by_row):
    """Return dict of input name -> rows, from the content of a request.

    `by_row` is True for `instances`, which is a list of rows.
    """
    if by_row and not isinstance(content, list):
        raise RequestError("`instances` is not a list.")
    rows = content if by_row else [content]
    is_bare = not any(isinstance(row, dict) for row in rows)
    if is_bare and len(order) == 1:
        return {order[0]: content}  # a single input needs no name
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(order):
            raise RequestError(
                f"{f'Instance {number}' if by_row else '`inputs`'} is "
                f"{reprlib.repr(row)}. Expected an object with "
                f"{' and '.join(order)}."
            )
    return {
        key: [r[key] for r in rows] if by_row else content[key] for key in order
    }


def _count_bytes(columns):
    """Return the number of bytes to read; token ids do not count.

    An empty entry of a list counts as one byte.
    """
    size = 0
    for row in zip(*columns.values(), strict=True):
        *firsts, last = row
        entries = last if isinstance(last, list) else [last]
        if all(isinstance(text, bytes) for text in (*firsts, *entries)):
            size += sum(map(len, firsts)) * len(entries)
            size += sum(max(len(text), 1) for text in entries)
    return size


def to_json(outputs, by_row):
    """Return a dict of outputs in the JSON form of TensorFlow Serving."""
    values = {key: _plain(x.numpy()) for key, x in outputs.items()}
    if len(values) == 1:  # TensorFlow Serving omits the name of a single output
        (values,) = values.values()
    elif by_row:
        rows = zip(*values.values(), strict=True)
        values = [dict(zip(values, row, strict=True)) for row in rows]
    return {"predictions" if by_row else "outputs": values}


def _plain(array):
    if array.dtype == object and array.size:
        array = np.frompyfunc(_text, 1, 1)(array)
    return np.asarray(array).tolist()


def _text(value):
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
