"""A model's weights in the layout in which BERT is published, and LoRA on them.

Low-rank adaptation is by Keras's own layers.
"""

import hashlib
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from bert_keras.errors import InputError

if TYPE_CHECKING:  # names of weights need no Keras
    import keras

POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


def published_weights(model):
    """Dict of published name -> weight, whatever the models' own names are.

    The names are the paths of the models' docstrings, behind `encoder/` for
    the encoder's. A weight has `shape`, `numpy()` and `assign(values)`. What
    LoRA added to a kernel is not listed: reading merges it, and assigning
    replaces it.
    """
    merged = [_MergedWeight(layer) for layer in lora_layers(model)]
    adapted = {id(weight.base): weight for weight in merged}
    return {
        published_name(model, weight.path): adapted.get(id(weight), weight)
        for weight in model.weights
        if not weight.name.startswith("lora_")
    }


def published_name(model, path):
    """The published name of what has this path in the model."""
    encoder = getattr(model, "encoder", model)
    if path.startswith(f"{encoder.name}/"):
        return f"encoder/{path.removeprefix(f'{encoder.name}/')}"
    return path.removeprefix(f"{model.name}/")


def in_encoder(name):
    """Whether a published name is of the encoder, and not of a head."""
    return name.startswith("encoder/")


def copy_weights(source, target):
    """Gives `target` the weights of `source`, a model built alike."""
    sources = published_weights(source)
    for name, weight in published_weights(target).items():
        weight.assign(sources[name].numpy())


def mark_untrained(model, names):
    """Remembers that these weights begin at random.

    What begins as one number throughout (a bias, a scale) does not count.
    """
    weights = published_weights(model)
    # By hash, so that a weight that was trained or loaded since is seen.
    marks = {name: _digest(weights[name]) for name in names}
    model.random_beginnings = {k: v for k, v in marks.items() if v}


def untrained_weights(model):
    """Sorted names of the weights that still hold their first random numbers.

    Of a model that was loaded, or whose encoder was; the weights of one that is
    built from sizes are its caller's business.
    """
    parts = [model, getattr(model, "encoder", model)]
    marks = {}
    for part in parts:
        marks |= getattr(part, "random_beginnings", {})
    weights = published_weights(model)
    return sorted(k for k, v in marks.items() if _digest(weights[k]) == v)


def switch_pooler(model):
    """Make the encoder's pooler trainable where an output depends on it.

    A pooler that its owner froze stays frozen.
    """
    pooler = model.encoder.pooler
    if not model.pools:
        pooler.trainable, pooler.is_unused = False, True
    elif getattr(pooler, "is_unused", False):
        pooler.trainable, pooler.is_unused = True, False


def in_use(model, names):
    """Return the names of weights that an output of the model depends on."""
    pools = getattr(model, "pools", True)
    return [name for name in names if pools or name not in POOLER]


def _digest(weight):
    """A hash of the numbers; None where they are all the same."""
    numbers = weight.numpy()
    if not numbers.size or numbers.min() == numbers.max():
        return None
    return hashlib.sha256(np.ascontiguousarray(numbers)).hexdigest()


class _MergedWeight:
    """The kernel or table of a layer under LoRA, as one weight."""

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
        # In the weights' own precision; Keras merges in the compute dtype.
        change = np.matmul(self.down.numpy(), self.up.numpy())
        return self.base.numpy() + self.scale * change

    def assign(self, values):
        self.base.assign(values)
        # Their product is then 0, and both can still learn.
        self.up.assign(np.zeros(self.up.shape))


# Low-rank adaptation (LoRA), and what of a model is frozen.

ATTRIBUTES = {
    "query": "query",
    "key": "key",
    "value": "value",
    "output": "output_projection",
}


