"""Hostile folders for every reader: an error of ours, or a correct load.

Of weights in every format, and of pre-training data.
"""

import collections
import os
import random
import resource
import shutil
import tempfile
import time
import tracemalloc

from mutation import mutate
from tiny import CLASSES
from weight_samples import write_data_samples, write_samples

from bert_keras.errors import InputError
from bert_keras.interop.presets import (
    check_tensors,
    load_model,
    open_checkpoint,
)
from bert_keras.text.preprocessor import BertPreprocessor

# What reading a toy may take beside twice its size: Python's own objects, and
# what the process as a whole grows by now and then, whatever is read.
SLACK_BYTES, PROCESS_SLACK = 8 * 1024 * 1024, 64 * 1024 * 1024
SLOWEST_SECONDS = 20
# A model is built of every so-manieth mutant that can be read; it shares no
# factor with the number of formats, which take turns.
BUILD_EVERY = 21


class Finding(AssertionError):
    """A mutant that did what none may; the message says how to make it."""


def fuzz(mutants, seed=0):
    """Reads so many mutants of each readable format in turn.

    Args:
        mutants: how many in all.
        seed: of the first one; the next ones count up.

    Returns:
        Counter of (format, "refused" or "loaded").

    Raises:
        Finding: another error, too much memory or too much time.
    """
    tally = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        samples = [
            *write_samples(folder).items(),
            *write_data_samples(folder).items(),
        ]
        for _, path in samples:  # imports are no mutant's memory
            (_read_data if _is_data(path) else _read)(path, build=True)
        for number in range(seed, seed + mutants):
            name, path = samples[number % len(samples)]
            tally[name, try_mutant(path, number)] += 1
    return tally


def try_mutant(path, seed):
    """ "refused" or "loaded" for the mutant of this number."""
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
    """Reads everything; only errors of ours say "refused"."""
    try:
        checkpoint = open_checkpoint(path)
        check_tensors(
            checkpoint.head,
            checkpoint,
            checkpoint.tensors,
            checkpoint.head_arguments,
        )
        for tensor in checkpoint.tensors.values():
            if tensor.check is not None:
                tensor.check()
            if tensor.load().shape != tuple(tensor.shape):
                raise AssertionError(f"{tensor.name} has another shape")
        if checkpoint.read_text is not None:
            checkpoint.read_text()
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
    """Reads data as a run of pre-training does, to its first rows."""
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
    """The most that the process had so far, in bytes (as Linux counts)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
