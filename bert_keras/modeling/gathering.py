"""Picking single tokens out of rows."""

from keras import ops

from bert_keras.errors import InputError


def first_tokens(sequence, example_ids=None, examples_per_row=None):
    """The vector of each row's first token, (B, D).

    Of packed rows, of each example's: (B, E, D).
    """
    if examples_per_row is None:
        return sequence[:, 0]
    if example_ids is None:
        raise InputError(
            f"examples_per_row is {examples_per_row}, but the inputs have no "
            "example_ids. Give those that packing made."
        )
    numbers = ops.arange(1, examples_per_row + 1, dtype="int32")[:, None]
    own = ops.cast(example_ids, "int32")[:, None, :] == numbers  # (B, E, T)
    first = ops.argmax(ops.cast(own, "int32"), axis=-1)  # (B, E)
    return gather_positions(sequence, first)


def gather_positions(sequence, positions):
    """Vectors of `sequence` (B, T, D) at `positions` (B, M): (B, M, D)."""
    batch, length, width = ops.shape(sequence)
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * length
    flat = ops.reshape(ops.cast(positions, "int32") + rows, (-1,))
    picked = ops.take(ops.reshape(sequence, (-1, width)), flat, axis=0)
    return ops.reshape(picked, (batch, ops.shape(positions)[1], width))
