"""The trial server: its application in this process, and a real process.

The process is tested for what the application cannot do: connections, signals.
"""

import base64
import concurrent.futures
import json
import os
import random
import signal
import socket
import threading
import time
import types

import numpy as np
import pytest
from starlette.testclient import TestClient

from bert_keras.errors import InputError
from bert_keras.serving.export import export_saved_model
from bert_keras.serving.load import load_saved_model, read_card
from bert_keras.serving.server import (
    Limits,
    RequestError,
    _describe,
    _Service,
    create_app,
    parse,
    to_json,
)
from tests.support import live_answers, request_bombs
from tests.support.run_script import ROOT, run_script
from tests.support.served_samples import VOCABULARY, preprocessor, task_models
from tests.support.serving_process import PREDICT, call, predict, server, start

pytestmark = pytest.mark.heavy

HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"instances": ["an hour well spent"]})


@pytest.fixture(scope="module")
def started(toy_export):
    """Port and process of a server that SIGTERM ends after the tests."""
    with server(toy_export) as started:
        yield started
        end(*started, "SIGTERM")


@pytest.fixture
def port(started):
    port, process = started
    yield port
    assert process.poll() is None


@pytest.fixture(scope="module")
def client(toy_served):
    """A client of the application in this process."""
    app = create_app(toy_served, hosts=["localhost", "[::1]"])
    return TestClient(app, "http://localhost")


def ask(client, content):
    """Return (status, JSON) of a request; content is bytes or a JSON value."""
    body = content if isinstance(content, bytes) else json.dumps(content)
    reply = client.post(PREDICT, content=body)
    return reply.status_code, reply.json()


def test_rows_and_columns_get_the_answers_of_the_model(client):
    classifier, *_, pretrainer = task_models()
    texts = ["an hour well spent", "bad film", ""]
    status, answer = ask(client, {"instances": [{"text": t} for t in texts]})
    assert status == 200
    rows = answer["predictions"]
    found = {"probabilities": [row["probabilities"] for row in rows]}
    options = {"long_text": "truncate"}
    asked = preprocessor(), options, found, texts
    assert live_answers.classify(classifier, *asked) < 1e-5
    for row in rows:
        best = np.argmax(row["probabilities"])
        assert row["label"] == classifier.labels[best]
    content = {"signature_name": "next_sentence"}
    pairs = {"text": texts, "text_pair": texts[::-1]}
    status, answer = ask(client, {**content, "inputs": pairs})
    found = {"probability": answer["outputs"]}
    asked = preprocessor(), options, found, *pairs.values()
    assert live_answers.next_sentence(pretrainer, *asked) < 1e-5


def test_two_requests_are_answered_at_the_same_time(toy_served, monkeypatch):
    both = threading.Barrier(2, timeout=20)

    def answer(self, body):
        both.wait()  # fails unless another request is in work
        return body

    monkeypatch.setattr(_Service, "_answer", answer)
    monkeypatch.setattr("bert_keras.serving.server.count_at_once", lambda: 2)
    with (
        TestClient(create_app(toy_served), "http://localhost") as client,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        found = pool.map(lambda number: ask(client, number), range(4))
        assert list(found) == [(200, number) for number in range(4)]


def test_the_model_describes_itself_as_tensorflow_serving_does(client):
    for path in ("/v1/models/model", "/v1/models/model/versions/1"):
        (version,) = client.get(path).json()["model_version_status"]
        assert (version["state"], version["version"]) == ("AVAILABLE", "1")
    content = client.get("/v1/models/model/metadata").json()
    assert content["model_spec"]["name"] == "model"
    signatures = content["metadata"]["signature_def"]["signature_def"]
    text = signatures["classify"]["inputs"]["text"]
    assert text["dtype"] == "DT_STRING"
    assert text["tensor_shape"]["dim"][0]["size"] == "-1"
    assert signatures["classify"]["method_name"].endswith("serving/predict")
    assert "serving_default" in signatures
    assert client.get("/card").json()["default"] == "classify"
    assert client.get("/health").json() == {"status": "ok"}


def test_the_version_in_the_address_is_that_of_the_folder(toy_served, tmp_path):
    served = types.SimpleNamespace(**vars(toy_served))
    served.folder = str(tmp_path / "3")
    os.symlink(toy_served.folder, served.folder)
    paths = {route.path for route in create_app(served).routes}
    assert "/v1/models/model/versions/3:predict" in paths
    status, metadata = _describe(served, "model", "3")
    (version,) = json.loads(status.body)["model_version_status"]
    assert version["version"] == "3"
    assert json.loads(metadata.body)["model_spec"]["version"] == "3"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/model/versions/1:predict", 200),
        ("POST", "/v1/models/model/versions/999:predict", 404),
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/model:classify", 404),
        ("POST", "/v1/models/model", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/other/metadata", 404),
        ("GET", "/v1/models/model/versions/2/metadata", 404),
        ("GET", "/v1/models/model/labels", 404),
        ("GET", PREDICT, 405),
        ("GET", "/etc/passwd", 404),
        ("PUT", "/health", 405),
    ],
)
def test_other_addresses_and_methods_are_refused(client, method, path, status):
    reply = client.request(method, path, content=BODY)
    assert reply.status_code == status
    assert status == 200 or PREDICT in reply.json()["error"]
    # Else the rest of the body would be read as the next request.
    assert status == 200 or reply.headers["connection"] == "close"


