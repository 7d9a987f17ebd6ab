"""Fuzzing of the readers of weights and of pre-training data.

A mutant is a changed folder. A reader must load it or raise an `InputError`.
"""

import collections
import os
import random
import resource
import shutil
import tempfile
import time
import tracemalloc

from bert_keras.errors import InputError
from bert_keras.interop.opening import open_checkpoint, read_text
from bert_keras.interop.presets import load_model
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support.mutation import mutate
from tests.support.tiny import CLASSES
from tests.support.weight_samples import write_data_samples, write_samples

# Memory limits beyond twice the file's size: `SLACK_BYTES` for Python objects,
# `PROCESS_SLACK` for the process, which may also grow for other reasons.
SLACK_BYTES, PROCESS_SLACK = 8 * 1024 * 1024, 64 * 1024 * 1024
SLOWEST_SECONDS = 20
# One in this many mutants also builds a model. The formats take turns, so this
# number and the number of formats must have no common factor.
BUILD_EVERY = 21


class Finding(AssertionError):
    """Raised when a mutant breaks a rule; the message has the mutant's seed."""


def fuzz(mutants, seed=0):
    """Read mutants of all formats in turn; return the counts of outcomes.

    Args:
        mutants: number of mutants, all formats together.
        seed: seed of the first mutant; each next seed is one higher.

    Returns:
        Counter of (format, outcome), with outcome "refused" or "loaded".

    Raises:
        Finding: a mutant caused another error, or took too much memory or time.
    """
    tally = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        samples = [
            *write_samples(folder).items(),
            *write_data_samples(folder).items(),
        ]
        for _, path in samples:  # import before measuring memory
            (_read_data if _is_data(path) else _read)(path, build=True)
        for number in range(seed, seed + mutants):
            name, path = samples[number % len(samples)]
            tally[name, try_mutant(path, number)] += 1
    return tally


def try_mutant(path, seed):
    """Make and read the mutant of `seed`; return "refused" or "loaded"."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, os.path.basename(path))
        if os.path.isdir(path):
            shutil.copytree(path, copy)
        else:
            shutil.copyfile(path, copy)
        what = f"mutant {seed} of {os.path.basename(path)}, "
        what += mutate(copy, random.Random(seed))
        return _watched(copy, seed, what)


def _watched(path, seed, what):
    size = _size(path)
    read = _read_data if _is_data(path) else _read
    before, begun = _most_memory(), time.monotonic()
    tracemalloc.start()
    try:
        outcome = read(path, build=seed % BUILD_EVERY == 0)
    except Exception as error:
        raise Finding(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    grown = _most_memory() - before
    if taken > 2 * size + SLACK_BYTES or grown > 2 * size + PROCESS_SLACK:
        raise Finding(
            f"{what}: took {max(taken, grown)} bytes for a file of {size}"
        )
    if time.monotonic() - begun > SLOWEST_SECONDS:
        raise Finding(f"{what}: took {time.monotonic() - begun:.0f} seconds")
    return outcome


def _read(path, build):
    """Read all weights; return "refused" after an `InputError`, or "loaded"."""
    try:
        checkpoint = open_checkpoint(path)
        for tensor in checkpoint.tensors.values():
            for check in tensor.checks:
                check()
            if tensor.load().shape != tuple(tensor.shape):
                raise AssertionError(f"{tensor.name} has another shape")
        read_text(checkpoint)
        if build and checkpoint.head in CLASSES:
            load_model(CLASSES[checkpoint.head], checkpoint)
            BertPreprocessor.from_preset(checkpoint)
    except InputError:
        return "refused"
    return "loaded"


def _is_data(path):
    names = os.listdir(path) if os.path.isdir(path) else []
    return not {"store.json", "manifest.json"}.isdisjoint(names)


def _read_data(path, build):
    """Read data as a pre-training run does, up to the first rows."""
    from bert_keras.data.batches import check_source, open_examples

    try:
        check_source(path)
        examples = open_examples(path, 0, None)
        examples.join([examples.load(0, 0)[:2]], 0)
    except InputError:
        return "refused"
    return "loaded"


def _size(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


def _most_memory():
    """Return the peak memory of the process in bytes (on Linux)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
