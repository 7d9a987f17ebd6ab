"""Reader of the files of weights in Hugging Face folders."""

import glob
import os
import re

from bert_keras import files
from bert_keras.interop import tensor_files
from bert_keras.interop.block import WEIGHTS
from bert_keras.interop.hdf5 import read_h5
from bert_keras.interop.tensors import WeightsError

INDEX = "model.safetensors.index.json"
SAFETENSORS = (WEIGHTS, INDEX)
# Weights of transformers' TensorFlow classes, in HDF5.
TENSORFLOW = "tf_model.h5"
CONVERT = (
    "Convert the weights once with transformers: load them with "
    "from_pretrained, and write model.safetensors with save_pretrained"
)
INNER = "*_Transformer"  # encoder's subfolder in sentence-transformers
# Some files store tied weights twice: name of the copy -> name in bert_keras.
TIED = {
    "cls.predictions.decoder.weight": "encoder/embeddings/token/embeddings",
    "cls.predictions.decoder.bias": "mlm/bias",
}
# Name of the copy -> name of the weight in transformers.
ORIGINALS = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def is_unread(path):
    """Return True for a Hugging Face weights file that is never read.

    A PyTorch file is a pickle, which can run code.
    """
    return os.path.basename(path).startswith("pytorch_model")


def has_weights(folder):
    """Return True if a Hugging Face folder has a file of weights to read.

    In a folder of sentence-transformers, the file may be in a subfolder.
    """
    return any(
        os.path.exists(os.path.join(folder, inner, name))
        for inner in ("", *glob.glob(INNER, root_dir=folder))
        for name in (*SAFETENSORS, TENSORFLOW)
    )


def read_weights(folder):
    """Return dict of name as in PyTorch -> `Tensor`."""
    path = os.path.join(folder, WEIGHTS)
    if os.path.exists(path):
        stored = tensor_files.read_safetensors(path)
    elif os.path.exists(os.path.join(folder, INDEX)):
        stored = _read_shards(folder)
    elif os.path.exists(path := os.path.join(folder, TENSORFLOW)):
        return _complete_tied(_translate_tensors(read_h5(path), folder))
    else:
        unread = sorted(filter(is_unread, os.listdir(folder)))
        raise WeightsError(
            folder,
            "the folder has no safetensors file",
            CONVERT if unread else "Fetch the folder again",
            expected=f"{WEIGHTS}, {INDEX} or {TENSORFLOW}",
            found=unread[0] if unread else "none",
        )
    formats = [t.source.metadata.get("format") for t in stored.values()]
    if "tf" in formats:  # written by a TensorFlow class
        stored = _translate_tensors(stored, folder)
    return _complete_tied(stored)


def _complete_tied(stored):
    """Give a copy of a tied weight the weight's name, if there is only a copy.

    transformers 5 saves only `cls.predictions.decoder.bias` of some models.
    """
    by_name = {normalize_name(name): name for name in stored}
    for copy, name in ORIGINALS.items():
        if copy in by_name and name not in by_name:
            stored = {**stored, name: stored[by_name[copy]]}
            del stored[by_name[copy]]
    return stored


def _translate_tensors(stored, source):
    """Return the tensors of transformers' TensorFlow classes as in PyTorch."""
    found = {}
    for stored_name, tensor in stored.items():
        name = translate_name(stored_name)
        if name in found:
            raise WeightsError(
                source,
                f"{stored_name} and {found[name].name} are the same weight",
                "Remove one of the two tensors from the file",
            )
        is_kernel = re.search(r"/kernel(:0)?$", stored_name)
        found[name] = tensor.transpose() if is_kernel else tensor
    return found


def translate_name(name):
    """Return PyTorch's name for a weight of transformers' TensorFlow classes.

    A path in an HDF5 file is LAYER/MODEL/LAYER/..., a name in a safetensors
    file LAYER/.... In a part of a path, `A___B` stands for B, and `A_._B` for
    A/B.
    """
    parts = [
        part.split("___")[-1] for part in name.removesuffix(":0").split("/")
    ]
    start = len(parts) - 1 - parts[::-1].index(parts[0])
    parts = "/".join(parts[start:]).replace("_._", "/").split("/")
    ends = {"kernel": "weight", "embeddings": "weight", "gamma": "weight"}
    ends["beta"] = "bias"
    return ".".join([*parts[:-1], ends.get(parts[-1], parts[-1])])


def _read_shards(folder):
    index = tensor_files.read_json(os.path.join(folder, INDEX))
    found, read = {}, {}
    for name, file in index.object("weight_map").values.items():
        # `versions` checks the links of files with this ending.
        if not files.is_plain_name(file) or not file.endswith(".safetensors"):
            index.refuse(name, "a file in this folder, .safetensors", file)
        if file not in read:
            path = os.path.join(folder, file)
            read[file] = tensor_files.read_safetensors(path)
        if name not in read[file]:
            index.refuse(name, f"a tensor in {file}", "none")
        found[name] = read[file][name]
    return found


def normalize_name(name):
    """Return a tensor's current name in transformers, without `bert.`.

    Old conversions of TensorFlow weights call a LayerNorm's weight `gamma` and
    its bias `beta`.
    """
    name = name.removeprefix("bert.")
    name = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", name)
    return re.sub(r"(?<=LayerNorm\.)beta$", "bias", name)
