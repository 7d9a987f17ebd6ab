"""Tests of each model with each feature of Keras in `OFFERS`.

Most tests compare with Keras: with a plain functional model of the same graph,
or with files that Keras wrote. `REFUSED` lists the pairs that raise an error.
A default run tests each feature on one model: the first eight features in a
graph, the others eagerly. `-m long` tests all pairs but these eight in a graph.
The strategy tests run this script: python test_plain_keras.py STRATEGY MODEL
"""

import contextlib
import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.optimizers import SGD
from pytest import approx

from bert_keras.modeling.encoder import BertEncoder
from bert_keras.training.strategy import make_strategy
from tests.support import forks
from tests.support.device_processes import tf_configs
from tests.support.model_samples import (
    MODELS,
    STILL,
    fill,
    make_model,
    pretraining_batch,
)

pytestmark = pytest.mark.heavy

ROWS = 5
IDS = np.random.default_rng(0).integers(1, 30, (ROWS, 6))
X = {"token_ids": IDS, "segment_ids": IDS % 2, "padding_mask": IDS * 0 + 1}
X["padding_mask"][::2, 4:] = 0
CHOICES = {name: np.stack([x, x[::-1]], axis=1) for name, x in X.items()}
PRETRAINING, PREDICTED, _ = pretraining_batch(batch=ROWS)
CLASSES, ENDS = np.array([0, 1, 2, 0, 1]), IDS % 6
WEIGHTS = np.array([0.2, 1.0, 0.0, 2.5, 0.7], "float32")
VECTORS = np.random.default_rng(0).normal(size=(ROWS, 6, 8)).astype("float32")


def entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# Model -> (inputs, labels, loss of each output).
CASES = {
    "encoder": (
        X,
        {"sequence_output": VECTORS, "pooled_output": VECTORS[:, 0]},
        keras.losses.MeanSquaredError,
    ),
    "classifier": (X, CLASSES, entropy),
    "tagger": (X, IDS % 3, entropy),
    "span": (X, {"start": ENDS[:, 0], "end": ENDS[:, 1]}, entropy),
    "chooser": (CHOICES, CLASSES % 2, entropy),
    "embedder": (X, VECTORS[:, 0], keras.losses.MeanSquaredError),
    "pretrainer": (PRETRAINING, PREDICTED, entropy),
    "causal": (X, IDS, entropy),
}


class Case:
    """A model with its inputs, labels and loss."""

    def __init__(self, name, eager=False):
        self.name, self.eager = name, eager
        self.x, self.y, self.loss = CASES[name]
        self.model = fill(self.make(), scale=0.2)

    def make(self):
        """Return the model with new weights."""
        return make_model(self.name, **STILL)

    def each(self, value):
        """Return `value` for each output, in the structure of the labels."""
        return keras.tree.map_structure(lambda _: value, self.y)

    def weights(self):
        """Return a weight for each value of each output's loss."""

        def weigh(y):
            shape = y.shape if self.loss is entropy else y.shape[:-1]
            factors = 1 + np.arange(np.prod(shape)).reshape(shape) % 3
            return np.float32((WEIGHTS * factors.T).T)

        return keras.tree.map_structure(weigh, self.y)

    def plain(self, kind=keras.Model):
        """Return a plain functional Keras model around the model."""
        inputs = {
            name: keras.Input(x.shape[1:], dtype="int32", name=name)
            for name, x in self.x.items()
        }
        return kind(inputs, self.model(inputs))

    def fit(self, model=None, compiling=None, **fitting):
        """Compile and train, by default for 2 epochs; return the history."""
        keras.utils.set_random_seed(0)
        model = model or self.model
        losses = keras.tree.map_structure(lambda _: self.loss(), self.y)
        compiling = compiling or {}
        # The plain model runs eagerly. If `compiling` has an optimizer, it runs
        # in the model's mode, as Adam amplifies the rounding of zero gradients.
        is_second = model is not self.model and "optimizer" not in compiling
        compiling = {
            "optimizer": SGD(0.1),
            "loss": losses,
            "run_eagerly": self.eager or is_second,
        } | compiling
        model.compile(**compiling)
        fitting = {"x": self.x, "y": self.y, "epochs": 2, **fitting}
        if fitting["y"] is not None:
            fitting["batch_size"] = 2
        return model.fit(**fitting, shuffle=False, verbose=0).history

    def fits_as_plain(self, arguments=None, kind=lambda cls: cls):
        """Train the model and a plain one; compare; return the history.

        Args:
            arguments: function that gets the case and returns the arguments of
                `compile` and of `fit`.
            kind: function that returns a subclass of a model's class.
        """
        models = self.model, self.plain(kind(keras.Model))
        self.model.__class__ = kind(type(self.model))
        before, results = self.model.get_weights(), []
        for model in models:
            self.model.set_weights(before)
            compiling, fitting = arguments(self) if arguments else ({}, {})
            history = self.fit(model, compiling, **fitting)
            results.append((history, self.model.get_weights()))
        (history, weights), (plain_history, plain_weights) = results
        assert history.keys() == plain_history.keys()
        for name, values in history.items():
            # Skip the losses of single outputs: in a graph, Keras averages them
            # by batch, not by row.
            if name in ("loss", "val_loss") or not name.endswith("_loss"):
                assert values == approx(plain_history[name], rel=1e-4), name
        for left, right in zip(weights, plain_weights, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)
        assert any((a != b).any() for a, b in zip(before, weights, strict=True))
        return history

    def assert_same_outputs(self, model, atol=0.0):
        x = {name: tf.constant(v, "int32") for name, v in self.x.items()}
        outputs = self.model(x), model(x)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=atol), *outputs
        )


