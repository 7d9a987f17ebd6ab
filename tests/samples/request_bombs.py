"""Requests that are small, keep each limit of size, and ask for much work."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import time

GOOD = "classify", ["an hour well spent"]
PUNCTUATION = "!" * 90_000  # a token a byte
LONG = "!" * 2_000  # fills a row
IDS = {
    "input_ids": [3] * 512,
    "input_mask": [1] * 512,
    "segment_ids": [0] * 512,
}


def many(row, first=None, rows=64):
    return [first or row, *[row] * (rows - 1)]


# Name -> signature, instances.
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


def exploded(port, process, kinds=BOMBS, patience=120):
    """Sends each to the server, and a good request next to it.

    Returns:
        name -> (status, seconds, seconds of the slowest good request, MB that
        the server's memory grew at its peak).
    """
    outcomes = {}
    ask(port, *GOOD, patience)  # warm
    for name in kinds:
        before = peak(process, reset=True)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            bomb = threads.submit(ask, port, *BOMBS[name], patience)
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
    """Status and seconds; asks again where too much waits."""
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
    """MB that the process held at most, since the last reset."""
    if reset:
        with open(f"/proc/{process.pid}/clear_refs", "w") as file:
            file.write("5")
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) / 1024
