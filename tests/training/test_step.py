"""The step of a task model against Keras's step and a NumPy restatement.

tests/devices/two_replicas.py tests the step on several replicas.
"""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import keras_adapter
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.modeling.task_models import BertClassifier, BertTagger
from bert_keras.modeling.weights import enable_lora
from bert_keras.training.optimizers import adamw
from tests.support.model_samples import (
    LABELS,
    STILL,
    fill,
    make_encoder,
    make_model,
    numpy_weights,
    pretraining_batch,
)
from tests.support.numpy_bert import pretraining_loss

pytestmark = pytest.mark.heavy

IDS = np.random.default_rng(0).integers(1, 30, (5, 6))
# Inputs of the classifier and the span model; a tagger takes `PACKED`.
X = {
    "token_ids": IDS,
    "segment_ids": IDS % 2,
    "padding_mask": (np.arange(6) < [[6], [4], [5], [3], [6]]).astype("int32"),
}
PACKED = {
    **X,
    "example_ids": X["padding_mask"],
    "position_ids": np.tile(np.arange(6), (5, 1)),
}
ROWS = np.array([0.2, 1.0, 0.0, 2.5, 0.7], "float32")
TOKENS = ROWS[:, None] * X["padding_mask"]


def classifier(problem="single"):
    return fill(BertClassifier(make_encoder(**STILL), LABELS, problem))


def tagger():
    return fill(make_model("tagger", **STILL))


def span():
    return fill(make_model("span", **STILL))


def sparse(reduction):
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction
    )


def scalar(y_true, y_pred):
    """Return a loss that is a scalar."""
    return keras.ops.mean((y_true - y_pred) ** 2)


REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight")
Y = np.array([0, 1, 2, 0, 1])
HOT = np.eye(3, dtype="float32")[Y]
ENDS = {"start": np.array([1, 0, 2, 1, 0]), "end": np.array([1, 2, 2, 2, 4])}
# Model, labels, arguments of `compile` and of `train_on_batch`.
CASES = {
    f"{name}, {reduction}": (
        make,
        labels,
        {"loss": sparse(reduction)},
        {"sample_weight": weights},
    )
    for reduction in (*REDUCTIONS, "none")
    for name, make, labels, weights in (
        ("rows", classifier, Y, None),
        ("weighted rows", classifier, Y, ROWS),
        ("weighted tokens", tagger, IDS % 3, TOKENS),
    )
}
CASES |= {
    f"two outputs, {reduction}": (
        span,
        ENDS,
        {
            "loss": {"start": sparse(reduction), "end": sparse("sum")},
            "loss_weights": {"start": 0.7, "end": 2.0},
        },
        {"sample_weight": {"start": ROWS, "end": ROWS[::-1]}},
    )
    for reduction in REDUCTIONS
}
CASES |= {
    "class weights": (
        classifier,
        Y,
        {"loss": sparse("mean_with_sample_weight")},
        {"class_weight": {0: 0.5, 1: 3.0, 2: 1.0}},
    ),
    "a weight of the loss": (
        classifier,
        Y,
        {"loss": sparse("mean"), "loss_weights": 0.3},
        {"sample_weight": ROWS},
    ),
    "weights of 0": (
        classifier,
        Y,
        {"loss": sparse("mean_with_sample_weight")},
        {"sample_weight": 0 * ROWS},
    ),
    "several labels a row": (
        lambda: classifier("multi"),
        HOT,
        {"loss": keras.losses.BinaryCrossentropy(from_logits=True)},
        {"sample_weight": ROWS},
    ),
    "a loss by name": (classifier, HOT, {"loss": "mse"}, {}),
    "a scalar": (classifier, HOT, {"loss": scalar}, {}),
}
# Tracing a graph takes seconds, so the other cases run the same code eagerly.
TRACED = ("two outputs, mean_with_sample_weight", "weighted tokens, mean")