def softplus(y_true, y_pred):
    """Compute a loss that a user could define."""
    return keras.ops.mean(keras.ops.softplus(y_pred), axis=-1)


def rows_of(case):
    return tf.data.Dataset.from_tensor_slices((case.x, case.y)).batch(2)


def schedule():
    return keras.optimizers.schedules.CosineDecay(1e-3, 9)


# Name -> function of a case that returns arguments of `compile` and of `fit`.
WAYS = {
    "validation_data": lambda c: (
        {},
        {"validation_data": (c.x, c.y, c.weights())},
    ),
    "validation_split": lambda c: ({}, {"validation_split": 0.4}),
    "class_weight": lambda c: ({}, {"class_weight": {0: 0.5, 1: 3.0, 2: 1.0}}),
    "sample_weight": lambda c: ({}, {"sample_weight": c.weights()}),
    "loss_weights": lambda c: (
        {"loss_weights": keras.tree.map_structure(lambda y: 0.5 + y.ndim, c.y)},
        {},
    ),
    "weighted_metrics": lambda c: (
        {
            "weighted_metrics": c.each(
                ["SparseCategoricalAccuracy" if c.loss is entropy else "mse"]
            )
        },
        {"sample_weight": c.weights()},
    ),
    "loss_of_the_user": lambda c: ({"loss": c.each(softplus)}, {}),
    # Keep this among the first eight, which are traced: eager mode has no graph
    # of several steps.
    "data_set_and_steps_per_execution": lambda c: (
        {"steps_per_execution": 2},
        {"x": rows_of(c), "y": None},
    ),
    "adamw_with_a_schedule_and_a_clip": lambda c: (
        {"optimizer": keras.optimizers.AdamW(schedule(), global_clipnorm=0.1)},
        {},
    ),
    "adam": lambda c: ({"optimizer": keras.optimizers.Adam(1e-3)}, {}),
    "run_eagerly": lambda c: ({"run_eagerly": True}, {}),
    "early_stopping": lambda c: (
        {},
        {
            "callbacks": keras.callbacks.EarlyStopping(
                "loss", mode="max", restore_best_weights=True
            ),
            "epochs": 9,
        },
    ),
    "reduce_lr_on_plateau": lambda c: (
        {},
        {
            "callbacks": keras.callbacks.ReduceLROnPlateau(
                "loss", factor=0.5, patience=0, min_delta=9
            ),
            "epochs": 3,
        },
    ),
}
# Way -> epochs in the history. The other ways have 2.
SHOWN = {"early_stopping": 2, "reduce_lr_on_plateau": 3}


# Other ways to train. Each function gets a case and an empty folder.


def regularizer(case, folder):
    for weight in case.model.trainable_weights:
        weight.regularizer = keras.regularizers.L2(0.1)
    case.fits_as_plain()


def train_step_of_the_user(case, folder):
    def with_step(cls):
        class WithStep(cls):
            def train_step(self, data):
                x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
                with tf.GradientTape() as tape:
                    outputs = self(x, training=True)
                    loss = self.compute_loss(x, y, outputs, weights)
                variables = self.trainable_variables
                gradients = tape.gradient(loss, variables)
                self.optimizer.apply_gradients(
                    zip(gradients, variables, strict=True)
                )
                return {"loss": 7 * loss}

        return WithStep

    case.fits_as_plain(kind=with_step)


