"""The `bert_keras` block of config.json in a Hugging Face folder.

The block holds data for which the Hugging Face format has no fields: the model
class and its arguments, the direction of attention, the pooling of sentence
embeddings, the source of the weights, and the names of untrained weights. The
block also holds a hash of config.json, and the size and SHA-256 of the weights,
tokenizer and sentence-transformers files. If one of these files has changed,
the reader raises an error that names the file.
"""

import dataclasses
import functools
import os

from bert_keras import files, json_files
from bert_keras.interop import tensors
from bert_keras.interop.tensor_files import FRACTION
from bert_keras.interop.tensors import WeightsError
from bert_keras.json_files import (
    BOOLEAN,
    COUNT,
    NUMBER,
    NUMBERS,
    TEXT,
    TEXTS,
    count_to,
)
from bert_keras.manifest import describe_files, find_fault
from bert_keras.modeling import weights
from bert_keras.modeling.sizes import POOLER_ACTIVATIONS

NAME = "bert_keras"
VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
OLD_FORMAT = (
    "Install the version of bert_keras that wrote the model, and convert the "
    "model with bert-keras convert_checkpoint --format=huggingface"
)
SAVE_AGAIN = (
    "Save or fetch the folder again. If the change is intended, remove the "
    f'"{NAME}" block from config.json'
)
# Argument of a model -> the type of its value.
ARGUMENTS = {
    "labels": TEXTS,
    "problem": TEXT,
    "dropout": FRACTION,
    "mlm_activation": TEXT,
    "mlm_norm_epsilon": FRACTION,
    "may_be_none": BOOLEAN,
    "null_threshold": NUMBER,
    "thresholds": NUMBERS,
    "pair": BOOLEAN,
    "long_text": TEXT,
    "pooling": TEXT,
    "recipe": TEXT,
    "normalize": BOOLEAN,
    **dict.fromkeys(
        ("bilstm_dim", "examples_per_row", "truncate_dim"), count_to(2**20)
    ),
}


def write_config(folder, config, model, weights_entry):
    """Write config.json with the `bert_keras` block.

    The block holds a hash of each file in the folder. Write a file after this
    call only if the file needs no hash.

    Args:
        folder: the output folder.
        config: dict of the fields that Hugging Face reads.
        model: `BertEncoder` or a task model.
        weights_entry: dict with the weights file's "bytes" (size) and "sha256".
    """
    names = {os.path.relpath(path, folder) for path in files.walk(folder)}
    entries = describe_files(folder, sorted(names - {WEIGHTS}))
    entries[WEIGHTS] = weights_entry
    encoder = getattr(model, "encoder", model)
    arguments = {} if model is encoder else dict(model.arguments())
    if "examples_per_row" in arguments:  # depends on the run, not the model
        arguments["examples_per_row"] = None
    stated = {
        "version": VERSION,
        "class": type(model).__name__,
        "attention": encoder.attention,
        "pooler_activation": encoder.pooler_activation,
        "arguments": arguments,
        "encoder_arguments": encoder.own_arguments() or None,
        "untrained": weights.untrained_weights(model),
        "embedding": getattr(model, "sentence_embedding", None),
        "source": encoder.origin,
        "license": encoder.license and encoder.license.name,
        "files": entries,
    }
    block = {k: v for k, v in stated.items() if v is not None}
    block["sha256"] = json_files.json_hash({**config, NAME: block})
    json_files.write_json({**config, NAME: block}, os.path.join(folder, CONFIG))


def read_block(folder, config):
    """Return the `Fields` of the `bert_keras` block, or None.

    None means that config.json has no block, or that transformers wrote
    config.json.

    Each file that the block lists is compared with its hash, except the weights
    file. The tensors that `add_check` returns have the check for that file.

    Args:
        folder: the model's folder.
        config: `Fields` of config.json in the folder.
    """
    if config.get("format") == NAME:
        raise WeightsError(
            config.path,
            "an earlier version of bert_keras wrote this format",
            OLD_FORMAT,
        )
    if not is_current(config):
        return None
    block = config.object(NAME)
    if block.get("version", COUNT) > VERSION:
        raise WeightsError(
            config.path,
            "a newer version of bert_keras wrote this file",
            "Install a newer version of bert_keras",
            expected=f"a file of format version {VERSION} or lower",
            found=block.get("version"),
        )
    rest = {k: v for k, v in block.values.items() if k != "sha256"}
    if block.get("sha256", TEXT) != json_files.json_hash(
        {**config.values, NAME: rest}
    ):
        raise WeightsError(
            config.path, "the file has changed since it was written", SAVE_AGAIN
        )
    for name in block.object("files").values:
        if name != WEIGHTS:
            check_file(folder, block, name)
    return block


def is_current(config):
    """Return True if config.json has a block that belongs to its folder."""
    # A folder that transformers saved may hold a copy of an older block.
    # The hashes in the copy do not fit the new files, so the block is ignored.
    return NAME in config and "transformers_version" not in config


def check_file(folder, block, name, source=None):
    """Raise `WeightsError` if a file differs from its hash in the block.

    If the file is open, `source` is its `OpenFile`.
    """
    entry = block.object("files").object(name)
    parts = name.split("/")
    if len(parts) > 2 or not all(map(files.is_plain_name, parts)):
        block.refuse("files", "names of files in the folder", name)
    files.check_inside(os.path.join(folder, parts[0]), folder)
    expected = {
        "bytes": entry.get("bytes", count_to(2**62)),
        "sha256": entry.get("sha256", TEXT),
    }
    path = os.path.join(folder, *parts)
    fault = find_fault(path, expected, source)
    if fault is not None:
        raise WeightsError(path, f"the file {fault}", SAVE_AGAIN)


def add_check(found, folder, block):
    """Return copies of the tensors; the copies check the weights file's hash.

    `load_model` runs the checks before it loads a tensor. The hash is computed
    once for all copies.
    """
    sources = [tensor.source for tensor in found.values()]
    check = functools.cache(
        functools.partial(check_file, folder, block, WEIGHTS, *sources[:1])
    )
    return {
        name: dataclasses.replace(tensor, checks=(check, *tensor.checks))
        for name, tensor in found.items()
    }


def read_arguments(block, name="arguments"):
    """Return the dict `name` in the block; check types of known arguments."""
    settings = block.object(name, {})
    for name in filter(settings.__contains__, ARGUMENTS):
        settings.get(name, ARGUMENTS[name])
    if "name" in settings.values:
        settings.refuse("name", "no model name in this file", "a name")
    return dict(settings.values)


def read_encoder(block):
    """Return the arguments of `BertEncoder` that the block states."""
    return {
        "attention": block.get("attention", TEXT),
        "pooler_activation": block.get(
            "pooler_activation", POOLER_ACTIVATIONS, POOLER_ACTIVATIONS[0]
        ),
    }


def read_origin(block, folder):
    """Return the other fields of the `Checkpoint` that the block states.

    The class and its arguments are left out. The license's text is read from
    `folder`.
    """
    license = None
    if "license" in block:
        stated = tensors.read_license(folder)
        license = tensors.License(
            block.get("license", TEXT), stated and stated.text
        )
    return {
        "embedding": read_arguments(block, "embedding") or None,
        "encoder_arguments": block.object("encoder_arguments", {}).values,
        "origin": block.get("source", TEXT) if "source" in block else None,
        "untrained": tuple(block.get("untrained", TEXTS, [])),
        "license": license,
    }
