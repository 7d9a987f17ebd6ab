"""The names under which a model takes its inputs."""

import keras
from keras import ops

from bert_keras.errors import InputError

INPUT_NAMES = (
    "token_ids",
    "segment_ids",
    "padding_mask",
    "position_ids",
    "example_ids",
)


def named_inputs(inputs):
    """The inputs by name; token ids alone become a dict of one."""
    if not isinstance(inputs, dict):
        inputs = {"token_ids": inputs}
    unknown = sorted(set(inputs) - set(INPUT_NAMES))
    if unknown or inputs.get("token_ids") is None:
        raise InputError(
            f"The inputs are named {sorted(inputs)}. Expected token_ids and, "
            f"if needed, {', '.join(INPUT_NAMES[1:])}."
        )
    if inputs.get("example_ids") is not None and (
        inputs.get("position_ids") is None
    ):
        raise InputError(
            "The inputs have example_ids but no position_ids. Give both: a "
            "packed row counts positions from each example's start."
        )
    inputs = {name: as_tensor(values) for name, values in inputs.items()}
    for name, values in inputs.items():
        if values is not None and len(values.shape) != 2:
            raise InputError(
                f"{name} has the shape {tuple(values.shape)}. Expected (B, T): "
                "a batch of rows."
            )
    return inputs


def as_tensor(values):
    """int32, whatever holds them; None and what is symbolic stay."""
    if values is None or isinstance(values, keras.KerasTensor):
        return values
    return ops.convert_to_tensor(values, dtype="int32")
