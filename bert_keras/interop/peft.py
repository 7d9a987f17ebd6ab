"""Reader and writer of PEFT's folders of LoRA adapters.

`adapter_model.safetensors` has the matrices A and B of each adapted kernel, and
the other trained weights, such as the head. If bert_keras wrote the file, the
metadata of the file states the model's class, labels and sizes.
"""

import json
import math
import os
import re
from typing import TYPE_CHECKING

import numpy as np

from bert_keras import files, json_files, versions
from bert_keras.errors import InputError
from bert_keras.interop import (
    distilbert,
    huggingface,
    huggingface_weights,
    tensor_files,
)
from bert_keras.interop.head_table import HEADS
from bert_keras.interop.saving import new_folder
from bert_keras.interop.tensor_files import FRACTION
from bert_keras.interop.tensors import LICENSE, WeightsError, run_checks
from bert_keras.json_files import BOOLEAN
from bert_keras.modeling import weights
from bert_keras.modeling.sizes import DIMENSIONS
from bert_keras.modeling.weights import in_encoder, published_weights
from bert_keras.safetensors_files import write_safetensors

if TYPE_CHECKING:
    import keras

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
KEY = "bert_keras"  # key of our entry in the metadata
USE_SAME_MODEL = "Load the adapters into the model that training began with"
# Refused settings. `enable_lora` only changes a kernel W to
# W + (alpha / rank) A B. It cannot make a model with one of these settings.
REFUSED = (
    *("use_dora", "lora_bias", "fan_in_fan_out", "layer_replication"),
    *("trainable_token_indices", "target_parameters", "use_qalora"),
    "alora_invocation_tokens",
)
# PEFT's initializers of A and B that do not change the pre-trained kernel W.
INITIALIZERS = ("gaussian", "eva", "orthogonal")
_LORA = re.compile(r"(.+)\.lora_([AB])\.weight")


def save_lora(model: "keras.Model", folder: files.PathLike) -> None:
    """Write a model's LoRA matrices and head to a folder in PEFT's format.

    The encoder's other trainable weights are written too. The folder is small
    (about 1 MB for BERT base with rank 8), because it lacks the encoder's
    frozen weights. `load_lora` loads it into a bert_keras model, and
    `peft.PeftModel.from_pretrained` into a transformers model. Either model
    needs the encoder weights that training began with.

    Args:
        model: a task model or `BertEncoder` with LoRA; see `enable_lora`.
        folder: output folder; older adapters in it are replaced.

    Raises:
        InputError: the model has no LoRA, has LoRA on an embedding table, or
            has NaN or infinity in a weight, or the folder holds other files.

    Examples:
        >>> import os, tempfile
        >>> from bert_keras import BertEncoder, enable_lora, save_lora
        >>> encoder = BertEncoder.from_preset("bert_keras_mini_en")
        >>> enable_lora(encoder, rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_lora(encoder, folder)
        ...     os.path.exists(f"{folder}/adapter_model.safetensors")
        True
    """
    layers = {
        _name(model, layer): layer for layer in weights.lora_layers(model)
    }
    if not layers:
        raise InputError(
            "The model has no LoRA to save. Call enable_lora(model, rank) "
            "before training, or save all weights with save_preset."
        )
    names = huggingface.tensor_names(model, published_weights(model))
    modules = {}
    for name in layers:
        if f"{name}/kernel" not in names:
            raise InputError(
                f"PEFT needs a kernel, but the layer {name} has none. Save all "
                "weights with save_preset."
            )
        modules[name] = names[f"{name}/kernel"].removesuffix(".weight")
    arrays = {}
    for name, layer in layers.items():
        for side in "AB":
            weight = getattr(layer, f"lora_kernel_{side.lower()}")
            arrays[f"{modules[name]}.lora_{side}.weight"] = _transpose(weight)
    trained = _collect_weights(model, names)
    arrays |= trained
    saved = {name.removeprefix("bert.").split(".")[0] for name in trained}
    with new_folder(folder, (CONFIG, WEIGHTS, LICENSE), model, None) as partial:
        write_safetensors(
            os.path.join(partial, WEIGHTS),
            {PREFIX + k: ("float32", *array) for k, array in arrays.items()},
            {"format": "pt", KEY: json.dumps(_describe(model))},
            is_finite=True,
        )
        config = _make_config(model, layers, modules, sorted(saved))
        json_files.write_json(config, os.path.join(partial, CONFIG))


