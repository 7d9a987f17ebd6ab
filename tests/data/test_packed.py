import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from data_samples import arrays, numbers, open_kind, same, write_store

from bert_keras.data.batches import evaluation_dataset, pretraining_dataset
from bert_keras.data.examples import DrawnExamples, fill_rows
from bert_keras.data.pretraining_data import write_records
from bert_keras.data.record_files import check_shards
from bert_keras.data.sampling import SamplingRules, generator
from bert_keras.errors import InputError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer, pretraining_losses

RULES = SamplingRules(256, max_predictions=40, packed=True)
KINDS = ("store", "records")


def natural(documents=300, seed=0):
    """Documents as of an encyclopedia: many short ones, some long."""
    draw = random.Random(seed)
    return [
        [
            [draw.randrange(5, 1_000) for _ in range(draw.randint(4, 45))]
            for _ in range(1 + int(draw.paretovariate(0.9)) % 60)
        ]
        for _ in range(documents)
    ]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A store and the packed records that were drawn from it."""
    folder = tmp_path_factory.mktemp("packed")
    store = write_store(folder / "store", natural())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_keras.data.examples.CAPACITY", 150)
        manifest = write_records(store, str(folder / "records"), RULES, 1, 2)
    return folder, manifest


def dataset(sources, kind, *arguments, function=pretraining_dataset, **more):
    return open_kind(function, sources[0], kind, RULES, *arguments, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_have_static_shapes_and_hardly_any_padding(sources, kind):
    batches = dataset(sources, kind, 64, 0)
    x, y, w = batches.element_spec
    per_token = ("token_ids", "segment_ids", "padding_mask")
    for name in (*per_token, "example_ids", "position_ids"):
        assert x[name] == tf.TensorSpec((64, 256), tf.int32)
    assert x["mask_positions"].shape == y["mlm"].shape == (64, 47)
    assert y["nsp"].shape == w["nsp"].shape == (64, RULES.examples_per_row)
    padding = [
        1 - x["padding_mask"].numpy().mean() for x, _, _ in batches.take(8)
    ]
    assert np.mean(padding) < 0.02


def test_the_same_examples_unpacked_are_mostly_padding(sources):
    store = str(sources[0] / "store")
    batches = pretraining_dataset(store, 64, 0, rules=SamplingRules(256, 40))
    padding = [
        1 - x["padding_mask"].numpy().mean() for x, _, _ in batches.take(8)
    ]
    assert np.mean(padding) > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_over_packed_rows_may_begin_at_any_step(sources, kind):
    whole = arrays(dataset(sources, kind, 32, 5).take(24))
    for first in (1, 11, 22):
        part = arrays(dataset(sources, kind, 32, 5, first_step=first).take(2))
        assert same(part, whole[first : first + 2])
    assert not same(arrays(dataset(sources, kind, 32, 6).take(2)), whole[:2])


def test_each_epoch_of_packed_records_holds_each_row_once(sources):
    total = sources[1]["examples"]
    batches = arrays(
        dataset(sources, "records", 32, 3).take(2 * total // 32 + 1)
    )
    rows = [row.tobytes() for batch in batches for row in batch[5]]
    assert len(set(rows[:total])) == total
    assert sorted(rows[:total]) == sorted(rows[total : 2 * total])
    one_pass = dataset(sources, "records", 8, function=evaluation_dataset)
    # The last batch is filled up, with rows that weigh nothing.
    count = sum(len(batch[0]) for batch in arrays(one_pass))
    assert count == -(-total // 8) * 8
    check_shards(str(sources[0] / "records"))


def examples_of(x, y, w):
    """(pieces, segments, {position: true id}, label) of each example."""
    found = []
    for row in range(len(x["token_ids"])):
        for number in range(1, x["example_ids"][row].max() + 1):
            own = np.flatnonzero(x["example_ids"][row] == number)
            assert (np.diff(own) == 1).all()
            assert x["position_ids"][row, own].tolist() == list(range(len(own)))
            places = x["mask_positions"][row]
            real = (w["mlm"][row] == 1) & np.isin(places, own)
            truth = dict(
                zip(places[real] - own[0], y["mlm"][row][real], strict=True)
            )
            assert w["nsp"][row, number - 1] == 1
            found.append(
                (
                    x["token_ids"][row, own],
                    x["segment_ids"][row, own],
                    truth,
                    y["nsp"][row, number - 1],
                )
            )
    assert w["nsp"].sum() == len(found)
    return found


def batch_of(sources, kind, size=24):
    batch = next(iter(dataset(sources, kind, size, 2)))
    return tf.nest.map_structure(lambda value: value.numpy(), batch)


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_of_a_row_is_masked_by_the_law(sources, kind):
    x, y, w = batch_of(sources, kind)
    examples = examples_of(x, y, w)
    assert len(examples) > 36
    kept = masked = 0
    for pieces, segments, truth, _ in examples:
        assert pieces[0] == 2 and pieces[-1] == 3 and (pieces == 3).sum() == 2
        middle = np.flatnonzero(pieces == 3)[0]
        assert (segments == (np.arange(len(pieces)) > middle)).all()
        assert len(truth) == max(1, min(40, round(0.15 * len(pieces))))
        assert not {0, middle, len(pieces) - 1} & truth.keys()
        masked += sum(pieces[place] == 4 for place in truth)
        kept += sum(pieces[place] == truth[place] for place in truth)
    count = sum(len(truth) for _, _, truth, _ in examples)
    assert 0.75 < masked / count < 0.85 and 0.06 < kept / count < 0.14
    assert 0.4 < np.mean([label for *_, label in examples]) < 0.75


def test_packed_pairs_are_those_of_the_pair_law(sources):
    # The same numbers draw the pairs; packing only puts them in other places.
    store = DrawnExamples(
        write_store(sources[0] / "again", natural(40)), RULES, 3
    )
    packed = store.draw(0, 0)
    store.rules = SamplingRules(256, max_predictions=40)
    plain = store.draw(0, 0)
    key = np.lexsort(tuple(packed.pairs))
    other = np.lexsort(tuple(plain))
    for ours, theirs in zip(packed.pairs[key], plain[other], strict=True):
        assert (ours == theirs).all()


def losses_of(model, x, y, w):
    outputs = model(x)
    return [
        float(loss(y[name], outputs[name], sample_weight=w[name]))
        for name, loss in pretraining_losses().items()
    ]


def one_a_row(examples):
    """The batch of the same examples, one a row."""
    shape = len(examples), 256
    x = {
        name: np.zeros(shape, np.int32)
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    x["mask_positions"] = np.zeros((len(examples), 40), np.int32)
    y = {"mlm": np.zeros((len(examples), 40), np.int32)}
    w = {"mlm": np.zeros((len(examples), 40), np.float32)}
    for row, (pieces, segments, truth, _) in enumerate(examples):
        x["token_ids"][row, : len(pieces)] = pieces
        x["segment_ids"][row, : len(pieces)] = segments
        x["padding_mask"][row, : len(pieces)] = 1
        x["mask_positions"][row, : len(truth)] = list(truth)
        y["mlm"][row, : len(truth)] = list(truth.values())
        w["mlm"][row, : len(truth)] = 1
    y["nsp"] = np.array([label for *_, label in examples])
    w["nsp"] = np.ones(len(examples), np.float32)
    return x, y, w


@pytest.mark.parametrize("kind", KINDS)
def test_losses_equal_those_of_the_same_examples_one_a_row(sources, kind):
    batch = batch_of(sources, kind, 8)
    keras.utils.set_random_seed(0)
    sizes = (1_000, 2, 2, 16, 32)
    plain = BertPretrainer(BertEncoder(*sizes))
    for weight in plain.weights:
        weight.assign(keras.random.normal(weight.shape, stddev=0.3))
    packed = BertPretrainer(
        BertEncoder(*sizes), examples_per_row=RULES.examples_per_row
    )
    packed.set_weights(plain.get_weights())
    expected = losses_of(plain, *one_a_row(examples_of(*batch)))
    np.testing.assert_allclose(losses_of(packed, *batch), expected, atol=1e-5)


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
    # The most examples that a row may have, each of very few pieces.
    rules = SamplingRules(128, 20, mask_rate=rate, packed=True)
    store = write_store(tmp_path, [[[7] * (1 + n % 5)] for n in range(400)])
    examples = DrawnExamples(store, rules, 0)
    packed = examples.draw(0, 0)
    rows = examples.rows(packed, 1)
    count = np.clip(np.rint(packed.pairs.lengths * rate), 1, 20)
    assert rows["mask_weights"].sum() == count.sum()
    assert (rows["example_ids"].max(1) == 8).mean() > 0.5


def test_packed_records_need_their_manifest(sources):
    with pytest.raises(InputError, match="holds packed rows"):
        pretraining_dataset(str(sources[0] / "records" / "*.tfrecord"), 8, 0)


def test_rows_of_a_numbers_corpus_are_as_full(tmp_path):
    store = write_store(tmp_path, numbers(400))
    rules = SamplingRules(512, max_predictions=80, packed=True)
    batches = pretraining_dataset(str(tmp_path), 32, 0, rules=rules)
    padding = [
        1 - x["padding_mask"].numpy().mean() for x, _, _ in batches.take(4)
    ]
    assert np.mean(padding) < 0.02 and store.num_documents == 400
