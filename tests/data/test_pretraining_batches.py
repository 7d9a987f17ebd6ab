"""Pre-training batches from token stores and records, plain and packed."""

import random
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.data.batches import evaluation_dataset, pretraining_dataset
from bert_keras.data.examples import DrawnExamples
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.shards import write_records
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer, pretraining_losses
from tests.support.data_samples import arrays, numbers, same, write_store
from tests.support.model_samples import fill
from tests.support.run_script import ROOT

PLAIN = SamplingRules(64, max_predictions=9)
PACKED = SamplingRules(256, max_predictions=40, packed=True)
KINDS = ("store", "records", "packed store", "packed records")


def natural(documents=300, seed=0):
    """Return documents as in an encyclopedia: many are short, some long."""
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
    """Folder with stores and their records; manifests of the records."""
    folder = tmp_path_factory.mktemp("data")
    manifests = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, documents, rules, window in (
            ("plain", numbers(40), PLAIN, 100),
            ("packed", natural(), PACKED, 150),
        ):
            store = write_store(folder / name / "store", documents)
            patch.setattr("bert_keras.data.examples.CAPACITY", window)
            place = str(folder / name / "records")
            manifests[name] = write_records(store, place, rules, 1, 2)
    return folder, manifests


def dataset(sources, kind, *arguments, function=pretraining_dataset, **more):
    how, _, last = kind.rpartition(" ")
    if last == "store":
        more["rules"] = PACKED if how else PLAIN
    folder = sources[0] / (how or "plain") / last
    return function(str(folder), *arguments, **more)


@pytest.mark.parametrize("kind", KINDS[:2])
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


@pytest.mark.parametrize("kind", KINDS[2:])
def test_packed_rows_have_static_shapes_and_hardly_any_padding(sources, kind):
    batches = dataset(sources, kind, 64, 0)
    x, y, w = batches.element_spec
    per_token = ("token_ids", "segment_ids", "padding_mask")
    for name in (*per_token, "example_ids", "position_ids"):
        assert x[name] == tf.TensorSpec((64, 256), tf.int32)
    assert x["mask_positions"].shape == y["mlm"].shape == (64, 47)
    assert y["nsp"].shape == w["nsp"].shape == (64, PACKED.examples_per_row)
    padding = [
        1 - x["padding_mask"].numpy().mean() for x, _, _ in batches.take(8)
    ]
    assert np.mean(padding) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_may_begin_at_any_step(sources, kind):
    whole = arrays(dataset(sources, kind, 32, 5).take(24))
    for first in (1, 11, 22):
        part = arrays(dataset(sources, kind, 32, 5, first_step=first).take(2))
        assert same(part, whole[first : first + 2])
    other = arrays(dataset(sources, kind, 32, 6).take(2))
    assert not same(other, whole[:2])


@pytest.mark.parametrize("kind", ["records", "packed records"])
def test_each_epoch_of_records_holds_each_once_in_an_order_of_its_own(
    sources, kind
):
    total = sources[1]["packed" if "packed" in kind else "plain"]["examples"]
    batches = dataset(sources, kind, 16, 3).take(3 * total // 16 + 1)
    rows = [
        ids.tobytes() + positions.tobytes()
        for x, _, _ in batches
        for ids, positions in zip(
            x["token_ids"].numpy(), x["mask_positions"].numpy(), strict=True
        )
    ]
    epochs = [rows[i * total : (i + 1) * total] for i in range(3)]
    assert len(set(epochs[0])) > 0.99 * total
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len(set(map(tuple, epochs))) == 3


def test_pairs_of_a_store_are_drawn_again_each_epoch(sources):
    batches = arrays(dataset(sources, "store", 64, 3).take(60))
    rows = [row.tobytes() for batch in batches for row in batch[3]]
    assert len(set(rows)) > 0.95 * len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_one_pass_and_always_the_same(sources, kind):
    batches = dataset(sources, kind, 32, function=evaluation_dataset)
    whole = arrays(batches)
    assert same(whole, arrays(batches))
    assert batches.element_spec[1]["nsp"].shape[0] == 32
    assert {len(batch[0]) for batch in whole} == {32}
    for weights in whole[-1][-2:]:  # weights of mlm and of nsp
        real = weights.reshape(32, -1).any(1)
        count = int(real.sum())  # the rest of the batch is padding
        assert real[:count].all() and count > 0
    if "store" not in kind:
        name = "packed" if "packed" in kind else "plain"
        examples = 32 * (len(whole) - 1) + count
        assert examples == sources[1][name]["examples"]


def examples_of(x, y, w):
    """Return (token ids, segments, {position: true id}, label) per example."""
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


@pytest.mark.parametrize("kind", KINDS[2:])
def test_every_example_of_a_row_is_masked_by_the_rule(sources, kind):
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


def test_packed_pairs_are_those_of_the_pair_rule(tmp_path):
    # From one seed, both rules draw the same pairs; packing reorders them.
    store = DrawnExamples(write_store(tmp_path, natural(40)), PACKED, 3)
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
    """Return a batch of the same examples, with one example per row."""
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


@pytest.mark.parametrize("kind", KINDS[2:])
def test_losses_equal_those_of_the_same_examples_one_a_row(sources, kind):
    batch = batch_of(sources, kind, 8)
    sizes = (1_000, 2, 2, 16, 32)
    plain = fill(BertPretrainer(BertEncoder(*sizes)))
    packed = BertPretrainer(
        BertEncoder(*sizes), examples_per_row=PACKED.examples_per_row
    )
    packed.set_weights(plain.get_weights())
    expected = losses_of(plain, *one_a_row(examples_of(*batch)))
    np.testing.assert_allclose(losses_of(packed, *batch), expected, atol=1e-5)


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


@pytest.mark.long
def test_a_process_ends_while_a_data_set_is_being_read(sources):
    store = str(sources[0] / "plain" / "store")
    process = subprocess.run(
        [sys.executable, "-c", STILL_READING, store],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert process.returncode == 0 and process.stdout == "read\n"
    assert "Traceback" not in process.stderr
