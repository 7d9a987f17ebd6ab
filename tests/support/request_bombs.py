"""Requests that are small enough for all size limits but ask for much work."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import time

GOOD = "classify", ["an hour well spent"]
PUNCTUATION = "!" * 90_000  # one token per byte
LONG = "!" * 2_000  # more than a row of tokens
IDS = {
    "input_ids": [3] * 512,
    "input_mask": [1] * 512,
    "segment_ids": [0] * 512,
}


def many(row, first=None, rows=64):
    return [first or row, *[row] * (rows - 1)]


# Name -> (signature, instances).
BOMBS = {
    "masks": ("fill_mask", many("[MASK]" * 510, rows=16)),
    "one long list of choices": (
        "choose",
        many(
            {"prompt": "a", "choices": ["b"]},
            {"prompt": "a", "choices": ["b"] * 3000},
        ),
    ),
    "many choices": (
        "choose",
        many({"prompt": "!" * 500, "choices": ["b"] * 400}),
    ),
    "empty choices": (
        "choose",
        many(
            {"prompt": "a", "choices": [""]},
            {"prompt": "a", "choices": [""] * 100_000},
        ),
    ),
    "long rows": ("classify", many(LONG)),
    "vectors": ("embed", many(LONG)),
    "a long context": (
        "answer",
        many({"question": "a", "context": PUNCTUATION}, rows=10),
    ),
    "one wide row of pieces": ("tokenize", many("a", PUNCTUATION)),
    "one wide row of entities": ("tag", many("a", "an hour. " * 10_000)),
    "ids": ("ids", many(IDS)),
}


def exploded(port, process, patience):
    """Send each request of `BOMBS`, and good requests at the same time.

    Returns:
        dict of name -> (status, seconds, seconds of the slowest good request,
        growth of the server's peak memory in MB).
    """
    outcomes = {}
    ask(port, *GOOD, patience)  # not measured, because the first call is slow
    for name, request in BOMBS.items():
        before = peak(process, reset=True)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            bomb = threads.submit(ask, port, *request, patience)
            slowest = 0.0
            while not bomb.done():
                status, seconds = ask(port, *GOOD, patience)
                assert status == 200
                slowest = max(slowest, seconds)
                time.sleep(0.05)
        grown = peak(process) - before
        outcomes[name] = (*bomb.result(), slowest, grown)
    return outcomes


def ask(port, signature, instances, patience):
    """Return status and seconds; retry while the server is busy (429)."""
    content = {"signature_name": signature, "instances": instances}
    began = time.perf_counter()
    status = 429
    while status == 429 and time.perf_counter() - began < patience:
        connection = http.client.HTTPConnection("127.0.0.1", port, patience)
        with contextlib.closing(connection):
            path = "/v1/models/model:predict"
            connection.request("POST", path, json.dumps(content))
            reply = connection.getresponse()
            status, text = reply.status, reply.read()
    assert status in (200, 413), text[:300]
    return status, time.perf_counter() - began


def peak(process, reset=False):
    """Return the peak memory of the process in MB, since the last reset."""
    if reset:
        with open(f"/proc/{process.pid}/clear_refs", "w") as file:
            file.write("5")
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) / 1024
