"""Trains a tiny model in forked processes and kills them; for test_state.py.

Keras is imported once and each run is a fork of this process, which itself
runs no operation, so that a restart takes a fraction of a second.

    python kill_training.py FOLDER KILLS SEED
"""

import os
import random
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from bert_keras.training import checkpoint
from bert_keras.training import state as training_state

STEPS = 300


def tiny_model():
    keras.utils.set_random_seed(5)
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8)(ids)
    x = keras.layers.Dropout(0.3)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dropout(0.3)(keras.layers.Dense(8, "gelu")(x))
    model = keras.Model(ids, keras.layers.Dense(2)(x))
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.PolynomialDecay(1e-2, STEPS),
        gradient_accumulation_steps=2,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def batch(step):
    """Batch number `step`: a function of the step alone."""
    draw = np.random.default_rng([3, step])
    return draw.integers(0, 20, (4, 6)), draw.integers(0, 2, (4,))


def batches_from(step):
    spec = (tf.TensorSpec((4, 6), "int64"), tf.TensorSpec((4,), "int64"))
    return tf.data.Dataset.from_generator(
        lambda: map(batch, range(step, STEPS)), output_signature=spec
    )


def train(folder):
    state = training_state.TrainingState(folder, every=3, keep=2)
    model = tiny_model()
    step = state.restore(model)
    if step < STEPS:
        model.fit(
            batches_from(step),
            steps_per_epoch=STEPS - step,
            verbose=0,
            callbacks=[state],
        )


def run(folder, interrupt=None):
    """One process; its exit code, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(folder)
            code = 0
        except SystemExit as exit:
            code = exit.code
        finally:
            os._exit(code)
    if interrupt is not None:
        number, step, delay = interrupt
        wait_for_step(folder, step)
        time.sleep(delay)
        os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for_step(folder, step):
    patience = time.time() + 60
    while max(checkpoint.steps(folder), default=0) < step:
        time.sleep(0.001)
        if time.time() > patience:
            raise TimeoutError(f"step {step} was not reached")


def main(folder, kills, seed):
    whole, cut = os.path.join(folder, "whole"), os.path.join(folder, "cut")
    codes = [run(whole)]
    draw = random.Random(seed)
    for kill in range(kills):
        # Spread over the run; the delay falls anywhere in steps and saves.
        step = STEPS * kill // (kills + 2)
        interrupt = (signal.SIGKILL, step, draw.uniform(0, 0.05))
        codes.append(run(cut, interrupt))
    step = STEPS * kills // (kills + 2)
    codes.append(run(cut, (signal.SIGTERM, step, 0.01)))
    codes.append(run(cut))
    print(*codes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
