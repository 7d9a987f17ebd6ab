"""Description of a signature, and conversion of strings to model inputs."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling import modes
from bert_keras.text.packing import SegmentPacker
from bert_keras.text.windows import in_chunks, overlapping_stride, windows

# Examples of inputs in the signature card.
SENTENCE = "An hour well spent."
NEXT = "I would gladly spend another."
MASK = "[MASK]"  # a masked token in a text for `fill_mask`
# Outputs that several signatures have, with their descriptions.
TRUNCATED = {"truncated": "bool (B,): True if the end of the text was cut off"}
TOKENS = {
    "pieces": "string (B, T): the tokens, padded with ''",
    "start": "int32 (B, T): index of the first character (Unicode code point), "
    "padded with -1",
    "end": "int32 (B, T): index after the last character, padded with -1",
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
        outputs: output name -> description of the output.
        padded: names of outputs whose second axis is padded to the largest
            length in the batch. The output `count` has the rows' lengths.
        per_token: names of outputs with an axis of tokens. Their values at
            padding have no meaning. If there are such outputs, the second
            input is the padding mask.
        labels: names of the classes; for `tag`, of the entity types.
        skips_padding: True if all layers except attention skip padding. This
            changes the outputs at padding.
    """

    name: str
    inputs: dict[str, str | list]
    function: Callable
    outputs: dict[str, str]
    padded: tuple[str, ...] = ()
    per_token: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    skips_padding: bool = True

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


class Rows:
    """Tokenizer and packer for strings; pads a batch to its longest row.

    Args:
        preprocessor: the `BertPreprocessor` that the model was trained with;
            its tokenizer, `sequence_length` and prompts are used.
        portable: True to use only operations of TensorFlow's core.
    """

    def __init__(self, preprocessor, portable=False):
        self.tokenizer = preprocessor.tokenizer
        self.prompts = preprocessor.prompts
        self.prompt = preprocessor.prompt
        self.include_prompt = preprocessor.include_prompt
        if portable:
            config = self.tokenizer.get_config() | {"portable": True}
            self.tokenizer = type(self.tokenizer).from_config(config)
        self.sequence_length = preprocessor.sequence_length
        self._packer = SegmentPacker(
            self.sequence_length,
            cls_id=self.tokenizer.cls_id,
            sep_id=self.tokenizer.sep_id,
            pad_id=self.tokenizer.pad_id,
            pad_to_longest=True,
        )
        self._pieces = tf.constant(self.tokenizer.vocabulary)

    def pack(self, *segments):
        """Return dict of model inputs (B, T) for ragged ids of each segment."""
        # Pad T to 1 or more, because T is 0 in an empty batch.
        return {
            name: pad_to(rows, [None, 1])
            for name, rows in self._packer(segments).items()
        }

    def are_cut(self, *segments):
        """Return bool (B,): True if the segments' ids do not fit into a row."""
        lengths = sum(segment.row_lengths() for segment in segments)
        return lengths > self.sequence_length - len(segments) - 1

    def mean_over_windows(self, function, ids, width):
        """Return the mean of `function` over overlapping windows of each text.

        Args:
            function: function of the model's inputs; returns float (rows,
                `width`).
            ids: ragged ids (B, None) of any length.
            width: number of values that `function` returns for a row.

        Returns:
            float32 (B, width), the mean weighted by window length.
        """
        room = self.sequence_length - 2
        cut = windows(ids, room, overlapping_stride(room))

        def run_windows(begin, end):
            return [function(self.pack(cut.ids[begin:end]))]

        spec = tf.TensorSpec([None, width], tf.float32)
        (values,) = in_chunks(
            run_windows, cut.ids.nrows(), [spec]
        )  # (W, width)
        return cut.mean(values)

    def pieces(self, token_ids):
        """Return the word pieces for ids of any shape."""
        return tf.gather(self._pieces, token_ids)

    def tokens(self, ids, start, end):
        """Return the outputs `TOKENS` and `count` of ragged ids and offsets."""
        pieces = ids.with_values(self.pieces(ids.values))  # (B, None)
        return {
            "pieces": pieces.to_tensor(""),
            "start": start.to_tensor(-1),
            "end": end.to_tensor(-1),
            "count": tf.cast(ids.row_lengths(), tf.int32),
        }
