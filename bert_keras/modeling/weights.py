"""A model's weights in the layout in which BERT is published."""

import numpy as np


def published_weights(model):
    """Dict of published name -> weight, whatever the models' own names are.

    The names are the paths of the models' docstrings, behind `encoder/` for
    the encoder's. A weight has `shape`, `numpy()` and `assign(values)`. What
    LoRA added to a kernel is not listed: reading merges it, and assigning
    replaces it.
    """
    encoder = getattr(model, "encoder", model)
    adapted = _adapted(model)
    weights = {}
    for weight in model.weights:
        if weight.name.startswith("lora_"):
            continue
        name = weight.path.removeprefix(f"{model.name}/")
        if weight.path.startswith(f"{encoder.name}/"):
            name = f"encoder/{weight.path.removeprefix(f'{encoder.name}/')}"
        weights[name] = adapted.get(id(weight), weight)
    return weights


def copy_weights(source, target):
    """Gives `target` the weights of `source`, a model built alike."""
    sources = published_weights(source)
    for name, weight in published_weights(target).items():
        weight.assign(sources[name].numpy())


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
