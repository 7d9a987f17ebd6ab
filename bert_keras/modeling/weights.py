"""A model's weights in the layout in which BERT is published."""

import hashlib

import numpy as np

POOLER = ("encoder/pooler/kernel", "encoder/pooler/bias")


def published_weights(model):
    """Dict of published name -> weight, whatever the models' own names are.

    The names are the paths of the models' docstrings, behind `encoder/` for
    the encoder's. A weight has `shape`, `numpy()` and `assign(values)`. What
    LoRA added to a kernel is not listed: reading merges it, and assigning
    replaces it.
    """
    adapted = _adapted(model)
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


def felt(model, names):
    """Those of the names whose weights an output of the model depends on."""
    pools = getattr(model, "pools", True)
    return [name for name in names if pools or name not in POOLER]


def _digest(weight):
    """A hash of the numbers; None where they are all the same."""
    numbers = weight.numpy()
    if not numbers.size or numbers.min() == numbers.max():
        return None
    return hashlib.sha256(np.ascontiguousarray(numbers)).hexdigest()


def _adapted(model):
    """Dict of the id of a weight that LoRA adapts -> it, merged."""
    layers = [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "lora_enabled", False)
    ]
    merged = [_MergedWeight(layer) for layer in layers]
    return {id(weight.base): weight for weight in merged}


class _MergedWeight:
    """The kernel or table of a layer under LoRA, as one weight."""

    def __init__(self, layer):
        weights = {weight.name: weight for weight in layer.weights}
        name = "kernel" if "kernel" in weights else "embeddings"
        self.base = weights[name]
        self.down = weights[f"lora_{name}_a"]
        self.up = weights[f"lora_{name}_b"]
        self.scale = layer.lora_alpha / layer.lora_rank
        self.shape = self.base.shape

    def numpy(self):
        # In the weights' own precision; Keras merges in the compute dtype.
        change = np.matmul(self.down.numpy(), self.up.numpy())
        return self.base.numpy() + self.scale * change

    def assign(self, values):
        self.base.assign(values)
        self.up.assign(np.zeros(self.up.shape))
