"""Hugging Face folders: config.json, model.safetensors, vocab.txt."""

import dataclasses
import functools
import glob
import os

from bert_keras.files import is_plain_name
from bert_keras.interop import huggingface_config
from bert_keras.interop.checkpoint import Checkpoint, WeightsError
from bert_keras.interop.h5_file import read_h5
from bert_keras.interop.huggingface_names import (
    from_keras,
    heads_in,
    modern,
    names,
)
from bert_keras.interop.huggingface_tokenizer import text_reader
from bert_keras.interop.json_file import read_json
from bert_keras.interop.renaming import renamed
from bert_keras.interop.safetensors_file import read_safetensors
from bert_keras.interop.torch_pickle import pickles_in

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAFETENSORS = (WEIGHTS, INDEX)
KERAS = "tf_model.h5"
INNER = "*_Transformer"  # where sentence-transformers puts it in its folder


def open_huggingface(folder):
    """The `Checkpoint` of a Hugging Face folder.

    Whose head it holds says `architectures` in its settings; the folders of
    2019 lack that, and their tensors say it.
    """
    config = read_json(os.path.join(folder, CONFIG))
    huggingface_config.check_model(config)
    weights = _read_weights(folder)
    stated = huggingface_config.stated_head(config)
    heads = [stated] if stated else _heads_by_tensors(config, weights)
    of_class = {
        head: functools.partial(_checkpoint, folder, config, weights, head)
        for head in heads
    }
    if len(heads) == 1:
        return of_class[heads[0]]()
    checkpoint = _checkpoint(folder, config, weights, "BertEncoder")
    return dataclasses.replace(checkpoint, of_class=of_class)


def _checkpoint(folder, config, weights, head):
    """The folder as that of our class of this name."""
    encoder = huggingface_config.read_encoder(config)
    arguments = huggingface_config.read_arguments(config, head)
    tensors, plain, turn = weights
    found, skipped = renamed(tensors, names(head), folder, plain)
    for name, tensor in found.items():
        if turn and name.endswith("/kernel"):
            found[name] = tensor.transposed()
    return Checkpoint(
        source=str(folder),
        format="huggingface",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors=found,
        skipped=skipped,
        read_text=text_reader(folder, config, encoder["max_sequence_length"]),
        initializer_range=config.handed_on("initializer_range"),
    )


def _heads_by_tensors(config, weights):
    tensors, plain, _ = weights
    by_name = {plain(name): tensor for name, tensor in tensors.items()}
    bias = by_name.get("classifier.bias")
    heads = huggingface_config.possible_heads(
        config,
        heads_in(filter(None, by_name)),
        bias and bias.shape[0],
        "pooler.dense.weight" in by_name,
    )
    return heads or ["BertEncoder"]


def _read_weights(folder):
    """The tensors; what gives their names of today; whether kernels are
    (outputs, inputs)."""
    path = os.path.join(folder, KERAS)
    if os.path.exists(path) and not has_weights(folder, SAFETENSORS):
        return read_h5(path), from_keras, False
    return _read_safetensors(folder), modern, True


def has_weights(folder, files=(*SAFETENSORS, KERAS)):
    """Whether the folder has one of the files; a pickle does not count."""
    return any(os.path.exists(os.path.join(folder, name)) for name in files)


def places(folder):
    """Where in a folder a Hugging Face folder may be, from the folder."""
    return ["", *sorted(glob.glob(INNER, root_dir=folder))]


def _read_safetensors(folder):
    path = os.path.join(folder, WEIGHTS)
    if os.path.exists(path):
        return read_safetensors(path)
    if os.path.exists(os.path.join(folder, INDEX)):
        return _read_shards(folder)
    pickles = pickles_in(folder)
    if pickles:
        raise WeightsError(
            pickles[0],
            "this is a pickle, which can run any code when it is read",
            "Convert it once, apart, with python -m "
            "official_tasks.tools.convert_checkpoint --allow_torch",
            expected=WEIGHTS,
            found=os.path.basename(pickles[0]),
        )
    raise WeightsError(
        folder,
        "the folder holds no weights",
        "Fetch the folder again",
        expected=f"{WEIGHTS}, {INDEX} or {KERAS}",
        found="none",
    )


def _read_shards(folder):
    """Every tensor of the index, from the file in this folder it names."""
    index = read_json(os.path.join(folder, INDEX))
    shards = index.object("weight_map").values
    tensors, read = {}, {}
    for name, file in shards.items():
        if not is_plain_name(file):
            index.refuse(name, "a file in this folder", file)
        if file not in read:
            read[file] = read_safetensors(os.path.join(folder, file))
        if name not in read[file]:
            index.refuse(name, f"a tensor in {file}", "none")
        tensors[name] = read[file][name]
    return tensors
