import numpy as np
import pytest
import tensorflow as tf

from bert_keras.data import record_files
from bert_keras.data.record_files import (
    FEATURES,
    RecordedExamples,
    parser,
    serialize,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.shards import write_records
from bert_keras.errors import InputError
from tests.support.data_samples import numbers, write_store

pytestmark = pytest.mark.fast

RULES = SamplingRules(64, max_predictions=9)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store"), numbers())


def sample(count=50, length=16, most=4, largest=2**31 - 1):
    rng = np.random.default_rng(0)
    sizes = (1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, largest)
    ids = rng.choice(sizes, (count, length)) * (rng.random((count, 1)) < 0.9)
    return {
        "token_ids": ids.astype(np.int32),
        "padding_mask": rng.integers(0, 2, (count, length), np.int32),
        "segment_ids": rng.integers(0, 2, (count, length), np.int32),
        "mask_positions": rng.integers(0, 512, (count, most), np.int32),
        "mask_ids": rng.integers(0, 30_000, (count, most), np.int32),
        "mask_weights": rng.random((count, most), np.float32),
        "next_sentence_labels": rng.integers(0, 2, count, np.int32),
    }


def as_the_original_writes(rows, index):
    """Return the `Example` that google-research/bert builds of a row."""
    feature = {}
    for name, original in FEATURES.items():
        values = np.atleast_1d(rows[name][index]).tolist()
        if name == "mask_weights":
            floats = tf.train.FloatList(value=values)
            feature[original] = tf.train.Feature(float_list=floats)
        else:
            integers = tf.train.Int64List(value=values)
            feature[original] = tf.train.Feature(int64_list=integers)
    return tf.train.Example(features=tf.train.Features(feature=feature))


def test_the_wire_format_is_that_of_example_messages():
    rows = sample()
    for index, record in zip(range(50), serialize(rows), strict=True):
        ours = tf.train.Example.FromString(record)
        assert ours == as_the_original_writes(rows, index)


def test_ours_can_read_the_original():
    rows = sample()
    records = [
        as_the_original_writes(rows, index).SerializeToString()
        for index in range(50)
    ]
    found = parser(SamplingRules(16, 4))(records)
    for name, values in rows.items():
        assert found[name].dtype == values.dtype
        assert (found[name].numpy() == values).all()


@pytest.fixture
def written(store, tmp_path, monkeypatch):
    """A folder of several shards, and its manifest."""
    monkeypatch.setattr("bert_keras.data.examples.CAPACITY", 500)
    folder = str(tmp_path / "records")
    return folder, write_records(store, folder, RULES, 1, copies=3)


def test_the_manifest_counts_and_names_every_shard(written, store):
    folder, manifest = written
    assert manifest == record_files.read_manifest(folder)
    assert len(manifest["shards"]) == 3
    counted = [
        len(list(tf.data.TFRecordDataset(f"{folder}/{shard['name']}")))
        for shard in manifest["shards"]
    ]
    assert counted == [shard["examples"] for shard in manifest["shards"]]
    assert manifest["examples"] == sum(counted) > 3 * 500
    assert manifest["rules"]["sequence_length"] == 64
    assert manifest["tokens"] == len(store.tokens)
    assert record_files.check_shards(folder) == manifest
    open(f"{folder}/examples-00009-of-00003.tfrecord", "wb").close()
    with pytest.raises(InputError, match="00009.* is not in the manifest"):
        record_files.check_shards(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("token_ids", -1), ("mask_ids", -1), ("mask_positions", 64)],
)
def test_records_of_impossible_numbers_are_refused(name, value, written):
    examples = RecordedExamples(written[0], seed=0)
    rows = sample(4, 64, 9)
    rows["mask_positions"] %= 64
    records = np.array(serialize(rows), object)
    assert len(examples.join([records], 0)["mask_ids"]) == 4
    rows[name][2, 1] = value
    records = np.array(serialize(rows), object)
    with pytest.raises(InputError, match=f"records have {name} from"):
        examples.join([records], 0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.DataLossError, InputError),
        (tf.errors.InvalidArgumentError, InputError),
        (tf.errors.PermissionDeniedError, tf.errors.PermissionDeniedError),
        (tf.errors.UnavailableError, tf.errors.UnavailableError),
    ],
)
def test_only_damaged_records_are_called_damaged(error, expected, written):
    examples = RecordedExamples(written[0], seed=0)

    def fail(_):
        raise error(None, None, "reason")

    examples._parse = fail
    with pytest.raises(expected, match="reason"):
        examples.join([np.array([b""], object)], 0)
