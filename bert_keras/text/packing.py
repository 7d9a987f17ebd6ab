"""Pack the token ids of segments into the rows that the encoder reads."""

import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError, check_integers


@keras.saving.register_keras_serializable(package="bert_keras")
class SegmentPacker(keras.layers.Layer):
    """Layer that packs one or more segments into a row, as BERT reads them.

    A row is `[CLS]`, then each segment followed by `[SEP]`, then padding. As in
    the original, a row that is too long loses one token at a time, always the
    last token of the longest segment. If several segments are equally long, the
    last of them loses the token.

    Args:
        sequence_length: number of tokens in a row, special tokens included.
        cls_id, sep_id, pad_id: ids of the special tokens.
        pad_to_longest: pad to the length of the batch's longest row, not to
            `sequence_length`.

    Call arguments:
        segments: ragged `int32 (B, None)`, or a tuple of such tensors. Segments
            `int32 (None,)` make a single row, without a batch axis.

    Returns:
        dict of `token_ids`, `segment_ids` (0 to the first `[SEP]`, then 1, ...;
        0 at padding) and `padding_mask` (1 at tokens), each `int32 (B, T)`.

    Raises:
        InputError: `sequence_length` is not an integer, a segment is a list or
            a dense batch, a row has no room for a token of each segment, or,
            outside a `tf.function`, an id is negative.

    Examples:
        >>> import tensorflow as tf
        >>> from bert_keras import SegmentPacker
        >>> pair = tf.ragged.constant([[5, 6]]), tf.ragged.constant([[7]])
        >>> rows = SegmentPacker(8, cls_id=2, sep_id=3)(pair)
        >>> rows["token_ids"].numpy().tolist()
        [[2, 5, 6, 3, 7, 3, 0, 0]]
    """

    def __init__(
        self,
        sequence_length: int,
        cls_id: int,
        sep_id: int,
        pad_id: int = 0,
        pad_to_longest: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        if not isinstance(sequence_length, int | np.integer):
            raise InputError(
                f"`sequence_length` is {sequence_length!r}; expected a whole "
                "number."
            )
        self.sequence_length = int(sequence_length)  # may be a NumPy integer
        self.cls_id = cls_id
        self.sep_id = sep_id
        self.pad_id = pad_id
        self.pad_to_longest = pad_to_longest
        self._width = None if pad_to_longest else self.sequence_length
        self.room(1)
        # Make a graph, because the 200 operations take 15 ms eagerly. It is in
        # a namespace, because Keras would export it if it were an attribute.
        graph = tf.function(
            self._pack_rows, autograph=False, reduce_retracing=True
        )
        self._graphs = types.SimpleNamespace(rows=graph)
        self.built = True

    def call(self, segments: Any) -> dict[str, tf.Tensor]:
        segments = _as_segments(segments)
        for segment in segments:
            is_tensor = isinstance(segment, tf.RaggedTensor) or (
                isinstance(segment, tf.Tensor)
                and segment.shape.rank in (1, None)
            )
            if not (is_tensor and segment.dtype.is_integer):
                dtype = f" of {segment.dtype.name}" if is_tensor else ""
                raise InputError(
                    f"A segment is {type(segment).__name__}{dtype}. Expected a "
                    "ragged int32 tensor (B, None), such as "
                    "tf.ragged.constant([[5, 6]]), or a tensor (None,) of one "
                    "row's ids."
                )
            if tf.executing_eagerly():
                ids = getattr(segment, "flat_values", segment).numpy()
                check_integers("A segment", ids)
        if segments[0].shape.rank == 1:
            batch = [tf.RaggedTensor.from_tensor(s[None]) for s in segments]
            # (1, T) to (T,)
            return {name: rows[0] for name, rows in self.call(batch).items()}
        if tf.executing_eagerly():
            return self._graphs.rows(segments)
        return self._pack_rows(segments)

    def _pack_rows(self, segments):
        _, kept = self._measure_lengths(segments)
        rows = []
        for segment, lengths in zip(
            segments, tf.unstack(kept, axis=1), strict=True
        ):
            starts = segment.row_starts()
            ends = starts + tf.cast(lengths, starts.dtype)
            some = tf.ragged.range(starts, ends)
            rows.append(tf.gather(segment.values, some))
        return self.frame(rows)

    def _measure_lengths(self, segments):
        """Return the lengths before and after the cut, both `(B, segments)`."""
        lengths = [segment.row_lengths() for segment in segments]
        lengths = tf.stack(lengths, axis=1)
        return lengths, longest_first(lengths, self.room(len(segments)))

    def count_cut(self, segments: Any) -> tf.Tensor:
        """Return the number of tokens that each row loses, `int64 (B,)`."""
        lengths, kept = self._measure_lengths(_as_segments(segments))
        return tf.reduce_sum(lengths - kept, axis=1)

    def is_cut(self, segments: Any) -> tf.Tensor:
        """Return bool `(B,)`: True if a row loses tokens."""
        segments = _as_segments(segments)
        lengths = sum(segment.row_lengths() for segment in segments)
        return lengths > self.room(len(segments))

    def room(self, num_segments: int) -> int:
        """Return the maximum total length of the segments in a row."""
        room = self.sequence_length - num_segments - 1
        if room < num_segments:
            raise InputError(
                f"`sequence_length` is {self.sequence_length}; {num_segments} "
                f"segment(s) need at least {2 * num_segments + 1}: [CLS], and "
                "a token and [SEP] for each segment. Set a larger "
                "`sequence_length`."
            )
        return room

    def frame(
        self, segments: Sequence[tf.RaggedTensor]
    ) -> dict[str, tf.Tensor]:
        """Add [CLS], [SEP] and padding to segments that fit in a row.

        Return the same dict as a call.
        """
        column = tf.ones([segments[0].nrows(), 1], segments[0].dtype)
        parts, ends = [self.cls_id * column], []
        last = 1
        for segment in segments:
            parts += [segment, self.sep_id * column]
            last += tf.cast(segment.row_lengths(), tf.int32) + 1
            ends.append(last)  # (B,), the position after the segment's [SEP]
        # Ragged (B, None), then padded (B, T).
        tokens = tf.concat(parts, axis=1)
        tokens = tokens.to_tensor(self.pad_id, shape=(None, self._width))
        positions = tf.range(self._width or tf.shape(tokens)[1])  # (T,)
        # (B, T): the number of segments that end before each position.
        before = sum(
            tf.cast(positions >= end[:, None], column.dtype) for end in ends
        )
        mask = tf.cast(before < len(segments), column.dtype)
        return {
            "token_ids": tokens,
            "segment_ids": before * mask,
            "padding_mask": mask,
        }

    def compute_output_spec(
        self, segments: Any
    ) -> dict[str, keras.KerasTensor]:
        return self.rows_spec(_as_segments(segments)[0].shape[:-1])

    def rows_spec(
        self, batch_shape: Sequence[int | None]
    ) -> dict[str, keras.KerasTensor]:
        """Return the keys and shapes of the dict that a call returns.

        Each value is an int32 `KerasTensor` `(*batch_shape, T)`. With
        `pad_to_longest`, T is None.
        """
        return {
            name: keras.KerasTensor((*batch_shape, self._width), dtype="int32")
            for name in ("token_ids", "segment_ids", "padding_mask")
        }

    def get_config(self) -> dict[str, Any]:
        names = "sequence_length cls_id sep_id pad_id pad_to_longest".split()
        settings = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **settings}


