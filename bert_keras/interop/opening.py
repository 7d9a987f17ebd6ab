"""Opening of a preset, which is a path or a name: the table of formats."""

import dataclasses
import glob
import os
from collections.abc import Callable

from bert_keras import files, versions
from bert_keras.errors import InputError
from bert_keras.interop import (
    downloads,
    google,
    huggingface,
    keras_hub,
    model_garden,
    sentence_transformers,
)
from bert_keras.interop.block import CONFIG
from bert_keras.interop.tensors import Checkpoint, WeightsError, read_license

_EXTRACT = " Extract the archive and pass its folder."
_LOAD = " keras.models.load_model loads a model from such a file"
_FOLDER = " Pass the folder of this file."
# End of a file's name -> advice in the message that the file is no preset.
FILES = {
    **dict.fromkeys((".zip", ".tar.gz", ".tgz"), _EXTRACT),
    ".keras": f"{_LOAD}, after import bert_keras.",
    "tf_model.h5": _FOLDER,
    ".weights.h5": (
        " It has weights only: build the same model, and call its method "
        "load_weights with this file."
    ),
    ".h5": f"{_LOAD}; if it has weights only, a model's load_weights.",
    **dict.fromkeys((".safetensors", ".json", ".txt"), _FOLDER),
}


@dataclasses.dataclass(frozen=True)
class Format:
    """A row of `FORMATS`: how the files of one format are read.

    A path is a folder, or the prefix of a TensorFlow checkpoint.

    Attributes:
        title: name of the format, for messages.
        matches: function of a path; returns True if it has this format.
        open: function of a path and the name of the wanted model class, or
            None; returns the `Checkpoint`.
        read_text: function of the `Checkpoint`; returns its `TextSettings`, or
            None if there is no vocabulary.
        vocabulary: path of the vocabulary in the folder, for messages.
    """

    title: str
    matches: Callable
    open: Callable
    read_text: Callable
    vocabulary: str = "vocab.txt"


# The first row that matches opens the path. To add a format, add a row and a
# file with its three functions, and its files to `MODEL` of versions.py.
FORMATS = {
    "sentence_transformers": Format(
        "sentence-transformers",
        sentence_transformers.matches,
        sentence_transformers.open_folder,
        sentence_transformers.read_text,
    ),
    "keras_hub": Format(
        "keras-hub",
        keras_hub.matches,
        keras_hub.open_folder,
        keras_hub.read_text,
        keras_hub.VOCABULARY,
    ),
    "huggingface": Format(
        "Hugging Face",
        huggingface.matches,
        huggingface.open_folder,
        huggingface.read_text,
    ),
    "model_garden": Format(
        "Model Garden, TF Hub",
        model_garden.matches,
        model_garden.open_path,
        model_garden.read_text,
    ),
    "google": Format(
        "TensorFlow 1", google.matches, google.open_path, google.read_text
    ),
}
_TITLES = ", ".join(row.title for row in FORMATS.values())
_EXPECTED = (
    f"Expected the folder of a run or of weights ({_TITLES}), or a name: "
    "org/name on the Hugging Face Hub, or one of bert_keras.presets()."
)


def open_checkpoint(preset, wanted=None, *, revision=None):
    """Return the `Checkpoint` of a preset.

    Args:
        preset: path of a checkpoint in any known format, `org/name` or
            `hf://org/name` on the Hugging Face Hub, or a name of
            `bert_keras.presets()`. A `Checkpoint` is returned unchanged, unless
            `wanted` is one of its `fitting_heads`.
        wanted: name of the model class to load. It decides the head if the
            files name no class and the tensors fit several.
        revision: branch, tag or commit on the Hub.

    Raises:
        InputError: `preset` is neither a string nor a path, does not exist or
            has no known format, or `revision` is given for a preset that is
            not on the Hub.
    """
    if isinstance(preset, Checkpoint):
        return _choose_head(preset, wanted)
    if not isinstance(preset, str | os.PathLike):
        raise InputError(
            f"The preset is {preset!r}. Expected a path or a name as a string."
        )
    path, name = _locate(os.fspath(preset), revision)
    if files.is_remote(path):
        raise InputError(
            f"{path} is not a local path, but weights are only read from "
            "local folders. Copy the folder here and pass the copy's path."
        )
    if not os.path.isdir(path) and not os.path.isfile(f"{path}.index"):
        _refuse_path(path)
    return versions.read_unchanged(path, lambda: _open_path(path, name, wanted))


