"""Loads tools/serve.py with good and bad requests and checks what must hold.

    python tools/benchmark/load_test.py --model=runs/served --seconds=30

In: the folder of a SavedModel that takes one or two texts. A server is started
on it, then, twice: as many clients as find its peak; good requests alone at a
third of the peak; the same and a fifth of bad ones (wrong types, 10 MB, invalid
UTF-8, empty, deep JSON, slow clients, dropped connections); three times the
peak. Out: a line a part, and whether each promise holds, in each round against
the peak and the good requests of that round: no crash; no growth of memory,
over 3 %, from the first round to the second; each bad request gets a 4xx that
says why; good ones keep their p99 within 1.5 times that without bad ones;
overload is answered 429, and what is answered stays at 90 % of the peak. Exits
with 1 where one does not hold.

The clients take processor time from the server: on a machine of few cores its
peak is higher without them. Takes eight times --seconds and half a minute.
Needs: pip install 'bert_keras[serve]'.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from absl import flags

from bert_keras import files
from bert_keras.errors import InputError
from official_tasks import progress, script

CLIENTS = 64  # ask at once to find the peak
ALLOWED_GROWTH = 0.03  # of memory; the allocator keeps some of what it had
WORDS = (
    "an hour well spent with a film that was neither good nor bad but long "
    "enough for another train to leave the station while we waited there"
).split()
PATIENCE = 60.0  # seconds that a client waits for an answer


def define_flags():
    flags.DEFINE_string("model", None, "Folder of the SavedModel.")
    flags.DEFINE_float("seconds", 20.0, "Of each of the eight parts.")
    flags.DEFINE_string("output", None, "JSON file for the figures.")
    script.define_overwrite()
    flags.mark_flag_as_required("model")
    script.require_positive("seconds")


def main(values):
    import uvloop  # takes less of the server's time than asyncio's own

    from bert_keras.serving.load import read_card

    script.prepare_output(values)
    card = read_card(values.model)
    entry = card["signatures"][card["default"]]
    if any(kind != "string (B,)" for kind in entry["inputs"].values()):
        raise InputError("The load test asks signatures of plain texts.")

    with server(values.model) as (port, process):
        path = "/v1/models/model:predict"
        clients = Clients(port, path, entry["input_order"])
        parts = uvloop.run(run_parts(clients, process, values.seconds))
        held = requirements(parts, process.poll() is None)
    for name, holds in held.items():
        progress.console.print(f"{'holds' if holds else 'FAILS'}: {name}")
    if values.output:
        content = [part.as_dict() for part in parts]
        report = {"parts": content, "requirements": held}
        files.write_json(report, values.output)
    return 0 if all(held.values()) else 1


@dataclasses.dataclass
class Part:
    """One part of the test: what was sent and what came back."""

    name: str
    seconds: float
    outcomes: list
    memory: int  # bytes of the server after it

    @property
    def goodput(self):
        good = [o for o in self.outcomes if o.status == 200]
        return len(good) / self.seconds

    def as_dict(self):
        counts = collections.Counter((o.kind, o.status) for o in self.outcomes)
        return {
            "name": self.name,
            "goodput": round(self.goodput, 1),
            "p50_ms": round(percentile(self.outcomes, 0.5) * 1000, 1),
            "p99_ms": round(percentile(self.outcomes, 0.99) * 1000, 1),
            "memory_mb": round(self.memory / 1e6, 1),
            "answers": {f"{k}: {s}": n for (k, s), n in sorted(counts.items())},
        }


@contextlib.contextmanager
def server(folder, *arguments):
    """A server in a process of its own: yields (port, process)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).parents[1] / "serve.py")]
    process = subprocess.Popen(
        [*command, f"--model={folder}", f"--port={port}", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
                break
            if process.poll() is not None:
                raise InputError(
                    f"The server ended with {process.returncode}; it says why."
                )
            time.sleep(0.2)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def memory(process):
    """Bytes that the process holds."""
    with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run_parts(clients, process, seconds):
    """All parts, in order and printed as they end: list of `Part`."""
    parts = []

    async def part(name, work):
        clients.seen = []
        began = time.perf_counter()
        await work
        spent = time.perf_counter() - began
        parts.append(Part(name, spent, clients.seen, memory(process)))
        line = json.dumps(parts[-1].as_dict())
        progress.console.print(line, soft_wrap=True)
        return parts[-1]

    await clients.closed_loop(CLIENTS, min(seconds, 5))  # warm
    for turn in (1, 2):
        work = clients.closed_loop(CLIENTS, seconds)
        peak = (await part(f"peak {turn}", work)).goodput
        rate = max(peak / 3, 1.0)
        await part(f"clean {turn}", clients.open_loop(rate, seconds))
        # As many good ones as without the bad.
        mixed = clients.open_loop(rate * 1.25, seconds, bad_share=0.2)
        await part(f"a fifth bad {turn}", mixed)
        await part(f"overload {turn}", clients.open_loop(3 * peak, seconds))
    return parts


def requirements(parts, is_alive):
    """Requirement -> whether it holds."""
    rounds = parts[:4], parts[4:]
    held = [_requirements_of_a_round(*four) for four in rounds]
    before, after = (four[-1].memory for four in rounds)
    return {
        "no crash": is_alive,
        "no growth of memory": after <= before * (1 + ALLOWED_GROWTH),
        **{name: all(one[name] for one in held) for name in held[0]},
    }


def _requirements_of_a_round(peak, clean, mixed, overload):
    good = [o for o in mixed.outcomes if o.kind == "good"]
    bad = [o for o in mixed.outcomes if o.kind not in ("good", "dropped")]
    return {
        "bad ones get 4xx that say why": all(
            400 <= o.status < 500 and '"error"' in o.said for o in bad
        ),
        "good ones are answered next to bad ones": all(
            o.status == 200 for o in good
        ),
        "p99 within 1.5 times": percentile(good, 0.99)
        <= 1.5 * percentile(clean.outcomes, 0.99),
        "overload answers 429": {o.status for o in overload.outcomes}
        == {200, 429},
        "goodput at 90 % of peak": overload.goodput >= 0.9 * peak.goodput,
    }


@dataclasses.dataclass
class Outcome:
    """What one client saw; `status` 0 where there was no answer."""

    kind: str
    status: int
    seconds: float
    said: str = ""


def texts(inputs, generator):
    """One instance: a text of 4 to 60 words for each input."""
    return {
        name: " ".join(generator.choices(WORDS, k=generator.randint(4, 60)))
        for name in inputs
    }


class Clients:
    """Sends requests to one signature of one server.

    Args:
        port: on 127.0.0.1.
        path: of the model, such as "/v1/models/model:predict".
        inputs: names of the signature's inputs, each a text.
    """

    def __init__(self, port, path, inputs):
        self.port, self.path, self.inputs = port, path, inputs
        # Of the texts and of the order of bad requests.
        self.generator = random.Random(0)
        self.seen = []

    async def good(self):
        body = json.dumps({"instances": [texts(self.inputs, self.generator)]})
        await self._ask("good", body.encode())

    async def bad(self):
        """One request of a kind that must not be answered with 200."""
        kind = self.generator.choice(list(BAD))
        await self._ask(kind, **BAD[kind])

    async def closed_loop(self, clients, seconds):
        """`clients` that each ask again as soon as they are answered."""
        end = time.perf_counter() + seconds

        async def ask_on():
            while time.perf_counter() < end:
                await self.good()

        await asyncio.gather(*(ask_on() for _ in range(clients)))

    async def open_loop(self, rate, seconds, bad_share=0.0):
        """`rate` requests a second, whether answered or not."""
        tasks, began = [], time.perf_counter()
        for number in range(max(int(rate * seconds), 1)):
            pause = began + number / rate - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            is_bad = self.generator.random() < bad_share
            ask = self.bad() if is_bad else self.good()
            tasks.append(asyncio.create_task(ask))
        await asyncio.gather(*tasks)

    async def _ask(self, kind, body, declared=None, wait=True):
        began = time.perf_counter()
        status, said = 0, ""
        try:
            async with asyncio.timeout(PATIENCE):
                status, said = await self._exchange(body, declared, wait)
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            said = type(error).__name__
        spent = time.perf_counter() - began
        self.seen.append(Outcome(kind, status, spent, said))

    async def _exchange(self, body, declared, wait):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {declared or len(body)}\r\n"
        head += "Connection: close\r\n\r\n"

        async def send():
            with contextlib.suppress(OSError):  # closed before all was sent
                writer.write(head.encode() + body)
                await writer.drain()

        sending = asyncio.create_task(send())
        try:
            if not wait:
                await sending
                return 0, ""
            answer = await reader.read()
        finally:
            sending.cancel()
            writer.close()
        top, _, content = answer.partition(b"\r\n\r\n")
        return int(top.split()[1]), content[:300].decode("utf-8", "replace")


# Kind -> the arguments of `_ask`.
_HALF = {"body": b'{"instances": [', "declared": 500}
BAD = {
    "wrong type": {"body": b'{"instances": [5, null, {"text": [1]}]}'},
    "not an object": {"body": b"[1, 2]"},
    "10 MB": {"body": b'{"instances": ["' + b"a" * 10_000_000 + b'"]}'},
    "not UTF-8": {"body": b'{"instances": ["caf\xe9 \xff\xfe"]}'},
    "empty": {"body": b""},
    "deep JSON": {"body": b'{"instances": ' + b"[" * 100_000 + b"]" * 100_000},
    "slow": _HALF,
    "dropped": {**_HALF, "wait": False},
}


def percentile(outcomes, share):
    """Of the seconds until a good request had its answer."""
    times = sorted(o.seconds for o in outcomes if o.status == 200)
    if not times:
        return float("inf")
    return times[min(int(share * len(times)), len(times) - 1)]


if __name__ == "__main__":
    script.start(main, define_flags)
