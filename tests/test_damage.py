"""Damage to pre-training data, of every kind, is named before training."""

import shutil

import pytest
from damages import DAMAGES, swap
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(whole, tmp_path, kind, damage):
    names = sorted(
        path.name
        for path in (whole / kind).iterdir()
        if path.suffix in (".bin", ".tfrecord")
    )
    assert len(names) >= 3
    for name, other in zip(names, [*names[1:], names[0]], strict=True):
        folder = tmp_path / name
        shutil.copytree(whole / kind, folder)
        check_source(str(folder), vocabulary())
        damage(folder / name, folder / other)
        with pytest.raises(InputError) as raised:
            check_source(str(folder), vocabulary())
        blamed = (name, other) if damage is swap else (name,)
        assert any(str(folder / n) in str(raised.value) for n in blamed)


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_manifest_is_found(whole, tmp_path, kind):
    shutil.copytree(whole / kind, tmp_path / kind)
    name = "store.json" if kind == "store" else "manifest.json"
    path = tmp_path / kind / name
    content = path.read_bytes()
    for place in range(0, len(content), 13):
        if chr(content[place]).isspace():
            continue  # between values
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 7
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=name):
            check_source(str(tmp_path / kind))