@pytest.mark.parametrize("case", CASES)
def test_one_device_takes_keras_own_step(case):
    """The reference is the step of a functional model of the same layers."""
    make, y, compiling, arguments = CASES[case]
    task_model = make()
    # Keras fails to add the scalar penalty to an unreduced loss. With weights
    # of 0, a penalty would change the model.
    if "none" not in case and case != "weights of 0":
        table = task_model.encoder.embeddings.token.weights[0]
        table.regularizer = keras.regularizers.L2(0.1)
    plain = keras.Model(task_model.input, task_model.output)
    x = PACKED if "example_ids" in task_model.input else X
    before, results = task_model.get_weights(), []
    for model in (task_model, plain):
        task_model.set_weights(before)
        eager = case not in TRACED
        model.compile(keras.optimizers.SGD(1.0), run_eagerly=eager, **compiling)
        logs = model.train_on_batch(x, y, return_dict=True, **arguments)
        weights = task_model.get_weights()
        after = model.test_on_batch(
            x, y, arguments.get("sample_weight"), return_dict=True
        )
        results.append((logs, after, weights))
    (logs, after, weights), (their_logs, their_after, their_weights) = results
    assert logs == pytest.approx(their_logs, rel=1e-5)
    assert after == pytest.approx(their_after, rel=1e-5)
    for found, expected in zip(weights, their_weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
    moved = [np.abs(a - b).max() for a, b in zip(weights, before, strict=True)]
    assert (max(moved) > 1e-3) == (case != "weights of 0")


@pytest.mark.parametrize(
    ("reduction", "weights"),
    [("mean", None), ("mean_with_sample_weight", TOKENS), ("mean", TOKENS)],
)
def test_ignored_labels_count_for_nothing_in_micro_batches(reduction, weights):
    """The reference is Keras's loss of the whole batch."""
    y = IDS % 3
    y[0, 2:], y[3] = -100, -100
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-100, reduction=reduction
    )
    model, found = tagger(), []
    before = model.get_weights()
    expected = loss(y, model(PACKED), weights)
    for accumulate in (1, 5):
        model.set_weights(before)
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.accumulate = accumulate
        model.compile(optimizer, loss, run_eagerly=True)
        value = model.train_on_batch(PACKED, y, weights)
        assert value == pytest.approx(float(expected), rel=1e-5)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_step_takes_the_gradients_of_the_numpy_restatement(accumulate):
    """The reference is a finite difference in a random direction."""
    model = fill(make_model("pretrainer", **STILL, dtype="float64"))
    x, y, w = pretraining_batch(batch=5)
    w = {
        name: v * (1 + np.arange(v.size).reshape(v.shape) % 3)
        for name, v in w.items()
    }
    kernel, penalty = "nsp/kernel", 0.05
    model.nsp.kernel.regularizer = keras.regularizers.L2(penalty)
    weights, config = numpy_weights(model), model.encoder.get_config()
    optimizer = keras.optimizers.SGD(1.0)  # subtracts the gradient itself
    optimizer.accumulate = accumulate
    factors = {"mlm": 0.7, "nsp": 2.0}
    model.compile(
        optimizer,
        pretraining_losses(),
        loss_weights=factors,
        run_eagerly=accumulate != 3,  # for 3, trace the micro-batch loop
    )
    loss = model.train_on_batch(x, y, w, return_dict=True)["loss"]

    def restated(changed):
        total = pretraining_loss(changed, config, x, y, w, factors.values())
        return total + penalty * np.square(changed[kernel]).sum()

    assert loss == pytest.approx(restated(weights), rel=1e-6)
    random = np.random.default_rng(5)
    for path, after in numpy_weights(model).items():
        direction = random.normal(size=after.shape)
        direction /= np.linalg.norm(direction)

        def moved(by, path=path, direction=direction):
            return restated({**weights, path: weights[path] + by * direction})

        second = (moved(1e-5) - moved(-1e-5)) / 2e-5
        gradient = ((weights[path] - after) * direction).sum()
        assert gradient == pytest.approx(second, abs=1e-6), path


