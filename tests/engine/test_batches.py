"""Rows, order and shapes of the batches, compared with NumPy."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import BertTagger, adamw
from official_tasks.engine.batches import (
    plan_batches,
    plan_evaluations,
    prediction_batches,
    training_batches,
)
from official_tasks.engine.scoring import Predictor
from official_tasks.tasks.base import Encoded
from official_tasks.tasks.encoding import fold_choices
from tests.support.model_samples import fill, random_encoder

LENGTHS = np.random.default_rng(0).integers(3, 30, 100)


def encoded(targets=None, weights=None):
    """Return rows of `LENGTHS` tokens; each token is its row's index + 1."""
    ids = tf.RaggedTensor.from_row_lengths(
        np.repeat(np.arange(100) + 1, LENGTHS).astype("int32"), LENGTHS
    )
    inputs = {"token_ids": ids, "padding_mask": tf.ones_like(ids)}
    targets = np.arange(100) if targets is None else targets
    return Encoded(inputs, targets, weights)


@functools.cache
def batches(first_step=0, steps=60, seed=1, **arguments):
    data = training_batches(encoded(), 5, seed, steps, first_step, **arguments)
    return [
        ({name: np.array(v) for name, v in x.items()}, np.array(y), np.array(w))
        for x, y, w in data
    ]


@pytest.mark.parametrize("length", [None, 32])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_pass_holds_every_row_once_in_another_order(seed, length):
    rows = [y for _, y, _ in batches(seed=seed, length=length)]
    passes = np.reshape(rows, (3, 100))
    assert (np.sort(passes) == np.arange(100)).all()
    assert len({*map(tuple, passes)}) == 3


def test_rows_of_the_next_pass_come_only_in_a_passs_last_batch():
    # The 15 batches of a pass over 100 rows have 5 rows of the next pass.
    following = plan_batches(LENGTHS, 7, 0, 15, False).ravel()[100:]
    plan = plan_batches(LENGTHS, 7, 0, 15, True)
    assert {*plan.ravel()} == {*range(100)}
    assert sum({*following} <= {*rows} for rows in plan) == 1


@pytest.mark.parametrize("length", [None, 32])
def test_the_batch_of_a_step_is_a_function_of_seed_and_step(length):
    whole = batches(length=length)
    for first_step in (31, 32):
        late = batches(first_step, length=length)
        for one, other in zip(late, whole[first_step:], strict=True):
            np.testing.assert_array_equal(
                one[0]["token_ids"], other[0]["token_ids"]
            )
            np.testing.assert_array_equal(one[1], other[1])
    other = batches(seed=2, length=length)
    assert any((a[1] != b[1]).any() for a, b in zip(whole, other, strict=True))


def draw_passes(count, number, seed):
    """Return `number` shuffled passes over `count` rows, (number, count)."""
    return plan_batches(np.ones(count), count, seed, number, False)


@pytest.mark.parametrize("seed", [0, 1, 2, 2**20])
def test_each_row_is_as_likely_at_each_place(seed):
    # Each row's index over 400 passes is uniform by a chi-squared test.
    by_index = draw_passes(10, 400, seed).T
    counts = np.array([np.bincount(row, minlength=10) for row in by_index])
    # p = 0.001 for the largest of ten values with 9 degrees of freedom
    assert ((counts - 40) ** 2 / 40).sum(axis=0).max() < 33.7


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_shuffled_pass_resembles_neither_the_file_nor_another_pass(seed):
    passes = [draw_passes(100, 300, s) for s in (seed, seed + 256)]
    orders = np.concatenate(passes)
    assert len({*map(tuple, orders)}) == 600
    correlations = [np.corrcoef(x, np.arange(100))[0, 1] for x in orders]
    assert abs(np.mean(correlations)) < 4 / np.sqrt(99 * 600)
    same = (orders[1:] == orders[:-1]).sum()  # 599 by chance
    assert abs(same - 599) < 4 * np.sqrt(599)


@pytest.mark.parametrize("count", [1, 2, 65_536, 65_537, 65_538, 262_145])
def test_a_pass_of_any_size_has_each_row_once(count):
    (rows,) = draw_passes(count, 1, seed=0)
    np.testing.assert_array_equal(np.sort(rows), np.arange(count))


