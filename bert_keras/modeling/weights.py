"""A model's weights by their published names; low-rank adaptation (LoRA).

Keras implements LoRA: `enable_lora` of a Keras layer adds the matrices.
"""

import hashlib
import math
import operator
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from bert_keras.errors import InputError

if TYPE_CHECKING:  # some importers of this module do not need Keras
    import keras

POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


def published_weights(model):
    """Return a dict of published name -> weight.

    The names are the paths in the models' docstrings. Names of the encoder's
    weights begin with `encoder/`. A weight has `shape`, `numpy()` and
    `assign(values)`. LoRA's matrices are not in the dict. For a kernel with
    LoRA, `numpy()` includes their product, and `assign` sets the product to 0.
    """
    layers = [_MergedWeight(layer) for layer in lora_layers(model)]
    merged = {id(weight.base): weight for weight in layers}
    return {
        published_name(model, weight.path): merged.get(id(weight), weight)
        for weight in model.weights
        if not weight.name.startswith("lora_")
    }


def published_name(model, path):
    """Convert the Keras path of a weight or layer to its published name.

    A published name does not depend on the names of the model and of its
    encoder.
    """
    encoder = getattr(model, "encoder", model)
    # If a layer makes the encoder in its `build`, Keras puts that layer's path
    # before the encoder's name. `scope` is this path.
    scope = (encoder.path or encoder.name).removesuffix(encoder.name)
    path = path.removeprefix(scope)
    if path.startswith(f"{encoder.name}/"):
        return f"encoder/{path.removeprefix(f'{encoder.name}/')}"
    return path.removeprefix(f"{model.name}/")


def in_encoder(name):
    """Return True if a published name belongs to an encoder's weight."""
    return name.startswith("encoder/")


def copy_weights(source, target):
    """Copy the weights of `source` to `target` by their published names."""
    sources = published_weights(source)
    for name, weight in published_weights(target).items():
        weight.assign(sources[name].numpy())


def mark_new_weights(model, names):
    """Mark the weights with these published names as new and random.

    Weights whose values are all the same (biases, scales) are not marked.
    """
    weights = published_weights(model)
    # If a hash changes later, the weight was trained or loaded.
    hashes = {name: _hash_values(weights[name]) for name in names}
    model.first_hashes = {k: v for k, v in hashes.items() if v}


def untrained_weights(model):
    """Return the sorted names of new weights that are still random.

    Loading marks new weights (see `mark_new_weights`). If neither the model nor
    its encoder was loaded, the list is empty.
    """
    hashes = {}
    for part in (model, getattr(model, "encoder", model)):
        hashes |= getattr(part, "first_hashes", {})
    weights = published_weights(model)
    return sorted(k for k, v in hashes.items() if _hash_values(weights[k]) == v)


def split_trainable(model):
    """Return two lists of trainable weights: updated ones, and left out ones.

    A training step of a task model leaves out weights that its loss does not
    depend on: the pooler's if `model.pools` is False, and all of the encoder's
    if the model also reads features by a recipe. Such weights stay trainable,
    because other models may share the encoder. The loss depends on all weights
    that have a regularizer.
    """
    left_out = set()
    if not getattr(model, "pools", True):
        has_recipe = getattr(model, "recipe", None)
        part = model.encoder if has_recipe else model.encoder.pooler
        left_out = {id(weight) for weight in part.weights}
    updated, others = [], []
    for weight in model.trainable_weights:
        is_unused = id(weight) in left_out and weight.regularizer is None
        (others if is_unused else updated).append(weight)
    return updated, others


def drop_unused_pooler(model, names):
    """Return the names, without `POOLER` if no output depends on it."""
    pools = getattr(model, "pools", True)
    return [name for name in names if pools or name not in POOLER]


def _hash_values(weight):
    """Return a hash of the values, or None if all values are equal."""
    values = weight.numpy()
    if not values.size or values.min() == values.max():
        return None
    return hashlib.sha256(np.ascontiguousarray(values)).hexdigest()


