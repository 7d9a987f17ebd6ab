"""Names of a model's inputs, and checks of the inputs."""

import inspect

import keras
from keras import ops

from bert_keras.errors import InputError

# Inputs of `BertEncoder`. Only packed rows need the last two.
INPUT_NAMES = (
    "token_ids",
    "segment_ids",
    "padding_mask",
    "position_ids",
    "example_ids",
)
# Optional input of `BertEmbedder`: 1 at tokens to pool, else 0.
POOLING_MASK = "pooling_mask"

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def list_argument_names(cls):
    """Return the names of a constructor's arguments, without `self`.

    If the constructor has **kwargs, the base class's arguments follow.
    """
    names = []
    for base in cls.__mro__:
        if "__init__" in vars(base):
            init = inspect.signature(base.__init__)
            _, *parameters = init.parameters.values()
            names += [p.name for p in parameters if p.kind not in _VARIABLE]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return list(dict.fromkeys(names))


def name_inputs(inputs):
    """Return the checked inputs as a dict of int32 tensors (B, T) by name.

    An array becomes `token_ids`. An optional input that is None stays None.
    """
    if not isinstance(inputs, dict):
        inputs = {"token_ids": inputs}
    # Without this check, an input with a misspelled name would be ignored.
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
            "The inputs have example_ids but no position_ids. Pass both, "
            "because positions start at 0 in each example of a packed row."
        )
    inputs = {name: as_tensor(values) for name, values in inputs.items()}
    for name, values in inputs.items():
        if values is not None and len(values.shape) != 2:
            raise InputError(
                f"{name} has the shape {tuple(values.shape)}. Expected (B, T): "
                "a batch of rows."
            )
    return inputs


def refuse_text(values):
    """Raise `InputError` if the inputs are texts or a data set of texts."""
    if hasattr(values, "element_spec"):  # a tf.data.Dataset
        values = values.element_spec
        values = values[0] if isinstance(values, tuple) else values
    if any(map(_is_text, keras.tree.flatten(values))):
        raise InputError(
            "The inputs are texts, but a model reads token ids. Make ids with "
            "the model's preprocessor: preprocess(texts), or for a data set "
            "dataset.map(preprocess)."
        )


def _is_text(value):
    if isinstance(value, str | bytes):
        return True
    # Names of text dtypes: "string" in TensorFlow, "str96" or "bytes24" in
    # NumPy, "object" in pandas.
    dtype = getattr(value, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    if name == "object" and hasattr(value, "tolist"):
        return any(map(_is_text, keras.tree.flatten(value.tolist())))
    return name.startswith(("str", "bytes"))


def check_ids(name, ids, limit):
    """Raise `InputError` if ids are outside of 0 to `limit` - 1.

    Symbolic ids (in `fit`, `predict`, a SavedModel) are not checked. If such an
    id is out of range, TensorFlow's lookup raises on a CPU and returns zeros on
    a GPU. XLA clips the id, and JAX returns NaN. In a table of 2 to 4 rows,
    such as the segment table, the id gets a zero vector.
    """
    if isinstance(ids, keras.KerasTensor) or hasattr(ids, "graph"):
        return  # A conversion of symbolic ids would print a warning.
    try:
        ids = keras.ops.convert_to_numpy(ids)
    except (NotImplementedError, AttributeError, TypeError, RuntimeError):
        return  # a symbolic tensor of a backend other than TensorFlow
    if ids.size and not 0 <= ids.min() <= ids.max() < limit:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise InputError(
            f"{name} contains the number {wrong}. Expected numbers from 0 to "
            f"{limit - 1}: make the ids with the preprocessor of this model."
        )


def as_tensor(values):
    """Convert values to an int32 tensor; keep None and Keras tensors."""
    if values is None or isinstance(values, keras.KerasTensor):
        return values
    refuse_text(values)
    return ops.convert_to_tensor(values, dtype="int32")
