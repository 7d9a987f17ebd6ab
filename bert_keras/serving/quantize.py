"""Models with smaller weights, for serving on a CPU.

`tools/compare.py` compares their answers with those of another export.
"""

import keras

from bert_keras.comparison import check_finite
from bert_keras.errors import InputError
from bert_keras.modeling.layers import Projection, Table

# dtype of an export -> largest difference from the model of the same dtype.
TOLERANCES = {"float32": 1e-5, "int8": 1e-5, "bfloat16": 0.05}


def convert_weights(model, dtype):
    """Return a copy of the model with weights in the dtype of an export.

    Args:
        model: a `BertEncoder` or a task model.
        dtype: "float32"; "bfloat16", weights and products, half the size; or
            "int8", a quarter: the matrices and the token table, with a scale
            an output or a token. Products run in float32: Keras's "int8",
            which rounds the inputs too, took three times as long on a CPU.
    """
    if dtype not in TOLERANCES:
        raise InputError(
            f"dtype is {dtype!r}. Expected one of {', '.join(TOLERANCES)}."
        )
    if has_int8_weights(model):
        raise InputError(
            "The model's weights are int8 already. "
            "Pass the model that they were made from."
        )
    for weight in model.weights:
        check_finite(weight.path, keras.ops.convert_to_numpy(weight))
    if dtype == "int8":
        return _with_int8_weights(model.with_dtype("float32"))
    is_there = model.dtype_policy.name == dtype
    return model if is_there else model.with_dtype(dtype)


def _with_int8_weights(model):
    weights_only = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    )
    for layer in _quantizable(model):
        # Keras skips subclasses by default; these compute the same.
        layer.quantize("int8", type_check=False, config=weights_only)
    return model


def _quantizable(model):
    # The masked-word head multiplies by the token table: float32 there.
    is_tied = getattr(model, "mlm", None) is not None
    token = getattr(model, "encoder", model).embeddings.token
    for layer in model._flatten_layers():
        if isinstance(layer, Projection) or (
            isinstance(layer, Table) and layer is token and not is_tied
        ):
            yield layer


def has_int8_weights(model) -> bool:
    """Return True if a layer of the model has int8 weights, or fewer bits."""
    return any(layer.quantization_mode for layer in model._flatten_layers())
