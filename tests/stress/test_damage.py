"""Checks before training name each damaged file of pre-training data."""

import json
import os
import shutil

import numpy as np
import pytest

from bert_keras import json_files
from bert_keras.data.batches import check_source, pretraining_dataset
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.shards import write_records
from bert_keras.errors import InputError
from tests.support.damages import DAMAGES, swap
from tests.support.data_samples import numbers, vocabulary, write_store
from tests.support.mutation import reseal

KINDS = ("store", "records", "packed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder with an undamaged store, records and packed records."""
    folder = tmp_path_factory.mktemp("whole")
    store = write_store(folder / "store", numbers(40))
    for name, packed in (("records", False), ("packed", True)):
        rules = SamplingRules(64, 9, packed=packed)
        write_records(store, str(folder / name), rules, 1, copies=3)
    return folder


@pytest.mark.parametrize(
    "most", [1, pytest.param(None, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(whole, tmp_path, kind, damage, most):
    names = sorted(
        path.name
        for path in (whole / kind).iterdir()
        if path.suffix in (".bin", ".tfrecord")
    )
    assert len(names) >= 3
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    for name, other in list(pairs)[:most]:
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
        ("[]", f"{name} does not describe"),
        ("{}", f"{name} does not describe"),
        ('{"files": {"../x": {}}}', f"{name} does not describe"),
        ('{"shards": [{"name": "../x"}]}', f"{name} does not describe"),
    ):
        (folder / name).write_text(content)
        with pytest.raises(InputError, match=named):
            check_source(str(folder))


DEEP = json.loads("[" * 65 + "]" * 65)
LONG = "x" * 100_000
LIES = {
    "store": [
        {"dtype": "float99"},
        {"dtype": "<i4"},
        {"dtype": LONG},
        {"dtype": None},
        {"files": 5},
        {"files": []},
        {"files": {"tokens.bin": 5}},
        {"files": {"../tokens.bin": {"bytes": 1, "sha256": "y"}}},
        {"files": {"\ud800": {"bytes": 1, "sha256": "y"}}},
        {"tokens": 10**400},
        {"tokens": -1},
        {"lowercase": "yes"},
        {"max_word_length": DEEP},
        {"vocabulary_hash": LONG},
        {"vocabulary_size": "many"},
        {"side": None},
    ],
    "records": [
        {"rules": 5},
        {"rules": {}},
        {"rules": {"sequence_length": "128"}},
        {"rules": {"sequence_length": 10**12}},
        {"rules": {"mask_mix": [80, "10", 10]}},
        {"rules": {"mask_rate": None}},
        {"rules": {"packed": 1}},
        {"rules": {LONG: 1}},
        {"shards": {}},
        {"shards": [5]},
        {"shards": [{"name": "\ud800"}]},
        {"shards": [DEEP]},
        {"vocabulary_hash": 5},
        {"side": None},
    ],
}


@pytest.mark.parametrize(
    ("kind", "lie"),
    [(kind, lie) for kind, lies in LIES.items() for lie in lies],
)
def test_a_manifest_that_lies_under_its_own_hash_is_refused(
    whole, tmp_path, kind, lie
):
    shutil.copytree(whole / kind, tmp_path / kind)
    path = tmp_path / kind / ("store" if kind == "store" else "manifest")
    path = path.with_suffix(".json")
    manifest = json_files.read_json(path)
    for name, value in lie.items():
        both = isinstance(value, dict) and isinstance(manifest[name], dict)
        manifest[name] = {**manifest[name], **value} if both else value
        if value == {}:
            manifest[name] = value
    path.write_text(json.dumps(manifest))
    reseal(path)
    with pytest.raises(InputError) as raised:
        check_source(str(tmp_path / kind), vocabulary())
        next(iter(pretraining_dataset(str(tmp_path / kind), 2, 0)))
    assert len(str(raised.value)) < 1_000


@pytest.mark.parametrize("name", ["sentences", "documents", "blocks", "tokens"])
@pytest.mark.parametrize("number", [2**62, -5])
def test_arrays_that_lead_outside_are_refused(whole, tmp_path, name, number):
    shutil.copytree(whole / "store", tmp_path / "store")
    path = tmp_path / "store" / f"{name}.bin"
    kind = "<u2" if name == "tokens" else "<i8"
    array = np.fromfile(path, kind)
    array[len(array) // 2] = 65_535 if name == "tokens" else number
    array.tofile(path)
    reseal(tmp_path / "store" / "store.json")
    with pytest.raises(InputError, match=f"{name}.bin"):
        check_source(str(tmp_path / "store"))


@pytest.mark.parametrize("kind", KINDS)
def test_data_behind_a_link_is_not_read(whole, tmp_path, kind):
    shutil.copytree(whole / kind, tmp_path / kind)
    for path in sorted((tmp_path / kind).iterdir()):
        if kind != "store" and path.name == "vocab.txt":
            continue  # only a store's vocab.txt is read
        os.replace(path, tmp_path / "outside")
        path.symlink_to(tmp_path / "outside")
        with pytest.raises(InputError, match="link out of the folder"):
            check_source(str(tmp_path / kind))
        os.replace(tmp_path / "outside", path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_of_a_manifest_is_found(whole, tmp_path, kind):
    shutil.copytree(whole / kind, tmp_path / kind)
    name = "store.json" if kind == "store" else "manifest.json"
    path = tmp_path / kind / name
    content = path.read_bytes()
    for place in range(0, len(content), 53):
        if chr(content[place]).isspace():
            continue  # a flipped blank may change no value
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 7
        path.write_bytes(flipped)
        with pytest.raises(InputError, match=name):
            check_source(str(tmp_path / kind))
