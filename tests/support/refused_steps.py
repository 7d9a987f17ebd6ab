"""Checks that a refused or failed step keeps the weights; for test_jax.py.

    python -m tests.support.refused_steps [long]

Each case makes a method of a model fail, after `steps` batches of two rows.
Then the model must have the weights of these batches, and must take the step
that the message advises. Without `long`, each reason is checked with one
method.
"""

import functools
import re
import sys

import keras
import numpy as np

from bert_keras import BertClassifier, adamw
from tests.support.model_samples import STILL, fill, make_encoder

IDS = np.random.default_rng(0).integers(1, 30, (6, 5))
X, Y = {"token_ids": IDS}, np.array([0, 1, 2, 0, 1, 2])
CALLBACK = "a callback that raises"
WRONG = {"token_ids": IDS, "tokens": IDS}
SHAPE = np.ones((6, 2), "int32")  # labels of another shape
# Arguments of each method, without the inputs.
LABELED = {
    "fit": {"y": Y, "batch_size": 2, "shuffle": False, "verbose": 0},
    "evaluate": {"y": Y, "batch_size": 2, "verbose": 0},
    "predict": {"batch_size": 2, "verbose": 0},
    "train_on_batch": {"y": Y},
    "test_on_batch": {"y": Y},
    "predict_on_batch": {},
}


class OwnError(Exception):
    """An error of a user's code."""


def fail(*_):
    raise OwnError("an own error")


def interrupt(*_):
    raise KeyboardInterrupt("an own error")


class FailingMetric(keras.metrics.Mean):
    def update_state(self, *_, **__):
        fail()


class FailingData(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        fail()


def entropy(**arguments):
    return keras.losses.SparseCategoricalCrossentropy(
        **{"from_logits": True, **arguments}
    )


def probabilities():
    return entropy(from_logits=False)


def make():
    return fill(BertClassifier(make_encoder(**STILL), list("abc")))


def compile_(model, loss=entropy, optimizer=adamw, **arguments):
    loss = loss() if loss else None
    # `compile` without metrics would keep the metrics of an earlier call.
    arguments = {"metrics": [], **arguments}
    model.compile(optimizer(1e-2), loss, **arguments)


def call(model, method, x=X, **arguments):
    arguments = {**LABELED[method], **arguments}
    if not isinstance(x, dict):  # a data set has labels and batches
        for name in ("y", "batch_size"):
            arguments.pop(name, None)
    return getattr(model, method)(x, **arguments)


def failing_callback(method, batch):
    """Return a callback that raises at the end of a batch."""
    event = {"fit": "train", "evaluate": "test"}.get(method, method)

    def end(number, logs=None):
        return fail() if number == batch else None

    name = f"on_{event}_batch_end"
    return keras.callbacks.LambdaCallback(**{name: end})


def reasons(method):
    """Return the failures of a method: name -> arguments of `case`."""
    text = {"token_ids": np.array(["a"] * 6)}
    found = {
        "a wrong key": ({}, "no input named", {"x": WRONG}),
        "texts": ({}, "are texts", {"x": text}),
        "eager": ({"run_eagerly": True}, "no input named", {"x": WRONG}),
    }
    if "batch" not in method:
        callbacks = [failing_callback(method, 1)]
        found |= {
            CALLBACK: ({}, "own error", {"callbacks": callbacks}),
            "data that cannot be read": (
                {},
                "own error",
                {"x": FailingData()},
            ),
        }
    if "predict" in method:
        return found
    precision = keras.metrics.Precision()
    return found | {
        "a loss of probabilities": ({"loss": probabilities}, "logits", {}),
        "no loss": ({"loss": None}, "without a loss", {}),
        "a loss that raises": ({"loss": lambda: fail}, "own error", {}),
        "an interruption": ({"loss": lambda: interrupt}, "own error", {}),
        "a metric that raises": (
            {"metrics": [FailingMetric()]},
            "own error",
            {},
        ),
        "a metric of probabilities": (
            {"metrics": [precision]},
            "Precision.thresholds=0",
            {},
        ),
        "labels of a wrong shape": ({}, "hape", {"y": SHAPE}),
    }


def make_cases(is_long):
    """Return tuples of a name, a method and the rest of `check`'s arguments."""
    cases, names = [], set()
    # Start with another method for each reason.
    methods = list(LABELED)
    for number in range(len(methods)):
        for place, name in enumerate(reasons("fit")):
            method = methods[(number + place) % len(methods)]
            if name in reasons(method) and (is_long or name not in names):
                names.add(name)
                steps = 2 if (name, method) == (CALLBACK, "fit") else 0
                cases.append((name, method, steps, *reasons(method)[name]))
    halves = {"optimizer": functools.partial(adamw, accumulate=2)}
    averages = {"optimizer": functools.partial(adamw, ema=0.9)}
    averages["loss"] = lambda: fail
    validation = {"validation_data": (X, SHAPE)}
    cases += [
        ("moving averages", "fit", 0, averages, "own error", {}),
        ("validation", "fit", 3, {}, "hape", validation),
    ]
    if keras.backend.backend() == "jax":  # TensorFlow splits unevenly
        five = {"x": {"token_ids": IDS[:5]}, "y": Y[:5]}
        cases += [
            (
                "accumulate",
                "fit",
                0,
                halves,
                "multiple of acc",
                {"batch_size": 3},
            ),
            (
                "accumulate",
                "train_on_batch",
                0,
                halves,
                "multiple of acc",
                five,
            ),
        ]
    return cases


def run(call_, word):
    """Call a function that must fail with a message that has `word`."""
    try:
        call_()
    except (Exception, KeyboardInterrupt) as error:
        assert re.search(word, str(error)), (word, error)
        assert "are lost" not in str(getattr(error, "__notes__", ""))
    else:
        raise AssertionError(f"no error with {word}")


def check(method, steps, compiling, word, calling):
    model, expected = make(), make()
    compile_(model, **compiling)
    if steps:
        compile_(expected)
    for first in range(0, 2 * steps, 2):
        rows = slice(first, first + 2)
        expected.train_on_batch({"token_ids": IDS[rows]}, Y[rows])
    run(lambda: call(model, method, **calling), word)
    for mine, other in zip(
        model.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5 if steps else 0)
    compile_(model)
    result = call(model, method)
    result = result.history["loss"] if method == "fit" else result
    assert np.isfinite(result).all()
    assert np.isfinite(model.predict(X, verbose=0)).all()


if __name__ == "__main__":
    failures = []
    for name, method, *case in make_cases("long" in sys.argv):
        try:
            check(method, *case)
        except BaseException as error:
            failures.append(f"{method}, {name}: {type(error)}: {error}")
    assert not failures, "\n".join(failures)