IDS = {"input_ids": [2, 3], "attention_mask": [1, 1], "token_type_ids": [0, 0]}


def asked(name, row):
    return {"signature_name": name, "instances": [row]}


@pytest.mark.parametrize(
    ("content", "word", "status"),
    [
        (b"", "JSON", 400),
        (b"\xff{}", "JSON", 400),
        (b"[1]", "object", 400),
        (b"[" * 100_000, "JSON", 400),
        (b'{"instances": [' + b"9" * 5000 + b"]}", "JSON", 400),
        (b'{"instances": ["\\ud800"]}', "JSON", 400),
        (b"{}", "instances", 400),
        ({"instances": ["a"], "inputs": ["a"]}, "instances", 400),
        ({"instances": ["a"], "signature": "tag"}, "signature", 400),
        ({"signature_name": "speak" * 999, "instances": []}, "classify", 404),
        ({"signature_name": {}, "instances": ["a"]}, "classify", 404),
        ({"instances": "a"}, "list", 400),
        ({"instances": {"text": "a"}}, "list", 400),
        ({"instances": None}, "list", 400),
        ({"inputs": None}, "list", 400),
        ({"inputs": {"text": "a"}}, "list", 400),
        ({"inputs": {"txt": ["a"]}}, "text", 400),
        ({"instances": []}, "0 rows", 400),
        ({"instances": ["a"] * 65}, "65 rows", 400),
        ({"instances": [3] * 99_999}, "99,999 rows", 400),
        ({"inputs": {"text": [[]] * 99_999}}, "99,999 rows", 400),
        ({"instances": [3]}, "row 0", 400),
        ({"instances": [None]}, "row 0", 400),
        ({"instances": [["a"]]}, "row 0", 400),
        ({"instances": ["a", {"txt": "b"}]}, "Instance 0", 400),
        ({"instances": [{"b64": "%"}]}, "base64", 400),
        ({"instances": [{"b64": 3}]}, "base64", 400),
        (asked("next_sentence", {"text": "a"}), "text_pair", 400),
        (asked("choose", {"prompt": "a", "choices": "b"}), "row 0", 400),
        (asked("ids", IDS | {"input_ids": [1, "a"]}), "row 0", 400),
        (asked("ids", IDS | {"input_ids": [True, 1]}), "row 0", 400),
        (asked("ids", IDS | {"input_ids": [2**31, 1]}), "row 0", 400),
        (asked("ids", IDS | {"input_ids": [999, 1]}), "from 0 to 23", 400),
        (asked("ids", IDS | {"token_type_ids": [0, 2]}), "from 0 to 1", 400),
        (asked("ids", dict.fromkeys(IDS, [1] * 33)), "at most 32", 400),
        (asked("ids", IDS | {"input_ids": [1]}), "row 0", 400),
        (asked("ids", dict.fromkeys(IDS, [])), "rows are empty", 400),
        ({"instances": ["a" * 131_073]}, "bytes", 413),
        (asked("answer", "!" * 100_000), "question and context", 400),
        ({"instances": ["a" * 9_000_000]}, "bytes", 413),
    ],
)
def test_each_mistake_gets_a_sentence(client, content, word, status):
    found, answer = ask(client, content)
    assert (found, word in answer["error"]) == (status, True), answer
    assert len(answer["error"]) < 400 and " b'" not in answer["error"]
    assert "assertion failed" not in answer["error"]
    assert ask(client, {"instances": ["a"]})[0] == 200