def test_losses_on_probabilities_are_refused():
    models = {kind: classifier(kind) for kind in ("single", "multi")}
    two = span()
    for problem, loss, right in (
        ("single", "sparse_categorical_crossentropy", "SparseCategorical"),
        ("single", "crossentropy", "SparseCategorical"),
        ("single", keras.losses.SparseCategoricalCrossentropy(), "Sparse"),
        ("single", "categorical_crossentropy", "CategoricalCrossentropy"),
        ("multi", "binary_crossentropy", "BinaryCrossentropy"),
        ("multi", "binary_focal_crossentropy", "BinaryFocalCrossentropy"),
        ("multi", keras.losses.BinaryCrossentropy(), "BinaryCrossentropy"),
    ):
        model = models[problem]
        if (
            isinstance(loss, str) and loss != "crossentropy"
        ):  # a name is refused in `compile`
            with pytest.raises(InputError, match=rf"{right}.*from_logits=True"):
                model.compile("adam", loss)
            with pytest.raises(InputError, match="from_logits=True"):
                two.compile("adam", {"start": sparse("mean"), "end": loss})
            continue
        model.compile("adam", loss)
        y = Y if right.startswith("Sparse") else HOT
        for use in (model.fit, model.evaluate):
            with pytest.raises(InputError, match=rf"{right}.*from_logits=True"):
                use(X, y, verbose=0)
        two.compile("adam", {"start": sparse("mean"), "end": loss})
        with pytest.raises(InputError, match="from_logits=True"):
            two.fit(X, ENDS, verbose=0)
    for loss in (keras.losses.KLDivergence(), "kl_divergence", "dice"):
        with pytest.raises(InputError, match="first applies the softmax"):
            models["single"].compile("adam", loss)
            models["single"].fit(X, HOT, verbose=0)

    def dice(labels, logits):  # a user's loss may have any name
        return keras.losses.dice(labels, keras.ops.softmax(logits))

    models["single"].compile("adam", dice)
    assert 0 < models["single"].evaluate(X, HOT, verbose=0) < 1


@pytest.mark.parametrize("from_data_set", [False, True])
def test_class_weight_takes_names_and_weighs_missing_classes_by_1(
    from_data_set,
):
    losses = []
    for arguments in (
        {"class_weight": {"no": 3.0, 1: 0.5}},  # class 2 is missing
        {"sample_weight": np.array([3.0, 0.5, 1.0])[Y]},
    ):
        model = classifier()
        model.compile("sgd", sparse("mean"), run_eagerly=True)
        if from_data_set and "class_weight" in arguments:
            rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
            history = model.fit(rows, verbose=0, **arguments)
        else:
            history = model.fit(X, Y, verbose=0, batch_size=5, **arguments)
        losses.append(history.history["loss"])
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        ({"never": 1.0}, "'never'.*no, maybe, yes"),
        ({3: 1.0}, "the key 3"),
        ({-1: 1.0}, "the key -1"),
        ({0.5: 1.0}, "the key 0.5"),
        ({0: 1.0, "no": 2.0}, "a class twice"),
        ({0: float("nan")}, "class 0 is nan"),
        ({0: "1"}, "class 0 is '1'"),
        ({}, "class_weight is {}"),
        ([1.0, 2.0, 3.0], "Expected a dict"),
    ],
)
def test_a_wrong_class_weight_is_refused_before_training(weights, part):
    model = classifier()
    model.compile("sgd", sparse("mean"))
    for method in (model.fit, model.train_on_batch):
        with pytest.raises(InputError, match=part):
            method(X, Y, class_weight=weights)


