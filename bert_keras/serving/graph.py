"""What all signatures share: their description, rows of raw strings, slices."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from bert_keras.modeling.padding import skipping_padding
from bert_keras.text.packing import SegmentPacker
from bert_keras.text.windows import in_chunks, windows

# One question that a served model answers, and what both sides call it.

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


# Parts of texts cut out by their bytes, and where they are in characters.


def cut_out(text, first, after, is_real):
    """Parts of strings, in time and memory linear in the text.

    A string operation on every part would copy the whole text for each.

    Args:
        text: strings (B,).
        first: int32 (B, N), the byte where a part begins.
        after: int32 (B, N), the byte after it.
        is_real: bool (B, N); where it is false there is no part.

    Returns:
        the parts, strings (B, N); their first character and the one after
        their last, int32 (B, N); "" and -1 where there is no part.
    """
    first, after = (tf.where(is_real, x, 0) for x in (first, after))
    # Of the text only as much as the parts reach into.
    reach = tf.reduce_max(tf.pad(after, [[0, 0], [0, 1]]), axis=1)
    head = tf.strings.substr(text, tf.zeros_like(reach), reach)
    bytes_of = tf.strings.bytes_split(head)  # (B, None)
    origin = tf.cast(bytes_of.row_starts(), tf.int32)[:, tf.newaxis]
    parts = _joined(bytes_of.values, origin + first, origin + after)
    # The characters that begin before each byte of all heads, and at the end.
    begins = tf.cast(~_goes_on(bytes_of.values), tf.int32)
    before = tf.concat([[0], tf.cumsum(begins)], axis=0)
    start, end = (
        tf.gather(before, origin + x) - tf.gather(before, origin)
        for x in (first, after)
    )
    return parts, tf.where(is_real, start, -1), tf.where(is_real, end, -1)


def _joined(values, first, after):
    """Strings of one byte joined from each `first` to its `after`."""
    places = tf.ragged.range(tf.reshape(first, [-1]), tf.reshape(after, [-1]))
    joined = tf.strings.unsorted_segment_join(
        tf.gather(values, places.values),
        places.value_rowids(),
        places.nrows(),
    )
    return tf.reshape(joined, tf.shape(first))


def _goes_on(values):
    """Whether strings of one byte go on with a character, as UTF-8 has it."""
    codes = tf.reshape(tf.io.decode_raw(values, tf.uint8), [-1])
    return tf.bitwise.bitwise_and(codes, tf.constant(0xC0, tf.uint8)) == 0x80


# From raw strings to the rows a model reads, inside the serving graph.

MASK = "[MASK]"


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

    def packed(self, *texts):
        """The model's inputs for strings (B,), one tensor a segment."""
        return self.framed(*[self.tokenizer(text) for text in texts])

    def framed(self, *segments):
        """The model's inputs for ragged ids (B, None), one a segment."""
        return {
            name: _at_least_one_column(rows)
            for name, rows in self._packer(segments).items()
        }

    def truncated(self, *texts):
        """Whether each row of strings (B,) is cut: bool (B,)."""
        return self.cut(*[self.tokenizer(text) for text in texts])

    def cut(self, *segments):
        """Whether ragged ids (B, None) are more than one row holds."""
        lengths = sum(segment.row_lengths() for segment in segments)
        return lengths > self.sequence_length - len(segments) - 1

    def with_masks(self, text):
        """Ids of strings (B,) in which `[MASK]` is the mask token."""
        parts = tf.strings.split(text, MASK)  # (B, parts)
        ids = self.tokenizer(parts.values)  # (B * parts, L)
        # A mask before each part; then the first of each row goes again.
        masks = tf.fill([ids.nrows(), 1], self.tokenizer.mask_id)
        ids = tf.concat([tf.cast(masks, ids.dtype), ids], axis=1)
        rows = tf.RaggedTensor.from_row_splits(ids, parts.row_splits)
        return rows.merge_dims(1, 2)[:, 1:]

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

        def some(begin, end):
            return [function(self.framed(cut.ids[begin:end]))]

        spec = tf.TensorSpec([None, width], tf.float32)
        (values,) = in_chunks(some, cut.ids.nrows(), [spec])
        return cut.mean(values)

    def offsets(self, text):
        """Ids of strings (B,), and the bytes where each begins and ends."""
        return self.tokenizer.tokenize_with_offsets(text, unit="bytes")

    def pieces(self, token_ids):
        """Ids of any shape as the vocabulary's strings."""
        return tf.gather(self._pieces, token_ids)


def _at_least_one_column(rows):
    """Rows (B, T) with T at least 1, also where the batch is empty."""
    missing = tf.cast(tf.equal(tf.shape(rows)[1], 0), tf.int32)
    return tf.pad(rows, [[0, 0], [0, missing]])