def model_checkpoint(case, folder):
    files = [folder / "whole.keras", folder / "only.weights.h5"]
    case.fit(
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                file, save_weights_only=".weights" in file.name
            )
            for file in files
        ]
    )
    loaded = keras.saving.load_model(files[0])
    case.assert_same_outputs(loaded)
    assert int(loaded.optimizer.iterations.numpy()) == 6
    other = fill(case.make(), seed=1)
    other.load_weights(files[1])
    case.assert_same_outputs(other)


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


def backup_and_restore(case, folder):
    before = case.model.get_weights()
    whole = case.fit(compiling={"optimizer": "adam"})
    expected = case.model.get_weights()
    case.model.set_weights(before)
    backup = keras.callbacks.BackupAndRestore(folder / "backup")
    with pytest.raises(InterruptedError):
        case.fit(compiling={"optimizer": "adam"}, callbacks=[backup, Stop()])
    case.model = case.make()
    rest = case.fit(compiling={"optimizer": "adam"}, callbacks=[backup])
    assert rest["loss"] == approx(whole["loss"][1:], rel=1e-6)
    for left, right in zip(case.model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-7)


def tensor_board(case, folder):
    board = keras.callbacks.TensorBoard(folder, histogram_freq=1)
    losses = case.fit(callbacks=[board])["loss"]
    [file] = (folder / "train").glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(file))
    values = [v for event in events for v in event.summary.value]
    shown = [tf.make_ndarray(v.tensor) for v in values if v.tag == "epoch_loss"]
    assert shown == approx(losses)


def keras_tuner(case, folder):
    import keras_tuner as tuner

    def build(choices):
        keras.utils.set_random_seed(0)  # the same weights and dropout
        model = case.make()
        rate = choices.Choice("rate", [0.0, 0.1])
        losses = keras.tree.map_structure(lambda _: case.loss(), case.y)
        model.compile(SGD(rate), losses, run_eagerly=case.eager)
        return model

    objective = tuner.Objective("loss", "min")
    search = tuner.GridSearch(build, objective, directory=str(folder))
    search.search(case.x, case.y, batch_size=2, epochs=3, verbose=0)
    assert search.get_best_hyperparameters()[0].get("rate") == 0.1


# Functional models and files.


def get_layer_in_a_functional_model(case, folder):
    model = case.model
    if not isinstance(model, BertEncoder):
        model = model.get_layer("encoder")
    inputs = keras.Input((None,), dtype="int32")
    tokens = model({"token_ids": inputs})["sequence_output"]
    scores = keras.layers.Dense(1)(keras.ops.mean(tokens, axis=1))
    functional = keras.Model(inputs, scores)
    functional.compile("adam", "mse", run_eagerly=case.eager)
    functional.fit(IDS, CLASSES, verbose=0)
    functional.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    ids = tf.constant(IDS, "int32")
    np.testing.assert_array_equal(loaded(ids), functional(ids))


# Distribution strategies with two replicas.


def mirrored(case, folder):
    compare_with_two_replicas(case, folder, "mirrored")


def multi_worker(case, folder):
    compare_with_two_replicas(case, folder, "multi_worker")


def train_under(kind, name):
    """Train a model under a strategy; return the history."""
    with make_strategy(kind).scope():
        case = Case(name, eager=kind == "off")
        rows = tf.data.Dataset.from_tensor_slices(
            (case.x, case.y, case.weights())
        )
        fitting = {"x": rows.batch(4), "y": None}
        return case.fit(validation_data=rows.batch(3), **fitting)


def compare_with_two_replicas(case, folder, kind):
    """Compare training on two replicas with training on one device."""
    many = kind == "multi_worker"
    environments = tf_configs() if many else ["{}"]
    processes = [
        forks.start(
            [__file__, kind, case.name],
            env={**os.environ, "TF_CONFIG": config},
        )
        for config in environments
    ]
    expected = train_under("off", case.name)
    for process in processes:
        output, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]
        history = json.loads(output.splitlines()[-1])
        for name, values in history.items():
            assert values == approx(expected[name], rel=1e-4), name


OFFERS = WAYS | {
    offer.__name__: offer
    for offer in (
        regularizer,
        train_step_of_the_user,
        model_checkpoint,
        backup_and_restore,
        tensor_board,
        keras_tuner,
        get_layer_in_a_functional_model,
        mirrored,
        multi_worker,
    )
}
# They start processes, or many fits.
IN_PROCESSES = ("mirrored", "multi_worker", "keras_tuner")
# (model, feature) -> pattern of the error.
REFUSED = {
    # An encoder is no task model, so Keras's own step runs, and fails.
    ("encoder", "mirrored"): "AddN",
    ("encoder", "multi_worker"): "unsupported type",
    # Keras itself refuses these.
    ("encoder", "class_weight"): "single output",
    ("span", "class_weight"): "single output",
    ("pretrainer", "class_weight"): "single output",
    # Keras would read all labels of a row as a single one-hot label.
    ("tagger", "class_weight"): "sample_weight",
    ("causal", "class_weight"): "sample_weight",
}