@pytest.mark.parametrize("name", request_bombs.BOMBS)
def test_small_requests_for_much_work_are_answered_or_refused(client, name):
    signature, rows = request_bombs.BOMBS[name]
    if name == "ids":  # the bomb has the input names of another export
        rows = [dict(zip(IDS, row.values(), strict=True)) for row in rows]
    content = {"signature_name": signature, "instances": rows}
    # The graph refuses rows of ids that are longer than the toy model's.
    status = ask(client, content)[0]
    assert status in (200, 400 if name == "ids" else 413, 413)


def test_texts_are_not_tokenized_before_their_bytes_are_bounded(toy_export):
    """Tokenizing texts that are then refused would stall other requests."""
    body = json.dumps({"instances": ["a" * 99_000] * 10}).encode()
    with pytest.raises(InputError, match="990000 bytes"):
        parse(body, read_card(toy_export), Limits())


def test_a_text_before_a_list_counts_with_each_entry(toy_export):
    row = {"prompt": "an hour", "choices": ["good", "", "bad"]}
    content = {"signature_name": "choose", "instances": [row]}
    body, card = json.dumps(content).encode(), read_card(toy_export)
    size = 3 * len("an hour") + len("good") + len("bad") + 1
    parse(body, card, Limits(max_bytes=size))
    with pytest.raises(RequestError, match=f"{size} bytes") as e:
        parse(body, card, Limits(max_bytes=size - 1))
    assert e.value.status_code == 413


def test_bytes_in_base64_stand_beside_texts_with_surrogate_pairs(toy_export):
    body = rb'{"inputs": {"text": [{"b64": "/w=="}, "\ud83d\ude00"]}}'
    columns = parse(body, read_card(toy_export), Limits())[1]
    assert columns == {"text": [b"\xff", "\U0001f600".encode()]}


def test_values_of_many_classes_are_bounded(toy_served, monkeypatch):
    monkeypatch.setattr("bert_keras.serving.server.MAX_VALUES", 5)
    service = _Service(toy_served, Limits())
    assert b"label" in service._answer(b'{"instances": ["film"]}')
    with pytest.raises(RequestError, match="has 6 values") as e:
        service._answer(b'{"instances": ["film", "film"]}')  # of 3 classes
    assert e.value.status_code == 413


def test_an_answer_of_nan_is_an_error_that_names_the_row(tmp_path):
    model = task_models()[0]
    weight = next(w for w in model.weights if w.shape[0] == len(VOCABULARY))
    table = weight.numpy()
    table[VOCABULARY.index("bad")] = 3e38
    weight.assign(table)
    folder = tmp_path / "export"
    export_saved_model(model, folder, preprocessor(), portable=True)
    service = _Service(load_saved_model(folder), Limits())
    assert b"label" in service._answer(b'{"instances": ["film"]}')
    with pytest.raises(RequestError, match="row 1, 'bad film', with NaN") as e:
        service._answer(b'{"instances": ["film", "bad film"]}')
    assert e.value.status_code == 500


def test_answers_are_written_by_row_or_by_output():
    class Tensor:
        def __init__(self, *values):
            self.numpy = lambda: np.array(*values)

    outputs = {
        "label": Tensor([b"good", b"\xff"], object),
        "probabilities": Tensor([[0.25, 0.75], [1, 0]], "float32"),
    }
    no_text = {"b64": base64.b64encode(b"\xff").decode()}
    assert to_json(outputs, by_row=True) == {
        "predictions": [
            {"label": "good", "probabilities": [0.25, 0.75]},
            {"label": no_text, "probabilities": [1.0, 0.0]},
        ]
    }
    assert to_json(outputs, by_row=False) == {
        "outputs": {
            "label": ["good", no_text],
            "probabilities": [[0.25, 0.75], [1.0, 0.0]],
        }
    }


