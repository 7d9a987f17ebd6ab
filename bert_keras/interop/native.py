"""The native files, read and written: the folder of a model, and LoRA's.

The folder has config.json, model.safetensors and vocab.txt. No class is ever
looked up by the name in it: it only says whose head the weights belong to.
"""

import contextlib
import json
import math
import os
from typing import TYPE_CHECKING

import numpy as np

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.interop import tensor_files, tensors, text_settings
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling import weights
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import in_encoder, published_weights

if TYPE_CHECKING:  # what `presets.py` imports at the top needs no Keras
    import keras

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
WRITTEN = (CONFIG, WEIGHTS, VOCABULARY)


def open_native(folder):
    """The `Checkpoint` of a folder that `save_native` wrote."""
    config = tensor_files.read_json(os.path.join(folder, CONFIG))
    version = config.integer("format_version")
    if version > FORMAT_VERSION:
        raise WeightsError(
            config.path,
            "a newer version of bert_keras wrote this",
            "Install the newer version",
            expected=f"format_version up to {FORMAT_VERSION}",
            found=f"{version}",
        )
    return tensors.Checkpoint(
        source=str(folder),
        format=FORMAT,
        encoder=_encoder(config.object("encoder")),
        head=config.text("class"),
        head_arguments=_arguments(config.object("arguments", {})),
        tensors=tensor_files.read_safetensors(os.path.join(folder, WEIGHTS)),
        skipped=[],
        read_text=text_settings.text_reader(
            os.path.join(folder, VOCABULARY),
            lambda: text_settings.read_settings(config),
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
    stated = tensors.license_of(folder)
    return tensors.License(config.text("license"), stated and stated.text)


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
    return {**settings.values, "norm_epsilon": settings.epsilon("norm_epsilon")}


def _arguments(settings):
    """The head's arguments; those of the library's own heads are checked."""
    checks = {
        "labels": settings.texts,
        "problem": settings.text,
        "dropout": settings.share,
        "mlm_activation": settings.text,
        "mlm_norm_epsilon": settings.share,
        "may_be_none": settings.boolean,
        "pair": settings.boolean,
        "pooling": settings.text,
        "normalize": settings.boolean,
    }
    for name in filter(settings.__contains__, checks):
        checks[name](name)
    if "bilstm_dim" in settings:
        settings.integer("bilstm_dim", maximum=2**20)
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
    with new_folder(folder, WRITTEN, model, preprocessor) as partial:
        config = _config(model, preprocessor)
        files.write_json(config, os.path.join(partial, CONFIG))
        numbers = {
            name: (tuple(weight.shape), weight.numpy)
            for name, weight in sorted(published_weights(model).items())
            if name not in without
        }
        path = os.path.join(partial, WEIGHTS)
        tensor_files.write_safetensors(path, numbers, kind)
        if preprocessor is not None:
            path = os.path.join(partial, VOCABULARY)
            text_settings.write_pieces(preprocessor, path)
    return list(without)


@contextlib.contextmanager
def new_folder(folder, names, model, preprocessor):
    """An empty folder of a temporary name, which in the end becomes `folder`.

    The licence of the weights goes into it.

    Args:
        folder: where to; may hold what is written again, and nothing else.
        names: of the files that are written, but for the licence.
        model: the model.
        preprocessor: its `BertPreprocessor`, or None.
    """
    if preprocessor is not None:
        text_settings.check_fits(model, preprocessor)
    there = files.list_folder(folder) if files.is_folder(folder) else ()
    others = sorted(set(there) - {*names, tensors.LICENSE})
    if others:
        raise InputError(
            f"The folder {folder} holds other files ({', '.join(others[:5])})"
            ", which saving would remove. Name a new folder."
        )
    with files.written_beside(folder) as partial:
        os.mkdir(partial)
        yield partial
        license = getattr(model, "encoder", model).license
        tensors.write_license(license, partial)


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
    config |= tensors.settings_of_start(model)
    untrained = weights.untrained_weights(model)
    if untrained:
        config["untrained"] = untrained
    if hasattr(model, "sentence_embedding"):
        config["embedding"] = dict(model.sentence_embedding)
    if preprocessor is not None:
        config |= text_settings.settings_of(preprocessor)
    return config


# What LoRA fine-tuning trains, in a file of its own: A and B of each adapted
# kernel under the names of `published_weights`, the head, and as text whose
# they are.

KEY = "bert_keras_lora"  # of the metadata
OTHERS = "Load it into a model like the one that was saved"


def save_lora(model: "keras.Model", path: files.PathLike) -> None:
    """Writes what trains in a model with LoRA: its matrices and the head.

    Some hundred kB, apart from the encoder, whose weights it lacks:
    `load_lora` puts it on the same ones again.

    Args:
        model: a task model or encoder after `enable_lora`.
        path: file to write, such as "reviews.safetensors"; replaced where it
            is there.

    Raises:
        InputError: the model has no LoRA.
    """
    layers = weights.lora_layers(model)
    if not layers:
        raise InputError(
            "The model has no LoRA to save. Call enable_lora(model, rank) "
            "before training, or save all weights by save_preset."
        )
    about = {
        "class": type(model).__name__,
        "labels": getattr(model, "labels", None),
        "encoder": _numbers_of(model),
        "alpha": {_name(model, layer): layer.lora_alpha for layer in layers},
    }
    by_name = {_name(model, weight): weight for weight in model.weights}
    numbers = {
        name: (tuple(by_name[name].shape), by_name[name].numpy)
        for name in weights.in_use(model, by_name)
        if by_name[name].trainable or not in_encoder(name)
    }
    with files.written_beside(path) as partial:
        tensor_files.write_safetensors(
            partial, numbers, metadata={KEY: json.dumps(about)}
        )


def load_lora(
    model: "keras.Model", path: files.PathLike, merge: bool = False
) -> None:
    """Puts what `save_lora` wrote onto a model with the same encoder.

    A model without LoRA gets it, of the file's rank, and is frozen as
    `enable_lora` does; call it before `compile`.

    Args:
        model: as saved, with the weights that training began with, such as
            `BertClassifier.from_preset(preset, labels=labels)`.
        path: the file.
        merge: adds A B to the kernels instead; the model stays without LoRA
            and as fast as before.

    Raises:
        InputError: a file that is none of `save_lora`, or of another class,
            other labels, an encoder of another size or form, or another
            rank than the model has; or the file lacks a weight that is random
            in the model.
    """
    found = tensor_files.read_safetensors(path)
    alpha = _read_alpha(model, path)
    bases = published_weights(model)
    layers = {
        _name(model, layer): layer
        for layer in model._flatten_layers()
        if hasattr(layer, "enable_lora")
    }
    expected = {  # shapes
        name: tuple(weight.shape)
        for name, weight in bases.items()
        if name in found or not in_encoder(name)
    }
    adapted, ranks = {}, {}
    for name in alpha:
        kind = "kernel" if f"{name}/kernel" in bases else "embeddings"
        adapted[name] = f"{name}/{kind}"
        is_there = name in layers and adapted[name] in bases
        inputs, outputs = bases[adapted[name]].shape if is_there else (0, 0)
        down, up = (f"{name}/lora_{kind}_{side}" for side in "ab")
        shape = [*found[down].shape] if down in found else []
        ranks[name] = shape[1] if len(shape) == 2 else 0
        expected |= {down: (inputs, ranks[name]), up: (ranks[name], outputs)}
    _check_shapes(path, found, expected)
    random = weights.in_use(model, weights.untrained_weights(model))
    random = [n for n in random if in_encoder(n) and n not in found]
    if random:
        raise WeightsError(
            path,
            f"the file lacks {', '.join(random)}, random in this model",
            OTHERS,
        )
    present = {
        _name(model, layer): layer.lora_rank
        for layer in weights.lora_layers(model)
    }
    if present and (merge or present != ranks):
        raise WeightsError(
            path,
            f"the file has LoRA {_format_ranks(ranks)}, and the model has it "
            f"already, {_format_ranks(present)}",
            "Load it into a model without LoRA, which takes the file's",
        )
    numbers = {name: tensor.numbers() for name, tensor in found.items()}
    for name, base in adapted.items():
        if not merge and not present:
            layers[name].enable_lora(ranks[name], lora_alpha=alpha[name])
        elif merge:
            kind = base.rpartition("/")[2]
            down, up = (numbers[f"{name}/lora_{kind}_{side}"] for side in "ab")
            change = alpha[name] / ranks[name] * np.matmul(down, up)
            numbers[base] = bases[base].numpy() + change
        else:
            layers[name].lora_alpha = alpha[name]
    if not merge:
        weights.freeze_encoder(model, found)
    for weight in model.weights:
        if _name(model, weight) in numbers:
            weight.assign(numbers[_name(model, weight)])


def _numbers_of(model):
    """What makes the encoder's numbers mean something else."""
    encoder = getattr(model, "encoder", model)
    names = (*DIMENSIONS, "activation", "attention", "norm_epsilon")
    return {name: getattr(encoder, name) for name in names}


def _name(model, part):
    return weights.published_name(model, part.path)


def _format_ranks(ranks):
    each = sorted(set(ranks.values()))
    return f"of rank {', '.join(map(str, each))} on {len(ranks)} layers"


def _read_alpha(model, path):
    """Alpha by the names of the layers, of a file that is for this model."""
    text = tensor_files.read_metadata(path).get(KEY)
    if text is None:
        raise WeightsError(
            path,
            "this is not a file of save_lora",
            "Give one, or load an entire model by from_preset",
        )
    try:
        about = tensor_files.Fields(dict(files.parse_json(text)), path)
    except (ValueError, TypeError) as error:
        raise WeightsError(path, f"the header is damaged ({error})") from None
    for what, expected, value in (
        ("class", type(model).__name__, about.text("class")),
        ("labels", getattr(model, "labels", None), about.raw("labels")),
        *(
            (name, value, about.object("encoder").values.get(name))
            for name, value in _numbers_of(model).items()
        ),
    ):
        if value != expected:
            raise WeightsError(
                path,
                f"the file is for a model with another {what}",
                OTHERS,
                expected=expected or "none",
                found=value or "none",
            )
    alpha = about.object("alpha").values
    for name, value in alpha.items():
        if type(value) not in (int, float) or not 0 < value < math.inf:
            about.refuse(f"alpha of {name}", "a number above 0", value)
    return alpha


def _check_shapes(path, found, expected):
    for name in sorted({*found, *expected}):
        shape = tuple(found[name].shape) if name in found else "none"
        if shape != expected.get(name) or not all(shape):
            raise WeightsError(
                path,
                "the file is for a model of another size",
                OTHERS,
                tensor=name,
                expected=expected.get(name, "none"),
                found=shape,
            )
