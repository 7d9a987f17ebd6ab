"""Strings of any shape, for functions that know only vectors of them."""

import functools

import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.encodable import encodable


def as_strings(value):
    """A string tensor, ragged or not, of what Python or Keras hands in.

    Halves of surrogate pairs in Python's strings are dropped.

    Raises:
        InputError: something in it is not a string.
    """
    if isinstance(value, tf.RaggedTensor):
        return value
    if hasattr(value, "to_numpy"):  # a column of pandas
        value = value.to_numpy(object)
    try:
        return tf.convert_to_tensor(value, tf.string)
    except (ValueError, TypeError):
        _refuse_others(value)
        return tf.convert_to_tensor(encodable(value), tf.string)


def _refuse_others(value):
    """Names the first that is no string."""
    dtype = getattr(value, "dtype", "object")
    several = isinstance(value, list | tuple | np.ndarray)
    if (
        not several
        and not isinstance(value, str | bytes)
        or (
            dtype not in ("object", tf.string)
            and np.dtype(getattr(dtype, "name", dtype)).kind not in "US"
        )
    ):
        what = f"{type(value).__name__} of {dtype}"
        raise InputError(
            f"The texts are {what if dtype != 'object' else repr(value)}. "
            "Expected strings: one, or a list, an array or a tensor of them."
        )
    for place, text in enumerate(value if several else ()):
        if not isinstance(text, str | bytes | list | tuple | np.ndarray):
            raise InputError(
                f"Text {place} is {text!r}, not a string. Leave its row out, "
                'or give an empty text (in pandas, `.fillna("")`).'
            )
    if several and len({isinstance(text, str | bytes) for text in value}) > 1:
        raise InputError(
            "The texts are strings and lists of strings together. Expected "
            "one string a row; pairs are a tuple, (firsts, seconds)."
        )


def by_string(function, strings):
    """What `function` says of strings `(B,)`, for strings of any shape.

    Args:
        function: strings `(B,)` to a list: flat values, one or more, and the
            row splits that all of them have.
        strings: a tensor or ragged tensor.

    Returns:
        A list of ragged tensors with one axis more than `strings`; for one
        string, of vectors.
    """
    if isinstance(strings, tf.RaggedTensor):
        found = by_string(function, strings.flat_values)
        return [strings.with_flat_values(values) for values in found]
    if strings.shape.rank is None:
        raise InputError(
            "The strings are a tensor of unknown rank. Set its shape first."
        )
    if strings.shape.rank == 0:
        found = by_string(function, strings[tf.newaxis])
        return [tf.ensure_shape(ragged.values, [None]) for ragged in found]
    if strings.shape.rank > 1:
        rank = strings.shape.rank - 1
        nested = tf.RaggedTensor.from_tensor(strings, ragged_rank=rank)
        return by_string(function, nested)
    *values, row_splits = function(strings)
    return [
        tf.RaggedTensor.from_row_splits(flat, row_splits, validate=False)
        for flat in values
    ]


def compiled(function):
    """The function of strings `(B,)` as a graph that all callers share.

    It stays on the CPU, where strings are, with a GPU beside it too.
    """

    def on_cpu(strings):
        with tf.device("/CPU:0"):
            return function(strings)

    # A partial is known by itself, not by its code, so that tracing it for
    # several tokenizers is not taken for retracing one.
    return tf.function(
        functools.partial(on_cpu),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
