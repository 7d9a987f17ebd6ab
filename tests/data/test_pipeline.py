import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from data_samples import arrays, numbers, open_kind, same, write_store

from bert_keras.data.batches import (
    check_source,
    evaluation_dataset,
    pretraining_dataset,
)
from bert_keras.data.examples import Windows
from bert_keras.data.pretraining_data import write_records
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError

RULES = SamplingRules(64, max_predictions=9)
KINDS = ("store", "records", "files")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A store and the records that were drawn from it."""
    folder = tmp_path_factory.mktemp("data")
    store = write_store(folder / "store", numbers(40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_keras.data.examples.CAPACITY", 100)
        manifest = write_records(store, str(folder / "records"), RULES, 1, 2)
    return folder, manifest


def dataset(sources, kind, *arguments, function=pretraining_dataset, **more):
    return open_kind(function, sources[0], kind, RULES, *arguments, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_inputs_labels_and_weights_of_static_shape(sources, kind):
    batches = dataset(sources, kind, 8, 0)
    x, y, w = batches.element_spec
    for name in ("token_ids", "segment_ids", "padding_mask"):
        assert x[name] == tf.TensorSpec((8, 64), tf.int32)
    assert x["mask_positions"] == tf.TensorSpec((8, 9), tf.int32)
    assert y["mlm"] == tf.TensorSpec((8, 9), tf.int32)
    assert y["nsp"] == tf.TensorSpec((8,), tf.int32)
    assert w["mlm"] == tf.TensorSpec((8, 9), tf.float32)
    assert w["nsp"] == tf.TensorSpec((8,), tf.float32)
    x, y, w = next(iter(batches))
    assert (w["nsp"].numpy() == 1).all()
    real = w["mlm"].numpy() == 1
    at = np.take_along_axis(
        x["token_ids"].numpy(), x["mask_positions"].numpy(), 1
    )
    assert 0.6 < (at[real] == 4).mean() < 0.95  # [MASK]
    assert (y["mlm"].numpy()[real] > 4).all()
    assert (x["token_ids"][:, 0].numpy() == 2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_begin_at_any_step(sources, kind):
    whole = arrays(dataset(sources, kind, 32, 5).take(40))
    for first in (1, 17, 38):
        part = arrays(dataset(sources, kind, 32, 5, first_step=first).take(2))
        assert same(part, whole[first : first + 2])
    other = arrays(dataset(sources, kind, 32, 6).take(2))
    assert not same(other, whole[:2])


@pytest.mark.parametrize("kind", ["records", "files"])
def test_each_epoch_of_records_holds_each_once_in_an_order_of_its_own(
    sources, kind
):
    total = sources[1]["examples"]
    batches = arrays(dataset(sources, kind, 16, 3).take(3 * total // 16 + 1))
    rows = [
        ids.tobytes() + positions.tobytes()
        for batch in batches
        for ids, positions in zip(batch[3], batch[0], strict=True)
    ]
    epochs = [rows[i * total : (i + 1) * total] for i in range(3)]
    assert len(set(epochs[0])) > 0.99 * total
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_pairs_of_a_store_are_drawn_anew_each_epoch(sources):
    batches = arrays(dataset(sources, "store", 64, 3).take(60))
    rows = [row.tobytes() for batch in batches for row in batch[3]]
    assert len(set(rows)) > 0.95 * len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_one_pass_and_always_the_same(sources, kind):
    batches = dataset(sources, kind, 32, function=evaluation_dataset)
    whole = arrays(batches)
    assert same(whole, arrays(batches))
    assert batches.element_spec[1]["nsp"].shape == (32,)
    assert {len(batch[0]) for batch in whole} == {32}
    for weights in whole[-1][-2:]:  # of mlm and of nsp
        real = weights.reshape(32, -1).any(1)
        count = int(real.sum())  # the others fill the last batch up
        assert real[:count].all() and count > 0
    if kind != "store":
        examples = 32 * (len(whole) - 1) + count
        assert examples == sources[1]["examples"]


def test_a_damaged_source_is_named(sources, tmp_path):
    folder, manifest = sources
    name = manifest["shards"][0]["name"]
    for kind, file in (("store", "tokens.bin"), ("records", name)):
        place = tmp_path / kind
        shutil.copytree(folder / kind, place)
        check_source(str(place))
        (place / file).write_bytes(b"x" + (place / file).read_bytes()[1:])
        with pytest.raises(InputError, match=f"{file} is damaged"):
            check_source(str(place))


STILL_READING = """
import sys
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.batches import pretraining_dataset

# Batches that take long, so that one is under way at the end.
data = pretraining_dataset(sys.argv[1], 8_192, 0, rules=SamplingRules(64, 9))
iterator = iter(data)
next(iterator)
print("read", flush=True)
"""


def test_a_process_ends_while_a_data_set_is_being_read(sources):
    store = str(sources[0] / "store")
    process = subprocess.run(
        [sys.executable, "-c", STILL_READING, store],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert process.returncode == 0 and process.stdout == "read\n"
    assert "Traceback" not in process.stderr


def test_windows_hold_every_unit_once_an_epoch(monkeypatch):
    monkeypatch.setattr("bert_keras.data.examples.CAPACITY", 500)
    sizes = np.random.default_rng(0).integers(1, 90, 200)
    windows = Windows(sizes, seed=3)
    orders = []
    for epoch in range(3):
        units, starts = windows.epoch(epoch)
        orders.append(np.concatenate(units).tolist())
        assert sorted(orders[-1]) == list(range(200))
        counts = [sizes[unit].sum() for unit in units]
        assert np.diff(starts).tolist() == counts
        assert 400 < np.mean(counts) < 600 and max(counts) < 590
    assert orders[0] != orders[1] != orders[2]


def test_spans_cover_a_run_without_gap_or_overlap(monkeypatch):
    monkeypatch.setattr("bert_keras.data.examples.CAPACITY", 100)
    windows = Windows([70, 30, 40, 60], seed=0)
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


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("", "No finished records in"),
        ("none/*.tfrecord", "No records at"),
        ("none", "No records at"),
    ],
)
def test_a_source_that_is_none_is_named(tmp_path, place, named):
    with pytest.raises(InputError, match=named):
        pretraining_dataset(str(tmp_path / place), 8, 0)
