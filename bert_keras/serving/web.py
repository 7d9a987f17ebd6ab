"""The served model over HTTP, in TensorFlow Serving's REST form.

An ASGI application on Starlette. For trying a model and for small loads;
for production TensorFlow Serving speaks the same form.
"""

import asyncio
import base64
import hashlib
import importlib.resources
import ipaddress
import json
import re
import reprlib
import socket
import time
import urllib.parse

import tensorflow as tf
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

from bert_keras.serving.batching import Batcher, GoneError, OverloadedError
from bert_keras.serving.rest import Limits, RequestError, parse, spelled

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