def _as_segments(segments):
    """Return a tuple of segments; a list of batches counts as a tuple.

    A model's saved configuration stores tuples as lists.
    """
    if isinstance(segments, list) and any(
        isinstance(row, tf.Tensor) and row.shape.rank == 1 for row in segments
    ):
        raise InputError(
            "The segments are a list of rows. For a batch, pass "
            "tf.ragged.stack(rows). For the segments of one row, pass a tuple."
        )
    several = isinstance(segments, tuple | list)
    return tuple(segments) if several else (segments,)


def longest_first(lengths, room):
    """Return the segments' lengths after a cut to `room` tokens in total.

    One token at a time is removed from the longest segment until the row fits.
    At a tie, the last of the longest segments loses the token. So all cut
    segments get the same length, but the first ones may keep one token more.

    Args:
        lengths: integers `(B, segments)`.
        room: maximum total length of a row's segments, without [CLS] and
            [SEP]; one integer or `(B, 1)`.

    Returns:
        Integers of the shape and dtype of `lengths`.
    """
    if lengths.shape[1] == 1:
        return tf.minimum(lengths, room)
    # (B, segments), the shortest segment first. Suppose that only segment i and
    # the segments after it are cut, all to the same length. `levels[:, i]` is
    # the greatest such length at which the row fits.
    ascending = tf.sort(lengths, axis=1)
    shorter = tf.cumsum(ascending, axis=1, exclusive=True)
    sharing = tf.range(lengths.shape[1], 0, -1, dtype=lengths.dtype)
    levels = (room - shorter) // sharing
    # Find the shortest segment that is longer than its level. This level is the
    # maximum length of every segment. Without such a segment, the row fits.
    is_over = ascending > levels
    first_over = tf.argmax(is_over, axis=1)
    level = tf.gather(levels, first_over, batch_dims=1)[:, None]  # (B, 1)
    fits = ~tf.reduce_any(is_over, axis=1, keepdims=True)
    level = tf.where(fits, ascending[:, -1:], level)
    left = room - tf.reduce_sum(tf.minimum(lengths, level), 1, keepdims=True)
    # There is room for `left` more tokens. The first cut segments get one each.
    is_cut = lengths > level
    rank = tf.cumsum(tf.cast(is_cut, lengths.dtype), axis=1)
    gets_one_more = is_cut & (rank <= left)
    return tf.minimum(lengths, level) + tf.cast(gets_one_more, lengths.dtype)