def test_neighbours_in_a_long_pass_are_independent():
    (rows,) = draw_passes(10**6, 1, seed=0)
    gaps = np.bincount(np.diff(rows) % 10**6 // 50_000, minlength=20)
    # chi-squared, p = 0.001 at 19 degrees of freedom
    assert ((gaps - 50_000) ** 2 / 50_000).sum() < 43.8


def test_rows_are_whole_and_padded_to_little_more_than_their_own_length():
    slots = 0
    for x, y, _ in batches():
        lengths = x["padding_mask"].sum(axis=1)
        np.testing.assert_array_equal(lengths, LENGTHS[y])
        for ids, row, length in zip(x["token_ids"], y, lengths, strict=True):
            assert (ids[:length] == row + 1).all() and (ids[length:] == 0).all()
        slots += x["token_ids"].size
    assert slots < 1.35 * 3 * LENGTHS.sum()
    shapes = {x["token_ids"].shape for x, _, _ in batches(length=32)}
    assert shapes == {(5, 32)} and slots < 0.75 * 60 * 5 * 32


def test_batches_come_in_no_order_of_length():
    lengths = [LENGTHS[y].mean() for _, y, _ in batches(steps=480)]
    found = [
        np.corrcoef(part, np.arange(60))[0, 1]
        for part in np.reshape(lengths, (8, 60))
    ]
    # The mean of 8 chance correlations of 60 values has a std of 0.046.
    assert abs(np.mean(found)) < 0.15


def test_weights_have_a_mean_of_one_over_the_slots_and_none_on_padding():
    targets = encoded().inputs["token_ids"]
    weights = tf.cast(targets % 2, tf.float32) + 0.5
    data = training_batches(encoded(targets, weights), 5, 0, 20)
    for x, y, w in data:
        assert float(tf.reduce_mean(w)) == pytest.approx(1, abs=1e-5)
        expected = (np.array(y) % 2 + 0.5) * np.array(x["padding_mask"])
        np.testing.assert_allclose(w, expected / expected.mean(), rtol=1e-5)


def test_a_predictor_traces_once_and_keeps_the_order_of_rows():
    widths = []

    def model(inputs, training):
        widths.append(inputs["token_ids"].shape[1])
        return tf.reduce_sum(inputs["token_ids"], axis=1)

    predict = Predictor(model)
    for size in (7, 32):
        sums = predict(encoded(), size)
        np.testing.assert_array_equal(sums, LENGTHS * (np.arange(100) + 1))
    assert widths == [None]


def test_targets_by_name_keep_their_names():
    targets = {"start": np.arange(100), "end": np.arange(100) + 1}
    for _, y, w in training_batches(encoded(targets), 5, 0, 4):
        np.testing.assert_array_equal(y["end"], y["start"] + 1)
        assert w["start"].numpy().tolist() == [1.0] * 5


def test_choices_are_padded_together():
    ids = encoded().inputs["token_ids"]
    folded = Encoded(fold_choices({"token_ids": ids}, 4), np.arange(25))
    for x, y, _ in training_batches(folded, 5, 0, 5):
        assert x["token_ids"].shape[:2] == (5, 4)
        first = np.array(x["token_ids"])[:, :, 0]
        expected = 4 * np.array(y)[:, None] + np.arange(4) + 1
        np.testing.assert_array_equal(first, expected)


def test_predictions_see_the_rows_in_the_order_that_was_asked_for():
    order = np.argsort(LENGTHS)
    data = prediction_batches(encoded().inputs, order, 8, pad_id=7)
    seen = []
    for x in data:
        ids = np.array(x["token_ids"])
        seen += (ids[:, 0] - 1).tolist()
        assert (ids[np.array(x["padding_mask"]) == 0] == 7).all()
    assert seen == order.tolist()


def test_batches_of_like_length_are_learned_from_in_micro_batches(eagerly):
    def weights_after(accumulate):
        labels = tf.ones_like(encoded().inputs["token_ids"])
        data = training_batches(encoded(labels), 4, seed=1, steps=2)
        encoder = random_encoder(
            num_layers=1,
            max_sequence_length=32,
            dropout=0.0,
            attention_dropout=0.0,
        )
        model = fill(BertTagger(encoder, labels=["a", "b"], dropout=0.0))
        model.compile(
            adamw(1e-3, 2, accumulate=accumulate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        model.fit(data.map(lambda x, y, w: (whole(x), y, w)), verbose=0)
        return model.get_weights()

    def whole(x):
        ids = x["token_ids"] % 30
        return {**x, "token_ids": ids, "segment_ids": tf.zeros_like(ids)}

    for one, other in zip(weights_after(1), weights_after(2), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_lengths_are_rounded_up_except_on_a_cpu_alone(monkeypatch):
    def lengths(*kinds):
        devices = [tf.config.LogicalDevice(kind, kind) for kind in kinds]
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
        made = batches.__wrapped__()
        return np.array([x["token_ids"].shape[1] for x, _, _ in made])

    longest = [LENGTHS[y].max() for _, y, _ in batches()]
    exact, rounded = lengths("CPU"), lengths("CPU", "GPU")
    np.testing.assert_array_equal(exact, longest)
    multiples = np.ceil(exact / 8) * 8
    np.testing.assert_array_equal(rounded, np.minimum(multiples, LENGTHS.max()))


def test_no_pass_over_batches_waits_for_a_thread_that_tunes():
    data = training_batches(encoded(), 5, 0, 20)
    predicted = prediction_batches(encoded().inputs, np.arange(9), 4)
    for one in (data, predicted, data.map(lambda x, y, w: (x, y))):
        assert one.options().autotune.enabled is False


@pytest.mark.parametrize(
    ("evaluations", "steps"),
    [
        (None, [4, 8, 10]),  # epochs of 4 steps
        (1, [10]),
        (4, [3, 6, 8, 10]),
        (99, [*range(1, 11)]),
    ],
)
def test_evaluations_are_evenly_spaced_and_the_last_ends_the_run(
    evaluations, steps
):
    assert plan_evaluations(25, 3.2, 8, evaluations) == steps
