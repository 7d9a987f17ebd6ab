"""Resident memory does not grow with steps, fits, predictions and requests."""

import gc
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.training.optimizers import adamw
from tests.support.model_samples import make_model
from tests.support.serving_process import predict, server

IDS = np.random.default_rng(0).integers(1, 30, (8, 7))
LABELS = IDS[:, 0] % 2
MEGABYTES = 16  # allowed growth: the allocator keeps some freed memory


def resident_megabytes(process="self"):
    gc.collect()
    with open(f"/proc/{process}/statm") as file:
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


def requests():
    """Yield (content, status) of 300 requests; every tenth is invalid."""
    generator = random.Random(0)
    words = "an hour well spent film bad good [MASK] ? é 東京".split()

    def text():
        return " ".join(generator.choices(words, k=generator.randint(0, 60)))

    forms = {
        "classify": lambda: text(),
        "tag": lambda: text(),
        "embed": lambda: text(),
        "tokenize": lambda: text(),
        "fill_mask": lambda: text(),
        "next_sentence": lambda: {"text": text(), "text_pair": text()},
        "answer": lambda: {"question": text(), "context": text()},
        "choose": lambda: {"prompt": text(), "choices": [text(), text()]},
    }
    wrong = [
        (b'{"instances": [', 400),
        ({"instances": [3]}, 400),
        ({"instances": ["a"] * 65}, 400),
        ({"instances": ["a"], "signature_name": "none"}, 404),
        ({"instances": ["a" * 200_000]}, 413),
    ]
    for number in range(300):
        name = list(forms)[number % len(forms)]
        rows = [forms[name]() for _ in range(generator.randint(1, 3))]
        content = {"signature_name": name, "instances": rows}
        yield wrong[number // 10 % 5] if number % 10 == 9 else (content, 200)


@pytest.mark.long
def test_a_servers_memory_does_not_grow(toy_export):
    mixed = list(requests())
    generator = random.Random(1)
    with server(toy_export) as (port, process):

        def ask(count):
            for content, status in generator.choices(mixed, k=count):
                found, answer = predict(port, content)
                assert found == status, answer
            return resident_megabytes(process.pid)

        before, after = ask(2_000), ask(18_000)
    assert after - before < MEGABYTES
