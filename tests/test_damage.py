"""Damage to pre-training data, of every kind, is named before training."""

import shutil

import pytest
import tensorflow as tf
from data_samples import numbers, vocabulary, write_store

from bert_keras.data.laws import Laws
from bert_keras.data.pipeline import check_source
from bert_keras.data.pretraining import write_records
from bert_keras.errors import InputError

KINDS = ("store", "records", "packed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store, records, and packed records, none damaged."""
    folder = tmp_path_factory.mktemp("whole")
    store = write_store(folder / "store", numbers(40))
    for name, packed in (("records", False), ("packed", True)):
        laws = Laws(64, 9, packed=packed)
        write_records(store, str(folder / name), laws, 1, copies=3)
    return folder


def cut(path, other):
    path.write_bytes(path.read_bytes()[:-3])


def cut_at_an_entry(path, other):
    if path.suffix == ".bin":
        path.write_bytes(path.read_bytes()[:-8])
        return
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records[:-1]:
            writer.write(record)


def empty(path, other):
    path.write_bytes(b"")


def flip(path, other):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(bytes(content))


def remove(path, other):
    path.unlink()


def double(path, other):
    path.write_bytes(other.read_bytes())


def swap(path, other):
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "damage", [cut, cut_at_an_entry, empty, flip, remove, double, swap]
)
def test_a_damaged_file_is_named(whole, tmp_path, kind, damage):
    folder = tmp_path / kind
    shutil.copytree(whole / kind, folder)
    check_source(str(folder), vocabulary())
    pattern = "[ds]*.bin" if kind == "store" else "*.tfrecord"
    path, *_, other = sorted(folder.glob(pattern))
    damage(path, other)
    with pytest.raises(InputError) as raised:
        check_source(str(folder), vocabulary())
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
def test_another_vocabulary_is_named(whole, kind):
    other = vocabulary()
    other[5], other[6] = other[6], other[5]
    with pytest.raises(InputError, match="made with another vocabulary"):
        check_source(str(whole / kind), other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_manifest_is_named(whole, tmp_path, kind):
    folder = tmp_path / kind
    shutil.copytree(whole / kind, folder)
    name = "store.json" if kind == "store" else "manifest.json"
    for content, named in (
        ('{"files": {', f"{name} is damaged"),
        ("[]", f"{name} is no manifest"),
        ("{}", f"{name} is no manifest"),
        ('{"files": {"../x": {}}}', f"{name} is no manifest"),
        ('{"shards": [{"name": "../x"}]}', f"{name} is no manifest"),
    ):
        (folder / name).write_text(content)
        with pytest.raises(InputError, match=named):
            check_source(str(folder))
