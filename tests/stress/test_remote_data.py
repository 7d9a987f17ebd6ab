"""Data sets on a file system without rename, from text to batches."""

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from bert_keras import files, folder_lock
from bert_keras.data import token_store
from bert_keras.data.batches import check_source, pretraining_dataset
from bert_keras.data.corpus import read_documents
from bert_keras.data.pretraining_data import (
    BuildOptions,
    create_pretraining_data,
)
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError
from bert_keras.text.vocabulary import read_vocabulary
from tests.support.damages import flip
from tests.support.data_samples import contents, corpus, in_small_parts
from tests.support.remote_folder import Killed, object_store

RULES = SamplingRules(16, 3)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Each test has its own cache, small parts and no wait for locks."""
    in_small_parts(monkeypatch)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(folder_lock, "SETTLED_AFTER", 0)


@pytest.fixture
def remote():
    return f"ram://{uuid.uuid4().hex}/data"


def create(folder, tokenizer, **arguments):
    arguments = {"held_out_share": 0.2, "records": True, **arguments}
    return create_pretraining_data(
        corpus(), tokenizer, str(folder), BuildOptions(rules=RULES, **arguments)
    )


def remote_contents(folder):
    return {
        os.path.relpath(path, folder): files.open_file(path).read()
        for path in files.walk(folder)
        if not path.endswith(".lock")
    }


def remove_locks(folder):
    for path in files.walk(folder):
        if path.endswith(".lock"):
            files.remove(path)


def batches(folder, count=3):
    found = []
    for side in ("tokens/train", "train"):
        data = pretraining_dataset(f"{folder}/{side}", 8, 1, rules=RULES)
        for batch in data.take(count):
            found += [
                value.numpy().tolist() for value in tf.nest.flatten(batch)
            ]
    return found


def test_a_remote_build_has_the_bytes_of_a_local_one(
    monkeypatch, tokenizer, remote, tmp_path
):
    manifests = create(tmp_path / "local", tokenizer)
    with object_store(monkeypatch):
        assert create(remote, tokenizer) == manifests
        assert remote_contents(remote) == contents(tmp_path / "local")
        for side in ("tokens/train", "held_out"):
            check_source(f"{remote}/{side}", tokenizer.vocabulary)
        assert batches(remote) == batches(tmp_path / "local")
    # The work folders are removed; the store that was read stays cached.
    home = files.cache_folder()
    assert os.listdir(os.path.join(home, "building")) == []
    assert len(os.listdir(os.path.join(home, "stores"))) == 1


@pytest.mark.parametrize(
    "fail_at",
    [4, 16, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 9, 24))],
)
def test_a_remote_build_that_was_killed_resumes(
    monkeypatch, tokenizer, remote, tmp_path, fail_at
):
    whole = create(tmp_path / "local", tokenizer)
    with object_store(monkeypatch, fail_at), pytest.raises(Killed):
        create(remote, tokenizer)
    for side in ("tokens/train", "tokens/held_out", "train", "held_out"):
        folder = f"{remote}/{side}"
        if {"store.json", "manifest.json"} & set(files.list_folder(folder)):
            check_source(folder)  # either file marks it as finished
        else:
            with pytest.raises(InputError, match="No finished"):
                check_source(folder)
    remove_locks(remote)  # of the killed process
    with object_store(monkeypatch):
        assert create(remote, tokenizer) == whole
        assert remote_contents(remote) == contents(tmp_path / "local")


def test_finished_remote_data_of_other_settings_is_refused_and_stays(
    monkeypatch, tokenizer, remote
):
    with object_store(monkeypatch):
        manifests = create(remote, tokenizer, copies=2)
        before = remote_contents(remote)
        for change, named in (
            ({"copies": 1}, "copies was 2 and is now 1"),
            ({"held_out_share": 0.3}, "held_out_share was 0.2"),
        ):
            with pytest.raises(InputError, match=named):
                create(remote, tokenizer, **{"copies": 2, **change})
            assert remote_contents(remote) == before
            # Remove the local unfinished build, as if on another machine.
            files.remove(os.path.join(files.cache_folder(), "building"))
        assert create(remote, tokenizer, copies=2) == manifests
        assert remote_contents(remote) == before


def test_an_unfinished_remote_build_refuses_other_settings(
    monkeypatch, tokenizer, remote
):
    with object_store(monkeypatch, 24), pytest.raises(Killed):
        create(remote, tokenizer, copies=2)
    assert files.find(f"{remote}/train/*.tfrecord")
    remove_locks(remote)
    # Remove the local unfinished build, as if on another machine.
    files.remove(os.path.join(files.cache_folder(), "building"))
    before = remote_contents(remote)
    with object_store(monkeypatch):
        with pytest.raises(InputError, match="copies was 2 and is now 1"):
            create(remote, tokenizer)
        assert remote_contents(remote) == before
        create(remote, tokenizer, copies=2)


@pytest.mark.parametrize("folder", ["tokens", "train"])
def test_a_remote_build_that_was_taken_over_stops(
    monkeypatch, tokenizer, remote, folder
):
    stages = []

    def lose_lock(stage, *_):
        stages.append(stage)
        if stage == folder:
            files.remove(f"{remote}/{folder}/.lock")

    options = BuildOptions(held_out_share=0.2, records=True, rules=RULES)
    with (
        object_store(monkeypatch),
        pytest.raises(InputError, match="may have been taken over"),
    ):
        create_pretraining_data(
            corpus(), tokenizer, remote, options, progress=lose_lock
        )
    assert stages.count(folder) == 1  # it stopped at the next part or shard


def test_damage_to_a_remote_data_set_is_named(tokenizer, remote):
    create(remote, tokenizer)
    for kind, ending, named in (
        ("tokens/train", "tokens.bin", "bytes"),
        ("train", ".tfrecord", "is missing"),
    ):
        paths = files.walk(f"{remote}/{kind}")
        path = next(path for path in paths if path.endswith(ending))
        content = files.open_file(path).read()
        files.remove(path)
        if ending == "tokens.bin":
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(content[:-2])
        with pytest.raises(InputError, match=f"{path}.*({named})"):
            check_source(f"{remote}/{kind}")


def test_a_store_that_was_built_again_is_fetched_again(
    monkeypatch, tokenizer, remote
):
    with object_store(monkeypatch):
        create(remote, tokenizer)
        first = batches(remote)
        files.remove(remote)
        create(remote, tokenizer, held_out_share=0.4)
        assert batches(remote) != first
    assert len(os.listdir(os.path.join(files.cache_folder(), "stores"))) == 2


def test_several_readers_copy_a_store_once_and_mend_a_damaged_copy(
    monkeypatch, tokenizer, remote
):
    create(remote, tokenizer)
    folder, copied = f"{remote}/tokens/train", []
    download = token_store._download

    def counted(*arguments):
        copied.append(arguments[-1])
        files.make_folder(copied[-1])
        time.sleep(0.2)
        download(*arguments)

    monkeypatch.setattr(token_store, "_download", counted)
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(token_store.TokenStore, [folder] * 4))
    assert len(copied) == 1
    path = os.path.join(stores[0].folder, "tokens.bin")
    expected = stores[0].tokens.tolist()
    os.remove(path)
    assert token_store.TokenStore(folder).tokens.tolist() == expected
    assert len(copied) == 2
    flip(Path(path), None)  # the same size: only a check of all bytes sees it
    with pytest.raises(InputError, match="tokens.bin.* Delete this local"):
        token_store.check_store(folder)
    files.remove(stores[0].folder)
    os.makedirs(copied[-1])  # a killed process leaves this folder
    token_store.check_store(folder)
    names = os.listdir(os.path.join(files.cache_folder(), "stores"))
    assert names == [os.path.basename(stores[0].folder)]


def test_text_and_vocabulary_may_be_remote(remote, tmp_path):
    for name in ("b.txt", "sub/a.txt", ".hidden/c.txt", "d.png"):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / name).write_text(f"This is {name}.\nMore.\n")
    for path in files.walk(str(tmp_path / "text")):
        name = os.path.relpath(path, tmp_path / "text")
        files.upload(path, f"{remote}/{name}")
    local = list(read_documents(str(tmp_path / "text")))
    assert [d.name for d in local] == ["b.txt", "sub/a.txt"]
    assert list(read_documents(remote)) == local
    assert list(read_documents(f"{remote}/*.txt")) == local[:1]
    assert list(read_documents(f"{remote}/b.txt")) == local[:1]
    with pytest.raises(InputError, match="No text found at"):
        list(read_documents(f"{remote}/none.txt"))
    with pytest.raises(InputError, match="no file system for nosuch://"):
        list(read_documents("nosuch://bucket/none.txt"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    files.upload(str(tmp_path / "vocab.txt"), f"{remote}/vocab.txt")
    assert read_vocabulary(f"{remote}/vocab.txt") == pieces
    with pytest.raises(InputError, match="cannot be read"):
        read_vocabulary(f"{remote}/none.txt")
