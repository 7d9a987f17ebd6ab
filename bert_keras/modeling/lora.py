"""Low-rank adaptation of an encoder, by Keras's own layers."""

from bert_keras.errors import InputError

ATTRIBUTES = {
    "query": "query",
    "key": "key",
    "value": "value",
    "output": "output_projection",
}


def enable_lora(encoder, rank, projections=("query", "value")):
    """Freezes `encoder` and adds trainable matrices of low rank to it.

    Each named projection of every layer's attention gets Keras's `lora`
    weights; heads stay trainable. Call it before `compile`. Saving to a
    preset, `with_dtype` and the export merge the added weights.

    Args:
        encoder: a `BertEncoder`.
        rank: rank of the change to a kernel; 4 to 16 are usual.
        projections: of "query", "key", "value" and "output".

    Raises:
        InputError: a rank below 1, another projection.
    """
    unknown = sorted(set(projections) - set(ATTRIBUTES))
    if rank < 1 or unknown:
        raise InputError(
            f"rank is {rank}, projections are {projections!r}. Expected a rank "
            f"from 1, and some of {', '.join(ATTRIBUTES)}."
        )
    for weight in encoder.weights:
        weight.trainable = False
    for layer in encoder.transformer_layers:
        for name in projections:
            projection = getattr(layer.attention, ATTRIBUTES[name])
            projection.enable_lora(rank)
