"""The other end of `benchmark/steps.py`: one contender in its own process.

Each contender is a script that runs in an environment of its own and imports
nothing of this package but this file. It prepares a step, says so, and then
takes one step each time it is asked to, so that contenders take turns.
"""

import json
import os
import sys
import time


def peak_megabytes():
    """Of this program alone: `getrusage` also counts who started it."""
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmHWM"].split()[0]) / 1024


def serve(prepare, peak=peak_megabytes):
    """Answers the benchmark until it closes the pipe.

    Args:
        prepare: function of the settings (JSON dict, the script's argument);
            returns the function that takes one step and waits for its end,
            the number of examples in a step, and if there is more to tell, a
            dict of it.
        peak: function that returns the megabytes in use at most so far.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    settings = json.loads(sys.argv[1])
    step, examples, *more = prepare(settings)
    for _ in range(settings.get("warm", 3)):  # traces, compiles, fills caches
        step()
    answer(examples=examples, versions=versions(), **(more[0] if more else {}))
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        answer(seconds=time.perf_counter() - began, peak=peak())


def versions():
    """Of what this process has loaded that decides its speed."""
    names = ("tensorflow", "jax", "keras", "keras_hub", "torch")
    names += ("transformers",)
    loaded = [name for name in names if name in sys.modules]
    return {name: str(sys.modules[name].__version__) for name in loaded}