class _MergedWeight:
    """Kernel or table of a layer, merged with its LoRA matrices."""

    def __init__(self, layer):
        weights = {weight.name: weight for weight in layer.weights}
        name = "kernel" if "kernel" in weights else "embeddings"
        self.base = weights[name]
        self.down = weights[f"lora_{name}_a"]
        self.up = weights[f"lora_{name}_b"]
        # Hu et al. 2021, section 4.1.
        self.scale = layer.lora_alpha / layer.lora_rank
        self.shape = self.base.shape

    def numpy(self):
        # Merge here in the weights' dtype, because Keras's `kernel` merges in
        # the compute dtype.
        change = np.matmul(self.down.numpy(), self.up.numpy())
        return self.base.numpy() + self.scale * change

    def assign(self, values):
        self.base.assign(values)
        # B = 0 makes LoRA's product 0. A is not 0, so B still gets a gradient.
        self.up.assign(np.zeros(self.up.shape))


# Name in `projections` -> paths of attributes of `TransformerLayer`.
LORA_TARGETS = {
    "query": ("attention.query",),
    "key": ("attention.key",),
    "value": ("attention.value",),
    "output": ("attention.output_projection",),
    "feed_forward": ("intermediate", "output_projection"),
}


def enable_lora(
    model: "keras.Model",
    rank: int,
    projections: Iterable[str] = ("query", "value"),
    alpha: float | None = None,
    dropout: float = 0.0,
) -> None:
    """Freeze the encoder and add trainable matrices of low rank to it.

    In every layer, the kernel W of each named projection becomes
    W + (alpha / rank) A B. At first, A (inputs, rank) is random and
    B (rank, outputs) is zero (Hu et al. 2021, "LoRA"). Heads stay trainable,
    and so do weights that the preset lacked, such as the pooler's. Call this
    function before `compile`. `save_preset`, `with_dtype` and exports merge the
    matrices into the kernels. `save_lora` writes only the matrices, the head
    and the encoder's other trainable weights.

    Args:
        model: a task model, or a `BertEncoder`.
        rank: rank of the change to a kernel; 4 to 16 are usual.
        projections: any of "query", "key", "value" and "output" (attention)
            and "feed_forward" (both kernels of the feed-forward network).
        alpha: numerator of the scale alpha / rank; None: equal to the rank.
        dropout: fraction of the input of A that is dropped in training. If
            it is above 0, the encoder must have dropout too: LoRA's dropout
            needs a seed, and an encoder without dropout draws none.

    Raises:
        InputError: the rank is not an integer above 0, alpha is not a finite
            number above 0, `projections` is empty or has an unknown name,
            `dropout` is not in [0, 1), `dropout` is above 0 and the encoder has
            no dropout, the encoder is frozen, or the model already has LoRA.

    Examples:
        >>> from bert_keras import BertEncoder, enable_lora
        >>> encoder = BertEncoder.from_preset("bert_keras_mini_en")
        >>> enable_lora(encoder, rank=2)
        >>> len(encoder.trainable_weights)  # A and B; 2 projections, 4 layers
        16
    """
    encoder = getattr(model, "encoder", model)
    projections = tuple(projections)
    is_known = projections and set(projections) <= set(LORA_TARGETS)
    is_scaled = alpha is None or 0 < alpha < math.inf
    if not (isinstance(rank, Integral) and rank > 0 and is_scaled and is_known):
        raise InputError(
            f"rank is {rank}, alpha is {alpha}, projections are "
            f"{projections!r}. Expected an integer rank above 0, a finite "
            f"alpha above 0 or None, and some of {', '.join(LORA_TARGETS)}."
        )
    rank = int(rank)  # JSON cannot write NumPy's integers
    draws = encoder.dropout or encoder.attention_dropout
    if not 0 <= dropout < 1 or (dropout and not draws):
        raise InputError(
            f"`dropout` is {dropout}, and the encoder's dropout is {draws}. "
            "Expected a fraction from 0 to less than 1. A fraction above 0 "
            "needs an encoder with dropout."
        )
    if lora_layers(model):
        raise InputError(
            "The model has LoRA already. Enable LoRA once, on a model without "
            "LoRA, such as one from from_preset."
        )
    updated = {id(weight) for weight in split_trainable(model)[0]}
    if not any(
        id(weight) in updated
        for layer in encoder.transformer_layers
        for weight in layer.weights
    ):
        raise InputError(
            "The encoder is not trained, so neither would be LoRA's matrices. "
            "Make the model without the argument recipe, and leave the encoder "
            "trainable. enable_lora freezes it, except LoRA's matrices."
        )
    new = drop_unused_pooler(model, untrained_weights(model))
    # `untrained_weights` lists random weights only. New biases are 0, so the
    # list lacks them, but they need training too.
    new += [name.replace("/kernel", "/bias") for name in new]
    freeze_encoder(model, new)
    for layer in encoder.transformer_layers:
        for name in projections:
            for attribute in LORA_TARGETS[name]:
                projection = operator.attrgetter(attribute)(layer)
                # Hu et al. 2021, section 4.1
                projection.enable_lora(rank, lora_alpha=alpha)
                projection.lora_dropout = dropout


