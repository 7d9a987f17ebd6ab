"""Trains a tiny model in forked processes and kills them; for test_state.py.

Keras is imported once and each run is a fork of this process, which itself
runs no operation, so that a restart takes a fraction of a second.

    python kill_training.py FOLDER KILLS SEED tiny|bert
"""

import os
import random
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from model_samples import SMALL, pretraining_batch

from bert_keras.data.order import shuffled
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer, pretraining_losses
from bert_keras.training import checkpoint
from bert_keras.training import state as training_state
from bert_keras.training.optimization import adamw

STEPS = 300
ROWS = 50  # of the data; a batch has 4, so that batches span epochs


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


def tiny_data():
    draw = np.random.default_rng(3)
    return draw.integers(0, 20, (ROWS, 6)), draw.integers(0, 2, (ROWS,))


def bert_model():
    """With dropout, and each batch computed in two parts."""
    keras.utils.set_random_seed(5)
    model = BertPretrainer(BertEncoder(**SMALL))
    optimizer = adamw(1e-3, STEPS, accumulate=2)
    model.compile(optimizer, pretraining_losses())
    return model


def bert_data():
    return pretraining_batch(batch=ROWS)


MODELS = {"tiny": (tiny_model, tiny_data), "bert": (bert_model, bert_data)}


def batches_from(step, data):
    def gathered(rows):
        return tf.nest.map_structure(lambda v: tf.gather(v, rows), data)

    return shuffled(ROWS, 4, seed=3, first_step=step).map(gathered)


def train(folder, name):
    make_model, make_data = MODELS[name]
    state = training_state.TrainingState(folder, every=3, keep=2)
    model = make_model()
    step = state.restore(model)
    if step < STEPS:
        model.fit(
            batches_from(step, make_data()),
            steps_per_epoch=STEPS - step,
            verbose=0,
            callbacks=[state],
        )


def run(folder, name, interrupt=None):
    """One process; its exit code, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(folder, name)
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
    patience = time.time() + 600
    while max(checkpoint.steps(folder), default=0) < step:
        time.sleep(0.001)
        if time.time() > patience:
            raise TimeoutError(f"step {step} was not reached")


def main(folder, kills, seed, name):
    whole, cut = os.path.join(folder, "whole"), os.path.join(folder, "cut")
    codes = [run(whole, name)]
    draw = random.Random(seed)
    for kill in range(kills):
        # Spread over the run; the delay falls anywhere in steps and saves.
        step = STEPS * kill // (kills + 2)
        interrupt = (signal.SIGKILL, step, draw.uniform(0, 0.05))
        codes.append(run(cut, name, interrupt))
    step = STEPS * kills // (kills + 2)
    codes.append(run(cut, name, (signal.SIGTERM, step, 0.01)))
    codes.append(run(cut, name))
    print(*codes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
