"""Low-rank adaptation by Keras's own layers, and what of a model is frozen."""

from collections.abc import Iterable
from numbers import Integral

import keras

from bert_keras.errors import InputError
from bert_keras.modeling.weights import (
    in_encoder,
    published_name,
    untrained_weights,
)

ATTRIBUTES = {
    "query": "query",
    "key": "key",
    "value": "value",
    "output": "output_projection",
}


def enable_lora(
    model: keras.Model,
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
        before = {w.name: w.numpy() for w in self.weights if _is_lora(w)}
        super().load_own_variables(
            # Keras numbers what it stores; ours have names.
            {name: x for name, x in stored.items() if name.isdigit()}
        )
        if self.lora_enabled:
            for weight in self.weights:
                values = stored.get(weight.name, before.get(weight.name))
                if values is not None:
                    weight.assign(values)


def _is_lora(weight):
    return weight.name.startswith("lora_")


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
    """Freezes what was frozen, and adds LoRA where it was.

    Args:
        frozen: paths of layers and of single weights.
        lora: dict of a layer's path -> rank, alpha.
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
    """Paths of the outermost frozen layers, and of single frozen weights."""
    if not layer.trainable and layer.path:  # an input has none
        yield layer.path
        return
    # What would train, frozen or not: the public list leaves frozen ones out.
    for weight in layer._trainable_variables:
        if not weight.trainable:
            yield weight.path
    for inner in layer._layers:
        yield from _frozen(inner)