def enable_lora(
    model: "keras.Model",
    rank: int,
    projections: Iterable[str] = ("query", "value"),
) -> None:
    """Freezes the encoder and adds trainable matrices of low rank to it.

    Each named projection W of every layer's attention becomes W + A B, with A
    (D, rank) random and B (rank, D) zero at first (Hu et al. 2021, "LoRA").
    Heads stay trainable, and so do weights of the encoder that the preset
    lacked, as a pooler may be: nobody trained them. Call it before `compile`.
    Saving to a preset, `with_dtype` and the export merge the added weights;
    `save_lora` writes them alone.

    Args:
        model: a task model, or a `BertEncoder`.
        rank: rank of the change to a kernel; 4 to 16 are usual.
        projections: of "query", "key", "value" and "output".

    Raises:
        InputError: a rank below 1, another projection, a model with LoRA.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> enable_lora(encoder, rank=2)
    >>> len(encoder.trainable_weights)  # A and B, two projections, two layers
    8
    """
    encoder = getattr(model, "encoder", model)
    projections = tuple(projections)
    known = projections and set(projections) <= set(ATTRIBUTES)
    if not isinstance(rank, Integral) or rank < 1 or not known:
        raise InputError(
            f"rank is {rank}, projections are {projections!r}. Expected a rank "
            f"from 1, and some of {', '.join(ATTRIBUTES)}."
        )
    if lora_layers(model):
        raise InputError(
            "The model has LoRA already. Enable it once, on a model that has "
            "none, such as from_preset gives."
        )
    freeze_encoder(model, untrained_weights(model))
    for layer in encoder.transformer_layers:
        for name in projections:
            projection = getattr(layer.attention, ATTRIBUTES[name])
            # kernel + alpha / rank A B, of which A and B learn (Hu et al. 2021,
            # section 4.1)
            projection.enable_lora(rank)


def freeze_encoder(model, but):
    """Freezes all weights of the encoder but those of these names."""
    for weight in model.weights:
        name = published_name(model, weight.path)
        if in_encoder(name) and name not in but:
            weight.trainable = False


def lora_layers(model):
    """The layers of a model that have LoRA."""
    return [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]


class KeepsLora:
    """For a Keras layer that has LoRA: its file keeps the matrices.

    Keras saves them merged and, where the loaded layer has LoRA, sets both to
    0, from where neither learns. Here they are stored next to the merged
    weights, which a layer without LoRA loads.
    """

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.lora_enabled:
            for weight in self.weights:
                store[weight.name] = weight

    def load_own_variables(self, store):
        stored = {name: store[name] for name in store.keys()}  # noqa: SIM118
        # What Keras's loading is about to set to 0.
        before = {
            weight.name: weight.numpy()
            for weight in self.weights
            if weight.name.startswith("lora_")
        }
        super().load_own_variables(
            # Keras numbers what it stores; ours have names.
            {name: x for name, x in stored.items() if name.isdigit()}
        )
        if self.lora_enabled:
            for weight in self.weights:
                values = stored.get(weight.name, before.get(weight.name))
                if values is not None:
                    weight.assign(values)


def adaptation(model):
    """What of a model is frozen, and which layers have LoRA.

    Returns:
        `{"adaptation": ...}` in plain values for `adapt`; `{}` for a model
        of which all trains.
    """
    frozen = list(dict.fromkeys(_frozen(model)))
    lora = {
        layer.path: [layer.lora_rank, layer.lora_alpha]
        for layer in lora_layers(model)
    }
    if not frozen and not lora:
        return {}
    return {"adaptation": {"frozen": frozen, "lora": lora}}


def adapt(model, frozen=(), lora=()):
    """Freezes what was frozen, by the paths of layers and of single weights,
    and adds LoRA where it was, by a dict of a layer's path -> rank, alpha.
    """
    layers = list(model._flatten_layers())
    for layer in layers:
        if layer.path in lora and not layer.lora_enabled:
            rank, alpha = lora[layer.path]
            layer.enable_lora(rank, lora_alpha=alpha)
    # After LoRA, whose weights may be among the frozen ones.
    frozen = set(frozen)
    for part in (*layers, *model.weights):
        if part.path in frozen:
            part.trainable = False


def _frozen(layer):
    """Yield paths of the outermost frozen layers, and of frozen weights."""
    if getattr(layer, "is_unused", False):  # see `switch_pooler`
        return
    if not layer.trainable and layer.path:  # an input has none
        yield layer.path
        return
    # What would train, frozen or not: the public list leaves frozen ones out.
    for weight in layer._trainable_variables:
        if not weight.trainable:
            yield weight.path
    for inner in layer._layers:
        yield from _frozen(inner)
