"""The server on a stand-in for a model, over real connections."""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
import types
from pathlib import Path

import pytest
import tensorflow as tf
from run_script import ROOT, run_script

from bert_keras.serving.batching import Batcher, GoneError, OverloadedError
from bert_keras.serving.rest import Limits, RequestError

ENTRY = {
    "input_order": ["text"],
    "inputs": {"text": "string (B,)"},
    "outputs": {},
    "padded": [],
    "labels": ["short", "long"],
    "request": {"text": ["An hour well spent."]},
}


FOUND = "It was \U0001f469\u200d\U0001f4bb in an <attic> in Bern."
TAG = {
    **ENTRY,
    "padded": ["text", "type", "start", "end", "score"],
    "request": {"text": [FOUND]},
}
ANSWER = {
    **ENTRY,
    "input_order": ["question", "context"],
    "inputs": {"question": "string (B,)", "context": "string (B,)"},
    "padded": ["answer", "start", "end", "score"],
    "request": {"question": ["Where?"], "context": [FOUND]},
}
CHOOSE = {
    **ENTRY,
    "input_order": ["prompt", "choices"],
    "inputs": {"prompt": "string (B,)", "choices": "string (B, N)"},
    "request": {"prompt": ["She"], "choices": [["ran.", "sat."]]},
}


class Served:
    """Counts the letters of texts, slowly if asked to; fails on "boom"."""

    def __init__(self):
        self.card = {
            "license_of_weights": "apache-2.0",
            "versions": {"bert_keras": "1", "keras": "1.2", "tensorflow": "2"},
            "default": "classify",
            "signatures": {
                "classify": ENTRY,
                "letters": {**ENTRY, "padded": ["letter"], "labels": []},
                "tag": TAG,
                "answer": ANSWER,
                "choose": CHOOSE,
            },
        }
        self.batches = []
        self.seconds = 0.0
        self.loaded = types.SimpleNamespace(
            signatures={
                name: getattr(self, name) for name in self.card["signatures"]
            }
        )

    def classify(self, text):
        self.batches.append(text.numpy().tolist())
        time.sleep(self.seconds)
        if b"boom" in self.batches[-1]:
            raise tf.errors.InvalidArgumentError(None, None, "no booms")
        length = tf.strings.length(text)
        share = tf.cast(length, tf.float32) / 100.0
        label = tf.where(length > 9, "long", "short")
        return {
            "label": label,
            "probabilities": tf.stack([1.0 - share, share], axis=-1),
        }

    def letters(self, text):
        letters = tf.strings.bytes_split(text)
        count = tf.cast(letters.row_lengths(), tf.int32)
        return {"letter": letters.to_tensor(""), "count": count}

    def tag(self, text):
        """Bern is a place, the attic a thing: the later one first."""
        return {
            "text": tf.constant([["Bern", "<attic>"]]),
            "type": tf.constant([["LOC", "THING"]]),
            **self._places("Bern", "<attic>"),
            "score": tf.constant([[0.9, 0.8]]),
            "count": tf.constant([2]),
        }

    def answer(self, question, context):
        return {
            "answer": tf.constant([["<attic>"]]),
            **self._places("<attic>"),
            "score": tf.constant([[7.25]]),
            "count": tf.constant([1]),
            "null_score": tf.constant([-1.5]),
        }

    def _places(self, *parts):
        starts = [FOUND.index(part) for part in parts]
        ends = [s + len(p) for s, p in zip(starts, parts, strict=True)]
        return {"start": tf.constant([starts]), "end": tf.constant([ends])}

    def choose(self, prompt, choices):
        return {
            "choice": tf.constant([1]),
            "probabilities": tf.constant([[0.25, 0.75]]),
        }


def together(batcher, *requests):
    async def ask():
        asked = (batcher.ask(name, {"text": texts}) for name, texts in requests)
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask())


def test_what_waits_is_answered_together_and_to_those_who_asked():
    served = Served()
    texts = [[b"a"], [b"b" * 5, b"c"], [b"d" * 20]]
    answers = together(Batcher(served), *[("classify", t) for t in texts])
    assert served.batches == [[b"a", b"b" * 5, b"c", b"d" * 20]]
    labels = [answer["label"].tolist() for answer in answers]
    assert labels == [[b"short"], [b"short", b"short"], [b"long"]]


