"""Windows of an epoch, packed rows, and the examples drawn for them."""

import numpy as np
import pytest

from bert_keras.data.examples import DrawnExamples, EpochWindows, fill_rows
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from bert_keras.text.masking import generator
from tests.support.data_samples import write_store

pytestmark = pytest.mark.fast


def test_windows_hold_every_unit_once_an_epoch(monkeypatch):
    monkeypatch.setattr("bert_keras.data.examples.CAPACITY", 500)
    sizes = np.random.default_rng(0).integers(1, 90, 200)
    windows = EpochWindows(sizes, seed=3)
    orders = []
    for epoch in range(3):
        units, starts = windows.epoch(epoch)
        orders.append(np.concatenate(units).tolist())
        assert sorted(orders[-1]) == list(range(200))
        counts = [sizes[unit].sum() for unit in units]
        assert np.diff(starts).tolist() == counts
        assert 400 < np.mean(counts) < 600 and max(counts) < 590
    assert len(set(map(tuple, orders))) == 3


def test_a_negative_seed_is_refused():
    with pytest.raises(InputError, match="`seed` is -1; expected 0 or more"):
        EpochWindows([70, 30], seed=-1)


def test_spans_cover_a_run_without_gap_or_overlap(monkeypatch):
    monkeypatch.setattr("bert_keras.data.examples.CAPACITY", 100)
    windows = EpochWindows([70, 30, 40, 60], seed=0)
    seen = []
    for first in range(0, 1_000, 37):
        spans = windows.span(first, 37)
        assert sum(end - begin for *_, begin, end in spans) == 37
        seen.extend(
            (epoch, window, place)
            for epoch, window, begin, end in spans
            for place in range(begin, end)
        )
    assert len(set(seen)) == len(seen) and seen == sorted(seen)
    assert windows.span(0, 400)[-1][0] == 1  # two epochs of 200


def test_rows_are_filled_to_the_brim_and_hold_each_example_once():
    rng = generator(1)
    for most in (3, 16):
        lengths = rng.integers(5, 129, 5_000)
        order, rows, count = fill_rows(lengths, 128, most, rng)
        assert sorted(order) == list(range(5_000))
        assert (np.diff(rows) >= 0).all() and rows[-1] == count - 1
        filled = np.bincount(rows, lengths[order])
        assert filled.max() <= 128 and np.bincount(rows).max() <= most
        if most == 16:
            assert filled.mean() > 0.99 * 128


@pytest.mark.parametrize("rate", [0, 0.15, 0.4])
def test_there_is_a_place_for_every_mask(rate, tmp_path):
    # Most rows have the maximum of 8 examples, each of very few tokens.
    rules = SamplingRules(128, 20, mask_rate=rate, packed=True)
    store = write_store(tmp_path, [[[7] * (1 + n % 5)] for n in range(400)])
    examples = DrawnExamples(store, rules, 0)
    packed = examples.draw(0, 0)
    rows = examples.rows(packed, 1)
    count = np.clip(np.rint(packed.pairs.lengths * rate), 1, 20)
    assert rows["mask_weights"].sum() == count.sum()
    assert (rows["example_ids"].max(1) == 8).mean() > 0.5
