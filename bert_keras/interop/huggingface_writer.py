"""Writing a Hugging Face folder that transformers loads as its own."""

import os

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.huggingface_names import names
from bert_keras.interop.huggingface_settings import (
    WITHOUT_POOLER,
    architecture,
    config_json,
    tokenizer_config_json,
    tokenizer_json,
)
from bert_keras.interop.layer_names import mapped
from bert_keras.interop.own import check_replaceable, write_pieces
from bert_keras.interop.safetensors_file import write_safetensors
from bert_keras.interop.text_side import check_fits
from bert_keras.modeling.weights import published_weights

WRITTEN = (
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
)
POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


def save_huggingface(folder, model, preprocessor=None, without=()):
    """Writes the folder beside, then renames it.

    Args:
        folder: where to.
        model: `BertEncoder` or a task model.
        preprocessor: its `BertPreprocessor`; no tokenizer is written without.
        without: library names of weights to leave out, such as those that
            were never trained; the class that is named follows from them.

    Returns:
        names of the weights that were left out: `without`, and the pooler
        where that class has none.
    """
    every = published_weights(model)
    head = type(model).__name__
    kind = architecture(head, set(every) - set(without))
    without = [*without, *(POOLER if kind in WITHOUT_POOLER else ())]
    weights = {k: v for k, v in every.items() if k not in without}
    tensors = _tensors(weights, names(head), bare=kind == "BertModel")
    config = config_json(model, kind, preprocessor)
    if preprocessor is not None:
        check_fits(model, preprocessor)
    check_replaceable(folder, WRITTEN)
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        files.write_json(config, os.path.join(partial, "config.json"))
        write_safetensors(os.path.join(partial, "model.safetensors"), tensors)
        if preprocessor is not None:
            _write_tokenizer(partial, preprocessor)
    return sorted(set(without))


def _tensors(weights, table, bare):
    found = {}
    for name, weight in weights.items():
        theirs = mapped(name, table)
        if theirs is None:
            raise InputError(
                f"transformers has no place for {name}. Save the model in "
                "the library's own format, with save_preset."
            )
        if name.startswith("encoder/") and not bare:
            theirs = f"bert.{theirs}"
        shape, read = tuple(weight.shape), weight.numpy
        if name.endswith("/kernel"):
            shape, read = shape[::-1], _turned(weight)
        found[theirs] = shape, read
    return found


def _turned(weight):
    return lambda: np.transpose(weight.numpy())


def _write_tokenizer(folder, preprocessor):
    for name, value in (
        ("tokenizer_config.json", tokenizer_config_json(preprocessor)),
        ("tokenizer.json", tokenizer_json(preprocessor.tokenizer)),
    ):
        files.write_json(value, os.path.join(folder, name))
    write_pieces(preprocessor, os.path.join(folder, "vocab.txt"))
