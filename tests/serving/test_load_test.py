"""The load test's own sums, and a few seconds of it against a toy model."""

import asyncio

import pytest
import request_bombs
from run_script import ROOT, run_script

from bert_keras.errors import InputError
from tools.benchmark.load_test import (
    BAD,
    Clients,
    Outcome,
    Part,
    percentile,
    requirements,
    run_parts,
    server,
)


def part(name, outcomes, memory=100, seconds=1.0):
    return Part(name, seconds, outcomes, memory)


def good(count, seconds=0.01, status=200):
    return [Outcome("good", status, seconds) for _ in range(count)]


BAD_TOLD = [Outcome("empty", 400, 0.1, '{"error": "why"}')]


def parts(mixed=None, overload=None, memory=100):
    mixed = mixed or good(30, 0.014) + BAD_TOLD
    overload = overload or good(95) + good(200, status=429)
    alone = [part("peak", good(100)), part("clean", good(30, 0.01))]
    first = [part("mixed", good(30, 0.014) + BAD_TOLD)]
    first.append(part("overload", good(95) + good(200, status=429)))
    return [
        *alone,
        *first,
        *alone,
        part("mixed", mixed),
        part("overload", overload, memory),
    ]


def test_a_server_that_stands_passes_every_check():
    held = requirements(parts(), True)
    assert all(held.values()), held
    assert not requirements(parts(), False)["no crash"]


@pytest.mark.parametrize(
    ("law", "changed"),
    [
        ("no growth of memory", {"memory": 110}),
        (
            "bad ones get 4xx that say why",
            {"mixed": good(30) + [Outcome("empty", 400, 0.1, "no")]},
        ),
        (
            "bad ones get 4xx that say why",
            {"mixed": good(30) + [Outcome("slow", 0, 60.0, "TimeoutError")]},
        ),
        (
            "good ones are answered next to bad ones",
            {"mixed": good(30) + good(1, status=429) + BAD_TOLD},
        ),
        ("p99 within 1.5 times", {"mixed": good(30, 0.016) + BAD_TOLD}),
        (
            "overload answers 429",
            {"overload": good(95) + good(1, status=0) + good(9, status=429)},
        ),
        (
            "goodput at 90 % of peak",
            {"overload": good(89) + good(200, status=429)},
        ),
    ],
)
def test_each_check_can_fail(law, changed):
    held = requirements(parts(**changed), True)
    assert [name for name, holds in held.items() if not holds] == [law]


def test_percentiles_are_of_what_was_answered():
    outcomes = good(98) + good(2, 5.0) + good(100, 9.0, 429)
    assert percentile(outcomes, 0.5) == 0.01
    assert percentile(outcomes, 0.99) == 5.0
    assert percentile([], 0.99) == float("inf")


def test_a_server_that_ends_is_reported(tmp_path):
    with (
        pytest.raises(InputError, match="The server ended with 2"),
        server(tmp_path / "missing"),
    ):
        raise AssertionError("it stands")


def test_a_server_answers_good_bad_and_costly_requests(toy_export, tmp_path):
    """What a loaded machine cannot change: answers and memory, no timings."""
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    pytest.importorskip("prometheus_client", reason="needs the extra `serve`")
    expected = {
        "one long list of choices": 200,
        "empty choices": 413,
        "one wide row of pieces": 413,
    }

    async def each_kind(clients):
        asked = [clients._ask(kind, **given) for kind, given in BAD.items()]
        await asyncio.gather(clients.good(), *asked)

    with server(toy_export, "--slow_client=3") as (port, process):
        clients = Clients(port, "/v1/models/model:predict", ["text"])
        asyncio.run(each_kind(clients))
        outcomes = request_bombs.exploded(port, process, expected)
        words = ROOT / "tools/serve.py", f"--model={toy_export}"
        again = run_script(*words, f"--port={port}", folder=tmp_path)
        assert process.poll() is None
    seen = {outcome.kind: outcome for outcome in clients.seen}
    assert seen.pop("good").status == 200
    assert seen.pop("dropped").status == 0
    wanted = {"10 MB": 413, "slow": 408}
    for kind, outcome in seen.items():
        assert outcome.status == wanted.get(kind, 400), outcome
        assert '"error"' in outcome.said
    assert seen["slow"].seconds < 8  # not the 10 that it has without the flag
    for name, (*_, grown) in outcomes.items():
        # Before their work was counted: gigabytes.
        assert grown < 300, (name, outcomes)
    statuses = {name: outcome[0] for name, outcome in outcomes.items()}
    assert statuses == expected
    assert again.returncode == 2
    assert "Traceback" not in again.stderr
    assert f"--port={port} cannot be listened on" in again.stderr


@pytest.mark.long
def test_the_parts_of_a_load_test_hold_what_no_clock_decides(toy_export):
    arguments = ["--max_waiting=8", "--slow_client=1"]
    with server(toy_export, *arguments) as (port, process):
        clients = Clients(port, "/v1/models/model:predict", ["text"])
        found = asyncio.run(run_parts(clients, process, 0.3))
        held = requirements(found, process.poll() is None)
    assert held["no crash"]
    assert held["bad ones get 4xx that say why"], found
    statuses = {o.status for o in found[3].outcomes}
    assert statuses <= {200, 429}
