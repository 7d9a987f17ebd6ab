"""Description of a signature, and its function in a graph."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling import modes

# Examples of inputs in the signature card.
SENTENCE = "An hour well spent."
NEXT = "I would gladly spend another."
MASK = "[MASK]"  # a masked token in a text for `fill_mask`


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of a signature; the card stores these fields.

    Attributes:
        dtype: name of the dtype.
        shape: letter or size of each axis: B batch, C classes, D hidden, F
            features, K entries of a row's list, M masks, N found values, T
            tokens.
        text: what the values are.
        per_entry: True if the second axis has a value for each entry of the
            row's list.
        padded: True if the second axis is padded to the largest length in the
            batch. The output `count` has the rows' lengths.
    """

    dtype: str
    shape: tuple[str | int, ...]
    text: str
    per_entry: bool = False
    padded: bool = False

    @property
    def per_token(self) -> bool:
        """True if there is a value for each token, also at padding.

        The values at padding have no meaning. The second input is the padding
        mask.
        """
        return "T" in self.shape and not self.padded


def padded(dtype, shape, text):
    """Return an `Output` whose second axis is padded."""
    return Output(dtype, shape, text, padded=True)


# Outputs that several signatures have.
TRUNCATED = {
    "truncated": Output("bool", ("B",), "True if the end of the text was cut")
}
TOKENS = {
    "pieces": padded("string", ("B", "T"), "the tokens, padded with ''"),
    "start": padded(
        *("int32", ("B", "T")),
        "index of the first character (Unicode code point), padded with -1",
    ),
    "end": padded(
        *("int32", ("B", "T")),
        "index after the last character, padded with -1",
    ),
    "count": Output("int32", ("B",), "number of tokens of each text"),
}


@dataclasses.dataclass
class Signature:
    """One signature of the SavedModel.

    Outputs are dense tensors with the batch on the first axis.

    Attributes:
        name: name of the signature.
        inputs: input name -> an example for one row: a string, a list of
            strings, a list of integers or a list of such lists.
        function: function of one tensor for each of `inputs`, in order;
            returns a dict of tensors.
        outputs: output name -> `Output`.
        labels: names of the classes; for `tag`, of the entity types.
        reads_windows: True if a long text is read in windows, not cut.
    """

    name: str
    inputs: dict[str, str | list]
    function: Callable
    outputs: dict[str, Output]
    labels: tuple[str, ...] = ()
    reads_windows: bool = False

    @property
    def skips_padding(self) -> bool:
        """True if all layers except attention skip padding.

        This changes the outputs at padding. Exports of other libraries compute
        these outputs. To return equal ones, a signature that has them does not
        skip padding.
        """
        return not any(o.per_token for o in self.outputs.values())

    def specs(self):
        """Return the `tf.TensorSpec`s of the inputs."""
        specs = []
        for name, row in self.inputs.items():
            axes = [None]
            while isinstance(row, list):  # one axis for each level of lists
                axes, row = [*axes, None], row[0]
            dtype = tf.string if isinstance(row, str) else tf.int32
            specs.append(tf.TensorSpec(axes, dtype, name))
        return specs

    def trace(self):
        """Trace `function`; return a `ConcreteFunction` for a SavedModel."""

        # Some operations fail on an empty batch. So an empty batch gets one
        # row, and the outputs of this row are removed.
        def answer(*tensors):
            count = tf.shape(tensors[0])[0]
            outputs = self.function(*map(_add_row_if_empty, tensors))
            return {name: value[:count] for name, value in outputs.items()}

        with modes.use(skip_padding=self.skips_padding, gradients=False):
            return tf.function(answer, autograph=False).get_concrete_function(
                *self.specs()
            )


def _add_row_if_empty(tensor):
    """Pad each axis to at least 1 entry if the tensor has no rows."""
    least = tf.cast(tf.shape(tensor)[0] == 0, tf.int32)
    return pad_to(tensor, [least] * tensor.shape.rank)


def pad_to(tensor, least):
    """Pad each axis of a tensor with 0 or "" to at least `least` entries.

    An axis with None in `least` keeps its size and static shape.
    """
    shape = tf.shape(tensor)
    paddings = [
        [0, 0] if size is None else [0, tf.maximum(size - shape[axis], 0)]
        for axis, size in enumerate(least)
    ]
    return tf.pad(tensor, paddings)
