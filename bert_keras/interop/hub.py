"""Folders on the Hugging Face Hub, through `huggingface_hub`."""

import os
import re

from bert_keras.errors import InputError

PREFIX = "hf://"
# Settings, tokenizer and safetensors; nothing that could be run or unpickled.
WANTED = (
    "config.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "modules.json",
    "sentence_bert_config.json",
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
        )
    return None


def fetch(name, revision=None):
    """Local folder of `org/name`, and its source with the commit.

    Tokens, cache and offline mode are as `huggingface_hub` has them.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ModuleNotFoundError:
        raise InputError(
            f"{name} is no folder here; to fetch it from the Hugging Face "
            "Hub, install huggingface-hub: pip install bert_keras[hub]."
        ) from None
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=list(WANTED)
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{name} is no folder here, and cannot be fetched from the "
            f"Hugging Face Hub ({reason}). Check the name, or fetch the "
            "folder by hand and give its path."
        ) from None
    # The cache calls the folder by the commit.
    return folder, f"{PREFIX}{name}@{os.path.basename(folder)}"
