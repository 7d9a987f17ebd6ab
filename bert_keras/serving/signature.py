"""One question that a served model answers, and what both sides call it."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling.unpadded import skipping_padding

# The examples that the signature cards show.
SENTENCE = "An hour well spent."
NEXT = "I would gladly spend another."
TRUNCATED = "bool (B,): the text was cut to what a row holds"


@dataclasses.dataclass
class Signature:
    """One question that the SavedModel answers.

    Outputs are dense, batch first; rows of unequal length are padded and
    have a `count`.

    Attributes:
        name: what it is called by.
        inputs: input name -> an example for one row: a string, a list of
            strings, a list of integers or a list of such lists.
        function: tensors, in the order of `inputs`, to a dict of tensors.
        outputs: output name -> what it means.
        padded: outputs whose second axis is filled up to the batch's largest
            `count`.
        labels: what the classes are called, in the order of their numbers.
        skips_padding: the model computes nothing but attention on padding;
            what it gives there then differs from what it was trained with.
    """

    name: str
    inputs: dict[str, str | list]
    function: Callable
    outputs: dict[str, str]
    padded: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    skips_padding: bool = True

    def specs(self):
        """What the function takes: strings or integers, rows of any length."""
        return [_spec(name, row) for name, row in self.inputs.items()]

    def traced(self):
        """The function as a graph that a SavedModel can hold."""
        function = tf.function(_of_any_batch(self.function), autograph=False)
        with skipping_padding(self.skips_padding):
            return function.get_concrete_function(*self.specs())


def _of_any_batch(function):
    """The function for batches that may be empty.

    Not every operation of a model takes no rows: an empty batch is asked as
    one of one row, whose answer is cut off.
    """

    def answer(*tensors):
        count = tf.shape(tensors[0])[0]
        outputs = function(*[_at_least_one(tensor) for tensor in tensors])
        return {name: value[:count] for name, value in outputs.items()}

    return answer


def _at_least_one(tensor):
    """A tensor without rows with one row, of at least one column."""
    shape = tf.shape(tensor)
    least = tf.cast(shape[0] == 0, tf.int32)
    missing = tf.maximum(least - shape, 0)
    return tf.pad(tensor, tf.stack([tf.zeros_like(missing), missing], axis=1))


def _spec(name, row):
    if isinstance(row, str):
        return tf.TensorSpec([None], tf.string, name)
    if isinstance(row[0], list):
        return tf.TensorSpec([None, None, None], tf.int32, name)
    is_text = isinstance(row[0], str)
    dtype = tf.string if is_text else tf.int32
    return tf.TensorSpec([None, None], dtype, name)
