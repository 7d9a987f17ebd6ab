"""Hugging Face folders: config.json, model.safetensors, vocab.txt."""

import glob
import os

from bert_keras.files import is_plain_name
from bert_keras.interop import huggingface_config
from bert_keras.interop.checkpoint import Checkpoint, WeightsError
from bert_keras.interop.h5_file import read_h5
from bert_keras.interop.huggingface_names import from_keras, modern, names
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
    """The `Checkpoint` of a Hugging Face folder."""
    config = read_json(os.path.join(folder, CONFIG))
    huggingface_config.check_model(config)
    encoder = huggingface_config.read_encoder(config)
    head, arguments = huggingface_config.read_head(config)
    tensors, skipped = _read_weights(folder, head)
    return Checkpoint(
        source=str(folder),
        format="huggingface",
        encoder=encoder,
        head=head,
        head_arguments=arguments,
        tensors=tensors,
        skipped=skipped,
        read_text=text_reader(folder, config, encoder["max_sequence_length"]),
    )


def _read_weights(folder, head):
    """The tensors by the library's names, and the names left over."""
    path = os.path.join(folder, KERAS)
    if os.path.exists(path) and not has_weights(folder, SAFETENSORS):
        return renamed(read_h5(path), names(head), folder, from_keras)
    tensors, skipped = renamed(
        _read_safetensors(folder), names(head), folder, modern
    )
    for name, tensor in tensors.items():
        if name.endswith("/kernel"):  # (outputs, inputs) in the file
            tensors[name] = tensor.transposed()
    return tensors, skipped


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