def _choose_head(checkpoint, wanted):
    """Open the files of a checkpoint again, if `wanted` is a possible head."""
    if wanted not in checkpoint.fitting_heads:
        return checkpoint
    path, name = checkpoint.path, checkpoint.origin
    again = versions.read_unchanged(
        path, lambda: _open_path(path, name, wanted)
    )
    checkpoint.check_unchanged()
    return again


def _locate(preset, revision):
    """Return (path, name) of a preset; download it if it is not here.

    The name is None, unless the preset is in this package or on the Hub.
    """
    is_path = os.path.exists(preset) or os.path.exists(f"{preset}.index")
    if is_path and revision is None:
        return find_model_folder(preset), None
    on_hub = None
    if not is_path:
        on_hub = downloads.hub_name(downloads.HUB_NAMES.get(preset, preset))
    if on_hub is not None:
        return downloads.fetch_from_hub(on_hub, revision)
    if revision is not None:
        raise InputError(
            f"`revision` is {revision!r}, but {preset} is not on the Hub. "
            "Leave revision out."
        )
    if preset in downloads.packaged_names():
        return os.path.join(downloads.PACKAGED, preset), preset
    released = downloads.ALIASES.get(preset, preset)
    if released in downloads.RELEASED:
        return downloads.fetch_release(released), None
    return preset, None


def find_model_folder(path):
    """Return `path/model` if `path` is the folder of a run, else `path`."""
    inner = os.path.join(os.fspath(path), "model")
    is_run = os.path.isfile(os.path.join(inner, CONFIG))
    is_run = is_run and not os.path.isfile(os.path.join(path, CONFIG))
    return inner if is_run else path


def _refuse_path(path):
    if os.path.exists(path):
        files.check_file(path)
    advice = [text for end, text in FILES.items() if str(path).endswith(end)]
    raise InputError(
        f"No supported checkpoint at {path}.{downloads.suggest_names(path)}"
        f"{''.join(advice[:1])} {_EXPECTED}"
    )


def _open_path(path, name, wanted):
    """Return the `Checkpoint` of a path; `name` is the preset's, or None."""
    known = (row for row in FORMATS.values() if row.matches(path))
    row = next(known, None)
    if row is None:
        raise InputError(
            f"No supported checkpoint in the folder {path}."
            f"{_suggest_inner_folders(path)} {_EXPECTED}"
        )
    checkpoint = row.open(path, wanted)
    license = checkpoint.license
    if license is None and os.path.isdir(path):
        license = read_license(path)
    data = {tensor.file for tensor in checkpoint.tensors.values()}
    return dataclasses.replace(
        checkpoint,
        source=name or checkpoint.source,
        origin=name or checkpoint.origin,
        license=license,
        check_unchanged=versions.make_check(path, data),
    )


def _suggest_inner_folders(folder):
    root = glob.escape(folder)
    configs = [
        path
        for depth in ("*", "*/*")
        for path in sorted(glob.glob(os.path.join(root, depth, CONFIG)))
    ]
    if not configs:
        return ""
    names = " or ".join(os.path.dirname(path) for path in configs[:3])
    return f" Did you mean {names}?"


def read_text(checkpoint):
    """Return the `TextSettings` of a checkpoint; None without a vocabulary.

    Raises:
        WeightsError: the files have faults or have changed, or the vocabulary
            has more tokens than the weights.
    """
    row = FORMATS[checkpoint.format]
    try:
        text = row.read_text(checkpoint)
    finally:
        checkpoint.check_unchanged()
    size = checkpoint.encoder["vocabulary_size"]
    if text is not None and len(text.pieces) > size:
        raise WeightsError(
            checkpoint.source,
            "the vocabulary does not belong to the weights",
            f"Put the model's {row.vocabulary} next to the weights",
            expected=f"at most {size} tokens",
            found=f"{len(text.pieces)}",
        )
    return text