def cells():
    """Yield each model with each feature; all but one per feature are slow.

    Those of `IN_PROCESSES` run with `-m release`.
    """
    for i, offer in enumerate(OFFERS):
        for j, name in enumerate(MODELS):
            is_quick, is_traced = (i + j) % 8 == 0, i < len(MODELS)
            if is_quick and not is_traced:
                marks = pytest.mark.release if offer in IN_PROCESSES else ()
                case = f"{name}-{offer}-eager"
                yield pytest.param(name, offer, True, marks=marks, id=case)
            marks = () if is_quick and is_traced else pytest.mark.long
            yield pytest.param(
                name, offer, False, marks=marks, id=f"{name}-{offer}"
            )


@pytest.mark.parametrize(("name", "offer", "eager"), cells())
def test_keras_works_as_its_users_know_it(name, offer, eager, tmp_path):
    case, word = Case(name, eager), REFUSED.get((name, offer))
    refused = pytest.raises((ValueError, AssertionError), match=word)
    with refused if word else contextlib.nullcontext():
        if offer in WAYS:
            history = case.fits_as_plain(WAYS[offer])
            assert len(history["loss"]) == SHOWN.get(offer, 2)
        else:
            OFFERS[offer](case, tmp_path)


@pytest.mark.parametrize("data", ["arrays", "data set"])
def test_one_hot_labels_with_class_weight_train_as_in_plain_keras(data):
    case = Case("classifier", eager=True)
    case.y = np.eye(3, dtype="float32")[CLASSES]
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    fitting = {"class_weight": {0: 0.5, 1: 3.0, 2: 1.0}}
    if data == "data set":
        fitting |= {"x": rows_of(case), "y": None}
    case.fits_as_plain(lambda _: ({"loss": loss}, fitting))


# Outputs with a loss, a metric, labels and sample weights, of one model that is
# compiled again for each row. The last value is a word of the refusal.
COMPILED_AGAIN = (
    ("mlm nsp", "mlm nsp", "mlm nsp", "mlm nsp", ""),
    ("mlm", "", "mlm", "mlm", ""),
    ("mlm nsp", "", "mlm", "", "nsp"),
    ("mlm nsp", "mlm", "mlm nsp", "", ""),
    ("mlm nsp", "mlm", "mlm nsp", "mlm", "sample weights"),
    ("nsp", "nsp", "nsp", "nsp", ""),
    ("mlm", "mlm nsp", "mlm", "", "weighted_metrics"),
    ("mlm", "mlm", "mlm nsp", "mlm", ""),
    ("mlm", "", "mlm nsp", "", ""),
)


def test_a_model_compiled_again_trains_as_a_new_plain_one():
    case = Case("pretrainer", eager=True)
    before, weights = case.model.get_weights(), case.weights()

    def run(model, losses, metrics, labels, weighted):
        model.set_weights(before)
        model.compile(
            SGD(0.1),
            {name: entropy() for name in losses},
            weighted_metrics={n: [make_accuracy()] for n in metrics} or None,
            run_eagerly=True,
        )
        data = [case.x, {name: case.y[name] for name in labels}]
        if weighted:
            data.append({name: weights[name] for name in weighted})
        data = tf.data.Dataset.from_tensors(tuple(data))
        return model.fit(data, verbose=0).history, model.evaluate(
            data, verbose=0, return_dict=True
        )

    for *row, word in COMPILED_AGAIN:
        losses, metrics, labels, weighted = map(str.split, row)
        if word:
            with pytest.raises(ValueError, match=word):
                run(case.model, losses, metrics, labels, weighted)
            continue
        found = run(case.model, losses, metrics, labels, weighted)
        # Keras also needs labels and weights of outputs that have no loss.
        weighted = weighted and case.y
        plain = case.plain()
        plain.set_weights = case.model.set_weights
        expected = run(plain, losses, metrics, case.y, weighted)
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys(), row
            for name, value in one.items():
                assert value == approx(other[name], rel=1e-5), (row, name)
    case.model.compile(SGD(0.1), loss=None)
    with pytest.raises(ValueError, match="without a loss"):
        case.model.fit(case.x, case.y)


def make_accuracy():
    return keras.metrics.SparseCategoricalAccuracy(name="accuracy")


if __name__ == "__main__":
    kind, name = sys.argv[1:]
    number = 2 if kind == "mirrored" else 1
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * number,
    )
    print(json.dumps(train_under(kind, name)))
