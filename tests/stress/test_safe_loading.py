"""Hostile files are refused before anything is allocated or run."""

import itertools
import json
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_keras.errors import InputError
from bert_keras.interop.opening import open_checkpoint, read_text
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.interop.tensor_files import read_safetensors
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.text.vocabulary import read_vocabulary
from tests.support import fuzzing, tiny
from tests.support.foreign_formats import write_google
from tests.support.huggingface_folders import CONFIG, folder_of, write_json
from tests.support.mutation import index_entry
from tests.support.tiny import CLASSES


class Trap:
    """Object that makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_in_any_clothes_is_never_read(tmp_path):
    mark = str(tmp_path / "mark")
    data = pickle.dumps(Trap(mark))
    for name in ("pytorch_model.bin", "model.safetensors", "tf_model.h5"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        write_json(folder, "config.json", CONFIG)
        (folder / name).write_bytes(data)
        with pytest.raises(WeightsError, match=name):
            open_checkpoint(folder)
    assert not os.path.exists(mark)
    pickle.loads(data)  # the trap works
    assert os.path.exists(mark)


def test_a_header_of_a_hundred_thousand_names_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"a{i}": nothing for i in range(100_000)}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(WeightsError, match="a header of at most 4194304 bytes"):
        read_safetensors(str(path))


def test_bfloat16_and_scalars_are_read_by_their_offsets(tmp_path):
    path = tmp_path / "model.safetensors"
    offsets = {"b": [0, 4], "a": [4, 8]}
    header = {
        "a": {"dtype": "F32", "shape": [], "data_offsets": offsets["a"]},
        "b": {"dtype": "BF16", "shape": [2, 1], "data_offsets": offsets["b"]},
    }
    text = json.dumps(header).encode()
    numbers = np.array([1.5, -2], "float32").view("<u4") >> 16  # as bfloat16
    data = numbers.astype("<u2").tobytes() + struct.pack("<f", 0.1)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    tensors = read_safetensors(str(path))
    assert tensors["a"].load() == np.float32(0.1)
    assert tensors["b"].load().tolist() == [[1.5], [-2.0]]
    assert tensors["b"].transpose().load().tolist() == [[1.5, -2.0]]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match="cut while it was read"):
        tensors["a"].load()


DAMAGES = {
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "cut": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\n",
    "emptied": lambda data: b"",
    "deleted": lambda data: None,
}
FILES = [
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A saved embedder with its preprocessor; tests only read it."""
    folder = tmp_path_factory.mktemp("embedder") / "a"
    save_model(folder, tiny.model("BertEmbedder"), tiny.preprocessor())
    return folder


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        pair
        for pair in itertools.product(FILES, DAMAGES)
        # Without config.json, the folder has another format.
        if pair != ("config.json", "deleted")
    ],
)
def test_a_damaged_file_of_our_folder_is_refused_by_name(
    tmp_path, no_memory, embedder, file, damage
):
    copy = shutil.copytree(embedder, tmp_path / "a")
    data = DAMAGES[damage]((copy / file).read_bytes())
    (copy / file).unlink()
    if data is not None:
        (copy / file).write_bytes(data)
    if (file, damage) == ("config.json", "longer"):  # JSON ignores a newline
        data = data.replace(b'"hidden_dropout_prob": 0.1', b'"x": 0.1')
        (copy / file).write_bytes(data)
    with pytest.raises(WeightsError, match=file):
        load_model(CLASSES["BertEmbedder"], copy)


def test_what_transformers_writes_again_is_a_folder_of_others(tmp_path):
    """transformers copies the block of bert_keras into its own config.json."""
    copy = tmp_path / "a"
    save_model(copy, tiny.model("BertPretrainer"))
    path = copy / "config.json"
    config = json.loads(path.read_text()) | {"transformers_version": "5.24.0"}
    path.write_text(json.dumps(config | {"dtype": "float32"}))
    tensors = load_file(copy / "model.safetensors")
    tensors["cls.predictions.bias"][:] = 3
    save_file(tensors, copy / "model.safetensors")
    model = load_model(BertPretrainer, copy)
    assert set(model.mlm.bias.numpy()) == {3}


def read_all(path):
    """Read the weights, the license and the text settings of a folder."""
    checkpoint = open_checkpoint(path)
    for tensor in checkpoint.tensors.values():
        tensor.load()
    read_text(checkpoint)


@pytest.mark.timeout(100)  # else it would read a pipe or a device for ever
def test_no_file_is_read_through_a_link_or_from_a_pipe(tmp_path, samples):
    # Readers open neither of these files of a SavedModel.
    unread = {"saved_model.pb", "fingerprint.pb"}
    for name, sample in samples.items():
        if os.path.isfile(sample):
            continue
        paths = [
            os.path.relpath(os.path.join(place, file), sample)
            for place, _, names in os.walk(sample)
            for file in names
        ]
        for file in {*paths, "LICENSE", "README.md"} - unread:
            for kind in ("link", "pipe", "zero"):
                copy = tmp_path / name / kind / file.replace("/", "_")
                shutil.copytree(sample, copy)
                there, outside = copy / file, tmp_path / "outside"
                outside.write_bytes(b"secret")
                if there.exists():
                    os.replace(there, outside)
                if kind == "pipe":
                    os.mkfifo(there)
                else:
                    target = outside if kind == "link" else "/dev/zero"
                    there.symlink_to(target)
                told = "pipe" if kind == "pipe" else "link out of the folder"
                with pytest.raises(InputError, match=told):
                    read_all(copy)
                shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("sentence_transformers", "1_Pooling"),
        ("keras_hub", "assets"),
        ("keras_hub", "assets/tokenizer"),
        ("saved_model", "variables"),
        ("saved_model", "assets"),
    ],
)
def test_no_folder_is_entered_through_a_link(tmp_path, samples, name, inner):
    folder = shutil.copytree(samples[name], tmp_path / "copy")
    os.replace(folder / inner, tmp_path / "outside")
    (folder / inner).symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="link out of the folder"):
        read_all(folder)


