"""Requests to a server, good and bad, for the load test; plain asyncio."""

import asyncio
import collections
import dataclasses
import json
import random
import time

WORDS = (
    "an hour well spent with a film that was neither good nor bad but long "
    "enough for another train to leave the station while we waited there"
).split()
PATIENCE = 60.0  # seconds that a client waits for an answer


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
        seed: of the texts and of the order of bad requests.
    """

    def __init__(self, port, path, inputs, seed=0):
        self.port, self.path, self.inputs = port, path, inputs
        self.generator = random.Random(seed)
        self.seen = []

    async def good(self):
        body = json.dumps({"instances": [texts(self.inputs, self.generator)]})
        await self._ask("good", body.encode())

    async def bad(self):
        """One request of a kind that must not be answered with 200."""
        kind = self.generator.choice(list(BAD))
        await BAD[kind](self, kind)

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
        sending = asyncio.create_task(_send(writer, head.encode() + body))
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


async def _send(writer, data):
    try:
        writer.write(data)
        await writer.drain()
    except OSError:  # answered and closed before all was sent
        pass


def _sends(body):
    async def send(clients, kind):
        await clients._ask(kind, body)

    return send


async def _slow(clients, kind):
    await clients._ask(kind, b'{"instances": [', declared=500)


async def _dropped(clients, kind):
    await clients._ask(kind, b'{"instances": [', declared=500, wait=False)


BAD = {
    "wrong type": _sends(b'{"instances": [5, null, {"text": [1]}]}'),
    "not an object": _sends(b"[1, 2]"),
    "10 MB": _sends(b'{"instances": ["' + b"a" * 10_000_000 + b'"]}'),
    "not UTF-8": _sends(b'{"instances": ["caf\xe9 \xff\xfe"]}'),
    "empty": _sends(b""),
    "deep JSON": _sends(b'{"instances": ' + b"[" * 100_000 + b"]" * 100_000),
    "slow": _slow,
    "dropped": _dropped,
}


def by_status(outcomes):
    """(kind, status) -> how many."""
    return collections.Counter((o.kind, o.status) for o in outcomes)


def percentile(outcomes, share):
    """Of the seconds until a good request had its answer."""
    times = sorted(o.seconds for o in outcomes if o.status == 200)
    if not times:
        return float("inf")
    return times[min(int(share * len(times)), len(times) - 1)]