def test_an_error_of_a_data_set_names_no_input():
    model = classifier()
    model.compile("sgd", sparse("mean"))
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    rows = rows.map(lambda x, y: (x, y, tf.gather([1.0], y)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        model.fit(rows, verbose=0)


def test_labels_may_be_names_of_classes():
    names = np.array(LABELS)
    for model, y in ((classifier(), Y), (tagger(), IDS % 3)):
        x = PACKED if model.name == "tagger_model" else X
        model.compile("sgd", sparse("mean"), run_eagerly=True)
        expected = model.evaluate(x, y, verbose=0)
        texts = names[y]
        for labels in (texts, texts.tolist(), tf.constant(texts)):
            found = model.evaluate(x, labels, verbose=0)
            assert found == pytest.approx(expected)
        model.fit(x, texts, validation_data=(x, texts), verbose=0)
        model.train_on_batch(x, texts)
        with pytest.raises(InputError, match="contain 'never'.*no, maybe"):
            model.fit(x, np.where(y == 0, "never", texts))
    rows = tf.data.Dataset.from_tensor_slices((X, names[Y])).batch(5)
    model = classifier()
    model.compile("sgd", sparse("mean"), run_eagerly=True)
    with pytest.raises(InputError, match="StringLookup"):
        model.fit(rows, verbose=0)
    lookup = keras.layers.StringLookup(
        vocabulary=model.labels, num_oov_indices=0
    )
    found = model.evaluate(rows.map(lambda x, y: (x, lookup(y))), verbose=0)
    assert found == pytest.approx(model.evaluate(X, Y, verbose=0))
    several = classifier("multi")
    several.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    with pytest.raises(InputError, match="array .B, C. of 0 and 1"):
        several.fit(X, names[Y])


@pytest.mark.parametrize("jit", [False, True])
def test_labels_that_are_no_classes_are_refused(jit):
    model = classifier()
    model.compile("sgd", sparse("mean"), jit_compile=jit)
    for method in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(InputError, match="contain 3.*0 to 2"):
            method(X, Y + 2)
        with pytest.raises(InputError, match="contain -1.*0 to 2"):
            method(X, Y - 1)
        with pytest.raises(InputError, match="NaN, first in row 1"):
            method(X, np.where(Y == 1, np.nan, Y))
        with pytest.raises(InputError, match="contain 0.5.*0 to 2"):
            method(X, np.where(Y == 1, 0.5, Y))
        with pytest.raises(InputError, match="rows of different lengths"):
            method(X, [["a"] * (1 + i % 2) for i in range(len(Y))])
        with pytest.raises(InputError, match=r"one-hot.*argmax\(-1\)"):
            method(X, np.eye(3)[Y % 3])
    with pytest.raises(InputError, match="contain 3.*0 to 2"):
        model.fit(X, Y, validation_data=(X, Y + 2))
    for y, part in ((Y + 2, "3"), (np.where(Y == 1, np.nan, Y), "NaN")):
        rows = tf.data.Dataset.from_tensor_slices((X, y)).batch(5)
        with pytest.raises(InputError, match=f"contain {part}.*0 to 2"):
            model.fit(rows, verbose=0)
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1
    )
    model.compile("sgd", loss, run_eagerly=True)
    assert np.isfinite(model.evaluate(X, Y - 1, verbose=0))


def test_accuracy_of_several_labels_is_refused_and_the_advice_works():
    model = classifier("multi")
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    for method in (model.fit, model.evaluate):
        with pytest.raises(InputError, match=r"BinaryAccuracy\(threshold=0"):
            method(X, HOT, verbose=0)
    share = keras.metrics.BinaryAccuracy(threshold=0)
    model.compile("sgd", loss, metrics=[share], run_eagerly=True)
    found = model.evaluate(X, HOT, verbose=0)[1]
    assert found == pytest.approx(np.mean((model(X) > 0) == HOT))


def test_class_weight_is_refused_for_several_labels_and_the_advice_works():
    model = classifier("multi")
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    with pytest.raises(InputError, match=r"sample_weight of shape \(B,\)"):
        model.fit(X, HOT, class_weight={0: 0.5, 1: 3.0}, verbose=0)
    with pytest.raises(InputError, match=r"sample_weight of shape \(B,\)"):
        model.train_on_batch(X, HOT, class_weight={0: 0.5, 1: 3.0})
    weights = np.arange(len(HOT), dtype="float32")
    found = model.evaluate(X, HOT, sample_weight=weights, verbose=0)
    rows = keras.losses.binary_crossentropy(HOT, model(X), from_logits=True)
    assert found == pytest.approx(np.mean(rows * weights), rel=1e-5)


BINARY_METRICS = {
    "AUC": {"from_logits": True},
    "BinaryCrossentropy": {"from_logits": True},
    "BinaryAccuracy": {"threshold": 0},
    "Precision": {"thresholds": 0},
    "Recall": {"thresholds": 0},
}


def test_metrics_on_probabilities_are_refused_and_those_for_logits_are_right():
    model = classifier("multi")
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    kinds = {name: getattr(keras.metrics, name) for name in BINARY_METRICS}
    for name, make in kinds.items():
        model.compile("adam", loss, metrics=[make()])
        for use in (model.fit, model.evaluate):
            with pytest.raises(InputError, match=rf"{name}\("):
                use(X, HOT, verbose=0)
    right = [kinds[n](**logits, name=n) for n, logits in BINARY_METRICS.items()]
    model.compile("adam", loss, metrics=right)
    found = model.evaluate(X, HOT, verbose=0, return_dict=True)
    probabilities = keras.ops.sigmoid(model(X))
    for name, make in kinds.items():
        reference = make()
        reference.update_state(HOT, probabilities)
        expected = float(reference.result())
        assert found[name] == pytest.approx(expected, abs=0.01), name


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (keras.metrics.Precision(thresholds=0.5), "Precision.thresholds=0"),
        (keras.metrics.Recall(thresholds=[0.5]), "Recall.thresholds=0"),
        (
            keras.metrics.F1Score(average="micro", threshold=0.5),
            "compute keras.metrics.F1Score from",
        ),
        (keras.metrics.PrecisionAtRecall(0.9), "PrecisionAtRecall from"),
        (keras.metrics.KLDivergence(), "KLDivergence from"),
        (keras.metrics.BinaryIoU(), "BinaryIoU.threshold=0"),
    ],
)
def test_a_written_threshold_of_one_half_is_refused_too(metric, message):
    model = classifier("multi")
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[metric])
    with pytest.raises(InputError, match=message):
        model.evaluate(X, HOT, verbose=0)


