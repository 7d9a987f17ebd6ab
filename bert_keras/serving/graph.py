"""What all signatures share: their description, rows of strings, slices."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling.attention import skipping_padding
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
        return [_spec(name, row) for name, row in self.inputs.items()]

    def traced(self):
        """The function as a graph that a SavedModel can hold."""

        # Not every operation of a model takes no rows: an empty batch is
        # asked as one of one row, whose answer is cut off.
        def answer(*tensors):
            count = tf.shape(tensors[0])[0]
            outputs = self.function(*map(_with_a_row, tensors))
            return {name: value[:count] for name, value in outputs.items()}

        with skipping_padding(self.skips_padding):
            return tf.function(answer, autograph=False).get_concrete_function(
                *self.specs()
            )


def _spec(name, row):
    """The tensor that a batch of rows like the example is."""
    axes, inner = [None], row
    # An axis for each list within a list.
    while isinstance(inner, list):
        axes, inner = [*axes, None], inner[0]
    dtype = tf.string if isinstance(inner, str) else tf.int32
    return tf.TensorSpec(axes, dtype, name)


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

    def byte_offsets(self, text):
        """Ids of strings (B,), and the bytes where each begins and ends."""
        return self.tokenizer.tokenize_with_offsets(text, unit="bytes")

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


def cut_out(text, first, after, is_real):
    """Slices of strings by their bytes, in time and memory linear in the text.

    A string operation on every slice would copy the whole text for each.

    Args:
        text: strings (B,).
        first: int32 (B, N), the byte where a slice begins.
        after: int32 (B, N), the byte after it.
        is_real: bool (B, N); where it is false there is no slice.

    Returns:
        the slices, strings (B, N); their first character and the one after
        their last, int32 (B, N); "" and -1 where there is no slice.
    """
    first, after = (tf.where(is_real, x, 0) for x in (first, after))
    # Of the text only as much as the slices reach into.
    reach = tf.reduce_max(tf.pad(after, [[0, 0], [0, 1]]), axis=1)
    head = tf.strings.substr(text, tf.zeros_like(reach), reach)
    bytes_of = tf.strings.bytes_split(head)  # (B, None)
    # (B, 1): where each text begins among the bytes of all.
    origin = tf.cast(bytes_of.row_starts(), tf.int32)[:, tf.newaxis]
    slices = _join_bytes(bytes_of.values, origin + first, origin + after)
    # The characters that begin before each byte of all heads, and at the end.
    begins = tf.cast(_begins_character(bytes_of.values), tf.int32)
    before = tf.concat([[0], tf.cumsum(begins)], axis=0)
    start, end = (
        tf.gather(before, origin + x) - tf.gather(before, origin)  # (B, N)
        for x in (first, after)
    )
    return slices, tf.where(is_real, start, -1), tf.where(is_real, end, -1)


def _join_bytes(values, first, after):
    """Strings of one byte joined from each `first` to its `after`."""
    # (B * N, None): the bytes of each slice.
    places = tf.ragged.range(tf.reshape(first, [-1]), tf.reshape(after, [-1]))
    slices = tf.strings.unsorted_segment_join(
        tf.gather(values, places.values),
        places.value_rowids(),
        places.nrows(),
    )
    return tf.reshape(slices, tf.shape(first))  # (B * N,) to (B, N)


def _begins_character(values):
    """Whether a character of UTF-8 begins with each string of one byte."""
    # (bytes, 1) to (bytes,)
    codes = tf.reshape(tf.io.decode_raw(values, tf.uint8), [-1])
    # 10xxxxxx continues the character before.
    return tf.bitwise.bitwise_and(codes, tf.constant(0xC0, tf.uint8)) != 0x80