def test_pages_of_other_sites_are_refused(client):
    for headers, status in (
        ({"Host": "LOCALHOST:99"}, 200),
        ({"Host": "[::1]:99"}, 200),
        ({"Host": "rebound.example.com"}, 400),
        ({"Host": "localhost.example.com"}, 400),
        ({"Host": "localhost:99", "Origin": "http://localhost:99"}, 200),
        ({"Host": "localhost:99", "Origin": "http://localhost:98"}, 403),
        ({"Host": "localhost", "Origin": "https://example.com"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ):
        reply = client.post(PREDICT, content=BODY, headers=headers)
        assert reply.status_code == status, headers


def test_a_request_to_upgrade_is_answered_without(port):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert call(port, "POST", PREDICT, BODY, headers)[0] == 200


@pytest.mark.long
def test_slow_and_dropped_clients_cost_nothing(port):
    head = f"{HEAD}Content-Length: 100\r\n\r\n".encode() + b"{"
    slow = socket.create_connection(("127.0.0.1", port), timeout=30)
    slow.sendall(head)
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(head)
    idle = open_connections(port, 100)
    idle[0].sendall(b"POST")
    assert predict(port, {"instances": ["a"]})[0] == 200
    assert b" 408 " in slow.recv(200)
    assert [client.recv(9) for client in idle] == [b""] * 100  # closed
    for client in (slow, *idle):
        client.close()


def open_connections(port, count):
    address = ("127.0.0.1", port)
    return [socket.create_connection(address, 30) for _ in range(count)]


@pytest.mark.long
def test_more_idle_connections_than_files_stop_nobody(toy_export):
    with server(toy_export, max_files=100) as (port, process):
        idle = open_connections(port, 120)
        assert predict(port, {"instances": ["a"]})[0] == 200
        for client in idle:
            client.close()
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


def test_a_port_in_use_is_named(port, tmp_path):
    script = str(ROOT / "tools" / "serve.py")
    flags = f"--model={tmp_path}", f"--port={port}"
    done = run_script(script, *flags, folder=tmp_path)
    assert done.returncode == 2
    assert f"--port={port}" in done.stderr
    assert "Traceback" not in done.stderr


def ended(process):
    """Return the process's exit code; fail if it printed an error."""
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    assert "Error" not in errors, errors
    return process.returncode


def end(port, process, name):
    """End the server by a signal while it reads a request; it still answers."""
    assert call(port, "GET", "/health")[0] == 200
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n"
    client.sendall((head + BODY[:9]).encode())
    time.sleep(0.5)
    process.send_signal(getattr(signal, name))
    time.sleep(0.5)
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(BODY[9:].encode())
    answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert b" 200 " in answer and b"predictions" in answer
    client.close()
    assert ended(process) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_signals_end_the_server_after_what_it_has(classifier_export, name):
    with server(classifier_export) as (port, process):
        end(port, process, name)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("seconds", [2, 4, 6])
@pytest.mark.long
def test_a_signal_ends_a_server_that_starts(classifier_export, name, seconds):
    process = start(classifier_export)
    try:
        time.sleep(seconds)
        process.send_signal(getattr(signal, name))
        assert ended(process) in (0, 75)
    finally:
        process.kill()


@pytest.mark.long
def test_no_answer_is_lost_or_swapped_among_many_clients(
    toy_export, toy_served
):
    """200 clients send 2000 random requests, and invalid requests between."""
    words = (
        "an hour well spent i would gladly another film was bad good".split()
    )

    def request(number):
        draw = random.Random(number)
        name = draw.choice(("tokenize", "classify", "tag", "embed"))
        rows = [
            " ".join(draw.choices(words, k=draw.randint(1, 60)))
            for _ in range(draw.randint(1, 8))
        ]
        return name, rows

    expected = {}
    for number in range(2000):
        name, rows = request(number)
        expected[number] = to_json(
            toy_served.loaded.signatures[name](text=np.array(rows, object)),
            by_row=True,
        )["predictions"]

    def ask(number):
        name, rows = request(number)
        body = {"signature_name": name, "instances": rows}
        while True:
            status, answer = predict(port, body)
            if number % 7 == 0:
                assert predict(port, {"instances": [number]})[0] == 400
            if status != 429:
                return status, answer.get("predictions")
            time.sleep(0.05)

    with server(toy_export) as (port, process):
        with concurrent.futures.ThreadPoolExecutor(200) as clients:
            answers = dict(enumerate(clients.map(ask, range(2000))))
        assert process.poll() is None
    for number, (status, answer) in answers.items():
        assert status == 200
        assert_equal(answer, expected[number])


def assert_equal(found, expected):
    """Compare JSON values; floats may differ by 1e-5."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_equal(*pair)
    elif isinstance(expected, float):
        assert abs(found - expected) <= 1e-5
    else:
        assert found == expected