def test_batches_hold_one_signature_and_like_lengths_and_have_a_limit():
    served = Served()
    batcher = Batcher(served, max_rows=3)
    texts = [b"a", b"b" * 5000, b"c", b"d", b"e", b"f" * 4097]
    together(
        batcher,
        *[("classify", [text]) for text in texts],
        ("letters", [b"xy"]),
    )
    assert served.batches == [
        [b"a", b"c", b"d"],
        [b"b" * 5000, b"f" * 4097],
        [b"e"],
    ]


def test_answers_are_padded_to_the_own_rows_only():
    short, long = together(
        Batcher(Served()), ("letters", [b"ab", b"c"]), ("letters", [b"abcde"])
    )
    assert short["letter"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert long["letter"].shape == (1, 5)


def test_a_large_request_is_answered_in_pieces_in_turn_with_others():
    served = Served()
    batcher = Batcher(served, max_rows=2)
    many, one = together(
        batcher,
        ("letters", [b"a", b"bc", b"d", b"ef" * 9, b"g"]),
        ("classify", [b"a" * 10]),
    )
    assert many["letter"].shape == (5, 18)
    assert many["letter"][:, :2].tolist() == [
        [b"a", b""],
        [b"b", b"c"],
        [b"d", b""],
        [b"e", b"f"],
        [b"g", b""],
    ]
    assert many["count"].tolist() == [1, 2, 1, 18, 1]
    assert one["label"].tolist() == [b"long"]
    assert list(batcher.batch_sizes.elements()) == [2, 2, 1, 1]
    assert batcher.waiting == batcher._waiting_tokens == 0


def test_the_order_of_passages_in_pieces_names_each_place_once():
    served = Served()
    served.card["signatures"]["rank"] = CHOOSE
    served.loaded.signatures["rank"] = lambda prompt, choices: {
        "order": tf.argsort(-tf.strings.length(choices), stable=True)
    }
    lists = [[b"", b"a"], [b"a"], [b"a"] * 3]
    inputs = {"prompt": [b"?"] * 3, "choices": lists}
    answer = asyncio.run(Batcher(served, max_rows=2).ask("rank", inputs))
    assert answer["order"].tolist() == [[1, 0, 2], [0, 1, 2], [0, 1, 2]]


def test_others_do_not_wait_for_a_large_request():
    served = Served()
    served.seconds = 0.01
    together(
        Batcher(served, max_rows=1),
        ("classify", [b"a"] * 9),
        ("classify", [b"b"]),
    )
    assert served.batches.index([b"b"]) <= 2


def test_a_request_whose_client_has_gone_goes_no_further():
    served = Served()
    batcher = Batcher(served, max_rows=1)

    async def gone():
        return len(served.batches) == 3

    async def ask():
        await batcher.ask("classify", {"text": [b"a"] * 9}, gone)

    with pytest.raises(GoneError):
        asyncio.run(ask())
    assert len(served.batches) == 3
    assert batcher.waiting == 0


def test_a_request_of_too_much_work_or_answer_is_refused():
    served = Served()

    def refused(limits, *request):
        batcher = Batcher(served, max_rows=2, limits=limits)
        (answer,) = together(batcher, request)
        assert isinstance(answer, RequestError), answer
        assert answer.status == 413
        assert batcher.waiting == batcher._waiting_tokens == 0
        return str(answer)

    long = [b"a" * 20] * 3  # 23 tokens a row
    assert "read 69 tokens" in refused(Limits(tokens=68), "classify", long)
    assert served.batches == []
    # Filled up to the longest: 9 rows of 40 letters, and how many each has.
    texts = [b"a"] * 8 + [b"a" * 40]
    said = refused(Limits(values=9 * 41 - 1), "letters", texts)
    assert "over 368 numbers" in said
    batcher = Batcher(served, max_rows=2, limits=Limits(values=9 * 41))
    (answer,) = together(batcher, ("letters", texts))
    assert answer["letter"].shape == (9, 40)
    batcher = Batcher(served, limits=Limits(tokens=69))
    (answer,) = together(batcher, ("classify", long))
    assert answer["label"].tolist() == [b"long"] * 3


def test_a_request_that_fails_fails_alone():
    good, bad, other = together(
        Batcher(Served()),
        *[("classify", [text]) for text in (b"a", b"boom", b"b")],
    )
    assert good["label"].tolist() == other["label"].tolist() == [b"short"]
    assert isinstance(bad, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize(
    ("arguments", "text", "answered"),
    [({"limits": Limits(tokens=100)}, 97, 4), ({"max_waiting": 3}, 1, 3)],
    ids=["work", "rows"],
)
def test_too_much_that_waits_is_refused(arguments, text, answered):
    batcher = Batcher(Served(), max_rows=1, **arguments)
    answers = together(batcher, *[("classify", [b"a" * text])] * 9)
    refused = [isinstance(x, OverloadedError) for x in answers]
    assert refused == [False] * answered + [True] * (9 - answered)
    assert batcher.waiting == 0


@pytest.fixture(scope="module")
def server():
    uvicorn = pytest.importorskip(
        "uvicorn", reason="needs the extra `serve`: uvicorn"
    )
    web = pytest.importorskip(
        "bert_keras.serving.server", reason="needs the extra `serve`"
    )
    from bert_keras.serving.server import server_config

    served = Served()
    limits = Limits(body=2000, text=500)
    app = web.create_app(served, "m", limits, 8, slow_client=0.5)
    config = server_config(app, "127.0.0.1", 0, slow_client=0.5)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    yield types.SimpleNamespace(port=port, served=served)
    running.should_exit = True
    thread.join()


def call(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def predict(server, content):
    body = content if isinstance(content, bytes) else json.dumps(content)
    status, text = call(server, "POST", "/v1/models/m:predict", body)
    return status, json.loads(text)


def test_a_request_gets_its_answer(server):
    status, answer = predict(server, {"instances": ["hello", "x" * 20]})
    assert status == 200
    assert [row["label"] for row in answer["predictions"]] == ["short", "long"]
    status, answer = predict(
        server, {"signature_name": "letters", "inputs": {"text": ["ab"]}}
    )
    assert answer == {"outputs": {"letter": [["a", "b"]], "count": [2]}}


def test_the_model_says_what_it_is(server):
    assert call(server, "GET", "/health")[0] == 200
    status, text = call(server, "GET", "/v1/models/m")
    assert json.loads(text)["model_version_status"][0]["state"] == "AVAILABLE"
    status, text = call(server, "GET", "/v1/models/m/metadata")
    assert "letters" in json.loads(text)["metadata"]["signature_def"]
    assert json.loads(call(server, "GET", "/card")[1])["name"] == "m"
    described = json.loads(call(server, "GET", "/openapi.json")[1])
    assert list(described["paths"]) == ["/v1/models/m:predict"]
    predict(server, {"instances": ["hello"]})
    metrics = call(server, "GET", "/metrics")[1]
    pattern = r'bert_requests_total{signature="classify",status="200"} [1-9]'
    assert re.search(pattern, metrics)


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"\xff\xfe", 400, "not UTF-8"),
        ({"instances": ["a" * 3000]}, 413, "larger than 2000"),
        ({"instances": ["boom"]}, 400, "no booms"),
    ],
)
def test_bad_requests_get_the_reason(server, content, status, said):
    got, answer = predict(server, content)
    assert got == status
    assert re.search(said, answer["error"])
    assert predict(server, {"instances": ["a"]})[0] == 200