def test_functions_serve_as_losses_and_metrics(recwarn):
    model = classifier("multi")
    smooth = functools.partial(
        keras.losses.binary_crossentropy, from_logits=True, label_smoothing=0.1
    )
    largest = functools.partial(lambda y, p, k: keras.ops.max(p) + k, k=1.0)
    metrics = [largest, lambda y, p: keras.ops.max(p)]
    model.compile("adam", smooth, metrics=metrics, run_eagerly=True)
    loss, *found = model.evaluate(X, HOT, verbose=0)
    logits = model(X)
    expected = float(keras.ops.mean(smooth(HOT, logits)))
    assert loss == pytest.approx(expected, rel=1e-5)
    most = float(keras.ops.max(logits))
    assert found == pytest.approx([most + 1, most], rel=1e-5)
    assert not [w for w in recwarn if "lambda" in str(w.message)]
    model.compile("adam", functools.partial(smooth, from_logits=False))
    with pytest.raises(InputError, match="BinaryCrossentropy.from_logits=True"):
        model.evaluate(X, HOT, verbose=0)

    class Smooth:
        def __call__(self, labels, outputs, from_logits):
            return smooth(labels, outputs, from_logits=from_logits)

    model.compile("adam", functools.partial(Smooth(), from_logits=False))
    with pytest.raises(InputError, match="its argument from_logits to True"):
        model.evaluate(X, HOT, verbose=0)
    area = keras.metrics.AUC(thresholds=[0.5], from_logits=True)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[area])
    model.evaluate(X, HOT, verbose=0)


@pytest.mark.parametrize(
    ("compiling", "labels", "word"),
    [
        ({"loss": sparse("mean")}, Y, "start, end"),
        ({"loss": None}, ENDS, "without a loss"),
    ],
)
def test_what_a_step_cannot_use_is_refused(compiling, labels, word):
    model = span()
    model.compile("adam", **compiling)
    with pytest.raises(InputError, match=word):
        model.train_on_batch(X, labels)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_half_precision_do_not_train(dtype):
    model = make_model("classifier", **STILL, dtype=dtype)
    for optimizer in ("adam", adamw(1e-3, 10)):
        model.compile(optimizer, sparse("mean"))
        with pytest.raises(InputError, match=f"mixed_{dtype}"):
            model.train_on_batch(X, Y)
    mixed = model.with_dtype(f"mixed_{dtype}")
    mixed.compile(adamw(1e-3, 10, warmup=0), sparse("mean"), run_eagerly=True)
    assert np.isfinite([mixed.train_on_batch(X, Y) for _ in range(3)]).all()


