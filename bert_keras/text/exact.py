"""The exact road: any bytes to ids, of TensorFlow's core operations alone."""

import tensorflow as tf

from bert_keras.text.matching import LongestMatch
from bert_keras.text.normalization import Normalizer
from bert_keras.text.offsets import piece_spans


class ExactText:
    """Ids of strings as the law has them, whatever is in the strings.

    Args:
        vocabulary, lowercase, strip_accents, max_word_length,
        keep_special_tokens: as of `WordPiece`.
    """

    def __init__(
        self,
        vocabulary,
        lowercase,
        strip_accents,
        max_word_length,
        keep_special_tokens,
    ):
        self._normalize = Normalizer(
            lowercase, strip_accents, keep_special_tokens
        )
        self._match = LongestMatch(
            vocabulary, max_word_length, keep_special_tokens
        )

    def ids(self, strings):
        """Flat ids and row splits of strings `(B,)`."""
        words = self._normalize(strings)
        pieces = self._match(words)
        return [pieces.ids, _row_splits(words, pieces, strings)]

    def spans(self, strings, unit):
        """Flat ids, their starts and ends, and row splits of strings `(B,)`.

        Args:
            unit: of starts and ends, "characters" or "bytes".
        """
        words = self._normalize(strings)
        pieces = self._match(words)
        starts, ends = piece_spans(words, pieces, strings, unit)
        return [pieces.ids, starts, ends, _row_splits(words, pieces, strings)]


def _row_splits(words, pieces, strings):
    """Where among the pieces each row begins, `int64 (B + 1,)`."""
    return tf.searchsorted(
        tf.gather(words.rows, pieces.words),
        tf.range(tf.size(strings, tf.int64) + 1),
        out_type=tf.int64,
    )
