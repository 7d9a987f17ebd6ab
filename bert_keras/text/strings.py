"""Strings of any shape, for functions that know only vectors of them."""

import functools

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.encodable import encodable


def as_strings(value):
    """A string tensor, ragged or not, of what Python or Keras hands in.

    Halves of surrogate pairs in Python's strings are dropped.
    """
    if isinstance(value, tf.RaggedTensor):
        return value
    try:
        return tf.convert_to_tensor(value, tf.string)
    except ValueError:
        return tf.convert_to_tensor(encodable(value), tf.string)


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