def _collect_weights(model, names):
    """Return the head's weights and the encoder's trainable weights.

    The LoRA matrices and an unused pooler are left out.

    `names` is a dict of weight name in bert_keras -> name in transformers.

    Returns:
        dict of name in transformers -> (shape, function that returns values).
    """
    by_name = {_name(model, weight): weight for weight in model.weights}
    arrays = {}
    for name in weights.drop_unused_pooler(model, names):
        weight, stored = by_name[name], names[name]
        if in_encoder(name) and not weight.trainable:
            continue
        is_kernel = name.endswith("/kernel") and stored != name
        plain = tuple(weight.shape), weight.numpy
        arrays[stored] = _transpose(weight) if is_kernel else plain
    return arrays


def _transpose(weight):
    """Return (shape, function that returns the values) of a kernel's transpose.

    PyTorch stores a kernel as (outputs, inputs).
    """
    return tuple(weight.shape)[::-1], lambda: weight.numpy().T


def _make_config(model, layers, modules, saved):
    """Return the fields of adapter_config.json.

    Args:
        model: the model.
        layers: dict of name in bert_keras -> layer with LoRA.
        modules: dict of name in bert_keras -> name in transformers.
        saved: names in transformers of the modules that are saved whole.
    """
    first = next(iter(layers.values()))
    row = HEADS.get(type(model).__name__)
    encoder = getattr(model, "encoder", model)
    # Here, a DistilBERT has a ReLU pooler. It cannot be the base model, because
    # the tensors have BERT's names.
    is_bert = encoder.pooler_activation == "tanh"
    origin = (encoder.origin if is_bert else None) or ""
    base, _, revision = origin.removeprefix("hf://").partition("@")
    return {
        "peft_type": "LORA",
        "task_type": row and row.peft_task,
        "base_model_name_or_path": base or None,
        "revision": revision or None,
        "inference_mode": True,
        "r": first.lora_rank,
        "lora_alpha": first.lora_alpha,
        # LoRA drops inputs only in the encoder. Other layers have rate 0.
        "lora_dropout": max(
            getattr(layer, "lora_dropout", 0.0) for layer in layers.values()
        ),
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(modules.values()),
        "modules_to_save": saved or None,
        "rank_pattern": {
            modules[name]: layer.lora_rank
            for name, layer in layers.items()
            if layer.lora_rank != first.lora_rank
        },
        "alpha_pattern": {
            modules[name]: layer.lora_alpha
            for name, layer in layers.items()
            if layer.lora_alpha != first.lora_alpha
        },
    }


