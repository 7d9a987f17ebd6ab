"""Models with smaller weights, for serving on a CPU.

To see how smaller weights change the answers, run `bert-keras compare`.
"""

import keras

from bert_keras.comparison import check_finite
from bert_keras.errors import InputError
from bert_keras.modeling.layers import Projection

# dtype of an export -> largest allowed difference between the outputs of the
# export and of the live model with the same dtype.
TOLERANCES = {"float32": 1e-5, "int8": 1e-5, "bfloat16": 0.05}


def convert_weights(model, dtype):
    """Return the model with weights in the dtype of an export.

    The result is a copy, or `model` if its dtype policy is already `dtype`.

    Args:
        model: a `BertEncoder` or a task model.
        dtype: "float32", "bfloat16" or "int8". "bfloat16" halves the size and
            is also the dtype of matrix products. "int8" stores matrices and the
            token table in a quarter of the size. A matrix has a scale for each
            output, and the table has a scale for each token. Products run in
            float32. A token table that a masked-LM head shares stays float32.
            Keras's default for "int8" is not used, because it also rounds the
            inputs of products and takes three times as long on a CPU.
    """
    if dtype not in TOLERANCES:
        raise InputError(
            f"`weights_dtype` is {dtype!r}. Expected one of "
            f"{', '.join(TOLERANCES)}."
        )
    if has_int8_weights(model):
        raise InputError(
            "The model's weights are int8 already. "
            "Pass the original model instead."
        )
    for weight in model.weights:
        check_finite(weight.path, keras.ops.convert_to_numpy(weight))
    if dtype == "int8":
        return _quantize(model.with_dtype("float32"))
    has_dtype = model.dtype_policy.name == dtype
    return model if has_dtype else model.with_dtype(dtype)


def _quantize(model):
    weights_only = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    )
    # If a masked-LM head also uses the token table, the table stays float32.
    is_tied = getattr(model, "mlm", None) is not None
    token = getattr(model, "encoder", model).embeddings.token
    for layer in model._flatten_layers():
        if isinstance(layer, Projection) or (layer is token and not is_tied):
            # With type_check=True, Keras refuses subclasses of its layers. The
            # subclasses here compute the same as their base classes.
            layer.quantize("int8", type_check=False, config=weights_only)
    return model


def has_int8_weights(model) -> bool:
    """Return True if a layer of the model is quantized."""
    return any(layer.quantization_mode for layer in model._flatten_layers())
