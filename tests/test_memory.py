"""Resident memory does not grow with steps, fits and predictions."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from model_samples import make_model

from bert_keras.training.optimizers import adamw

IDS = np.random.default_rng(0).integers(1, 30, (8, 7))
LABELS = IDS[:, 0] % 2
MEGABYTES = 16  # what the allocator may keep


def resident_megabytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def fit_steps(model, count):
    rows = tf.data.Dataset.from_tensors((IDS, LABELS)).repeat(count)
    model.fit(rows, verbose=0)


def fit_often(model, count):
    for _ in range(count // 10):
        model.fit(IDS, LABELS, verbose=0)


def predict_often(model, count):
    for _ in range(count // 5):
        model.predict(IDS, verbose=0)


@pytest.mark.long
@pytest.mark.parametrize("work", [fit_steps, fit_often, predict_often])
def test_memory_does_not_grow(work):
    model = make_model("classifier")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-3), loss)
    work(model, 200)  # traces, and fills the allocator's caches
    before = resident_megabytes()
    work(model, 2000)
    assert resident_megabytes() - before < MEGABYTES
