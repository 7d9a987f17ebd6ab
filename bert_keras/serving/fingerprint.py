"""Whether a folder holds the very export that was asked for."""

import hashlib
import json
import os

import keras
import tensorflow as tf

import bert_keras
from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.serving.loading import CARD


def fingerprint_of(models, preprocessor, options):
    """One hash of all that decides what the export answers."""
    digest = hashlib.sha256()

    def add(value):
        digest.update(json.dumps(value, sort_keys=True).encode())

    add([bert_keras.__version__, tf.__version__, options])
    add(_without_names(preprocessor.get_config()))
    for model in models:
        add(_without_names(model.get_config()))
        for weight in model.weights:
            add([weight.dtype, list(weight.shape)])
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()


def _without_names(config):
    """A layer's configuration less what Keras numbers by the process."""
    if not isinstance(config, dict):
        return config
    return {k: _without_names(v) for k, v in config.items() if k != "name"}


def already_there(folder, fingerprint):
    """Whether the same export is there; refuses anything else."""
    if not (os.path.lexists(folder) or files.exists(folder)):
        return False
    try:
        card = files.read_json(os.path.join(folder, CARD))
        if card["fingerprint"] == fingerprint:
            return True
        what = "another export"
    except (OSError, ValueError, KeyError, TypeError):
        what = "something else"
    if files.is_folder(folder) and not files.list_folder(folder):
        return False
    raise InputError(
        f"{folder} is there and holds {what}. Name a new folder, or remove "
        "that one."
    )
