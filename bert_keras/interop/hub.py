"""Folders on the Hugging Face Hub, through `huggingface_hub`."""

import os
import re

from bert_keras.errors import InputError
from bert_keras.interop.huggingface import (
    INNER,
    KERAS,
    SAFETENSORS,
    has_weights,
    places,
)
from bert_keras.interop.released import nearest
from bert_keras.interop.torch_pickle import is_pickle

PREFIX = "hf://"
# Settings, tokenizer and safetensors; nothing that could be run or unpickled.
# Where a folder has no safetensors, tf_model.h5 is asked for after these.
MODEL = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "sentence_bert_config.json",
)
WANTED = (
    *MODEL,
    *(f"{INNER}/{name}" for name in MODEL),
    "modules.json",
    "*_Pooling/config.json",
    "README.md",  # states the licence
    "LICENSE*",
)


def hub_name(preset):
    """`org/name` of a preset that names a folder on the Hub, or None."""
    name = preset.removeprefix(PREFIX)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and ".." not in name:
        return name
    if preset.startswith(PREFIX):
        raise InputError(
            f"{preset} is no name on the Hub. Expected {PREFIX}org/name."
            f"{nearest(preset)}"
        )
    return None


def fetch(name, revision=None):
    """Local folder of `org/name`, and its source with the commit.

    Tokens, cache and offline mode are as `huggingface_hub` has them.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise InputError(
            f"{name} is no folder here; to fetch it from the Hugging Face "
            "Hub, install huggingface-hub: pip install bert_keras[hub]."
        ) from None
    folder = _asked(
        huggingface_hub.snapshot_download,
        name,
        revision=revision,
        allow_patterns=list(WANTED),
    )
    commit = os.path.basename(folder)  # the cache calls the folder by it
    if not _has_weights(folder, SAFETENSORS):
        _asked(
            huggingface_hub.snapshot_download,
            name,
            revision=commit,
            allow_patterns=[
                os.path.join(place, KERAS) for place in places(folder)
            ],
        )
    if not _has_weights(folder):
        _refuse_pickle(
            name,
            _asked(huggingface_hub.list_repo_files, name, revision=commit),
        )
    return folder, f"{PREFIX}{name}@{commit}"


def _has_weights(folder, *kinds):
    inside = (os.path.join(folder, place) for place in places(folder))
    return any(has_weights(place, *kinds) for place in inside)


def _asked(function, name, **arguments):
    """What the Hub answers, or why it does not in one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return function(name, **arguments)
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{name} is no folder here, and cannot be fetched from the "
            f"Hugging Face Hub ({reason}).{nearest(name)} Check the name, or "
            "fetch the folder by hand and give its path."
        ) from None


def _refuse_pickle(name, listed):
    """Tells the way out where the Hub has nothing but a pickle."""
    pickles = [file for file in listed if is_pickle(os.path.basename(file))]
    if pickles:
        raise InputError(
            f"{name} has its weights as a pickle alone ({pickles[0]}), which "
            "can run any code when it is read. Fetch the folder by hand and "
            "convert it once, apart, with python -m "
            "official_tasks.tools.convert_checkpoint --allow_torch."
        )
