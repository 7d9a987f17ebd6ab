"""Weights and settings that the readers refuse, in every format."""

import json
import os
import shutil
import struct
import tracemalloc

import h5py
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_keras.errors import InputError, UntrainedWarning
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.tensor_files import read_safetensors
from bert_keras.interop.tensors import WeightsError
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.foreign_formats import write_tf_checkpoint
from tests.support.tiny import CLASSES
from tests.support.weight_samples import WRITERS

HF, OWN, GOOGLE, HUB = "huggingface", "bert_keras", "google", "keras_hub"
SENTENCES, SHARDED = "sentence_transformers", "huggingface_sharded"
CONFIG, TEXT, FAST = "config.json", "tokenizer_config.json", "tokenizer.json"
POOLING = "1_Pooling/config.json"
EMBEDDING = "config_sentence_transformers.json"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
LONG = "x" * 100_000
TWO = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}


def add_tensor(path, kind, name):
    """Add a tensor of an unknown name to a sample of a format."""
    extra = np.ones((4, 2), "float32")
    if kind == GOOGLE:
        prefix = os.path.join(path, "bert_model.ckpt")
        reader = tf.train.load_checkpoint(prefix)
        names = reader.get_variable_to_shape_map()
        arrays = {key: reader.get_tensor(key) for key in names}
        write_tf_checkpoint(prefix, {**arrays, name: extra})
    elif kind == HUB:
        with h5py.File(os.path.join(path, "task.weights.h5"), "a") as file:
            file.create_dataset(name, data=extra)
    else:
        file = os.path.join(path, "model.safetensors")
        save_file({**load_file(file), name: extra}, file)


@pytest.mark.parametrize("kind", [HF, GOOGLE, HUB])
def test_an_unknown_tensor_beside_a_head_is_named(samples, tmp_path, kind):
    path = shutil.copytree(samples[kind], tmp_path / "copy")
    add_tensor(path, kind, "other_head/logits/kernel")
    with pytest.warns(UserWarning, match=r"unknown: other_head/logits/kernel"):
        load_model(CLASSES["BertClassifier"], path)
    with pytest.warns(UntrainedWarning, match=r"tagger/kernel.*other_head/log"):
        load_model(CLASSES["BertTagger"], path, labels=["a", "b"])
    add_tensor(path, kind, "bert/encoder/layer_0/adapter/kernel")
    with pytest.warns(UserWarning, match="unknown: bert/encoder/layer_0/adap"):
        load_model(CLASSES["BertEncoder"], path)


def test_the_sound_samples_load(samples, recwarn):
    for name, path in samples.items():
        checkpoint = open_checkpoint(path)
        own = {"saved_model": "model_garden", "bert_keras": "huggingface"}
        assert own.get(name, name).startswith(checkpoint.format)
        report = load_model(CLASSES[checkpoint.head], checkpoint).load_report
        assert report.initialised == [], name
        text = BertPreprocessor.from_preset(checkpoint, lowercase=True)
        ids = text("GOOD")["token_ids"].numpy()
        assert ids[:4].tolist() == [2, 5, 3, 0], name
    assert len(samples) == len(WRITERS)
    assert not [w for w in recwarn if "unknown" in str(w.message)]