def test_links_inside_the_folder_and_to_it_are_followed(tmp_path):
    folder_of(tmp_path / "a")
    os.replace(tmp_path / "a/model.safetensors", tmp_path / "a/weights")
    (tmp_path / "a/model.safetensors").symlink_to("weights")
    (tmp_path / "b").symlink_to("a")
    read_all(tmp_path / "b")


def test_links_to_what_no_reader_opens_do_not_matter(tmp_path, samples):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.txt").touch()
    folder_of(tmp_path / "model")
    prefix = shutil.copytree(samples["google"], tmp_path / "google")
    prefix = next(prefix.glob("*.index")).with_suffix("")
    for path, folder in (
        (tmp_path / "model", tmp_path / "model"),
        (prefix, prefix.parent),
    ):
        (folder / "data").symlink_to(tmp_path / "data")
        read_all(path)
    (prefix.parent / "notes.txt").symlink_to(tmp_path / "data/rows.txt")
    read_all(prefix)
    (prefix.parent / "vocab.txt").unlink()
    (prefix.parent / "vocab.txt").symlink_to(tmp_path / "data/rows.txt")
    with pytest.raises(InputError, match="link out of the folder"):
        read_all(prefix)


def test_the_cache_of_the_hub_keeps_files_behind_links(tmp_path):
    home = tmp_path / "models--me--toy"
    snapshot = home / "snapshots" / "0123abc"
    folder_of(snapshot)
    (home / "blobs").mkdir()
    for file in list(snapshot.iterdir()):
        os.replace(file, home / "blobs" / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    read_all(snapshot)
    # A blob must not be a link, and the folder's name must start with models--.
    os.replace(home / "blobs/config.json", tmp_path / "config.json")
    (home / "blobs/config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(InputError, match="link out of the folder"):
        read_all(snapshot)
    os.replace(tmp_path / "config.json", home / "blobs/config.json")
    os.replace(home, tmp_path / "toy")
    with pytest.raises(InputError, match="link out of the folder"):
        read_all(tmp_path / "toy/snapshots/0123abc")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "pipe"])
@pytest.mark.timeout(100)
def test_a_device_or_a_pipe_is_no_preset(tmp_path, path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe, a device or a socket"):
        open_checkpoint(tmp_path / path)
    with pytest.raises(InputError, match="a pipe, a device or a socket"):
        read_vocabulary(tmp_path / path)


def test_a_vocabulary_of_lines_without_end_is_refused_at_once(tmp_path):
    write_google(tmp_path)
    for size in (15_000_000, 17_000_000):
        (tmp_path / "vocab.txt").write_bytes(b"\n" * size)
        with pytest.raises(InputError, match="at most"):
            read_text(open_checkpoint(tmp_path))


def test_an_index_that_would_end_the_process_is_refused(tmp_path):
    # TensorFlow's own reader aborts the process on some of these.
    import random

    write_google(tmp_path)
    path = tmp_path / "bert_model.ckpt.index"
    data, refused = path.read_bytes(), 0
    for seed in range(40):
        path.write_bytes(index_entry(data, random.Random(seed)))
        try:
            open_checkpoint(tmp_path)
        except WeightsError:
            refused += 1
    assert refused > 20


def test_a_flipped_bit_of_a_checkpoint_fails_its_checksum(tmp_path):
    write_google(tmp_path)
    path = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), 50):
        data[at] ^= 1  # a mantissa bit: the value stays finite
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="TensorFlow cannot read"):
        load_model(BertEncoder, tmp_path)


def test_rows_are_read_a_few_at_a_time_with_equal_numbers(
    tmp_path, monkeypatch
):
    model = tiny.model("BertEncoder")
    save_model(tmp_path / "a", model)  # stores kernels transposed
    monkeypatch.setattr("bert_keras.interop.tensors.SLICE", 24)
    again = load_model(BertEncoder, tmp_path / "a")
    for mine, theirs in zip(model.weights, again.weights, strict=True):
        assert np.array_equal(mine.numpy(), theirs.numpy())
    half = load_model(BertEncoder, tmp_path / "a", dtype="bfloat16")
    expected = tf.cast(model.embeddings.token.embeddings.value, "bfloat16")
    found = half.embeddings.token.embeddings.value
    assert np.array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize(
    "mutants", [90, pytest.param(1300, marks=pytest.mark.long)]
)
def test_mutants_are_refused_or_loaded(mutants):
    tally = fuzzing.fuzz(mutants, seed=1)
    assert tally.total() == mutants
    refused = {name: tally[name, "refused"] for name, _ in tally}
    assert sum(refused.values()) > mutants // 2, refused
    assert min(refused.values()) > mutants // 150, refused
