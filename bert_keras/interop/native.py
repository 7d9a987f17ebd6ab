"""The native folder, read and written: config.json, model.safetensors and
vocab.txt.

No class is ever looked up by the name in it: the name only says whose head
the weights belong to.
"""

import os

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop.tensor_files import (
    read_json,
    read_safetensors,
    write_safetensors,
)
from bert_keras.interop.tensors import (
    LICENSE,
    Checkpoint,
    License,
    WeightsError,
    license_of,
    settings_of_start,
    write_license,
)
from bert_keras.interop.text_settings import (
    check_fits,
    read_settings,
    settings_of,
    text_reader,
    write_pieces,
)
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import published_weights, untrained_weights

FORMAT = "bert_keras"
FORMAT_VERSION = 1
# More than any model has; a bound for a settings file that lies.
MOST_LAYERS = 1000
# What an encoder is. How it ran (dtype, name, rematerialize) is not kept.
ENCODER = (
    *DIMENSIONS,
    "dropout",
    "attention_dropout",
    "activation",
    "attention",
    "norm_epsilon",
)
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocab.txt"


def open_native(folder):
    """The `Checkpoint` of a folder that `save_native` wrote."""
    config = read_json(os.path.join(folder, CONFIG))
    version = config.integer("format_version")
    if version > FORMAT_VERSION:
        raise WeightsError(
            config.path,
            "a newer version of bert_keras wrote this",
            "Install the newer version",
            expected=f"format_version up to {FORMAT_VERSION}",
            found=f"{version}",
        )
    return Checkpoint(
        source=str(folder),
        format=FORMAT,
        encoder=_encoder(config.object("encoder")),
        head=config.text("class"),
        head_arguments=_arguments(config.object("arguments", {})),
        tensors=read_safetensors(os.path.join(folder, WEIGHTS)),
        skipped=[],
        read_text=text_reader(
            os.path.join(folder, VOCABULARY), lambda: read_settings(config)
        ),
        embedding=config.object("embedding", {}).values or None,
        origin=config.text("source") if "source" in config else None,
        license=_license(folder, config),
        initializer_range=config.handed_on("initializer_range"),
        untrained=config.texts("untrained", []),
    )


def _license(folder, config):
    if "license" not in config:
        return None
    stated = license_of(folder)
    return License(config.text("license"), stated and stated.text)


def _encoder(settings):
    unknown = sorted(set(settings.values) - set(ENCODER))
    if unknown:
        known = ", ".join(sorted(ENCODER))
        settings.refuse(unknown[0], f"one of {known}", "another")
    for name in DIMENSIONS:
        settings.integer(name, maximum=MOST_LAYERS if "num" in name else 2**31)
    for name in ("dropout", "attention_dropout"):
        settings.share(name)
    for name in ("activation", "attention"):
        settings.text(name)
    epsilon = settings.raw("norm_epsilon", 1e-12)
    if type(epsilon) is not float or not 0 < epsilon < 1:
        settings.refuse("norm_epsilon", "a number above 0, below 1", epsilon)
    return {**settings.values, "norm_epsilon": epsilon}


def _arguments(settings):
    """The head's arguments; those of the library's own heads are checked."""
    if "labels" in settings:
        settings.texts("labels")
    if "problem" in settings:
        settings.text("problem")
    if "dropout" in settings:
        settings.share("dropout")
    if settings.raw("mlm_activation") is not None:
        settings.text("mlm_activation")
    if settings.raw("mlm_norm_epsilon") is not None:
        settings.share("mlm_norm_epsilon")
    if "bilstm_dim" in settings:
        settings.integer("bilstm_dim", maximum=2**20)
    if "pooling" in settings:
        settings.text("pooling")
    for name in ("may_be_none", "pair", "normalize"):
        if name in settings:
            settings.boolean(name)
    if "name" in settings.values:
        settings.refuse("name", "no name, which is the caller's", "one")
    return _unpacked(settings.values)


def _unpacked(arguments):
    """A head's, for one example a row: the caller says again how many."""
    once = {"examples_per_row": None}
    return {k: once.get(k, value) for k, value in arguments.items()}


def save_native(folder, model, preprocessor=None, without=(), kind="F32"):
    """Writes the folder to a temporary name, then renames it.

    The optimizer's state does not go into it.

    Args:
        folder: where to.
        model: `BertEncoder` or a task model.
        preprocessor: its `BertPreprocessor`; no vocabulary is written without.
        without: names of weights to leave out: loading draws them at random.
        kind: of numbers in the file, as safetensors names it: "F32", or
            "BF16" for half the bytes and 8 bits of precision.

    Returns:
        the names of the weights that were left out.
    """
    if preprocessor is not None:
        check_fits(model, preprocessor)
    check_replaceable(folder, (CONFIG, WEIGHTS, VOCABULARY, LICENSE))
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        files.write_json(
            _config(model, preprocessor), os.path.join(partial, CONFIG)
        )
        tensors = {
            name: (tuple(weight.shape), weight.numpy)
            for name, weight in sorted(published_weights(model).items())
            if name not in without
        }
        write_safetensors(os.path.join(partial, WEIGHTS), tensors, kind)
        if preprocessor is not None:
            write_pieces(preprocessor, os.path.join(partial, VOCABULARY))
        write_license(getattr(model, "encoder", model).license, partial)
    return list(without)


def check_replaceable(folder, names):
    """Refuses a folder that holds anything but what is written again."""
    if not files.is_folder(folder):
        return
    others = sorted(set(files.list_folder(folder)) - set(names))
    if others:
        raise InputError(
            f"The folder {folder} holds other files ({', '.join(others[:5])})"
            ", which saving would remove. Name a new folder."
        )


def _config(model, preprocessor):
    encoder = getattr(model, "encoder", model)
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "class": type(model).__name__,
        "encoder": {name: getattr(encoder, name) for name in ENCODER},
        "arguments": _unpacked(model.arguments())
        if model is not encoder
        else {},
    }
    if encoder.origin is not None:
        config["source"] = encoder.origin
    if encoder.license is not None and encoder.license.name:
        config["license"] = encoder.license.name
    config |= settings_of_start(model)
    untrained = untrained_weights(model)
    if untrained:
        config["untrained"] = untrained
    if hasattr(model, "sentence_embedding"):
        config["embedding"] = dict(model.sentence_embedding)
    if preprocessor is not None:
        config |= settings_of(preprocessor)
    return config
