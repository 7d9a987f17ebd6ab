"""What all signatures share: their description, rows of strings."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling import modes
from bert_keras.text.packing import SegmentPacker
from bert_keras.text.windows import in_chunks, windows

# The examples that the signature cards show.
SENTENCE = "An hour well spent."
NEXT = "I would gladly spend another."
MASK = "[MASK]"
# What outputs of several signatures mean.
TRUNCATED = {"truncated": "bool (B,): the text was cut to what a row holds"}
TOKENS = {
    "pieces": "string (B, T): the tokens, '' padded",
    "start": "int32 (B, T): its first character, -1 padded",
    "end": "int32 (B, T): one after its last, -1 padded",
}


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
        per_token: outputs with an axis of tokens, whose values at padding
            mean nothing; the second input is then the padding mask.
        labels: what the classes are called, in the order of their numbers.
        skips_padding: the model computes nothing but attention on padding;
            what it gives there then differs from what it was trained with.
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
        """What the function takes: strings or integers, rows of any length."""
        specs = []
        for name, row in self.inputs.items():
            axes = [None]
            while isinstance(row, list):  # an axis for each list within a list
                axes, row = [*axes, None], row[0]
            dtype = tf.string if isinstance(row, str) else tf.int32
            specs.append(tf.TensorSpec(axes, dtype, name))
        return specs

    def traced(self):
        """The function as a graph that a SavedModel can hold."""

        # Not every operation of a model takes no rows: an empty batch is
        # asked as one of one row, whose answer is cut off.
        def answer(*tensors):
            count = tf.shape(tensors[0])[0]
            outputs = self.function(*map(_with_a_row, tensors))
            return {name: value[:count] for name, value in outputs.items()}

        with modes.use(skip_padding=self.skips_padding, gradients=False):
            return tf.function(answer, autograph=False).get_concrete_function(
                *self.specs()
            )


def _with_a_row(tensor):
    """A tensor without rows with one row, of at least one column."""
    # 1 where there are no rows, else 0: most batches are not padded.
    least = tf.cast(tf.shape(tensor)[0] == 0, tf.int32)
    return pad_to(tensor, [least] * tensor.shape.rank)


def pad_to(tensor, least):
    """The tensor with at least so many entries on each axis, 0 or "".

    Axes of which `least` is None stay as they are, in their static shape too.
    """
    shape = tf.shape(tensor)
    paddings = [
        [0, 0] if size is None else [0, tf.maximum(size - shape[axis], 0)]
        for axis, size in enumerate(least)
    ]
    return tf.pad(tensor, paddings)


class Rows:
    """Tokenizes and packs a batch of strings, as long as its longest row.

    Args:
        preprocessor: the `BertPreprocessor` that the model was trained with;
            its tokenizer and its `sequence_length` are used.
        portable: use TensorFlow's core operations alone.
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
        """The model's inputs (B, T) for ragged ids (B, None), one a segment."""
        # A batch without rows has no longest one: T is 1 there.
        return {
            name: pad_to(rows, [None, 1])
            for name, rows in self._packer(segments).items()
        }

    def are_cut(self, *segments):
        """Whether ragged ids (B, None) are more than one row holds."""
        # (B,)
        lengths = sum(segment.row_lengths() for segment in segments)
        return lengths > self.sequence_length - len(segments) - 1

    def mean_over_windows(self, function, ids, width):
        """The mean of `function` over overlapping windows of each text.

        Args:
            function: of the model's inputs; gives float (rows, `width`).
            ids: ragged ids (B, None) of any length.
            width: how many values the function gives a row.

        Returns:
            float32 (B, width); each window has the weight of its length.
        """
        room = self.sequence_length - 2
        # A quarter is seen twice, so that few sentences are seen only in two.
        cut = windows(ids, room, stride=max(room * 3 // 4, 1))

        def of_windows(begin, end):
            return [function(self.pack(cut.ids[begin:end]))]

        spec = tf.TensorSpec([None, width], tf.float32)
        (values,) = in_chunks(of_windows, cut.ids.nrows(), [spec])  # (W, width)
        return cut.mean(values)

    def pieces(self, token_ids):
        """Ids of any shape as the vocabulary's strings."""
        return tf.gather(self._pieces, token_ids)

    def tokens(self, ids, start, end):
        """The outputs `TOKENS` and their `count`, of ragged (B, None)."""
        # (B, None), then each output (B, most pieces of a text).
        pieces = ids.with_values(self.pieces(ids.values))
        return {
            "pieces": pieces.to_tensor(""),
            "start": start.to_tensor(-1),
            "end": end.to_tensor(-1),
            "count": tf.cast(ids.row_lengths(), tf.int32),
        }
