"""Checks of training on two replicas in one process; for test_devices.py.

    python -m tests.devices.two_replicas FOLDER CHECK

CHECK is the name of a function whose argument is `folder`.
"""

import gc
import itertools
import re
import sys
import warnings
import weakref

import keras
import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras.modeling.attention import TransformerLayer
from bert_keras.modeling.dropout import add_replica, dropout
from bert_keras.modeling.heads import LogitsHead
from bert_keras.modeling.layers import Dropout
from bert_keras.modeling.pretrainer import (
    pretraining_losses,
    pretraining_metrics,
)
from bert_keras.modeling.task_base import TaskModel, symbolic_inputs
from bert_keras.training.optimizers import AdamW, Lamb, adamw
from bert_keras.training.similarity import CoSENT, InBatchNegatives
from bert_keras.training.state import TrainingState
from bert_keras.training.strategy import make_strategy
from tests.support import train_on_devices
from tests.support.model_samples import (
    LABELS,
    MODELS,
    STILL,
    fill,
    make_encoder,
    make_model,
    pretraining_batch,
    random_inputs,
)
from tests.support.run_script import ROOT

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
OFF, TWO = make_strategy("off"), make_strategy("mirrored")
assert (OFF.num_replicas, TWO.num_replicas) == (1, 2)


def pretrainer(strategy, accumulate=1, frozen=False, averaging=(), **size):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = fill(make_model("pretrainer", **size))
        model.encoder.embeddings.trainable = not frozen
        model.compile(
            AdamW(1e-4, accumulate=accumulate, **dict(averaging)),
            pretraining_losses(),
            weighted_metrics=pretraining_metrics(),
        )
    return model


def fit(strategy, model, steps, first=0, callbacks=(), change=None):
    parts = [pretraining_batch(step, 4) for step in range(first, steps)]
    if change is not None:
        change(*parts[0])
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(parts),
        output_signature=tf.nest.map_structure(
            lambda x: tf.TensorSpec(x.shape, x.dtype), parts[0]
        ),
    )
    # Without `steps_per_epoch`, Keras starts one more step to find the end of
    # the data, and this step may draw dropout seeds.
    model.fit(
        strategy.batches(dataset),
        steps_per_epoch=len(parts),
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
    )
    return model


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    # Use `name`: in `path`, Keras numbers the optimizers of the process.
    return {f"{i}/{v.name}": v.numpy() for i, v in enumerate(variables)}


def assert_equal(left, right, atol=0.0):
    for name, value in values(left).items():
        second = values(right)[name]
        np.testing.assert_allclose(value, second, atol=atol, err_msg=name)


def on_replicas(function):
    """Return a function that runs `function` and lists each replica's array."""
    traced = tf.function(lambda: TWO.distributed.run(function))
    results = TWO.distributed.experimental_local_results
    return lambda: [x.numpy() for x in results(traced())]


