"""Names of a model's inputs; checks of inputs, labels and class weights."""

import inspect
import math
from numbers import Integral, Real

import keras
import numpy as np
from keras import ops

from bert_keras.errors import InputError, check_integers

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

# Dtypes whose values int32 can hold.
_NARROW = ("bool", "int8", "uint8", "int16", "uint16", "int32")

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


class ShowsArguments:
    """Mixin whose `repr` shows the constructor's arguments.

    The values are those of `get_config`.
    """

    def __repr__(self):
        try:
            config = self.get_config()
        except Exception:  # a graph cannot read a variable
            return super().__repr__()
        _, *names = inspect.signature(type(self).__init__).parameters
        config = {name: config[name] for name in names if name in config}
        return _show({"class_name": type(self).__name__, "config": config})


def _show(value):
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, dict) or "class_name" not in value:
        return repr(value)
    hidden = ("name", "dtype", "reduction")
    arguments = [
        f"{name}={_show(argument)}"
        for name, argument in value["config"].items()
        if name not in hidden
    ]
    return f"{value['class_name']}({', '.join(arguments)})"


def refuse_labels(inputs):
    """Raise `InputError` if the inputs are a tuple of inputs and labels."""
    if isinstance(inputs, tuple) and inputs and isinstance(inputs[0], dict):
        raise InputError(
            f"The inputs are a tuple of {len(inputs)}, as if they had labels. "
            "Expected a dict of arrays. Unpack the tuple: "
            "fit(*preprocess(texts, labels))."
        )


def refuse_list(inputs):
    """Raise `InputError` if the inputs are a list of several batches."""
    refuse_labels(inputs)
    if isinstance(inputs, list | tuple) and any(
        len(getattr(x, "shape", ())) > 1 for x in inputs
    ):
        raise InputError(
            f"The inputs are a list of {len(inputs)} arrays. Expected a dict "
            "of arrays by name, token_ids and if needed segment_ids and "
            "padding_mask, or one array of token ids."
        )


def refuse_text(values):
    """Raise `InputError` if the inputs are texts or a data set of texts."""
    if contains_text(values):
        raise InputError(
            "The inputs are texts, but this model has no preprocessor that "
            "makes its inputs from texts. Assign a BertPreprocessor to "
            "model.preprocessor, as from_preset does, or make ids: "
            "preprocess(texts), or for a data set dataset.map(preprocess)."
        )


def contains_text(values):
    """Return True for texts and for a data set of texts."""
    if hasattr(values, "element_spec"):  # a tf.data.Dataset
        values = values.element_spec
        values = values[0] if isinstance(values, tuple) else values
    return any(map(_is_text, keras.tree.flatten(values)))


