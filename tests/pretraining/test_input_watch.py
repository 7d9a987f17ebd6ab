"""Waiting for the input is not confused with the time of the steps."""

import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_tasks.engine import callbacks
from official_tasks.engine.callbacks import InputWatch

STEPS = 5


def wait(x):
    def slow(x):
        time.sleep(0.1)
        return x

    return tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), (2, 1))


def test_slow_data_are_waited_for():
    x = np.ones((2 * STEPS, 1), "float32")
    dataset = tf.data.Dataset.from_tensor_slices(x).batch(2)
    pairs = dataset.map(wait).map(lambda x: (x, x)).repeat()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = InputWatch()
    history = model.fit(
        watch.watched(pairs),
        steps_per_epoch=STEPS,
        epochs=2,
        verbose=0,
        callbacks=[watch],
    )
    assert min(history.history["input_waits"]) > 0.4


def test_of_each_step_the_time_until_its_batch_is_taken_counts(monkeypatch):
    times = iter([0, 40, 50, 51, 53, 60, 62, 70, 70, 76, 80])
    clock = types.SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(callbacks, "time", clock)
    watch, logs = InputWatch(), {}
    watch.watched(tf.data.Dataset.range(9))
    watch.on_epoch_begin(0)
    for batch, last, taken in ((0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 4, 2)):
        watch.on_train_batch_begin(batch)
        for _ in range(taken):
            watch._take()
        if batch == 2:
            watch._take()  # ahead of its step
        watch.on_train_batch_end(last)
    watch.on_epoch_end(0, logs)
    # The first step traced; the next waited 2 of 10, then 8 of 10; then two
    # together had the first of their batches when they began.
    assert logs["input_waits"] == pytest.approx((2 + 8) / (10 + 10 + 10))


def test_watched_batches_are_the_same():
    dataset = tf.data.Dataset.range(9).map(lambda i: ({"i": i}, i + 1, -i))
    for ours, theirs in zip(
        InputWatch().watched(dataset), dataset, strict=True
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)