def load_lora(
    model: "keras.Model", folder: files.PathLike, merge: bool = False
) -> None:
    """Load LoRA adapters of `save_lora` or PEFT into a model.

    Without `merge`, the adapted layers get LoRA with the folder's ranks. The
    encoder's weights that are not in the folder are then frozen, as in
    `enable_lora`. Call `load_lora` before `compile`.

    Args:
        model: model of the saved class, with the weights that training began
            with, such as `BertClassifier.from_preset(preset, labels=labels)`.
        folder: the folder with the adapters.
        merge: True to add the product of LoRA's matrices, (alpha / rank) A B,
            to each adapted kernel (see `enable_lora`). The model then has no
            LoRA and is as fast as without adapters.

    Raises:
        InputError: the model has LoRA already; the folder has no LoRA adapters
            of PEFT, or a setting that is not supported, such as `use_dora`; the
            adapters are for another class, other labels or another size; or a
            weight is missing in the folder and random in the model.

    Examples:
        >>> import tempfile
        >>> from bert_keras import BertEncoder, enable_lora
        >>> from bert_keras import load_lora, save_lora
        >>> encoder = BertEncoder.from_preset("bert_keras_mini_en")
        >>> other = BertEncoder.from_preset("bert_keras_mini_en")
        >>> enable_lora(encoder, rank=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_lora(encoder, folder)
        ...     load_lora(other, folder)
        >>> len(other.trainable_weights)
        16
    """
    if weights.lora_layers(model):
        raise InputError(
            "The model has LoRA already. Load the adapters into a new model, "
            "with the weights that training began with."
        )
    bases = published_weights(model)
    layers = {
        _name(model, layer): layer
        for layer in model._flatten_layers()
        if hasattr(layer, "enable_lora")
    }
    config, found, adapted = versions.read_unchanged(
        folder, lambda: _read_folder(model, folder, bases)
    )
    path = os.path.join(folder, WEIGHTS)
    ranks = _read_ranks(found, adapted)
    _check_shapes(path, found, _expect_shapes(bases, layers, found, ranks))
    alpha = _read_alpha(config, adapted, ranks)
    dropout = config.get("lora_dropout", FRACTION, 0.0)
    _check_new_weights(model, path, found)
    run_checks(found)
    arrays = {name: tensor.load() for name, tensor in found.items()}
    for name in adapted:
        if merge:
            down, up = (arrays[f"{name}/lora_kernel_{side}"] for side in "ab")
            change = alpha[name] / ranks[name] * np.matmul(down, up)
            kernel = bases[f"{name}/kernel"]
            kernel.assign(kernel.numpy() + change)
        else:
            layers[name].enable_lora(ranks[name], lora_alpha=alpha[name])
            # Embedding tables have no `lora_dropout`. LoRA's dropout needs a
            # seed, and heads pass none.
            if in_encoder(name) and hasattr(layers[name], "lora_dropout"):
                layers[name].lora_dropout = dropout
    if not merge:
        weights.freeze_encoder(model, found)
    for weight in model.weights:
        if _name(model, weight) in arrays:
            weight.assign(arrays[_name(model, weight)])


def _read_ranks(found, adapted):
    """Return dict of adapted layer -> rank, which is at least 1.

    The rank is the number of columns of A, (inputs, rank). If A is missing or
    not 2-D, the rank is the number of rows of B, (rank, outputs).
    """
    ranks = {}
    for name in adapted:
        ranks[name] = 1
        for side, axis in (("b", 0), ("a", 1)):
            matrix = found.get(f"{name}/lora_kernel_{side}")
            if matrix is not None and len(matrix.shape) == 2:
                ranks[name] = max(1, matrix.shape[axis])
    return ranks


def _expect_shapes(bases, layers, found, ranks):
    expected = {
        name: tuple(bases[name].shape) for name in found if name in bases
    }
    for name, rank in ranks.items():
        kernel = bases.get(f"{name}/kernel") if name in layers else None
        if kernel is not None:
            inputs, outputs = kernel.shape
            expected[f"{name}/lora_kernel_a"] = inputs, rank
            expected[f"{name}/lora_kernel_b"] = rank, outputs
    return expected


def _check_new_weights(model, path, found):
    random = weights.untrained_weights(model)
    random = weights.drop_unused_pooler(model, random)
    missing = [name for name in random if name not in found]
    if missing:
        raise WeightsError(
            path,
            f"the file lacks {', '.join(missing)}, which are random in the "
            "model",
            USE_SAME_MODEL,
        )


def _read_folder(model, folder, bases):
    """Return the folder's settings, tensors and adapted layers.

    Returns:
        `Fields` of adapter_config.json; dict of name in bert_keras -> `Tensor`,
        where "LAYER/lora_kernel_a" names matrix A of a layer; dict of adapted
        layer in bert_keras -> layer in transformers.
    """
    config = tensor_files.read_json(os.path.join(folder, CONFIG))
    _check_config(config)
    path = os.path.join(folder, WEIGHTS)
    if not os.path.exists(path):
        fix = "Load the adapters with peft and save them with save_pretrained"
        raise WeightsError(path, "there is no such file", fix)
    stored = tensor_files.read_safetensors(path)
    _check_model(model, path, stored)
    by_stored = {
        _normalize(other): name
        for name, other in huggingface.tensor_names(model, bases).items()
    }
    found, adapted = {}, {}
    for full_name, tensor in stored.items():
        name = full_name.removeprefix(PREFIX)
        match = _LORA.fullmatch(name)
        if match:
            kernel = by_stored.get(_normalize(f"{match[1]}.weight"), name)
            layer = kernel.removesuffix("/kernel")
            adapted[layer] = match[1]
            found[f"{layer}/lora_kernel_{match[2].lower()}"] = (
                tensor.transpose()
            )
        elif name not in huggingface_weights.TIED:
            library = by_stored.get(_normalize(name), name)
            is_kernel = library.endswith("/kernel") and library != name
            found[library] = tensor.transpose() if is_kernel else tensor
    return config, found, adapted


