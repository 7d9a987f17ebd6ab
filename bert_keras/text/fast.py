"""The fast tokenizer, which uses tensorflow-text's operations for plain rows.

A row is plain if it is valid UTF-8 and has only characters that tensorflow-text
always treats as `WordPiece` does. With `keep_special_tokens`, a row that has a
special token is not plain. tensorflow-text and `WordPiece` return the same ids
for a plain row, unless a word is very long. `is_plain` finds the plain rows.
"""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.core.pybinds import (
    pywrap_fast_bert_normalizer_model_builder as normalizer_builder,
)
from tensorflow_text.core.pybinds import (
    pywrap_fast_wordpiece_tokenizer_model_builder as pieces_builder,
)

from bert_keras.errors import InputError
from bert_keras.text import unicode_tables as unicode
from bert_keras.text.wordpiece import SPECIAL_TOKENS, UNKNOWN

# Normalisation turns a character into at most three characters of four bytes.
MAX_CHARACTER_BYTES = 12


class FastText:
    """Tokenizer that uses `ExactText` only for strings that need it.

    Args:
        exact: function that returns the `ExactText` with the same settings.
        settings: a `WordPiece` with the vocabulary and the settings to use.
    """

    def __init__(self, exact, settings):
        self._exact = exact
        limit = settings.max_word_length
        self._pieces = _build_vocabulary(settings.vocabulary, limit)
        self._characters = _build_normalizer(settings.lowercase)
        self._long_word = _long_word(limit)
        self._unknown = settings.vocabulary.index(UNKNOWN)
        self._keep_special_tokens = settings.keep_special_tokens
        self._pattern = _pattern(settings.lowercase, settings.strip_accents)

    def ids(self, strings):
        """Return flat ids, int32, and row splits, int64, of strings `(B,)`."""
        *ids, certain, _ = self.plain_ids(strings)
        return tf.cond(
            tf.reduce_all(certain),
            lambda: ids,
            lambda: self.with_exact(strings, *ids, certain),
        )

    def plain_ids(self, strings):
        """Return tensorflow-text's ids, and a mask of strings with correct ids.

        Returns:
            A list of four tensors: the flat ids, int32; the row splits, int64;
            `bool (B,)`, True for strings whose ids are surely correct; and one
            bool, True if all ids are. Do not use the ids of strings with False.
        """
        plain = self.is_plain(strings)
        rows = tf.cond(
            tf.reduce_all(plain),
            lambda: strings,
            lambda: tf.where(plain, strings, ""),
        )
        # Make the tokenizer and its two buffers here, so that a traced graph
        # contains the buffers.
        tokenizer = tf_text.FastBertTokenizer(
            token_out_type=tf.int32,
            fast_wordpiece_model_buffer=tf.constant(self._pieces),
            fast_bert_normalizer_model_buffer=tf.constant(self._characters),
        )
        ids = tokenizer.tokenize(rows)
        certain = plain & ~self._in_doubt(rows, ids)  # (B,)
        return [ids.values, ids.row_splits, certain, tf.reduce_all(certain)]

    def is_plain(self, strings):
        plain = tf.strings.regex_full_match(strings, self._pattern)
        if self._keep_special_tokens:
            names = "|".join(token[1:-1] for token in SPECIAL_TOKENS)
            special = rf"(?s).*\[(?:{names})\].*"
            plain &= ~tf.strings.regex_full_match(strings, special)
        return plain

    def _in_doubt(self, strings, ids):
        """Return True for each row that may have a wrong "[UNK]", `bool (B,)`.

        A word over `max_word_length` becomes "[UNK]". tensorflow-text counts
        bytes, but `WordPiece` counts characters. So a row is in doubt if it has
        an "[UNK]" and a word whose bytes may exceed the limit.
        """
        is_unknown = ids.values == self._unknown

        def look():
            # The row of each "[UNK]".
            rows = tf.searchsorted(
                ids.row_splits[1:],
                tf.where(is_unknown)[:, 0],
                side="right",
            )
            rows, _ = tf.unique(rows)
            is_long = tf.strings.regex_full_match(
                tf.gather(strings, rows), self._long_word
            )
            return tf.tensor_scatter_nd_update(
                tf.zeros_like(strings, tf.bool), rows[:, None], is_long
            )

        return tf.cond(
            tf.reduce_any(is_unknown),
            look,
            lambda: tf.zeros_like(strings, tf.bool),
        )

    def with_exact(self, strings, values, row_splits, certain):
        """Return flat ids and row splits; uncertain rows use `ExactText`."""
        ids = tf.RaggedTensor.from_row_splits(
            values, row_splits, validate=False
        )
        rare = tf.boolean_mask(strings, ~certain)
        exact = tf.RaggedTensor.from_row_splits(
            *self._exact().ids(rare), validate=False
        )
        number = tf.cumsum(tf.cast(~certain, tf.int32)) - 1
        rows = tf.range(tf.size(strings))
        # order[i] is the index of row i in `tf.concat([ids, exact], axis=0)`.
        order = tf.where(certain, rows, tf.size(strings) + number)
        merged = tf.gather(tf.concat([ids, exact], axis=0), order)
        return [merged.values, merged.row_splits]