@pytest.mark.parametrize(
    "optimizer", ["adamw", "adam", pytest.param("sgd", marks=pytest.mark.long)]
)
def test_float16_scales_the_loss_and_skips_overflows(optimizer):
    # Adam is traced: the graph has both branches of the overflow check.
    is_eager = optimizer != "adam"
    if optimizer == "adamw":
        optimizer = adamw(1e-3)
    model = fill(make_model("classifier", **STILL, dtype="mixed_float16"))
    model.compile(optimizer, sparse("mean"), run_eagerly=is_eager)
    before = model.get_weights()
    model.train_on_batch(X, Y, np.full(5, np.inf, "float32"))
    assert float(model.optimizer.dynamic_scale) == 2.0**14
    for mine, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, old)
    model.train_on_batch(X, Y)
    assert any(
        (mine != old).any()
        for mine, old in zip(model.get_weights(), before, strict=True)
    )


SHARED = {"tagger": BertTagger, "classifier": BertClassifier}
TARGETS = {"tagger": IDS % 3, "classifier": Y}
READS = {"tagger": "sequence_output", "classifier": "pooled_output"}


def shared_models(order):
    """Return two task models on one encoder, and Keras layers on a copy."""
    encoder = fill(make_encoder(**STILL), scale=0.2)
    models = {name: SHARED[name](encoder, LABELS) for name in order}
    copy, plain = BertEncoder.from_config(encoder.get_config()), {}
    copy.set_weights(encoder.get_weights())
    for name in order:
        inputs = {k: keras.Input((6,), dtype="int32", name=k) for k in X}
        head = keras.layers.Dense(len(LABELS))
        plain[name] = keras.Model(inputs, head(copy(inputs)[READS[name]]))
        head.set_weights(models[name].layers[-1].get_weights())
    return models, plain


def averaging(**arguments):
    return keras.optimizers.AdamW(
        1e-2, weight_decay=0.1, global_clipnorm=0.5, **arguments
    )


