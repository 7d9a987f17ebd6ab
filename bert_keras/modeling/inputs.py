"""The names under which a model takes its arguments and its inputs."""

import inspect
from collections.abc import Sequence
from typing import Any, TypedDict

import keras
from keras import ops

from bert_keras.errors import InputError

# The first three are those of any model, the other two of packed rows.
INPUT_NAMES = (
    "token_ids",
    "segment_ids",
    "padding_mask",
    "position_ids",
    "example_ids",
)
# Of `BertEmbedder`: 1 at tokens that are pooled.
POOLING_MASK = "pooling_mask"

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def argument_names(cls):
    """Names of a constructor's arguments, in order, without `self`.

    Where it hands **kwargs on, those of the class above it follow.
    """
    names = []
    # From the class itself upwards, as long as arguments are handed on.
    for one in cls.__mro__:
        if "__init__" in vars(one):
            _, *parameters = inspect.signature(one.__init__).parameters.values()
            names += [p.name for p in parameters if p.kind not in _VARIABLE]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return list(dict.fromkeys(names))


def named_inputs(inputs):
    """The inputs by name; token ids alone become a dict of one."""
    if not isinstance(inputs, dict):
        inputs = {"token_ids": inputs}
    # A name that is misspelled would otherwise count as one left out.
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


def refuse_text(values):
    """Refuses texts where a model reads token ids; a data set of them too."""
    if hasattr(values, "element_spec"):  # of tf.data
        values = values.element_spec
        values = values[0] if isinstance(values, tuple) else values
    if any(map(_is_text, keras.tree.flatten(values))):
        raise InputError(
            "The inputs are texts, but a model reads token ids. Let its "
            "preprocessor make them: preprocess(texts) for a list, an array "
            "or a tensor, dataset.map(preprocess) for a data set."
        )


def _is_text(value):
    if isinstance(value, str | bytes):
        return True
    # TensorFlow: "string". NumPy: "str96", "bytes24"; of pandas "object".
    dtype = getattr(value, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    if name == "object" and hasattr(value, "tolist"):
        return any(map(_is_text, keras.tree.flatten(value.tolist())))
    return name.startswith(("str", "bytes"))


def check_ids(name, ids, limit):
    """Refuses numbers outside 0 to `limit` - 1, where they are known.

    In a graph (`fit`, `predict`, a SavedModel) they are not. There the lookup
    of TensorFlow raises on a CPU and gives zeros on a GPU; XLA, which a TPU
    needs, clips; JAX gives NaN.
    """
    if isinstance(ids, keras.KerasTensor) or hasattr(ids, "graph"):
        return  # symbolic, of Keras or of TensorFlow: NumPy would warn
    try:
        ids = keras.ops.convert_to_numpy(ids)
    except (NotImplementedError, AttributeError, TypeError, RuntimeError):
        return  # symbolic, of another backend
    if ids.size and not 0 <= ids.min() <= ids.max() < limit:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise InputError(
            f"{name} has {wrong}. Expected numbers from 0 to {limit - 1}: "
            "make the ids with the preprocessor that belongs to the model."
        )


def as_tensor(values):
    """int32, whatever holds them; None and what is symbolic stay."""
    if values is None or isinstance(values, keras.KerasTensor):
        return values
    refuse_text(values)
    return ops.convert_to_tensor(values, dtype="int32")


# What `from_preset` of each model takes by name, for editors and checkers. The
# sizes are not among them: the preset's weights decide those.


class EncoderArguments(TypedDict, total=False):
    """Of `BertEncoder`, and of every model below."""

    revision: str | None
    dropout: float
    attention_dropout: float
    activation: str
    attention: str
    norm_epsilon: float
    rematerialize: bool
    dtype: Any  # a name or a policy of Keras
    name: str


class ClassifierArguments(EncoderArguments, total=False):
    labels: Sequence[str] | None
    problem: str
    bilstm_dim: int | None
    examples_per_row: int | None
    pair: bool


class EmbedderArguments(EncoderArguments, total=False):
    pooling: str | None
    normalize: bool | None
    truncate_dim: int | None


class PretrainerArguments(EncoderArguments, total=False):
    examples_per_row: int | None
    mlm_activation: str | None
    mlm_norm_epsilon: float | None


class SpanArguments(EncoderArguments, total=False):
    bilstm_dim: int | None
    may_be_none: bool


class TaggerArguments(EncoderArguments, total=False):
    labels: Sequence[str]
    bilstm_dim: int | None
