"""From raw strings to the rows a model reads, inside the serving graph."""

import tensorflow as tf

from bert_keras.serving.windows import in_chunks, windows
from bert_keras.text.packing import SegmentPacker

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
