"""Optimizers and schedules, compared with NumPy and transformers; refusals."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import kernels
from bert_keras.training import not_finite
from bert_keras.training.not_finite import NotFiniteError, StopWhenNotFinite
from bert_keras.training.optimizers import (
    AdamW,
    Lamb,
    adamw,
    lamb,
    layer_rates,
)
from bert_keras.training.schedules import WarmupLinearDecay, schedule
from tests.support.model_samples import make_model

NAMES = ("kernel", "bias", "gamma", "beta")
DECAYED = (True, False, False, False)


def variables():
    values = np.random.default_rng(1).normal(size=(4, 3, 2))
    pairs = zip(NAMES, values.astype("float32"), strict=True)
    return [keras.Variable(value, name=name) for name, value in pairs]


def restated(values, steps, rates, clip, corrected=False, trusting=False):
    """Return the weights after AdamW in NumPy, or after LAMB if `trusting`."""
    values = [value.astype("float64") for value in values]
    m = [np.zeros(value.shape) for value in values]
    v = [np.zeros(value.shape) for value in values]
    for number, (gradients, rate) in enumerate(zip(steps, rates, strict=True)):
        norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients))
        for i, gradient in enumerate(gradients):
            gradient = gradient / max(norm / clip, 1.0)
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = 0.999 * v[i] + 0.001 * gradient**2
            first, second = m[i], v[i]
            if corrected:
                first = first / (1 - 0.9 ** (number + 1))
                second = second / (1 - 0.999 ** (number + 1))
            update = first / (np.sqrt(second) + 1e-6)
            if DECAYED[i]:
                update = update + 0.01 * values[i]
                if trusting:
                    length = np.linalg.norm(values[i])
                    update *= length / np.linalg.norm(update)
            values[i] = values[i] - rate * update
    return values


def apply(optimizer, variables, gradients):
    tensors = [keras.ops.convert_to_tensor(g) for g in gradients]
    optimizer.apply_gradients(list(zip(tensors, variables, strict=True)))


UPDATES = {
    "the original's": (AdamW, {"bias_correction": False}, {}),
    "with bias correction": (AdamW, {}, {"corrected": True}),
    "in one pass by XLA": (AdamW, {}, {"corrected": True}),
    "LAMB": (Lamb, {}, {"corrected": True, "trusting": True}),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize(
    ("size", "clip"),  # norm below clip, above it, near it with tiny gradients
    [(0.01, 1.0), (10.0, 1.0), (1e-5, 5e-5)],
)
def test_the_weights_equal_the_numpy_restatement_over_20_steps(
    random, update, size, clip, monkeypatch
):
    if "XLA" in update:
        monkeypatch.setattr(kernels, "LARGE", 0)
    kind, arguments, restatement = UPDATES[update]
    weights = variables()
    steps = size * random.normal(size=(20, 4, 3, 2)).astype("float32")
    rate = schedule(0.02, 20, warmup=4)
    rates = [float(rate(step)) for step in range(20)]
    second = restated(
        [v.numpy() for v in weights], steps, rates, clip, **restatement
    )
    optimizer = kind(rate, clip_norm=clip, **arguments)
    for gradients in steps:
        apply(optimizer, weights, gradients)
    for variable, expected in zip(weights, second, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected, atol=2e-6)


def test_what_a_step_has_for_all_weights_is_computed_once():
    weights, optimizer = variables(), AdamW()
    optimizer.build(weights)
    step = tf.function(lambda *gradients: apply(optimizer, weights, gradients))
    graph = step.get_concrete_function(*(w.value for w in weights)).graph
    counts = collections.Counter(op.type for op in graph.get_operations())
    # The two powers are beta_1 ** step and beta_2 ** step.
    assert (counts["Pow"], counts["ResourceApplyAdam"]) == (2, len(NAMES))


def test_lamb_leaves_a_weight_of_zeros_at_the_plain_step():
    variable = keras.Variable(np.zeros((2, 2), "float32"), name="kernel")
    apply(Lamb(0.1), [variable], [np.ones((2, 2), "float32")])
    np.testing.assert_allclose(variable.numpy(), -0.1, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "large"),  # if `large` is 0, AdamW uses XLA
    [(AdamW, 0), (AdamW, kernels.LARGE), (Lamb, kernels.LARGE)],
)
@pytest.mark.parametrize("broken", [np.nan, 1e30])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(
    random, kind, large, broken, monkeypatch
):
    monkeypatch.setattr(kernels, "LARGE", large)
    with_break = variables()
    without = [keras.Variable(v.numpy(), name=v.name) for v in with_break]
    steps = random.normal(size=(5, 4, 3, 2)).astype("float32")
    bad = steps[0].copy()
    bad[2, 1, 1] = broken
    optimizer, other = kind(0.01), kind(0.01)
    for number, gradients in enumerate(steps):
        if number in (0, 3):
            before = [v.numpy() for v in with_break]
            for repeated in range(2):
                apply(optimizer, with_break, bad)
                assert int(optimizer.skipped_in_row) == repeated + 1
            for variable, value in zip(with_break, before, strict=True):
                np.testing.assert_array_equal(variable.numpy(), value)
        apply(optimizer, with_break, gradients)
        apply(other, without, gradients)
        assert int(optimizer.skipped_in_row) == 0
    assert int(optimizer.skipped_steps) == 4
    assert int(optimizer.iterations) == 9
    assert float(optimizer.gradient_norm) == pytest.approx(
        np.linalg.norm(steps[-1]), rel=1e-5
    )
    for left, right in zip(with_break, without, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy())


def test_a_run_of_broken_steps_is_stopped_and_a_single_one_is_shown(
    caplog, monkeypatch
):
    monkeypatch.setattr(not_finite, "IN_A_ROW", 3)

    def fit(broken, optimizer=None):
        x = np.ones((8, 1), "float32")
        x[broken] = np.nan
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer or AdamW(0.01), "mse")
        guard = StopWhenNotFinite()
        return model.fit(
            x, x * 0, batch_size=1, shuffle=False, verbose=0, callbacks=[guard]
        )

    assert fit([2, 4, 5]).history["skipped_steps"] == [3.0]
    assert "far: 3 steps" in caplog.text
    with pytest.raises(NotFiniteError, match="last 4 steps were not finite"):
        fit([2, 3, 4, 5])
    # Keras's optimizers skip no step.
    fit([], "sgd")
    with pytest.raises(NotFiniteError, match="The loss is nan, and the"):
        fit([2], "sgd")


def test_skipped_steps_are_counted_and_warned_of_once_over_several_fits(caplog):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(AdamW(0.01), "mse", run_eagerly=True)
    guard, found = StopWhenNotFinite(), []
    for value in (np.nan, 1.0, 1.0, np.nan):
        x = np.full((1, 1), value, "float32")
        # A resumed run has the optimizer's variables and a new callback.
        guard = StopWhenNotFinite() if len(found) == 2 else guard
        history = model.fit(x, x, verbose=0, callbacks=[guard]).history
        found.append((*history["skipped_steps"], len(caplog.records)))
    assert found == [(1, 1), (1, 1), (1, 1), (2, 2)]


def test_a_float16_run_ends_when_no_scale_of_the_loss_helps():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.LossScaleOptimizer(AdamW(0.01))
    model.compile(optimizer, "mse", run_eagerly=True)
    x = np.full((60, 1), np.nan, "float32")
    with pytest.raises(NotFiniteError, match="lowered the loss scale to "):
        model.fit(
            x, x, batch_size=1, verbose=0, callbacks=[StopWhenNotFinite()]
        )
    assert 2.0**-20 < float(optimizer.dynamic_scale) < 2.0**-10


def test_biases_and_norms_of_the_model_are_not_decayed():
    model = make_model("pretrainer")
    optimizer = AdamW(1.0, weight_decay=0.5)
    before = [weight.numpy() for weight in model.trainable_variables]
    optimizer.build(model.trainable_variables)
    nothing = [keras.ops.zeros(weight.shape) for weight in before]
    optimizer.apply(nothing)
    for weight, value in zip(model.trainable_variables, before, strict=True):
        decayed = weight.name in ("kernel", "embeddings")
        np.testing.assert_array_equal(
            weight.numpy(), value * (0.5 if decayed else 1.0), weight.path
        )
    other = AdamW(1.0, weight_decay=0.5)
    other.exclude_from_weight_decay(var_names=["embeddings"])
    other.build(model.trainable_variables)
    tables = [w.name == "embeddings" for w in model.trainable_variables]
    for table, first, second in zip(
        tables, optimizer._decayed, other._decayed, strict=True
    ):
        assert second == (first and not table)


def test_the_schedule_equals_the_originals():
    rate = schedule(2.0, 10, warmup=4)
    # The warmup rises from 0; the linear decay counts from step 0.
    expected = [0, 0.5, 1.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2, 0, 0]
    rates = [float(rate(step)) for step in range(12)]
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    again = WarmupLinearDecay.from_config(rate.get_config())
    assert float(again(7)) == float(rate(7))


@pytest.mark.parametrize(
    ("shape", "warmup", "expected"),
    # Values of transformers' get_cosine_schedule_with_warmup and
    # get_constant_schedule_with_warmup.
    [
        (
            "cosine",
            4,
            [0, 0.5, 1, 1.5, 2, 1.866025, 1.5, 1, 0.5, 0.133975, 0],
        ),
        (
            "cosine",
            0,
            [2, 1.951057, 1.809017, 1.587785, 1.309017, 1, 0.690983]
            + [0.412215, 0.190983, 0.048943, 0],
        ),
        ("constant", 4, [0, 0.5, 1, 1.5, 2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_other_schedules_equal_those_of_transformers(shape, warmup, expected):
    optimizer = adamw(2.0, 10, warmup, schedule=shape)
    rates = []
    for step in range(len(expected)):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))
    np.testing.assert_allclose(rates, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("warmup", "steps"), [(0.1, 100), (10, 10), (0, 0), (1, 1)]
)
def test_the_warmup_is_a_share_or_a_number_of_steps(warmup, steps):
    optimizer = adamw(1e-3, steps=1000, warmup=warmup)
    assert optimizer._learning_rate.warmup_steps == steps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule(1.0, 0), "is not possible"),
        (lambda: schedule(1.0, 5, 6), "is not possible"),
        (lambda: schedule(1.0, 5, -0.1), "`warmup` is -0.1"),
        (lambda: schedule(1.0, 5, float("nan")), "`warmup` is nan"),
        (lambda: schedule(-1e-3, 5), "learning rate is -0.001"),
        (lambda: schedule(float("nan"), 5), "learning rate is nan"),
        (lambda: schedule(1.0, None), "`steps` is None"),
        (lambda: schedule(1.0, keras.ops.array(-2)), "not know the length"),
        (lambda: schedule(1.0, -1), "repeats without end"),
        (lambda: schedule(1.0, float("nan")), "`steps` is nan"),
        (lambda: adamw(1e-3, warmup=5), "Give `steps`"),
        (lambda: adamw(1e-3, schedule="cosine"), "Give `steps`"),
        (lambda: adamw(1e-3, 5, schedule="line"), "`schedule` is 'line'"),
        (lambda: adamw(1e-3, ema=1), "`ema` is 1"),
        (lambda: AdamW(weight_decay=-0.1), "`weight_decay` is -0.1"),
        (lambda: AdamW(accumulate=0), "`accumulate` is 0"),
        (lambda: AdamW(accumulate=1.5), "`accumulate` is 1.5"),
        (lambda: AdamW(clip_norm=0), "`clip_norm` is 0"),
        (lambda: AdamW(clip_norm=float("nan")), "`clip_norm` is nan"),
        (lambda: AdamW(layer_decay=0), "`layer_decay` is 0"),
        (lambda: AdamW(beta_2=1.0), "`beta_2` is 1.0"),
        (lambda: AdamW(epsilon=-1.0), "`epsilon` is -1.0"),
        (lambda: AdamW(clipnorm=2), "clipnorm"),
        (lambda: AdamW(global_clipnorm=2), "global_clipnorm"),
        (
            lambda: AdamW(gradient_accumulation_steps=2),
            "gradient_accumulation_steps",
        ),
        (
            lambda: apply(AdamW(accumulate=2), variables(), np.ones((4, 3, 2))),
            "needs a task model",
        ),
        (lambda: adamw(1e-3).apply([np.ones(2)]), "is not built"),
        (lambda: adamw(1, gradient_accumulation_steps=4), "Use accumulate"),
        (lambda: lamb(1, global_clipnorm=1.0), "Use clip_norm"),
    ],
)
def test_what_is_not_possible_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "optimizer",
    [
        adamw(1e-3, 50, 5, 0.02, 0.5, layer_decay=0.8, bias_correction=False),
        lamb(1e-3, 50, 5, 0.02, 0.5, accumulate=3),
    ],
)
def test_an_optimizer_comes_back_from_its_configuration(optimizer):
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    assert copy.get_config() == optimizer.get_config()
    assert (copy.decay, copy.clip_norm) == (0.02, 0.5)
    assert copy.accumulate == optimizer.accumulate
    assert copy.layer_decay == optimizer.layer_decay
    assert copy.bias_correction == optimizer.bias_correction


def test_each_layer_learns_more_slowly_than_the_one_above():
    paths = [
        "encoder/embeddings/token/embeddings",
        "encoder/layer_0/output/bias",
        "encoder/layer_1/attention/query/kernel",
        "encoder/pooler/kernel",
        "classifier/kernel",
    ]
    assert layer_rates(paths, 0.5) == [0.125, 0.25, 0.5, 1.0, 1.0]
    assert layer_rates(paths, 1.0) == [1.0] * 5
    lower = keras.Variable(np.ones(3, "float32"), name="kernel")
    lower._path = "encoder/layer_0/output/kernel"
    upper = keras.Variable(np.ones(3, "float32"), name="kernel")
    optimizer = AdamW(0.1, weight_decay=0.0, layer_decay=0.5)
    gradient = keras.ops.ones(3)
    optimizer.apply_gradients([(gradient, lower), (gradient, upper)])
    np.testing.assert_allclose(
        1 - lower.numpy(), (1 - upper.numpy()) / 2, rtol=1e-6
    )


def test_a_gradient_given_as_rows_counts_as_the_whole_table():
    table = np.ones((4, 2), "float32")
    rows = tf.IndexedSlices(
        tf.constant([[3.0, 0.0], [4.0, 0.0]]), tf.constant([1, 1]), (4, 2)
    )
    whole = tf.constant([[0.0, 0.0], [7.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    results = []
    for gradient in (rows, whole):
        variable = keras.Variable(table, name="embeddings")
        AdamW(0.1).apply_gradients([(gradient, variable)])
        results.append(variable.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("steps", [np.int64(4), 4.0, "4", keras.ops.array(4)])
def test_steps_come_as_whatever_holds_a_number(steps):
    assert schedule(1e-3, steps).steps == 4