# Format, file, changes of its JSON, and a word of the message.
SETTINGS = [
    # Models and versions that this package does not support.
    (HF, CONFIG, {"model_type": "roberta"}, '"roberta"'),
    (HF, CONFIG, {"position_embedding_type": "relative_key"}, "relative_key"),
    (HF, CONFIG, {"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
    (HF, CONFIG, {"hidden_act": "quick_gelu"}, "quick_gelu"),
    (HF, CONFIG, {"architectures": ["BertForVision"]}, "BertForVision"),
    (HF, CONFIG, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (HF, CONFIG, {"problem_type": "guess"}, "guess"),
    (GOOGLE, "bert_config.json", {"hidden_act": "relu"}, "relu"),
    (GOOGLE, "bert_config.json", {"embedding_size": 3}, "embedding_size"),
    (HUB, CONFIG, {"class_name": "RobertaBackbone"}, "keras-hub's BERT"),
    (HUB, CONFIG, {"module": "evil.bert"}, "keras-hub's BERT"),
    (HUB, "task.json", {"class_name": "Lambda"}, "keras-hub's BERT"),
    (OWN, CONFIG, {"block_version": 2}, "newer version"),
    (OWN, CONFIG, {"format": OWN, OWN: None}, "earlier version.*convert"),
    # Sizes that contradict the tensors.
    (HF, CONFIG, {"hidden_size": 8}, "shape"),
    (HF, CONFIG, {"num_attention_heads": 3}, "a divisor of 4, found 3"),
    (HF, CONFIG, {"hidden_size": 2**31 - 1, "num_attention_heads": 1}, "shape"),
    (HF, CONFIG, {"vocab_size": 10**9}, "shape"),
    (HF, CONFIG, {"intermediate_size": 10**9}, "shape"),
    (HF, CONFIG, {"max_position_embeddings": 10**9}, "shape"),
    (HF, CONFIG, {"num_hidden_layers": 2}, "layer_1"),
    (HF, CONFIG, {"id2label": {str(i): f"{i}" for i in range(5000)}}, "class"),
    # Values of the wrong type or out of range.
    (HF, CONFIG, {"num_hidden_layers": 10**6}, "num_hidden_layers"),
    (HF, CONFIG, {"hidden_size": "six"}, "hidden_size"),
    (HF, CONFIG, {"hidden_size": -6}, "hidden_size"),
    (HF, CONFIG, {"hidden_size": True}, "hidden_size"),
    (HF, CONFIG, {"hidden_size": LONG}, "hidden_size"),
    (HF, CONFIG, {"hidden_act": LONG}, "hidden_act"),
    (HF, CONFIG, {"model_type": LONG}, "type"),
    (HF, CONFIG, {"architectures": [LONG]}, "architectures"),
    (HF, CONFIG, {"architectures": "BertModel"}, "architectures"),
    (HF, CONFIG, {"hidden_dropout_prob": 1}, "hidden_dropout_prob"),
    (HF, CONFIG, {"layer_norm_eps": "small"}, "layer_norm_eps"),
    (HF, CONFIG, {"id2label": {"0": "a", "7": "b"}}, "id2label"),
    (HF, TEXT, {"unk_token": {"lstrip": False}}, "unk_token"),
    # Settings that this package never writes.
    (OWN, CONFIG, {"block_arguments": {"self": 1}}, "self"),
    (OWN, CONFIG, {"block_arguments": {"encoder": {}}}, "encoder"),
    (OWN, CONFIG, {"block_arguments": {"name": "a/b"}}, "name"),
    (OWN, CONFIG, {"block_arguments": {"other": 1}}, "other"),
    (OWN, CONFIG, {"block_arguments": {"dropout": "0"}}, "dropout"),
    (OWN, CONFIG, {"block_arguments": {"examples_per_row": "2"}}, "per_row"),
    (OWN, CONFIG, {"block_embedding": {"pooling": ["mean"]}}, "pooling"),
    (OWN, CONFIG, {"block_embedding": {"normalize": "yes"}}, "normalize"),
    (OWN, CONFIG, {"block_files": {"../x": {"bytes": 1, "sha256": ""}}}, "x"),
    (OWN, CONFIG, {"block_files": {"bytes": 1}}, "bytes"),
    # Shards outside the folder.
    *(
        (
            *(SHARDED, "model.safetensors.index.json"),
            {"weight_map": {QUERY: file}},
            "a file in this folder",
        )
        for file in ("../model.safetensors", "/etc/passwd", "a/b", "..", 7, "x")
    ),
    # Unsupported, missing or contradictory settings of the tokenizer.
    (HF, TEXT, {"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class"),
    (HF, TEXT, {"word_tokenizer_type": "mecab"}, "word_tokenizer_type"),
    (HF, TEXT, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
    (HF, TEXT, {"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "auto_map"),
    (HF, TEXT, {"strip_accents": 0}, f'{TEXT}: .*"strip_accents"'),
    (HF, TEXT, {"do_lower_case": False}, "lowercase=True` or `lowercase=False"),
    (HF, FAST, {"model": {}}, "vocab"),
    (HF, FAST, {"post_processor": None}, "post_processor"),
    # Settings of sentence embeddings.
    (SENTENCES, POOLING, TWO, "pooling_mode.*mean.*max"),
    (SENTENCES, POOLING, {"pooling_mode": "weightedmean"}, "weightedmean"),
    (SENTENCES, POOLING, {"pooling_mode": ["cls", "mean"]}, "cls.*mean"),
    (SENTENCES, POOLING, {"include_prompt": 0}, "include_prompt"),
    (SENTENCES, EMBEDDING, {"truncate_dim": 0}, "truncate_dim"),
    (SENTENCES, EMBEDDING, {"similarity_fn_name": "maxsim"}, "similarity"),
    (SENTENCES, EMBEDDING, {"default_prompt_name": "none"}, "default_prompt"),
    (SENTENCES, EMBEDDING, {"prompts": {"query": 1}}, "prompts"),
]


def load(path):
    """Return the model of a folder; also read the preprocessor."""
    checkpoint = open_checkpoint(path)
    BertPreprocessor.from_preset(checkpoint)
    head = "BertClassifier" if checkpoint.head_fault else checkpoint.head
    return load_model(CLASSES[head], checkpoint)


@pytest.mark.parametrize(("name", "file", "change", "word"), SETTINGS)
def test_settings_that_cannot_be_obeyed_are_refused_by_name(
    tmp_path, samples, no_memory, name, file, change, word
):
    folder = shutil.copytree(samples[name], tmp_path / "a")
    if (name, file) == (OWN, CONFIG):
        tiny.edit_config(folder, **change)
    else:
        settings = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(settings | change))
    with pytest.raises(WeightsError, match=word) as caught:
        load(folder)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("lacking", ["vocab.txt", "modules.json"])
def test_modules_and_vocabularies_that_do_not_fit_are_refused(
    tmp_path, samples, lacking
):
    folder = shutil.copytree(samples[SENTENCES], tmp_path / "a")
    if lacking == "vocab.txt":
        (folder / "vocab.txt").unlink()
        (folder / FAST).unlink()
        with pytest.raises(WeightsError, match="no vocabulary"):
            load(folder)
        (folder / "vocab.txt").write_text("\n".join("abcdefghij") + "\n")
        with pytest.raises(InputError, match="PAD"):
            load(folder)
        (folder / "vocab.txt").write_text(
            "\n".join([*tiny.PIECES, "ninth"]) + "\n"
        )
        with pytest.raises(WeightsError, match="at most 8 tokens, found 9"):
            load(folder)
        return
    modules = json.loads((folder / lacking).read_text())
    for change, word in (
        ({"type": "sentence_transformers.models.Dense"}, "module Dense"),
        ({"path": "../../1_Pooling"}, "a folder in this folder"),
    ):
        changed = [modules[0], modules[1] | change]
        (folder / lacking).write_text(json.dumps(changed))
        with pytest.raises(WeightsError, match=word):
            load(folder)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[1]", "{", "NaN", '{"vocab_size": NaN}', "[" * 100_000),
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        '{"a": "\\ud800"}',
        '{"a": ' + "1" * 5_000 + "}",
        '{"a": [' + "[]," * 5_000_000 + "0]}",
    ],
    ids=range(10),
)
def test_a_config_that_is_no_json_object_is_refused(tmp_path, samples, text):
    folder = shutil.copytree(samples[HF], tmp_path / "a")
    (folder / CONFIG).write_text(text)
    tracemalloc.start()
    with pytest.raises(WeightsError, match=r"config\.json"):
        open_checkpoint(folder)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


# Weights with wrong headers, shapes or values.


def rewrite_header(path, change):
    """Change the header of a safetensors file, and update the length field."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


@pytest.mark.parametrize(
    "change",
    [
        *({"shape": [4, 5]}, {"shape": [2**40, 2**40]}, {"shape": [-4, -4]}),
        *({"shape": "4x4"}, {"dtype": "F31"}, {"data_offsets": [0, 64]}),
        *({"data_offsets": [10**9, 10**9 + 64]}, {"dtype": None}, None),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, samples, change):
    def spoil(header):
        if change is None:  # leave a gap in the data
            del header[QUERY]
        else:
            header[QUERY].update(change)

    path = shutil.copytree(samples[HF], tmp_path / "a") / "model.safetensors"
    rewrite_header(path, spoil)
    with pytest.raises(WeightsError, match="no.* a safetensors file, or"):
        read_safetensors(str(path))


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", [HF, HUB, GOOGLE])
def test_a_file_of_weights_that_was_cut_is_refused(
    tmp_path, samples, no_memory, name, fraction
):
    folder = shutil.copytree(samples[name], tmp_path / "a")
    (path,) = [
        path
        for path in folder.iterdir()
        if path.name in ("model.safetensors", "model.weights.h5")
        or ".data-" in path.name
    ]
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(WeightsError, match=path.name):
        load(folder)


@pytest.mark.parametrize(
    ("name", "array", "word"),
    [
        ("classifier.bias", np.array(1, "float32"), r"\(2,\), found \(\)"),
        ("bert.pooler.dense.bias", np.ones(4, "int32"), "integers"),
        ("bert.pooler.dense.bias", np.ones(4, "uint8"), "integers"),
        ("bert.pooler.dense.bias", np.ones(4, "bool"), "integers"),
        ("bert.pooler.dense.bias", np.full(4, np.nan, "f4"), "finite values"),
        ("bert.pooler.dense.bias", np.full(4, np.inf, "f4"), "finite values"),
        ("pooler.dense.bias", np.ones(4, "float32"), "same weight"),
        ("bert.embeddings.position_ids", np.arange(8), None),  # not a weight
    ],
)
def test_weights_that_are_none_are_refused_by_name(
    tmp_path, samples, name, array, word
):
    folder = shutil.copytree(samples[HF], tmp_path / "a")
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: array}, path)
    if word is None:
        assert load(folder).load_report.skipped == [name]
        return
    with pytest.raises(WeightsError, match=word) as caught:
        load(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize("head", ["BertEncoder", "BertClassifier"])
def test_an_encoder_that_lacks_a_weight_is_refused(
    tmp_path, samples, no_memory, head
):
    folder = shutil.copytree(samples[HF], tmp_path / "a")
    path, name = folder / "model.safetensors", QUERY.replace("weight", "bias")
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    with pytest.raises(WeightsError, match="not complete") as caught:
        load_model(CLASSES[head], folder)
    assert caught.value.tensor == "encoder/layer_0/attention/query/bias"


def test_layers_are_counted_before_a_model_is_made(
    tmp_path, samples, monkeypatch
):
    folder = shutil.copytree(samples[HF], tmp_path / "a")
    settings = json.loads((folder / CONFIG).read_text())
    settings["num_hidden_layers"] = 1000
    (folder / CONFIG).write_text(json.dumps(settings))
    monkeypatch.setattr("bert_keras.modeling.encoder.TransformerLayer", None)
    with pytest.raises(WeightsError, match="layer_1/"):
        load_model(CLASSES["BertEncoder"], folder)


@pytest.mark.parametrize("form", ["soft", "external", "storage", "packed"])
def test_hdf5_that_leads_out_or_is_packed_is_refused(tmp_path, samples, form):
    folder = shutil.copytree(samples[HUB], tmp_path / "a")
    name = "layers/embedding/vars/0"
    with h5py.File(folder / "model.weights.h5", "a") as file:
        numbers = file[name][:]
        del file[name]
        if form == "soft":
            file[name] = h5py.SoftLink("/layers/dense/vars/0")
        elif form == "external":
            file[name] = h5py.ExternalLink("other.h5", "/x")
        elif form == "storage":
            outside = [("/etc/passwd", 0, numbers.nbytes)]
            file.create_dataset(
                name, numbers.shape, "float32", external=outside
            )
        else:
            file.create_dataset(name, data=numbers, compression="gzip")
    with pytest.raises(WeightsError) as caught:
        open_checkpoint(folder)
    assert caught.value.tensor == name


def test_hdf5_groups_in_a_ring_are_refused(tmp_path, samples):
    folder = shutil.copytree(samples[HUB], tmp_path / "a")
    with h5py.File(folder / "model.weights.h5", "a") as file:
        file["layers/again"] = file["layers"]
    with pytest.raises(WeightsError, match="16 levels of groups"):
        open_checkpoint(folder)