def test_other_addresses_and_methods_are_refused(server):
    body = json.dumps({"instances": ["a"]})
    for path in ("/v1/models/other:predict", "/v1/models/m:classify"):
        status, text = call(server, "POST", path, body)
        assert status == 404
        assert "/v1/models/m:predict" in text
    assert call(server, "GET", "/v1/models/other")[0] == 404
    assert call(server, "GET", "/etc/passwd")[0] == 404
    assert call(server, "PUT", "/health")[0] == 405


def test_slow_and_dropped_clients_cost_nothing(server):
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Length: 100\r\n\r\n{"
    slow = socket.create_connection(("127.0.0.1", server.port))
    slow.sendall(head)
    gone = socket.create_connection(("127.0.0.1", server.port))
    gone.sendall(head)
    gone.close()
    assert predict(server, {"instances": ["a"]})[0] == 200
    slow.settimeout(10)
    assert b" 408 " in slow.recv(200)
    slow.close()


def raw(server, data, wait=10):
    """What comes back for bytes that no HTTP library would send."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(wait)
        with contextlib.suppress(OSError):  # closed while it is sent
            client.sendall(data)
        found = b""
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 16):
                found += part
        return found


HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET /hea",
        # An answer was had; the next request does not come.
        HEAD + b"\r\n" + HEAD,
    ],
)
def test_connections_without_whole_headers_end(server, data):
    began = time.monotonic()
    found = raw(server, data)
    assert time.monotonic() - began < 3
    assert (b"200 OK" in found) == (b"\r\n\r\n" in data)


def test_headers_that_trickle_in_end_all_the_same(server):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(0.05)
        client.sendall(HEAD)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                client.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1):
                        break
    assert time.monotonic() - began < 3


def test_many_connections_that_wait_lock_nobody_out_for_long(server):
    """As many as there are free descriptors, and some."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    waiting = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 60, limits[1]))
    try:
        with contextlib.suppress(OSError):
            for _ in range(60):  # a half is the server's, in this process
                waiting.append(socket.socket())
                waiting[-1].connect(("127.0.0.1", server.port))
        for client in waiting[-2:]:
            client.close()
        time.sleep(2)
        assert predict(server, {"instances": ["a"]})[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for client in waiting:
            client.close()


def test_an_answer_that_nobody_reads_is_not_held(server, monkeypatch):
    ballast = "a" * 30_000_000  # more than the sockets hold
    monkeypatch.setitem(server.served.card, "ballast", ballast)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(10)
        client.sendall(HEAD.replace(b"/health", b"/card") + b"\r\n")
        client.recv(1, socket.MSG_PEEK)  # it comes
        time.sleep(2)
        size = 0
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 20):
                size += len(part)
    assert 0 < size < len(ballast)
    # One that reads with pauses gets all of it.
    monkeypatch.setitem(server.served.card, "ballast", ballast[:6_000_000])
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(10)
        client.sendall(HEAD.replace(b"/health", b"/card") + b"\r\n")
        size = 0
        while size < 6_000_000:
            size += len(client.recv(1 << 20))
            time.sleep(0.1)


def test_requests_sent_far_ahead_are_not_kept(server):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(20)
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                client.sendall((HEAD + b"\r\n") * 1000)
    few = raw(server, (HEAD + b"\r\n") * 20)
    assert few.count(b"200 OK") == 20


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"X-Long: " + b"a" * 5_000_000 + b"\r\n\r\n",
        HEAD + b"X-One: 1\r\n" * 500_000 + b"\r\n",
        b"GET /" + b"a" * 5_000_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_long_headers_are_refused_before_they_are_read(server, data):
    assert b"200 OK" not in raw(server, data)
    few = raw(server, HEAD + b"X-Few: " + b"a" * 70_000)
    assert b" 400 " in few
    assert b"larger than 65536 bytes" in few
    assert predict(server, {"instances": ["a"]})[0] == 200


def test_large_bodies_and_more_requests_pass_the_limit_of_headers(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"instances": ["a"]}).ljust(2000)
    for _ in range(60):  # together more than the headers may be
        connection.request("POST", "/v1/models/m:predict", body)
        reply = connection.getresponse()
        assert (reply.status, bool(reply.read())) == (200, True)
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:99"}, 200),
        ({"Host": "[::1]:99"}, 200),
        ({"Host": "rebound.example.com"}, 421),
        ({"Host": "localhost.example.com"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "localhost:99", "Origin": "http://localhost:99"}, 200),
        ({"Host": "localhost:99", "Origin": "http://localhost:98"}, 403),
        ({"Host": "localhost", "Origin": "https://example.com"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(server, headers, status):
    body = json.dumps({"instances": ["a"]})
    path = "/v1/models/m:predict"
    got, text = call(server, "POST", path, body, headers)
    assert got == status
    said = {200: "short", 421: "--allowed_hosts", 403: "own page"}
    assert said[status] in text


def test_which_hosts_are_served_follows_from_where_it_listens():
    web = pytest.importorskip(
        "bert_keras.serving.server", reason="needs the extra `serve`"
    )
    assert web.hosts_of("::1") == list(web.LOOPBACK)
    assert web.hosts_of("model.example.com") == ["model.example.com"]
    others = web.hosts_of("0.0.0.0")
    assert socket.gethostname() in others
    guard = web._FromHere(None, others)
    for host, served in (
        ("192.0.2.7:8501", True),
        ("[2001:db8::1]", True),
        ("localhost", True),
        ("example.com", False),
    ):
        refusal = guard._refusal(web.Headers({"host": host}))
        assert (refusal is None) == served
    anyone = web._FromHere(None, ["*"])
    assert anyone._refusal(web.Headers({"host": "example.com"})) is None


def test_the_page_runs_its_own_script_alone(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/")
    reply = connection.getresponse()
    policy, html = reply.getheader("Content-Security-Policy"), reply.read()
    connection.close()
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>".encode(), html, re.S)
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert b"style=" not in html
    assert b" onclick=" not in html


def test_overload_is_answered_429_and_the_rest_is_answered(server):
    server.served.seconds = 0.1
    statuses = []

    def ask(number):
        status, _ = predict(server, {"instances": ["a" * (number % 9)] * 3})
        statuses.append(status)

    threads = [threading.Thread(target=ask, args=[n]) for n in range(16)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.served.seconds = 0.0
    assert set(statuses) == {200, 429}
    assert predict(server, {"instances": ["a"]})[0] == 200


@pytest.fixture(scope="module")
def page(server):
    """Section by section what the page shows once every button is pressed."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on the PATH")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{server.port}/#ask"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "<section" in done.stdout, done.stderr[-500:]
    header, *sections = done.stdout.split("<section id=")
    return {
        "header": header,
        **{part.split('"')[1]: part for part in sections},
    }


def test_the_page_asks_and_shows_the_answer(page):
    assert "label: long" in page["classify"]
    assert "0.190" in page["classify"]  # the share of a text of 19 letters
    assert 'style="display: block; width: 19%' in page["classify"]
    assert "width: 75%" in page["choose"]
    assert list(page)[1] == "classify"  # the default's comes first


def test_the_page_opens_with_the_models_card(page):
    assert "<h1>m</h1>" in page["header"]
    assert "Licence of the weights: apache-2.0" in page["header"]
    assert "Keras 1.2 and TensorFlow 2" in page["header"]


def test_the_page_keeps_what_was_asked(page):
    past = page["classify"].partition("asked before</summary>")[2]
    assert past.startswith('<button class="past">')


def test_the_page_marks_entities_and_answers_where_they_stand(page):
    """Characters beyond UTF-16's first plane and markup among them."""
    before = "It was \U0001f469\u200d\U0001f4bb in an "
    attic = "<mark>&lt;attic&gt;<sub>{}</sub></mark>"
    marked = before + attic.format("THING") + " in "
    assert f"{marked}<mark>Bern<sub>LOC</sub></mark>." in page["tag"]
    assert before + attic.format("7.25") + " in Bern." in page["answer"]
    assert "no answer: -1.50" in page["answer"]


def worker_of(port):
    """The number and the process that the metrics name, or None."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        found = call(types.SimpleNamespace(port=port), "GET", "/metrics")[1]
        pattern = r'bert_worker_info{process="(\d+)",worker="(\d)"}'
        ((process, number),) = re.findall(pattern, found)
        return number, int(process)
    return None


def is_alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] != "Z"


def until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it does not come true")


def test_a_worker_that_ends_is_replaced_and_all_end_together(classifier_export):
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    from tools.benchmark.load_test import server as served

    workers = {}

    def see():
        workers.update(filter(None, [worker_of(port)]))
        return workers.keys() == {"0", "1"}

    with served(classifier_export, "--workers=2") as (port, parent):
        until(see)
        first = dict(workers)
        assert parent.pid not in first.values()
        os.kill(first["1"], signal.SIGKILL)
        until(lambda: see() and workers["1"] != first["1"])
        assert workers["0"] == first["0"]
    assert not any(map(is_alive, workers.values()))


def test_workers_that_cannot_answer_are_not_started_again(tmp_path):
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    words = f"--model={tmp_path}", "--port=0", "--workers=2"
    done = run_script("tools/serve.py", *words, folder=ROOT)
    assert done.returncode == 2
    assert "before it could answer. --workers=1 shows" in done.stderr
    done = run_script("tools/serve.py", *words[:2], folder=ROOT)
    assert done.returncode == 2 and str(tmp_path) in done.stderr


def test_more_workers_than_cores_are_noted(monkeypatch, capsys):
    import tools.serve as serve

    class Context:
        Event = threading.Event

        class Process:
            sentinel, exitcode, pid = 0, 3, 7

            def __init__(self, target, args):
                args[-1].set()

            def start(self):
                raise KeyboardInterrupt

    monkeypatch.setattr(serve.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    monkeypatch.setattr(serve.multiprocessing, "get_context", lambda _: Context)
    for count in (2, 3):
        serve.supervise(None, {}, count)
        printed = capsys.readouterr().out
        assert ("--workers=3 on 2 cores" in printed) == (count == 3)
