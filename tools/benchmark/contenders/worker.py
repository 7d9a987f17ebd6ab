"""One contender in a process and an environment of its own.

    python worker.py MODULE JOB SETTINGS

MODULE is a file in this folder, JOB a function in it and SETTINGS a JSON dict.
The job prepares a step and returns the function that takes one step and waits
for its end, the number of examples in a step and, optionally, a dict of more
facts. The worker says that it is ready and then takes one step for each line
that it reads, a JSON list of the step's arguments, so that contenders take
turns. `turns.py` starts it. Nothing here needs the package: rivals run in
environments that lack it. The sizes and the random examples of all contenders
are here too.
"""

import importlib
import json
import os
import sys
import time

import numpy as np

# Layers, width, heads.
SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
VOCABULARY = 30_522
TEXT = "An hour well spent."


def pretraining_batch(settings):
    """Random ids in dense rows, by the names of the original's features.

    Returns:
        dict of int32 arrays, `(batch, length)` or `(batch, predictions)`.
    """
    batch, length = settings["batch"], settings["length"]
    random = np.random.default_rng(0)
    ids = random.integers(1000, VOCABULARY, (batch, length))
    drawn = [random.permutation(length) for _ in range(batch)]
    places = np.sort(np.stack(drawn)[:, : settings["predictions"]])
    arrays = {
        "input_ids": ids,
        "segment_ids": random.integers(0, 2, (batch, length)),
        "input_mask": np.ones((batch, length)),
        "masked_lm_positions": places,
        "masked_lm_ids": np.take_along_axis(ids, places, axis=1),
        "next_sentence_labels": random.integers(0, 2, (batch,)),
    }
    return {name: array.astype("int32") for name, array in arrays.items()}


def dense_rows(settings):
    """(inputs, labels) of `pretraining_batch`, by our and keras-hub's names."""
    batch = pretraining_batch(settings)
    x = {
        "token_ids": batch["input_ids"],
        "segment_ids": batch["segment_ids"],
        "padding_mask": batch["input_mask"],
        "mask_positions": batch["masked_lm_positions"],
    }
    y = {"mlm": batch["masked_lm_ids"], "nsp": batch["next_sentence_labels"]}
    return x, y


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

    # Before anybody imports TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