def two_replicas_end_with_the_weights_of_one(folder):
    """In float64, with four micro-batches, weights differ by at most 1e-9."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # the old policy is cached
    try:
        one, two = (
            {case: train_on_devices.train(strategy, *case.split("-"), ())}
            for strategy, case in ((OFF, "adamw-1"), (TWO, "adamw-4"))
        )
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    train_on_devices.check(two, one, "float64")


def replicas_drop_different_units(folder):
    def masks(strategy):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            layer = Dropout(0.5)
            layer.build()
        ones = tf.ones((8, 64))
        draw = lambda: layer(ones, training=True)  # noqa: E731
        both = on_replicas(draw) if strategy is TWO else draw
        return np.array([both() for _ in range(8)])

    drawn = masks(TWO)  # (call, replica, 8, 64)
    for one, other in itertools.combinations(drawn.reshape(16, 8, 64), 2):
        assert 0.4 < np.mean(one != other) < 0.6
    # A second run draws the same masks; one device draws the first replica's.
    np.testing.assert_array_equal(masks(TWO), drawn)
    np.testing.assert_array_equal(masks(OFF), drawn[:, 0])
    # A transformer layer has the sites 0 to 8 for one seed.
    seed, ones = tf.constant([3, 4]), tf.ones((8, 64))
    draw = on_replicas(
        lambda: tf.stack(
            [dropout(ones, 0.5, add_replica(seed), site) for site in range(9)]
        )
    )
    drawn = np.reshape(draw(), (18, 8, 64))  # (replica and site, 8, 64)
    for one, other in itertools.combinations(drawn, 2):
        assert 0.4 < np.mean(one != other) < 0.6


def recomputed_layers_drop_the_same_units(folder):
    vectors = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")

    def slopes(rematerialize):
        keras.utils.set_random_seed(1)
        with TWO.scope():
            layer = TransformerLayer(
                2, 8, 12, 0.3, 0.3, rematerialize=rematerialize
            )
            layer.build((None, None, 8))

        def slope():
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(layer(vectors, training=True) ** 3)
            return tape.gradient(y, layer.output_norm.gamma.value)

        return on_replicas(slope)()

    plain, again = slopes(False), slopes(True)
    np.testing.assert_allclose(plain, again, atol=1e-4)
    assert abs(plain[0] - plain[1]).max() > 0.01


def a_resumed_run_ends_with_the_same_bits(folder):
    def state(name):
        return TrainingState(f"{folder}/{name}", every=2)

    whole = pretrainer(TWO, accumulate=2)
    fit(TWO, whole, 5, callbacks=[state("whole")])
    cut = pretrainer(TWO, accumulate=2)
    fit(TWO, cut, 3, callbacks=[state("cut")])
    again, going_on = pretrainer(TWO, accumulate=2), state("cut")
    assert going_on.restore(again) == 3
    assert_equal(again, cut)
    fit(TWO, again, 5, first=3, callbacks=[going_on])
    assert_equal(again, whole)


def a_row_that_is_not_finite_skips_the_step_on_all_replicas(folder):
    x = {"token_ids": np.arange(1, 25).reshape(4, 6)}
    weights = np.array([1, 1, 1, np.nan])  # a row of the second replica
    rows = tf.data.Dataset.from_tensor_slices((x, np.zeros(4), weights))
    with TWO.scope():
        model = fill(MeanClassifier(make_encoder(**STILL)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(AdamW(1e-4), loss)
    before = model.get_weights()
    model.fit(TWO.batches(rows.batch(4)), verbose=0, shuffle=False)
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)
    assert int(model.optimizer.skipped_steps.numpy()) == 1
    for weight in model.trainable_weights[:3]:
        copies = TWO.distributed.experimental_local_results(weight.value)
        np.testing.assert_array_equal(*(copy.numpy() for copy in copies))


def averaged_and_frozen_weights_are_those_of_one_device(folder):
    def averaged(strategy):
        averaging = {"use_ema": True, "ema_momentum": 0.5}
        model = pretrainer(strategy, frozen=True, averaging=averaging, **STILL)
        start = model.encoder.embeddings.token.weights[0].numpy()
        fit(strategy, model, 3)
        end = model.encoder.embeddings.token.weights[0].numpy()
        np.testing.assert_array_equal(start, end)
        return model

    assert_equal(averaged(TWO), averaged(OFF), atol=2e-6)


class MeanClassifier(TaskModel):
    """Classifier of the mean embedding; compiles faster than a transformer."""

    pools = False

    def __init__(self, encoder, outputs=(), name="mean_classifier"):
        inputs = symbolic_inputs()
        vectors = encoder.embeddings(inputs["token_ids"])  # (B, T, D)
        mean = keras.ops.mean(vectors, axis=1)
        heads = {x: LogitsHead(3, name=x)(mean) for x in outputs or ["head"]}
        logits = heads if outputs else heads["head"]  # (B, 3)
        super().__init__(inputs, logits, encoder, name)
        for layer in encoder.transformer_layers:
            layer.trainable = False


class MeanEmbedder(TaskModel):
    """Embedder of several texts by the mean of their token embeddings."""

    pools = False

    def __init__(self, encoder, name="mean_embedder"):
        ids = keras.Input((None, None), dtype="int32", name="token_ids")
        token = encoder.embeddings.token
        vectors = keras.ops.mean(token(ids), axis=2)  # (B, K, D)
        super().__init__({"token_ids": ids}, vectors, encoder, name)
        for weight in encoder.weights:
            weight.trainable = weight is token.weights[0]


def scalar(y_true, y_pred):
    """Return the mean squared error, a scalar instead of a loss per row."""
    return tf.reduce_mean(
        tf.square(tf.one_hot(tf.cast(y_true, tf.int32), 3) - y_pred)
    )


OPTIMIZERS = {
    "adamw": lambda: AdamW(1e-3, epsilon=1e-3, clip_norm=0.1),
    "lamb": lambda: Lamb(1e-3, epsilon=1e-3),
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "SGD, clipped": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "Keras's AdamW": lambda: keras.optimizers.AdamW(
        1e-3, epsilon=1e-3, clipnorm=0.1
    ),
}
# (optimizer, micro-batches, a reduction or `scalar` for each head, dtype).
# A case with `scalar` gets no sample weights.
SOME_LOSSES = [
    ("lamb", 1, ["sum", None, "mean_with_sample_weight"], "float32"),
    ("SGD, clipped", 2, ["mean", scalar], "float32"),
    ("Keras's AdamW", 1, ["mean_with_sample_weight"], "mixed_float16"),
]
OTHER_LOSSES = [
    ("adamw", 2, ["mean_with_sample_weight"], "float32"),
    ("SGD", 2, ["sum", "mean"], "float32"),
    ("Keras's AdamW", 1, [None, "mean_with_sample_weight"], "float32"),
]


def optimizers_and_losses_give_the_numbers_of_one_device(folder):
    compare_losses(SOME_LOSSES)


def other_optimizers_and_losses_give_the_numbers_of_one_device(folder):
    compare_losses(OTHER_LOSSES)


def compare_losses(cases):
    """Compare one and two replicas on weighted rows and a batch of one row."""
    random = np.random.default_rng(0)
    x = {"token_ids": random.integers(1, 30, (9, 6))}
    weights = np.array([0.1, 3, 0, 0, 5, 1, 0.2, 1, 1], "float32")
    for name, parts, reductions, dtype in cases:
        losses = {
            f"head_{number}": reduction
            if reduction is scalar
            else keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=reduction
            )
            for number, reduction in enumerate(reductions)
        }
        arrays = [x, {head: random.integers(0, 3, 9) for head in losses}]
        if scalar not in reductions:
            arrays.append(dict.fromkeys(losses, weights))
        rows = tf.data.Dataset.from_tensor_slices(tuple(arrays))
        results = []
        for strategy in (OFF, TWO):
            with strategy.scope():
                encoder = make_encoder(dtype=dtype, **STILL)
                model = fill(MeanClassifier(encoder, losses))
                optimizer = OPTIMIZERS[name]()
                optimizer.accumulate = parts
                model.compile(
                    optimizer, losses, loss_weights=dict.fromkeys(losses, 0.7)
                )
            table = encoder.embeddings.token.weights[0]
            table.regularizer = keras.regularizers.L2(0.01)
            before = model.get_weights()
            data = strategy.batches(rows.batch(4))
            logs = model.fit(data, verbose=0, shuffle=False, epochs=2).history
            if parts == 1:  # evaluation has no micro-batches
                logs["after"] = model.evaluate(data, verbose=0)
            results.append((model, logs))
            moved = zip(model.get_weights(), before, strict=True)
            assert any((a != b).any() for a, b in moved)
        (one, logs_of_one), (two, logs_of_two) = results
        rough = dtype != "float32"
        for key, values in logs_of_one.items():
            np.testing.assert_allclose(
                values,
                logs_of_two[key],
                rtol=3e-3 if rough else 1e-5,
                err_msg=f"{name}: {key}",
            )
        if not rough:
            assert_equal(one, two, atol=5e-6)


def a_transformer_replica_without_rows_gives_the_numbers_of_one_device(folder):
    random = np.random.default_rng(0)
    x = {"token_ids": random.integers(1, 30, (5, 6))}
    rows = tf.data.Dataset.from_tensor_slices((x, random.integers(0, 3, 5)))
    results = []
    for strategy in (OFF, TWO):
        with strategy.scope():
            model = fill(make_model("classifier", **STILL))
            model.compile(
                AdamW(1e-4),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
        predicted = model.predict(x, batch_size=2, verbose=0)
        model.fit(rows.batch(4), verbose=0, shuffle=False)
        results.append((model, predicted))
    np.testing.assert_allclose(results[1][1], results[0][1], atol=1e-6)
    assert_equal(results[1][0], results[0][0], atol=2e-6)


def an_eager_replica_without_rows_gives_the_numbers_of_one_device(folder):
    random = np.random.default_rng(0)
    x = {"token_ids": random.integers(1, 30, (5, 6))}
    rows = tf.data.Dataset.from_tensor_slices((x, random.integers(0, 3, 5)))
    results = []
    for strategy in (OFF, TWO):
        with strategy.scope():
            model = fill(MeanClassifier(make_encoder(**STILL)))
            model.compile(
                AdamW(1e-3, epsilon=1e-3),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                run_eagerly=True,
            )
        batches = strategy.batches(rows.batch(4))
        logs = model.fit(batches, verbose=0, shuffle=False).history
        scores = model.evaluate(batches, verbose=0)
        results.append((model, [*logs["loss"], *logs["accuracy"], *scores]))
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-5)
    assert_equal(results[1][0], results[0][0], atol=5e-6)


def an_overflow_on_either_replica_lowers_the_scale_on_both(folder):
    def marks(row):
        def mark(x, y, weights):
            x["segment_ids"][:] = 4 * (np.arange(4)[:, None] == row)

        return mark

    size = {"dtype": "mixed_float16", "num_segments": 5, **STILL}
    for row in (3, 0):  # on the second replica, then the first
        model = pretrainer(TWO, **size)
        segments = model.encoder.embeddings.segment.weights[0]
        segments.assign(
            segments * np.where(np.arange(5) == 4, np.inf, 1)[:, None]
        )
        before = model.get_weights()
        fit(TWO, model, 1, change=marks(row))
        scale = model.optimizer.dynamic_scale.value
        copies = TWO.distributed.experimental_local_results(scale)
        assert [float(copy) for copy in copies] == [2.0**14] * 2, row
        for weight, other in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight, other)


def graphs_in_memory():
    gc.collect()
    kind = tf.__internal__.FuncGraph
    return weakref.WeakSet(x for x in gc.get_objects() if isinstance(x, kind))


def a_batch_has_the_negatives_of_all_replicas(folder):
    """One replica gets three of the five rows; the other replica gets two."""
    before = graphs_in_memory()
    compare_losses_of_all_replicas()
    # No recorded gradient of `fit` keeps a graph in memory.
    assert not list(graphs_in_memory() - before)


def compare_losses_of_all_replicas():
    random = np.random.default_rng(0)
    ids = random.integers(1, 30, (5, 3, 6), "int32")
    # Rows 0 and 3, on different replicas, count as equal; also 1 and 4.
    numbers = np.arange(15).reshape(5, 3) % 9
    compare_with_one(InBatchNegatives(), ids, numbers)
    scores = np.array([0.2, 1.0, 0.2, 0.0, 0.7])
    compare_with_one(CoSENT(), ids[:, :2], scores)


def compare_with_one(loss, ids, labels):
    results = []
    for strategy, accumulate in ((OFF, 1), (TWO, 1), (TWO, 2)):
        with strategy.scope():
            model = fill(MeanEmbedder(make_encoder(**STILL)))
            model.compile(AdamW(1e-4, accumulate=accumulate), loss)
        rows = tf.data.Dataset.from_tensor_slices((ids, labels))
        logs = model.fit(
            strategy.batches(rows.batch(5)), verbose=0, shuffle=False
        ).history
        value = model.evaluate(strategy.batches(rows.batch(5)), verbose=0)
        results.append((model, [*logs["loss"], value]))
    (first, expected), *others = results
    for model, losses in others:
        np.testing.assert_allclose(expected, losses, rtol=1e-5)
        assert_equal(first, model, atol=2e-6)


def texts_are_trained_on_as_on_one_device(folder):
    """Also the last batch, with fewer texts than replicas."""
    texts = ["An hour", "Bad", "well spent", "awful", "so"]
    labels = [1, 0, 1, 0, 1]
    found = []
    for strategy in (OFF, TWO):
        with strategy.scope():
            model = bert_keras.BertClassifier.from_preset(
                "bert_keras_mini_en",
                labels=["bad", "good"],
                sequence_length=8,
                dropout=0.0,
            )
            model.encoder.trainable = False
            weight = model.classifier.weights[0]
            weight.assign(np.linspace(-1, 1, 512).reshape(weight.shape))
            model.compile(keras.optimizers.SGD(0.1))
        history = model.fit(
            *(texts, labels),
            batch_size=4,
            epochs=2,
            shuffle=False,
            validation_data=(texts, labels),
            verbose=0,
        ).history
        found.append([*history.values()])
    np.testing.assert_allclose(*found, rtol=1e-5)


def an_unused_pooler_stays_the_same(folder):
    """Its moving averages do not undo what another model trained."""
    rows = train_on_devices.global_batches()[0]["token_ids"][:8]
    for optimizer in (
        lambda: AdamW(1e-2, use_ema=True),
        lambda: keras.optimizers.Adam(1e-2, weight_decay=0.1, use_ema=True),
    ):
        with TWO.scope():
            encoder = fill(make_encoder(**STILL))
            tagger = MODELS["tagger"](encoder, LABELS)
            classifier = MODELS["classifier"](encoder, LABELS)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            for model in (tagger, classifier):
                model.compile(optimizer(), loss)
        for model in (tagger, classifier, tagger):
            labels = rows % 3 if model is tagger else rows[:, 0] % 3
            data = tf.data.Dataset.from_tensor_slices((rows, labels))
            before = encoder.pooler.get_weights()[0]
            model.fit(TWO.batches(data.batch(8)), epochs=2, verbose=0)
            moved = (encoder.pooler.get_weights()[0] != before).any()
            assert moved == (model is classifier)


def the_loop_of_the_guide_trains_as_fit(folder):
    page = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    (code,) = re.findall(
        r"```python\n(import tensorflow as tf\n.*?)```", page, re.DOTALL
    )
    x, y = random_inputs(batch=8), np.arange(8) % 3
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

    def make():
        with TWO.scope():
            return fill(make_model("classifier", **STILL))

    fitted, looped = make(), make()
    with TWO.scope():
        fitted.compile(adamw(2e-5, steps=2))
    fitted.fit(TWO.batches(data), verbose=0, shuffle=False)
    names = {
        "bert_keras": bert_keras,
        "strategy": TWO,
        "model": looped,
        "dataset": data,
        "batch_size": 4,
        "steps": 2,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        exec(code, names)
    assert names["optimizer"].iterations.numpy() == 2
    for left, right in zip(fitted.weights, looped.weights, strict=True):
        if left.dtype == "float32":
            np.testing.assert_allclose(
                left, right, atol=1e-6, err_msg=left.path
            )


if __name__ == "__main__":
    folder, check = sys.argv[1:]
    globals()[check](folder)
