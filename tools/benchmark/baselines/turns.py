"""Start workers, let them take turns, and print the measurements."""

import contextlib
import functools
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.table import Table

from bert_keras.errors import InputError
from official_tasks import progress

HERE = Path(__file__).resolve().parent
ROOT = str(HERE.parents[2])
# Seconds to wait before each turn. Without the pause, waiting threads of the
# previous system would still use the processor.
PAUSE = 0.3
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # newest first


class Worker:
    """Separate process that prepares a job. Each call takes a step.

    `job` is the name of a function of `jobs.py`, `settings` is its argument,
    and `variables` is a dict of environment variables. If the job fails, the
    constructor or the call raises an InputError.
    """

    def __init__(self, job, settings, variables=None):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - see `close`
        self._process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", job, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": ROOT} | (variables or {}),
            text=True,
        )
        self._name = job
        self.report = self._answer()

    def __call__(self, *arguments):
        """Let the worker take a step; return its measurements and result."""
        # If the process has ended, `_answer` below raises an error.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self):
        with contextlib.suppress(BrokenPipeError):  # the process has ended
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        raise InputError(f"{self._name} failed:\n{self._errors.read()[-800:]}")


@contextlib.contextmanager
def start_workers(jobs, variables=None):
    """Start a worker for each job; yield name -> `Worker`; close the workers.

    A job that fails is named and left out; an error of the first is raised.

    Args:
        jobs: dict of name -> `Job`.
        variables: dict of environment variables for all workers, or None.
    """
    workers = {}
    try:
        for name, job in jobs.items():
            with _skipped(name, is_first=not workers):
                workers[name] = Worker(job.function, job.settings, variables)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


@contextlib.contextmanager
def _skipped(name, is_first):
    """Print an InputError; raise that of the first system."""
    try:
        yield
    except InputError as error:
        if is_first:
            raise
        progress.console.print(f"{name} is skipped: {error}")


def take_turns(workers, rounds, update=lambda done: None):
    """Call each worker once in each round. The order rotates.

    Args:
        workers: name -> `Worker`. One that fails is not called again; an error
            of the first one is raised.
        rounds: list with the arguments of each round.
        update: function of the number of finished rounds.

    Returns:
        dict of name -> answers, without those that failed.
    """
    answers, names = {name: [] for name in workers}, list(workers)
    for number, arguments in enumerate(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            if name not in answers:
                continue
            time.sleep(PAUSE)
            given = answers.pop(name)
            with _skipped(name, is_first=name == names[0]):
                answers[name] = [*given, workers[name](*arguments)]
        update(number + 1)
    return {name: answers[name] for name in names if name in answers}


def summarize(answers, units=1):
    """Return a dict of seconds per unit and of memory in MiB.

    The keys are "median", "least" and "most" of the wall time, "processor", the
    median of the processor time, and "peak", the memory.
    """
    seconds = [answer["seconds"] / units for answer in answers]
    return {
        "median": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "processor": statistics.median(a["processor"] / units for a in answers),
        "peak": max(answer["peak"] for answer in answers),
    }


@functools.cache
def measure_import(library):
    """Return the peak MiB of a process that only imports a library."""
    worker = Worker("command", {"words": ["-c", f"import {library}"]})
    peak = worker()["peak"]
    worker.close()
    return peak


def measure_row(row, inputs, turns=None, variables=None):
    """Measure the jobs of a row; print a table for each of its cases.

    Args:
        row: `Row`.
        inputs: `Inputs`.
        turns: number of turns; None takes the row's.
        variables: see `start_workers`.

    Returns:
        dict of a case -> system -> result of `summarize`, with the key "above",
        the memory above that of the import, and the worker's report.
    """
    turns, measured = turns or row.turns, {}
    cases = {"": [()] * turns}
    if row.has_texts:
        cases = inputs.make_batches(turns)
    jobs = {
        name: job._replace(settings=inputs.fill(job.settings))
        for name, job in row.jobs.items()
    }
    with start_workers(jobs, variables) as workers:
        for case, rounds in cases.items():
            if row.has_texts:
                take_turns(workers, rounds[:1])  # warm up
            title = ", ".join(filter(None, [row.title, case]))
            with progress.bar(title, len(rounds)) as update:
                answers = take_turns(workers, rounds, update)
            check_results(answers)
            texts = sum(len(batch) for words in rounds for batch in words)
            systems = {}
            for name, given in answers.items():
                report = workers[name].report
                units = texts / len(rounds) or report["units"]
                systems[name] = report | summarize(given, units)
                if report["device"] == "cpu":
                    imported = measure_import(jobs[name].library)
                    systems[name]["above"] = systems[name]["peak"] - imported
            print_systems(title, systems, row.unit)
            measured[case] = systems
    return measured


def check_results(answers):
    """Raise InputError if probabilities differ from those of the first system.

    `answers` is name -> list of answers. A result may be None.
    """
    first = next(iter(answers))
    for name, given in answers.items():
        limit = 0.05 if "bfloat16" in name else 1e-3
        for answer, expected in zip(given, answers[first], strict=True):
            if answer["result"] is None:
                continue
            gaps = np.subtract(answer["result"], expected["result"])
            if np.abs(gaps).max() > limit:
                raise InputError(
                    f"Probabilities of {name} and {first} differ by "
                    f"{np.abs(gaps).max():.2g}. Expected at most {limit}."
                )


def print_systems(title, systems, unit):
    """Print a table with a line for each system; `systems` is name -> dict."""
    device = next(iter(systems.values()))["device"]
    title = f"{title} ({device}), seconds {unit}"
    table = Table("", title=title, title_justify="left")
    for name in (
        *("seconds", "least", "most", "CPU seconds", "CPU ratio"),
        *("peak MB", "above import"),
    ):
        table.add_column(name, justify="right")
    first = next(iter(systems.values()))["processor"]
    for name, x in systems.items():
        times = [x[key] for key in ("median", "least", "most", "processor")]
        table.add_row(
            name,
            *(f"{t:.3g}" if t < 100 else f"{t:,.0f}" for t in times),
            f"{x['processor'] / (first or 1):.2f}",
            f"{x['peak']:,.0f}",
            f"{x['above']:,.0f}" if "above" in x else "-",
        )
    progress.console.print(table)


def describe_machine() -> dict:
    """Return what the results depend on: processor, cores, bytecode.

    Without bytecode (.pyc files), the import of TensorFlow takes much longer.
    """
    from bert_keras.training.strategy import instructions

    model, found = platform.machine(), instructions()
    # Other systems than Linux on x86 may lack the file or its "model name".
    with contextlib.suppress(OSError, TypeError):
        text = Path("/proc/cpuinfo").read_text("utf-8")
        model = re.search("model name.*: (.*)", text)[1]
    source = importlib.util.find_spec("tensorflow").origin
    return {
        "processor": model,
        "instructions": next((k for k in INSTRUCTIONS if k in found), "other"),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "bytecode": os.path.exists(importlib.util.cache_from_source(source)),
    }
