"""The file of what LoRA fine-tuning trains, written and read.

It has A and B of each adapted kernel under the names of `published_weights`,
the head, and in its metadata the model that they belong to.
"""

import json
import math
from typing import TYPE_CHECKING

import numpy as np

from bert_keras import files, json_files
from bert_keras.errors import InputError
from bert_keras.interop import tensor_files
from bert_keras.interop.tensors import WeightsError
from bert_keras.modeling import weights
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import in_encoder, published_weights
from bert_keras.safetensors_files import write_safetensors

if TYPE_CHECKING:
    import keras

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
        name: ("float32", tuple(by_name[name].shape), by_name[name].numpy)
        for name in weights.drop_unused_pooler(model, by_name)
        if by_name[name].trainable or not in_encoder(name)
    }
    with files.atomic_output(path) as partial:
        write_safetensors(
            partial,
            numbers,
            {"format": "pt", KEY: json.dumps(about)},
            is_finite=True,
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
    random = weights.drop_unused_pooler(model, weights.untrained_weights(model))
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
    numbers = {name: tensor.load() for name, tensor in found.items()}
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
        about = tensor_files.Fields(dict(json_files.parse_json(text)), path)
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
