"""Start workers, let them take turns, and print the measurements."""

import contextlib
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

from rich.table import Table

from bert_keras.errors import InputError
from official_tasks import progress

HERE = Path(__file__).resolve().parent
ROOT = str(HERE.parents[2])
THIS = "bert_keras"  # other systems are compared with this system
# Seconds to wait before each turn. Without the pause, waiting threads of the
# previous system would still use the processor.
PAUSE = 0.3


class Worker:
    """Separate process that prepares a job. Each call of `ask` takes a step.

    `job` is the name of a function of `jobs.py`, `settings` is its argument,
    and `variables` is a dict of environment variables. If the job fails, the
    constructor or `ask` raises an InputError.
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

    def ask(self, *arguments):
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
    """Start a worker for each job; yield two dicts; close the workers.

    The first dict is name -> `Worker`. The second dict is name -> error
    message, for each worker that failed. An error of the first job is raised.

    Args:
        jobs: dict of name -> first arguments of `Worker`.
        variables: dict of environment variables for all workers, or None.
    """
    workers, left_out = {}, {}
    try:
        for name, job in jobs.items():
            try:
                workers[name] = Worker(*job, variables)
            except InputError as error:
                if not workers:
                    raise
                left_out[name] = str(error)
        yield workers, left_out
    finally:
        for worker in workers.values():
            worker.close()


def take_turns(steps, rounds, update=lambda done: None):
    """Call each function once in each round. The order rotates.

    Args:
        steps: name -> function that returns a dict like `worker.time_step`.
            After an InputError the function is not called again. An InputError
            of the first function is raised.
        rounds: list with the arguments of each round.
        update: function of the number of finished rounds.

    Returns:
        Two dicts: name -> list of results, and name -> error message for each
        function that raised an InputError.
    """
    answers, left_out = {name: [] for name in steps}, {}
    first, names = next(iter(steps)), list(steps)
    for number, arguments in enumerate(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name in left_out:
                continue
            time.sleep(PAUSE)
            try:
                answers[name].append(steps[name](*arguments))
            except InputError as error:
                if name == first:
                    raise
                left_out[name] = str(error)
                del answers[name]
        update(number + 1)
    return answers, left_out


def summarize(answers, examples=1):
    """Return dict of "median", "least" and "most" seconds per example.

    The key "processor" has the median processor seconds per example.
    """
    seconds = [answer["seconds"] / examples for answer in answers]
    processor = [answer["processor"] / examples for answer in answers]
    return {
        "median": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "processor": statistics.median(processor),
    }


def measure_row(row, inputs, turns):
    """Measure the jobs of a row.

    Returns:
        Dict of two dicts. "systems" is name -> dict with the result of
        `summarize`, the peak memory and the worker's report. "left_out" is
        name -> error message.
    """
    turns = min(turns, row.turns or turns)
    jobs = {
        name: job._replace(settings=inputs.fill(job.settings))
        for name, job in row.jobs.items()
    }
    with (
        start_workers(jobs) as (workers, left_out),
        progress.bar(row.title, turns) as update,
    ):
        steps = {name: worker.ask for name, worker in workers.items()}
        answers, late = take_turns(steps, [()] * turns, update)
    systems = {
        name: summarize(given, workers[name].report["examples"])
        | {"peak_megabytes": round(given[-1]["peak"])}
        | workers[name].report
        for name, given in answers.items()
    }
    left_out |= late
    for name, reason in left_out.items():
        progress.console.print(f"{name} is skipped: {reason}")
    return {"systems": systems, "left_out": left_out}


def print_systems(title, systems, unit="an example"):
    """Print a table with a line for each system, times in milliseconds.

    `systems` is name -> dict from `summarize`. The dict may also have the key
    "peak_megabytes".
    """
    first = next(iter(systems.values()))["processor"]
    columns = [f"ms {unit}", "least", "most", "CPU ms", "CPU ratio"]
    rows = [
        [
            name,
            *(1000 * x[k] for k in ("median", "least", "most", "processor")),
            x["processor"] / (first or 1),
            *([x["peak_megabytes"]] if "peak_megabytes" in x else []),
        ]
        for name, x in systems.items()
    ]
    print_table(title, [*columns, "peak MB"][: len(rows[0]) - 1], rows)


def print_table(title, columns, rows):
    """Print a table. Each row has a name and right-aligned numbers."""
    table = Table("", title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    for name, *values in rows:
        texts = (f"{v:,.{0 if v >= 1000 else 2}f}" for v in values)
        table.add_row(name, *texts)
    progress.console.print(table)


def machine() -> dict:
    from bert_keras.training.strategy import fast_bfloat16, instructions

    kinds = ("avx512_vnni", "avx2")
    if fast_bfloat16():
        kinds = ("amx_bf16", "avx512_bf16", *kinds)
    model = platform.machine()
    # Other systems than Linux on x86 may lack the file or its "model name".
    with contextlib.suppress(OSError, TypeError):
        text = Path("/proc/cpuinfo").read_text("utf-8")
        model = re.search("model name.*: (.*)", text)[1]
    return {
        "processor": model,
        "kind": next((k for k in kinds if k in instructions()), "other"),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }
