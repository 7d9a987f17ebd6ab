"""The other end of `tools/benchmark.py`: one contender in its own process.

Each contender is a script that runs in an environment of its own and imports
nothing of this package but this file. It prepares a step, says so, and then
takes one step each time it is asked to, so that contenders take turns.
"""

import json
import os
import resource
import sys
import time


def serve(prepare):
    """Answers the benchmark until it closes the pipe.

    Args:
        prepare: function of the settings (JSON dict, the script's argument);
            returns the function that takes one step and waits for its end,
            and the number of examples in a step.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(**values):
        print(json.dumps(values), file=answers, flush=True)

    step, examples = prepare(json.loads(sys.argv[1]))
    for _ in range(3):  # traces, compiles, fills caches
        step()
    answer(examples=examples, versions=versions())
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        answer(seconds=time.perf_counter() - began, peak=peak_megabytes())


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def versions():
    """Of what this process has loaded that decides its speed."""
    names = ("tensorflow", "keras", "keras_hub", "torch", "transformers")
    loaded = [name for name in names if name in sys.modules]
    return {name: str(sys.modules[name].__version__) for name in loaded}