def _is_text(value):
    if isinstance(value, str | bytes):
        return True
    if hasattr(value, "columns") and hasattr(value, "dtypes"):  # a table
        return any(_is_text(value[name]) for name in value.columns)
    # Names of text dtypes: "string" in TensorFlow, "str96" or "bytes24" in
    # NumPy, "object" in pandas.
    dtype = getattr(value, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    if name == "category":
        return _is_text(dtype.categories)
    if name == "object" and hasattr(value, "tolist"):
        return any(map(_is_text, keras.tree.flatten(value.tolist())))
    return name.startswith(("str", "bytes"))


def read_labels(labels, classes=None, shape=None):
    """Return labels as numbers; class names become their indices.

    Args:
        labels: array, column, or list of class names. Others are returned
            unchanged.
        classes: names of the classes; None if labels are not classes.
        shape: shape of the logits (..., C); None if labels are not indices.

    Raises:
        InputError: a label is an unknown name, NaN, one-hot, or not from 0 to
            C - 1.
    """
    if isinstance(labels, list | tuple) and any(
        map(_is_text, keras.tree.flatten(labels))
    ):
        labels = np.array(labels, dtype=object)
    if not hasattr(labels, "__array__"):
        return labels
    if _is_text(labels) or str(getattr(labels, "dtype", "")) == "category":
        return _number_names(np.asarray(labels, dtype=object), classes)
    values = np.asarray(labels)
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = np.argwhere(np.isnan(values))[0][0]
        raise InputError(
            f"The labels contain NaN, first in row {row}. Expected a number "
            "for each row. Leave out rows without a label."
        )
    num_classes = shape[-1] if shape else None
    if shape and values.ndim == len(shape) and values.shape[-1] == num_classes:
        raise InputError(
            f"The labels have the shape {values.shape}, as if they were "
            "one-hot. Expected the index of the class: give "
            "labels.argmax(-1), or compile with "
            "keras.losses.CategoricalCrossentropy(from_logits=True)."
        )
    if num_classes and values.dtype.kind in "iuf":
        is_index = (values >= 0) & (values < num_classes)
        is_index &= values == np.floor(values)  # a fraction would be cut off
        if not is_index.all():
            refuse_label(values[~is_index][0], num_classes)
    return as_array(labels)


def as_array(values):
    """Return a column of pandas as an array (B,); others unchanged.

    Keras would make (B, 1) of it. It cannot trace one step for both shapes.
    """
    return np.asarray(values) if hasattr(values, "to_numpy") else values


def watch_labels(data, num_classes):
    """Return a `tf.data.Dataset` that refuses labels out of range.

    With such a label, the loss is NaN on a GPU or with XLA, and wrong on JAX.
    """
    import tensorflow as tf  # here, because Keras may run on JAX

    spec = data.element_spec
    labels = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    if not isinstance(labels, tf.TensorSpec) or labels.dtype == tf.string:
        return data

    def check(x, labels, *weights):
        numbers = tf.reshape(tf.cast(labels, tf.float64), [-1])
        is_index = (numbers >= 0) & (numbers < num_classes)
        is_index &= numbers == tf.floor(numbers)
        wrong = tf.boolean_mask(numbers, ~is_index)
        # The words of TensorFlow's own error, which CPUs raise without XLA.
        asserted = tf.debugging.Assert(
            tf.reduce_all(is_index),
            [
                "label value of",
                tf.reduce_sum(wrong[:1]),
                f"which is outside the valid range of [0, {num_classes})",
            ],
        )
        with tf.control_dependencies([asserted]):
            return x, tf.identity(labels), *weights

    return data.map(check, num_parallel_calls=tf.data.AUTOTUNE)


def refuse_label(label, num_classes):
    """Raise `InputError`: the label is not from 0 to `num_classes` - 1."""
    raise InputError(
        f"The labels contain {label}. Expected numbers from 0 to "
        f"{num_classes - 1}, the indices of the classes. To leave labels out, "
        "set ignore_class of the loss to their number."
    )


def _number_names(names, classes):
    """Return int32 array: the indices in `classes` of an array of names."""
    if classes is None:
        raise InputError(
            "The labels are texts. Expected numbers: only models with one "
            "class for each text or token read names. For several labels a "
            "text, pass an array (B, C) of 0 and 1."
        )
    index = {name: i for i, name in enumerate(classes)}
    texts = [
        x.decode() if isinstance(x, bytes) else x for x in names.reshape(-1)
    ]
    if any(isinstance(x, list | tuple) for x in texts):
        raise InputError(
            "The labels have rows of different lengths. Expected an array with "
            "a label for each output, such as (B, T) for a tagger."
        )
    unknown = list(dict.fromkeys(x for x in texts if x not in index))
    if unknown:
        raise InputError(
            f"The labels contain {', '.join(map(repr, unknown[:5]))}. Expected "
            f"the names of the model's classes: {', '.join(classes[:20])}."
        )
    numbers = np.array([index[x] for x in texts], "int32")
    return numbers.reshape(names.shape)


def refuse_named_labels(dataset, classes):
    """Raise `InputError` if the labels of a `tf.data.Dataset` are texts."""
    spec = getattr(dataset, "element_spec", None)
    labels = spec[1:2] if isinstance(spec, tuple) else ()
    if any(map(_is_text, keras.tree.flatten(labels))):
        raise InputError(
            "The labels of the data set are texts. Expected numbers, the "
            f"indices of the classes {', '.join((classes or [])[:20])}. "
            "Convert them: lookup = keras.layers.StringLookup(vocabulary="
            "model.labels, num_oov_indices=0), then "
            "dataset.map(lambda x, y: (x, lookup(y)))."
        )


def read_class_weight(class_weight, classes=None):
    """Return a dict of class index -> weight, with 1.0 for missing classes.

    Args:
        class_weight: dict of class index or name -> weight.
        classes: names of the classes; None if they are unknown.

    Raises:
        InputError: a class is unknown or named twice, or a weight is not a
            finite number of at least 0.
    """
    if not isinstance(class_weight, dict) or not class_weight:
        raise InputError(
            f"class_weight is {class_weight!r}. Expected a dict of class index "
            "or name -> weight."
        )
    index = {name: i for i, name in enumerate(classes or ())}
    weights = {index.get(key, key): x for key, x in class_weight.items()}
    for key, weight in weights.items():
        is_index = isinstance(key, Integral) and key >= 0
        if not is_index or (classes and key >= len(classes)):
            names = f": {', '.join(classes[:20])}" if classes else ""
            raise InputError(
                f"class_weight has the key {key!r}. Expected indices, or names "
                f"of the model's classes{names}."
            )
        is_number = isinstance(weight, Real) and math.isfinite(weight)
        if not is_number or weight < 0:
            raise InputError(
                f"class_weight of class {key} is {weight!r}. Expected a finite "
                "number, 0 or more."
            )
    if len(weights) < len(class_weight):
        raise InputError(
            f"class_weight is {class_weight}, which names a class twice. "
            "Expected each class once."
        )
    count = len(classes) if classes else max(weights) + 1
    # On a data set, Keras would fail for classes after the last key.
    return {i: float(weights.get(i, 1.0)) for i in range(count)}


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
        if not isinstance(ids, np.ndarray):
            ids = keras.ops.convert_to_numpy(ids)
    except (NotImplementedError, AttributeError, TypeError, RuntimeError):
        return  # a symbolic tensor of a backend other than TensorFlow
    check_integers(
        name, ids, limit, "make the ids with the preprocessor of this model"
    )


def check_arrays(inputs):
    """Raise `InputError` for arrays or a data set that no model can read.

    Keras converts arrays, and JAX cuts int64 to int32, before a model is
    called.
    """
    refuse_text(inputs)
    if hasattr(inputs, "element_spec"):  # a tf.data.Dataset
        inputs = inputs.element_spec
        inputs = inputs[0] if isinstance(inputs, tuple) else inputs
    if not isinstance(inputs, dict):
        inputs = {"token_ids": inputs}
    for name, values in inputs.items():
        first, *_ = getattr(values, "shape", None) or [None]
        if first == 0 or isinstance(values, list | tuple) and not values:
            raise InputError(f"{name} has no rows. Expected at least one.")
        if hasattr(values, "shape"):
            _check_form(name, values)
            if hasattr(values, "__array__"):
                _check_wide(name, values)


def as_tensor(name, values):
    """Convert values to an int32 tensor; keep None and Keras tensors.

    Values that int32 cannot hold raise `InputError`. In a graph they become
    -1, an id that no table has.
    """
    if values is None:
        return values
    refuse_text(values)
    if isinstance(values, list | tuple):
        values = _read_lists(name, values)
    _check_form(name, values)
    if isinstance(values, keras.KerasTensor):
        return values
    _check_wide(name, values)
    tensor = ops.convert_to_tensor(values)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype not in _NARROW:
        fits = (tensor >= 0) & (tensor < (1 << 31) - 1)
        if "float" in dtype:
            fits &= tensor == ops.floor(tensor)
        return ops.where(fits, ops.cast(tensor, "int32"), -1)
    return ops.cast(tensor, "int32")


def _read_lists(name, values):
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(
            f"{name} has rows of different lengths. Expected (B, T): fill the "
            "rows with 0, and pass padding_mask, which is 1 at the tokens."
        ) from None
    except (NotImplementedError, TypeError):
        return values  # lists of symbolic tensors


def _check_form(name, values):
    """Raise `InputError` for ragged values, an unknown rank or empty rows."""
    ragged_rank = getattr(values, "ragged_rank", None)
    if ragged_rank is not None or getattr(values, "ragged", False):
        raise InputError(
            f"{name} is ragged. Expected (B, T): pass {name}.to_tensor(), and "
            "padding_mask=tf.ones_like(token_ids).to_tensor(), which is 1 at "
            "the tokens."
        )
    shape = getattr(values, "shape", ())
    if getattr(shape, "rank", 0) is None:
        raise InputError(
            f"{name} has an unknown number of axes. Expected (B, T): call "
            f"tf.ensure_shape({name}, (None, None))."
        )
    if name == "token_ids" and len(shape) and shape[-1] == 0:
        raise InputError(
            f"token_ids has the shape {tuple(shape)}: rows of length 0. "
            "Expected at least one token in a row. The preprocessor makes "
            "[CLS] and [SEP] of an empty text."
        )
    is_symbolic = isinstance(values, keras.KerasTensor)
    policy = keras.config.dtype_policy().compute_dtype
    if is_symbolic and "float" in values.dtype and "16" in policy:
        raise InputError(
            f"{name} is a Keras tensor of {values.dtype}, which Keras would "
            f"round to {policy}. Expected int32: keras.Input((None,), "
            'dtype="int32").'
        )


def _check_wide(name, values):
    """Raise `InputError` if a conversion to int32 would change a value."""
    dtype = getattr(values, "dtype", None)
    is_narrow = str(getattr(dtype, "name", dtype)) in _NARROW
    if not is_narrow or isinstance(values, np.ma.MaskedArray):
        check_ids(name, values, 1 << 31)
