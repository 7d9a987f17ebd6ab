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
    """A layer's configuration less what no answer depends on.

    That is the names, which Keras numbers by the process, and what trains.
    """
    if not isinstance(config, dict):
        return config
    return {
        k: _without_names(v)
        for k, v in config.items()
        if k not in ("name", "adaptation")
    }


def already_there(folder, fingerprint):
    """Whether the same export is there, whole; refuses anything else.

    Where a file of it is damaged or missing it is to be written anew, unless
    that would remove files that are not its own.
    """
    if not (os.path.lexists(folder) or files.exists(folder)):
        return False
    try:
        card = files.read_json(os.path.join(folder, CARD))
        found, hashes = card["fingerprint"], dict(card["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        found, hashes = None, {}
    if found == fingerprint:
        return _is_whole(folder, hashes)
    if files.is_folder(folder) and not files.list_folder(folder):
        return False
    what = "another export" if found else "something else"
    raise InputError(
        f"{folder} is there and holds {what}. Name a new folder, or remove "
        "that one."
    )


def _is_whole(folder, hashes):
    """Whether every file has its hash; refuses to replace what has others."""
    there = {os.path.relpath(path, folder) for path in files.walk(folder)}
    if all(
        name in there and files.sha256(os.path.join(folder, name)) == digest
        for name, digest in hashes.items()
    ):
        return True
    others = sorted(there - {CARD, *hashes})
    if others:
        raise InputError(
            f"The export in {folder} is damaged, and other files are there "
            f"({', '.join(others[:5])}), which writing it anew would remove. "
            "Name a new folder."
        )
    return False