@functools.cache
def _build_normalizer(lowercase):
    model = normalizer_builder.build_fast_bert_normalizer_model(lowercase)
    return np.frombuffer(model, np.uint8)


def _build_vocabulary(vocabulary, max_word_length):
    """Return tensorflow-text's compiled vocabulary, `uint8 (N,)`.

    The C++ builder is called directly, because tensorflow-text's Python class
    converts the bytes to a list, which takes a second.
    """
    try:
        model = pieces_builder.build_fast_wordpiece_model(
            vocabulary,
            max_word_length,  # in bytes
            "##",
            UNKNOWN,
            False,  # no_pretokenization
            False,  # support_detokenization
        )
    except RuntimeError as error:
        raise InputError(
            f"tensorflow-text cannot use the vocabulary: {error} Correct the "
            "vocabulary, or make the tokenizer with `portable=True`."
        ) from None
    return np.frombuffer(model, np.uint8)


def _long_word(max_bytes):
    """Return a pattern of text that may have a word over `max_bytes`.

    ASCII white space and punctuation separate words. The pattern finds words of
    more than `max_bytes` / 12 characters, because a character has at most 12
    bytes after normalisation. RE2 repeats a class at most 1,000 times, so the
    pattern also finds all words of 1,000 characters or more.
    """
    least = min(max_bytes // MAX_CHARACTER_BYTES + 1, 1000)
    inside = r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]"
    return rf"(?s).*{inside}{{{least}}}.*"


def plain_codes(lowercase, strip_accents):
    """Return the code points that tensorflow-text treats as `WordPiece` does.

    The result is a set of integers.
    """
    is_plain = unicode.table("plain_uncased" if lowercase else "plain_cased")
    agree = set(np.flatnonzero(is_plain).tolist())
    if lowercase == strip_accents:
        return agree
    # tensorflow-text has one option for `lowercase` and `strip_accents`. If the
    # two differ, exclude the characters that `strip_accents` changes.
    without_accents = unicode.map_code_points(lowercase, True)
    with_accents = unicode.map_code_points(lowercase, False)
    kinds = unicode.kinds()
    return {
        code
        for code in agree
        if kinds[code] != unicode.MARK
        and without_accents.get(code, (code,))
        == with_accents.get(code, (code,))
    }


@functools.cache
def _pattern(lowercase, strip_accents):
    """Return a regular expression for text that has only `plain_codes`."""
    inside = np.zeros(unicode.CODE_POINTS + 1, bool)
    inside[list(plain_codes(lowercase, strip_accents))] = True
    edges = np.flatnonzero(np.diff(inside, prepend=False)).reshape(-1, 2)
    ranges = "".join(
        rf"\x{{{start:x}}}-\x{{{end - 1:x}}}" for start, end in edges
    )
    return f"[{ranges}]*"
