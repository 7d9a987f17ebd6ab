"""Which format a folder or file has, by what it holds."""

import glob
import os
import zipfile

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.google import open_google
from bert_keras.interop.google_zip import open_google_zip
from bert_keras.interop.huggingface import open_huggingface
from bert_keras.interop.json_file import read_json
from bert_keras.interop.keras_hub import open_keras_hub
from bert_keras.interop.license import license_of
from bert_keras.interop.model_garden import (
    open_model_garden,
    open_saved_model,
)
from bert_keras.interop.own import FORMAT, open_own
from bert_keras.interop.released import nearest
from bert_keras.interop.sentence_transformers import (
    MODULES,
    open_sentence_transformers,
)
from bert_keras.interop.tensor_bundle import read_index
from bert_keras.interop.tf_checkpoint import OBJECT_GRAPH, find_prefix

KNOWN = (
    "a folder of this package, of Hugging Face, of sentence-transformers or "
    "of keras-hub, a checkpoint or a zip of the original, a checkpoint of "
    "Model Garden, a SavedModel of TF Hub; or a name: org/name on the Hugging "
    "Face Hub, or one that the original released"
)


def open_path(path):
    """The `Checkpoint` of a folder, a zip or a checkpoint's prefix.

    Raises:
        InputError: it is none of the known formats.
    """
    _check_local(path)
    if os.path.isdir(path):
        checkpoint = _open_folder(path)
        checkpoint.license = checkpoint.license or license_of(path)
        return checkpoint
    if os.path.isfile(f"{path}.index"):
        return _open_tensorflow(str(path), path)
    if os.path.exists(path):
        files.check_file(path)
        if zipfile.is_zipfile(path):
            return open_google_zip(path)
    raise InputError(
        f"{path} is no weights that are known.{nearest(str(path))} Expected "
        f"{KNOWN}."
    )


def _check_local(path):
    if files.is_remote(path):
        raise InputError(
            f"{path} is on another machine; weights are read from this one. "
            "Copy the folder here and give its path."
        )


def _open_folder(folder):
    if os.path.exists(os.path.join(folder, MODULES)):
        return open_sentence_transformers(folder)
    config = os.path.join(folder, "config.json")
    if os.path.exists(config):
        fields = read_json(config)
        if fields.raw("format") == FORMAT:
            return open_own(folder)
        if "registered_name" in fields:  # as Keras serializes a class
            return open_keras_hub(folder)
        return open_huggingface(folder)
    if os.path.exists(os.path.join(folder, "saved_model.pb")):
        return open_saved_model(folder)
    prefix = find_prefix(folder)
    if prefix is None:
        raise InputError(
            f"The folder {folder} holds no weights that are known."
            f"{_within(folder)} Expected {KNOWN}."
        )
    return _open_tensorflow(prefix, folder)


def _within(folder):
    """A sentence that names the model folders in the folder of a run."""
    root = glob.escape(folder)
    settings = [
        path
        for depth in ("*", "*/*")
        for path in sorted(glob.glob(os.path.join(root, depth, "config.json")))
    ]
    if not settings:
        return ""
    found = " or ".join(os.path.dirname(path) for path in settings[:3])
    return f" Did you mean {found}?"


def _open_tensorflow(prefix, source):
    """By name, as the original wrote, or by object, as TensorFlow 2 does."""
    if OBJECT_GRAPH in read_index(prefix):
        return open_model_garden(prefix, source)
    return open_google(prefix, source)


def is_path(preset):
    """Whether the preset is there as a file, a folder or a checkpoint."""
    return os.path.exists(preset) or os.path.exists(f"{preset}.index")
