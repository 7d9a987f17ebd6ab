"""Trains a tiny model in forked processes and kills them; for test_state.py.

Keras is imported once and each run is a fork of this process, which itself
runs no operation, so that a restart takes a fraction of a second. Prints how
many kills left a half-written checkpoint, then each process's exit code.

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

from bert_keras import files
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer, pretraining_losses
from bert_keras.training import checkpoint
from bert_keras.training import state as training_state
from bert_keras.training.optimizers import adamw
from official_tasks.engine.batches import shuffled_rows

STEPS_A_KILL = 20  # more than a process takes before it is killed
EVERY = 3  # steps from save to save
ROWS = 50  # of the data; a batch has 4, so that batches span epochs


def tiny_model(steps):
    keras.utils.set_random_seed(5)
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(20, 8)(ids)
    x = keras.layers.Dropout(0.3)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dropout(0.3)(keras.layers.Dense(8, "gelu")(x))
    model = keras.Model(ids, keras.layers.Dense(2)(x))
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.PolynomialDecay(1e-2, steps),
        gradient_accumulation_steps=2,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def tiny_data():
    draw = np.random.default_rng(3)
    return draw.integers(0, 20, (ROWS, 6)), draw.integers(0, 2, (ROWS,))


def bert_model(steps):
    """With dropout, and each batch computed in two parts."""
    keras.utils.set_random_seed(5)
    model = BertPretrainer(BertEncoder(**SMALL))
    optimizer = adamw(1e-3, steps, accumulate=2)
    model.compile(optimizer, pretraining_losses())
    return model


def bert_data():
    return pretraining_batch(batch=ROWS)


MODELS = {"tiny": (tiny_model, tiny_data), "bert": (bert_model, bert_data)}


def batches_from(step, data):
    def gathered(step):
        places = 4 * step + tf.range(4, dtype=tf.int64)
        rows = shuffled_rows(places, ROWS, seed=3)
        return tf.nest.map_structure(lambda v: tf.gather(v, rows), data)

    return tf.data.Dataset.range(step, tf.int64.max).map(gathered)


def train(folder, name, steps):
    make_model, make_data = MODELS[name]
    state = training_state.TrainingState(folder, every=EVERY, keep=2)
    model = make_model(steps)
    step = state.restore(model)
    if step < steps:
        model.fit(
            batches_from(step, make_data()),
            steps_per_epoch=steps - step,
            verbose=0,
            callbacks=[state],
        )


def started(*arguments):
    """The number of a process that trains."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        train(*arguments)
        code = 0
    except SystemExit as exit:
        code = exit.code
    finally:
        os._exit(code)


def ended(child):
    """Its exit code, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def newest(folder):
    return max(checkpoint.steps(folder), default=0)


def wait_for_save(folder, after):
    """Returns when there is a checkpoint of a later step."""
    patience = time.time() + 600
    while newest(folder) <= after:
        time.sleep(0.001)
        if time.time() > patience:
            raise TimeoutError(f"no checkpoint came after step {after}")


def uninterrupted(folder, name, steps):
    """Trains; the exit code, and seconds from one save to the next."""
    child = started(folder, name, steps)
    wait_for_save(folder, 0)
    first, began = newest(folder), time.time()
    code = ended(child)
    return code, (time.time() - began) * EVERY / (steps - first)


def interrupted(number, delay, folder, *arguments):
    """Trains on; after its first save and the delay, sends the signal."""
    before = newest(folder)
    child = started(folder, *arguments)
    wait_for_save(folder, before)
    time.sleep(delay)
    os.kill(child, number)
    return ended(child)


def half_written(folder):
    """Whether a save was cut short here."""
    names = filter(files.is_partial, files.list_folder(folder))
    # `.step.` in place of `.step-` is one on its way out.
    return any(name.startswith(".step-") for name in names)


def main(folder, kills, seed, name):
    whole, cut = os.path.join(folder, "whole"), os.path.join(folder, "cut")
    steps = STEPS_A_KILL * (kills + 2)
    code, period = uninterrupted(whole, name, steps)
    codes, inside_saves = [code], 0
    draw = random.Random(seed)
    for _ in range(kills):
        # Anywhere in the steps and the saves that come next.
        delay = draw.uniform(0, 2 * period)
        codes.append(interrupted(signal.SIGKILL, delay, cut, name, steps))
        inside_saves += half_written(cut)
    codes.append(interrupted(signal.SIGTERM, period, cut, name, steps))
    codes.append(ended(started(cut, name, steps)))
    print(inside_saves, *codes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
