"""Waiting for the input is told from waiting for the training."""

import time

import keras
import numpy as np
import tensorflow as tf

from official_tasks.input_watch import FIRST, InputWatch

STEPS = FIRST + 10


def slowly(seconds):
    def wait(x):
        time.sleep(seconds)
        return x

    return lambda x: tf.ensure_shape(
        tf.numpy_function(wait, [x], tf.float32), (2, 1)
    )


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


def share(make, callbacks):
    """What a run over slow data, or with slow steps, logs."""
    x = np.ones((2 * STEPS, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(2)
    pairs = dataset.map(make).map(lambda x: (x, x)).repeat()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = InputWatch()
    history = model.fit(
        watch.watched(pairs),
        steps_per_epoch=STEPS,
        epochs=2,
        verbose=0,
        callbacks=[watch, *callbacks],
    )
    return history.history["input_waits"]


def test_slow_data_are_waited_for():
    assert share(slowly(0.05), [])[1] > 0.7


def test_slow_steps_wait_for_nothing():
    assert share(lambda x: x, [Slow()])[1] < 0.3


def test_watched_batches_are_the_same():
    dataset = tf.data.Dataset.range(9).map(lambda i: ({"i": i}, i + 1, -i))
    for ours, theirs in zip(
        InputWatch().watched(dataset), dataset, strict=True
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)
