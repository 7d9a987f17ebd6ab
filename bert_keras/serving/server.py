"""The served model over HTTP, in TensorFlow Serving's REST form.

An ASGI application on Starlette, on uvicorn with time-outs. For trying a model
and for small loads; for production TensorFlow Serving speaks the same form.
"""

import asyncio
import base64
import functools
import hashlib
import importlib.resources
import ipaddress
import json
import os
import re
import reprlib
import socket
import time
import urllib.parse

import tensorflow as tf
import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bert_keras.serving.batching import Batcher, GoneError
from bert_keras.serving.rest import (
    Limits,
    RequestError,
    format_answer,
    openapi,
    parse,
)

DROPPED_AT_MOST = 64 << 20  # bytes read of a body that is too large
# What was not read of a body would be taken for the next request.
CLOSE = {"Connection": "close"}
HEAD_AT_MOST = 1 << 16  # bytes of a request's first line and headers
# Bytes of a request: the largest body that is read and dropped, and what
# chunks and trailers put around it.
REQUEST_AT_MOST = 128 << 20
AHEAD_AT_MOST = 100  # requests sent before those in front are answered
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
    worker=0,
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
        worker: the number of this process, of several, for the metrics.
    """
    service = _Service(
        served, name, limits or Limits(), max_waiting, slow_client, worker
    )
    return Starlette(
        routes=[
            Route("/", service.page),
            Route("/card", service.card),
            Route("/openapi.json", service.openapi),
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
        named = headers.get("host", "").lower()
        host, allowed = _host_of(named), self.allowed_hosts
        is_address = ANY_ADDRESS in allowed and _is_address(host)
        if not (host in allowed or is_address or "*" in allowed):
            message = (
                f"The host {reprlib.repr(host)} is not served here. Expected "
                f"one of {', '.join(allowed)}; --allowed_hosts of "
                "tools/serve.py names more."
            )
            return JSONResponse({"error": message}, 421, CLOSE)
        origin = headers.get("origin")
        if origin and origin.lower().partition("://")[2] != named:
            message = (
                f"A page of {reprlib.repr(origin)} may not ask here; only "
                f"the server's own page may."
            )
            return JSONResponse({"error": message}, 403, CLOSE)
        return None


def _host_of(named):
    """A `Host` without its port and an address's brackets; or None."""
    try:
        return urllib.parse.urlsplit(f"//{named}").hostname
    except ValueError:
        return None


def _is_address(host):
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


class _Service:
    def __init__(self, served, name, limits, max_waiting, slow_client, worker):
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
        process = Info(
            "bert_worker", "Whose figures these are.", registry=self.registry
        )
        process.info({"worker": str(worker), "process": str(os.getpid())})

    async def page(self, request):
        policy = {"Content-Security-Policy": self.policy}
        return HTMLResponse(self.html, headers=policy)

    async def card(self, request):
        return JSONResponse({**self.served.card, "name": self.name})

    async def openapi(self, request):
        return JSONResponse(openapi(self.served.card, self.name))

    async def health(self, request):
        return JSONResponse({"status": "ok", "waiting": self.batcher.waiting})

    async def metrics(self, request):
        return Response(
            generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST
        )

    async def model(self, request):
        path = request.url.path
        if not self._address(path):
            return self._refuse("", self._no_model(path))
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
            address = self._address(path)
            if not address or path != address + ":predict":
                raise self._no_model(path)
            body = await self._body(request)
            began = time.perf_counter()
            parsed = parse(body, self.served.card, self.limits)
            signature = parsed.signature
            outputs = await self.batcher.ask(
                signature, parsed.inputs, request.is_disconnected
            )
            # A large answer takes a while: not on the event loop.
            content = await asyncio.to_thread(
                lambda: json.dumps(
                    format_answer(outputs, parsed.by_row)
                ).encode()
            )
        except RequestError as error:
            return self._refuse(signature, error)
        except ClientDisconnect:
            return self._refuse(signature, GoneError())
        except tf.errors.InvalidArgumentError as error:  # such as of ids
            message = f"The model takes no such input: {error.message}"
            return self._refuse(signature, RequestError(message))
        except tf.errors.ResourceExhaustedError:
            message = "No memory is left for it; send less."
            return self._refuse(signature, RequestError(message, 503))
        self.seconds.labels(signature).observe(time.perf_counter() - began)
        self.requests.labels(signature, 200).inc()
        return Response(content, media_type="application/json")

    def _address(self, path):
        """The beginning of a path that names this model, or None."""
        match = PATH.match(path)
        return match[0] if match and match["name"] == self.name else None

    def _no_model(self, path):
        return RequestError(
            f"There is nothing at {reprlib.repr(path)}. Expected "
            f"/v1/models/{self.name}:predict.",
            404,
        )

    def _refuse(self, signature, error):
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
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.slow_client):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > dropped:
                        raise too_large
                    if size <= most:
                        chunks.append(chunk)
        except TimeoutError:
            raise RequestError(
                f"The body did not come within {self.slow_client:g} seconds.",
                408,
            ) from None
        if size > most:
            raise too_large
        return b"".join(chunks)


def _policy(html):
    """A Content-Security-Policy that runs the page's own script alone."""

    def of(tag):
        text = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = hashlib.sha256(text.encode()).digest()
        return f"{tag}-src 'sha256-{base64.b64encode(digest).decode()}'"

    return "; ".join(
        [
            "default-src 'none'",
            of("script"),
            of("style"),
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


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

    uvicorn has no time-out for a request's headers or for a client that does
    not read, and no limit to the headers' size or to requests sent ahead.
    Once its headers are read, `_Service._body` gives a body its own time.
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
