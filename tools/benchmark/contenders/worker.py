"""One contender in a process and an environment of its own.

    python worker.py MODULE JOB SETTINGS

MODULE is a file in this folder, JOB a function in it and SETTINGS a JSON dict.
The job prepares a step and returns the function that takes one step and waits
for its end, the number of examples in a step and, optionally, a dict of more
facts. The worker says that it is ready and then takes one step for each line
that it reads, a JSON list of the step's arguments, so that contenders take
turns. `turns.py` starts it. Nothing here needs the package: rivals run in
environments that lack it.
"""

import importlib
import json
import os
import sys
import time


def peak_megabytes():
    """Of this program alone: `getrusage` also counts who started it."""
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0]) / 1024


def versions():
    """Of what this process has loaded that decides its speed."""
    names = ("tensorflow", "jax", "keras", "keras_hub", "torch", "transformers")
    return {
        name: str(sys.modules[name].__version__)
        for name in names
        if name in sys.modules
    }


def main(module, job, settings):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    module, settings = importlib.import_module(module), json.loads(settings)
    peak = getattr(module, f"{job}_peak_megabytes", peak_megabytes)
    step, examples, *facts = getattr(module, job)(settings)
    for _ in range(settings.get("warm", 3)):  # traces, compiles, fills caches
        step()
    answer(
        examples=examples, versions=versions(), **(facts[0] if facts else {})
    )
    for line in sys.stdin:
        arguments = json.loads(line)
        began = time.perf_counter(), time.process_time()
        result = step(*arguments)
        seconds = time.perf_counter() - began[0]
        processor = time.process_time() - began[1]
        # A step without arguments trains: it has no answer to compare.
        more = {"result": result} if arguments else {}
        answer(seconds=seconds, processor=processor, peak=peak(), **more)


if __name__ == "__main__":  # processes that a job starts import this again
    main(*sys.argv[1:])
