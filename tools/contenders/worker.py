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


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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


def let_go_at_once(dataset):
    """The `tf.data.Dataset` without what tunes it while it runs.

    With it TensorFlow 2.21 now and then takes as long again to let go of an
    iterator as that was in use: its thread sleeps for twice as long each time.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def versions():
    """Of what this process has loaded that decides its speed."""
    names = ("tensorflow", "jax", "keras", "keras_hub", "torch")
    names += ("transformers",)
    loaded = [name for name in names if name in sys.modules]
    return {name: str(sys.modules[name].__version__) for name in loaded}