def _normalize(name):
    """Return BERT's name for a BERT or DistilBERT tensor, without `bert.`."""
    return distilbert.translate_name(name).removeprefix("bert.")


def _check_config(config):
    """Raise `WeightsError` if adapted kernels are not W + (alpha/rank) A B."""
    config.get("peft_type", ["LORA"])
    config.get("bias", ["none"], "none")
    for name in REFUSED:
        if config.get(name):
            config.refuse(name, "none or false", config.get(name))
    initializer = config.get("init_lora_weights", default=True)
    if isinstance(initializer, str) and initializer not in INITIALIZERS:
        expected = f"true, {', '.join(INITIALIZERS)}"
        config.refuse("init_lora_weights", expected, initializer)


def _read_alpha(config, adapted, ranks):
    """Return dict of adapted layer -> alpha.

    bert_keras multiplies the product A B by (alpha / rank). rsLoRA multiplies
    A B by (alpha / sqrt(rank)). So an rsLoRA alpha is multiplied by sqrt(rank).

    `adapted` has each layer's name in transformers, and `ranks` has the ranks.
    """
    default = _check_alpha(
        config, "lora_alpha", config.get("lora_alpha", default=8)
    )
    alpha = {}
    pattern = config.object("alpha_pattern", {})
    for key, value in pattern.values.items():
        value = _check_alpha(config, f"alpha_pattern of {key}", value)
        ends = (f".{key.removeprefix('^')}",)
        matching = [n for n, s in adapted.items() if f".{s}".endswith(ends)]
        if not matching:
            config.refuse("alpha_pattern", "names of adapted layers", key)
        for name in matching:  # as in PEFT, the first matching key counts
            alpha.setdefault(name, value)
    alpha = dict.fromkeys(adapted, default) | alpha
    if config.get("use_rslora", BOOLEAN, False):
        alpha = {name: a * math.sqrt(ranks[name]) for name, a in alpha.items()}
    return alpha


def _check_alpha(config, name, value):
    if type(value) not in (int, float) or not 0 < value < math.inf:
        config.refuse(name, "a number above 0", value)
    return value


def _check_model(model, path, stored):
    """Raise `WeightsError` if the tensors' metadata does not fit the model.

    A file that PEFT wrote has no such metadata and is not checked.
    """
    texts = [tensor.source.metadata.get(KEY) for tensor in stored.values()]
    text = next(iter(texts), None)
    if text is None:
        return
    try:
        about = dict(json_files.parse_json(text))
    except (ValueError, TypeError) as error:
        raise WeightsError(path, f"the header is damaged ({error})") from None
    for name, expected in _describe(model).items():
        if about.get(name) != expected:
            raise WeightsError(
                path,
                f"the file is for a model with another {name} than this model",
                USE_SAME_MODEL,
                expected=expected or "none",
                found=about.get(name) or "none",
            )


def _describe(model):
    encoder = getattr(model, "encoder", model)
    names = (*DIMENSIONS, "activation", "attention", "norm_epsilon")
    return {
        "class": type(model).__name__,
        "labels": getattr(model, "labels", None),
        **{name: getattr(encoder, name) for name in names},
    }


def _name(model, part):
    return weights.published_name(model, part.path)


def _check_shapes(path, found, expected):
    for name in sorted({*found, *expected}):
        shape = tuple(found[name].shape) if name in found else "none"
        if shape != expected.get(name):
            problem = "the file is for a model of another size"
            if name not in expected:
                problem = "the model lacks this tensor"
            elif name not in found:
                problem = "the file lacks this tensor"
            raise WeightsError(
                path,
                problem,
                USE_SAME_MODEL,
                tensor=name,
                expected=expected.get(name, "none"),
                found=shape,
            )
