"""Trains a small model in forked processes and kills them; for test_state.py.

Keras is imported once, and each run is a fork of this process, so a restart
takes a fraction of a second. The parent runs no TensorFlow operation. Prints
the number of kills that left a partial checkpoint, then all exit codes.

    python -m tests.support.kill_training FOLDER KILLS SEED tiny|bert
"""

import os
import random
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.interrupts import EXIT_CODE
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.training import checkpoint, loop
from bert_keras.training.optimizers import adamw
from bert_keras.training.state import TrainingState
from official_tasks.engine.batches import plan_batches
from tests.support.model_samples import make_model, pretraining_batch

STEPS_A_KILL = 20  # more steps than a process runs before it is killed
EVERY = 3  # steps between saves
EPOCH = 7  # steps between evaluations; some fall on a save
ROWS = 50  # not a multiple of the batch size 4: some batches span epochs


def tiny(steps):
    """Return a Keras model with dropout and Keras's AdamW, and its data."""
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 8),
            keras.layers.Dropout(0.3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )
    rate = keras.optimizers.schedules.PolynomialDecay(1e-2, steps)
    model.compile(
        keras.optimizers.AdamW(rate, gradient_accumulation_steps=2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.build((None, 6))
    draw = np.random.default_rng(3)
    return model, (draw.integers(0, 20, (ROWS, 6)), draw.integers(0, 2, ROWS))


def bert(steps):
    """Return a BERT model with dropout and two micro-batches, and its data."""
    model = make_model("pretrainer", num_layers=2)
    model.compile(adamw(1e-3, steps, accumulate=2), pretraining_losses())
    return model, pretraining_batch(batch=ROWS)


def train(folder, name, steps):
    keras.utils.set_random_seed(5)
    model, data = {"tiny": tiny, "bert": bert}[name](steps)
    plan = plan_batches(np.ones(ROWS), 4, 3, steps, False)

    def batches(step):
        return tf.data.Dataset.from_tensor_slices(plan[step:]).map(
            lambda rows: tf.nest.map_structure(
                lambda values: tf.gather(values, rows), data
            )
        )

    state = TrainingState(folder, every=EVERY, keep=2)
    loop.fit(
        model,
        batches,
        steps,
        range(EPOCH, steps, EPOCH),
        state,
        os.path.join(folder, "metrics.jsonl"),
        lambda step: model.evaluate(
            batches(steps - 1), callbacks=[state], verbose=0, return_dict=True
        ),
    )


def run(folder, *arguments, number=None, delay=0):
    """Train in a fork; return the exit code and the seconds between saves.

    With `number`, send that signal `delay` seconds after the first save.
    """
    before = newest(folder)
    child = os.fork()
    if not child:
        code = 1
        # Between two calls of `fit`, all is saved, and a script ends so.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_CODE))
        try:
            train(folder, *arguments)
            code = 0
        except SystemExit as exit:
            code = exit.code
        finally:
            os._exit(code)
    patience = time.time() + 600
    while newest(folder) <= before and not os.waitid(
        os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.001)
        if time.time() > patience:
            raise TimeoutError(f"no checkpoint came after step {before}")
    first, began = newest(folder), time.time()
    if number is not None:
        time.sleep(delay)
        os.kill(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    saves = max(newest(folder) - first, 1) / EVERY
    return code, (time.time() - began) / saves


def newest(folder):
    return max(checkpoint.steps(folder), default=0)


def main(folder, kills, seed, name):
    steps = STEPS_A_KILL * (kills + 2)
    code, period = run(os.path.join(folder, "uninterrupted"), name, steps)
    codes, inside_saves = [code], 0
    cut, draw = os.path.join(folder, "interrupted"), random.Random(seed)
    for _ in range(kills):
        # The kill falls into any of the next steps or saves.
        delay = draw.uniform(0, 2 * period)
        code, _ = run(cut, name, steps, number=signal.SIGKILL, delay=delay)
        codes.append(code)
        # Skip `.step.partial-N`, an old checkpoint that was being removed.
        partial = filter(files.is_partial, files.list_folder(cut))
        inside_saves += any(name.startswith(".step-") for name in partial)
    code, _ = run(cut, name, steps, number=signal.SIGTERM, delay=period)
    print(inside_saves, *codes, code, run(cut, name, steps)[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