def assert_trains_alike(left, right, **arguments):
    losses = [
        model.fit(X, epochs=3, verbose=0, **arguments).history["loss"]
        for model in (left, right)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for a, b in zip(left.get_weights(), right.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.filterwarnings("error:.*Skipping variable loading")
@pytest.mark.parametrize(
    "order",
    [[*SHARED], pytest.param([*SHARED][::-1], marks=pytest.mark.long)],
    ids=["forward", "backward"],
)
def test_models_on_one_encoder_train_like_keras_layers(order, tmp_path):
    models, plain = shared_models(order)
    encoder = models["tagger"].encoder
    assert all(layer.trainable for layer in encoder._flatten_layers())
    for name, model in models.items():
        is_eager = name == "classifier"
        for each in (model, plain[name]):
            each.compile(averaging(), sparse("mean"), run_eagerly=is_eager)
    for name in ("tagger", "classifier", "tagger"):
        old = encoder.pooler.get_weights()[0]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Gradients do not exist")
            models[name].fit(X, TARGETS[name], epochs=0, verbose=0)
            models[name].train_on_batch(X, TARGETS[name])
        plain[name].train_on_batch(X, TARGETS[name])
        assert_trains_alike(models[name], plain[name], y=TARGETS[name])
        moved = (encoder.pooler.get_weights()[0] != old).any()
        assert moved == (name == "classifier")
    for name, model in models.items():
        count = 2 * len(model.trainable_weights) + 2
        assert len(model.optimizer.variables) == count
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "my.weights.h5")
        again = keras.saving.load_model(tmp_path / "model.keras")
        new = type(model)(make_encoder(**STILL), LABELS)
        new.load_weights(tmp_path / "my.weights.h5")
        for a, b in zip(new.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        # The loaded optimizer has the moments too.
        assert_trains_alike(again, model, y=TARGETS[name])
    models, plain = shared_models(order)
    joint = []
    for group in (models, plain):
        inputs = {k: keras.Input((6,), dtype="int32", name=k) for k in X}
        joint.append(keras.Model(inputs, {k: group[k](inputs) for k in SHARED}))
        joint[-1].compile(averaging(), {k: sparse("mean") for k in SHARED})
    assert_trains_alike(*joint, y=TARGETS)
    assert len(joint[0].optimizer.variables) == 2 * 27 + 2
    joint[0].save_weights(tmp_path / "joint.weights.h5")
    trained = joint[0].get_weights()
    fill(joint[0], seed=3)
    joint[0].load_weights(tmp_path / "joint.weights.h5")
    for a, b in zip(trained, joint[0].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("frequency", [None, 1])
def test_averages_do_not_undo_what_another_model_trained(frequency):
    models, _ = shared_models(SHARED)
    pooler = models["tagger"].encoder.pooler
    for model in models.values():
        optimizer = averaging(use_ema=True, ema_overwrite_frequency=frequency)
        if frequency is None:
            optimizer = adamw(1e-2, ema=0.9)
        model.compile(optimizer, sparse("mean"), run_eagerly=True)
    for name in ("tagger", "classifier", "tagger"):
        old = pooler.get_weights()[0]
        models[name].fit(X, TARGETS[name], epochs=3, verbose=0)
        change = np.abs(pooler.get_weights()[0] - old).max()
        assert change > 1e-3 if name == "classifier" else change < 1e-7


def test_an_optimizer_sums_over_replicas_after_fit():
    model, optimizer = classifier(), averaging()
    model.compile(optimizer, sparse("mean"), run_eagerly=True)
    model.fit(X, Y, verbose=0)
    assert not keras_adapter.takes_summed_gradients(optimizer)


def test_a_model_of_features_changes_nothing_in_an_encoder():
    encoder = fill(make_encoder(**STILL))
    before = encoder.get_weights()
    model = BertClassifier(encoder, LABELS, recipe="weighted_sum_all")
    assert all(layer.trainable for layer in encoder._flatten_layers())
    with pytest.raises(InputError, match="encoder is not trained"):
        enable_lora(model, 2)
    optimizer = averaging(use_ema=True)
    model.compile(optimizer, sparse("mean"), run_eagerly=True)
    head = model.layers[-1].get_weights()[0]
    model.fit(X, Y, epochs=2, verbose=0)
    for old, weight in zip(before, encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(old, weight)
    assert (model.layers[-1].get_weights()[0] != head).any()


def test_a_pooler_that_the_user_froze_stays_frozen():
    encoder = make_encoder(**STILL)
    encoder.pooler.trainable = False
    tagger = BertTagger(encoder, LABELS)
    assert "adaptation" in tagger.get_config()
    BertClassifier(encoder, LABELS)
    assert not encoder.pooler.trainable


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_step_beyond_the_schedule_warns_once(schedule):
    model = classifier()
    optimizer = adamw(1e-3, steps=4, warmup=1, schedule=schedule)
    model.compile(optimizer, sparse("mean"), run_eagerly=True)
    model.fit(X, Y, batch_size=2, verbose=0)  # 3 steps
    with pytest.warns(UserWarning, match="ended after 4 steps") as warned:
        model.fit(X, Y, batch_size=2, verbose=0)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="learning rate is 0"):
        model.fit(X, Y, batch_size=5, verbose=0)


def test_warmup_steps_without_a_target_do_not_lengthen_a_schedule():
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 4, warmup_steps=2)
    model = classifier()
    model.compile(
        keras.optimizers.SGD(schedule), sparse("mean"), run_eagerly=True
    )
    with pytest.warns(UserWarning, match="ended after 4 steps"):
        model.fit(X, Y, batch_size=2, epochs=2, verbose=0)


def test_a_schedule_without_end_warns_of_none():
    model = classifier()
    optimizer = adamw(1e-3, steps=1, warmup=0, schedule="constant")
    model.compile(optimizer, sparse("mean"), run_eagerly=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=2, verbose=0)
    assert not [w for w in warned if "learning rate" in str(w.message)]


def test_without_steps_the_rate_is_constant_for_callbacks_to_set():
    model = classifier()
    model.compile(adamw(1e-3), sparse("mean"), run_eagerly=True)
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9),
    ]
    model.fit(X, Y, epochs=3, verbose=0, callbacks=callbacks)
    assert float(model.optimizer.learning_rate) < 1e-3 / 8