def freeze_encoder(model, except_names):
    """Freeze the encoder's weights, except these published names."""
    for weight in model.weights:
        name = published_name(model, weight.path)
        if in_encoder(name) and name not in except_names:
            weight.trainable = False


def lora_layers(model):
    """Return the layers of a model that have LoRA."""
    return [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]


class KeepsLora:
    """Layer mixin that also saves and loads LoRA's matrices.

    Keras saves only the merged weights. When Keras loads a layer with LoRA, it
    sets both matrices, A and B, to 0. They then get no gradient and cannot be
    trained. This mixin saves A and B too, and loads them. A layer without LoRA
    still loads the merged weights. If the file has no LoRA, a layer with LoRA
    keeps A and sets B to 0. The layer then computes with the file's weights.
    """

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.lora_enabled:
            for weight in self.weights:
                store[weight.name] = weight

    def load_own_variables(self, store):
        stored = {name: store[name] for name in store.keys()}  # noqa: SIM118
        # Keep A: `super().load_own_variables` sets LoRA's matrices to 0.
        before = {
            weight.name: weight.numpy()
            for weight in self.weights
            if weight.name.startswith("lora_") and weight.name.endswith("_a")
        }
        super().load_own_variables(
            # Keras's keys are numbers. `save_own_variables` adds names.
            {name: x for name, x in stored.items() if name.isdigit()}
        )
        if self.lora_enabled:
            for weight in self.weights:
                values = stored.get(weight.name, before.get(weight.name))
                if values is not None:
                    weight.assign(values)


def get_adaptation(model):
    """Return the frozen weights and the LoRA layers as a config dict.

    Returns:
        `{"adaptation": arguments of adapt}`; `{}` if all weights are trainable
        and no layer has LoRA.
    """
    frozen = list(dict.fromkeys(_list_frozen(model)))
    lora = {
        layer.path: [
            layer.lora_rank,
            layer.lora_alpha,
            # An `Embedding` has no LoRA dropout.
            getattr(layer, "lora_dropout", 0.0),
        ]
        for layer in lora_layers(model)
    }
    if not frozen and not lora:
        return {}
    return {"adaptation": {"frozen": frozen, "lora": lora}}


def adapt(model, frozen=(), lora=()):
    """Freeze layers and weights, and add LoRA.

    Args:
        model: a built model. Layers that already have LoRA keep it.
        frozen: paths of layers and of single weights.
        lora: dict of a layer's path -> [rank, alpha, dropout].
    """
    layers = list(model._flatten_layers())
    for layer in layers:
        if layer.path in lora and not layer.lora_enabled:
            rank, alpha, layer.lora_dropout = lora[layer.path]
            layer.enable_lora(rank, lora_alpha=alpha)
    # Freeze after LoRA is added, because its matrices may be frozen too.
    frozen = set(frozen)
    for part in (*layers, *model.weights):
        if part.path in frozen:
            part.trainable = False


def _list_frozen(layer):
    """Yield paths of frozen layers, and of frozen weights in other layers."""
    if not layer.trainable and layer.path:  # an input layer has no path
        yield layer.path
        return
    # The public `trainable_variables` omits frozen weights.
    for weight in layer._trainable_variables:
        if not weight.trainable:
            yield weight.path
    for inner in layer._layers:
        yield from _list_frozen(inner)
