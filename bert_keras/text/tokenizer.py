"""The tokenizer layer, which turns text into ids and back, also in a graph."""

import functools
import logging
import os
import types
from collections.abc import Iterable
from numbers import Integral
from typing import Any, Self, TypedDict, Unpack

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.text.exact import ExactText
from bert_keras.text.vocabulary import (
    check_vocabulary,
    read_vocabulary,
    resolve_settings,
)
from bert_keras.text.wordpiece import (
    SPECIAL_TOKENS,
    WordPiece,
    encodable,
    read_column,
    refuse_value,
)

logger = logging.getLogger(__name__)
UNITS = ("characters", "bytes")


class TokenizerArguments(TypedDict, total=False):
    """Keyword arguments of `from_preset`."""

    lowercase: bool
    strip_accents: bool | None
    max_word_length: int
    keep_special_tokens: bool
    portable: bool


@keras.saving.register_keras_serializable(package="bert_keras")
class WordPieceTokenizer(keras.layers.Layer):
    """Layer that turns strings into the ids that `WordPiece` returns.

    tensorflow-text's operations tokenize most rows. Other rows, such as rows
    with rare characters, need TensorFlow's core operations, which are slower.
    With `portable`, or without tensorflow-text, all rows use the core
    operations. The ids are the same. A saved layer contains its vocabulary.

    Args:
        vocabulary: tokens in the order of their ids, or the path of a file
            with one token on each line. `tokenizer_config.json` next to that
            file sets the defaults of `lowercase` and `strip_accents`.
        lowercase: lower-case the text, as "uncased" vocabularies need. None
            means the value in `tokenizer_config.json` or, without one, True.
        strip_accents: drop accents. None means the value in
            `tokenizer_config.json` or, without one, the value of `lowercase`.
        max_word_length: maximum characters of a word; longer ones are "[UNK]".
        keep_special_tokens: treat "[CLS]", "[MASK]", ... in the text as
            tokens, not as plain text.
        portable: use only TensorFlow's core operations, for servers and
            platforms that have no tensorflow-text.

    Call arguments:
        strings: a string, or a tensor, array, list or ragged tensor of strings.
            Bytes that are not UTF-8 are dropped.

    Returns:
        Ragged `int32`, with one axis more than `strings`; a tensor `(None,)`
        for one string.

    Raises:
        InputError: the vocabulary or `tokenizer_config.json` is invalid or
            cannot be read, an argument is invalid or contradicts
            `tokenizer_config.json`, or `strings` has other values than strings.

    Examples:
        >>> from bert_keras import WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer.from_preset("bert_keras_mini_en")
        >>> ids = tokenizer(["An hour well spent."])
        >>> tokenizer.detokenize(ids).numpy().tolist()
        [b'an hour well spent .']
    """

    def __init__(
        self,
        vocabulary: Iterable[str] | PathLike,
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        max_word_length: int = 200,
        keep_special_tokens: bool = False,
        portable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        if max_word_length < 1:
            raise InputError(
                f"max_word_length is {max_word_length}; expected 1 character "
                "or more."
            )
        if isinstance(vocabulary, str | os.PathLike):
            pieces = read_vocabulary(vocabulary)
            lowercase, strip_accents = resolve_settings(
                vocabulary, lowercase, strip_accents
            )
        else:
            pieces = check_vocabulary(vocabulary)
        lowercase = True if lowercase is None else lowercase
        # A namespace, because Keras would track each token of a list or dict.
        self._pieces = types.SimpleNamespace(
            in_order=pieces, ids={piece: i for i, piece in enumerate(pieces)}
        )
        self.lowercase = lowercase
        self.strip_accents = (
            lowercase if strip_accents is None else strip_accents
        )
        self.max_word_length = max_word_length
        self.keep_special_tokens = keep_special_tokens
        self.portable = portable
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._pieces.ids[token] for token in SPECIAL_TOKENS
        )
        self._graphs = _make_graphs(
            portable,
            tuple(pieces),
            lowercase,
            self.strip_accents,
            max_word_length,
            keep_special_tokens,
        )
        self.built = True

    @classmethod
    def from_preset(
        cls,
        preset: PathLike,
        *,
        revision: str | None = None,
        **arguments: Unpack[TokenizerArguments],
    ) -> Self:
        """Load the tokenizer of published or saved weights.

        `arguments` of this class override the preset's values. But a
        `lowercase` that contradicts the preset raises `InputError`. `revision`
        is a branch, tag or commit on the Hub.
        """
        from bert_keras.interop.presets import load_tokenizer

        return load_tokenizer(cls, preset, revision, arguments)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        # A saved model must not choose a file to read. The constructor reads a
        # file if it gets a string, so pass a list.
        return cls(**{**config, "vocabulary": list(config["vocabulary"])})

    @property
    def vocabulary(self) -> list[str]:
        """Tokens in the order of their ids.

        Do not change this list; `get_vocabulary()` returns a copy.
        """
        return self._pieces.in_order

    @property
    def vocabulary_size(self) -> int:
        return len(self.vocabulary)

    def get_vocabulary(self) -> list[str]:
        """Return a copy of the tokens in the order of their ids."""
        return list(self.vocabulary)

    def id_to_token(self, token_id: int) -> str:
        """Return the token of an id."""
        is_integer = isinstance(token_id, Integral)
        if not is_integer or not 0 <= token_id < self.vocabulary_size:
            raise InputError(
                f"There is no token with id {token_id}; the vocabulary has "
                f"ids from 0 to {self.vocabulary_size - 1}. Give one of these."
            )
        return self.vocabulary[token_id]

    def token_to_id(self, token: str) -> int:
        """Return the id of a token."""
        if token not in self._pieces.ids:
            raise InputError(
                f"The vocabulary has no token {token!r} among its "
                f"{self.vocabulary_size} tokens. For the ids of text, call "
                "the tokenizer."
            )
        return self._pieces.ids[token]

    def call(self, strings: Any) -> tf.RaggedTensor:
        (ids,) = _map_strings(self._graphs.ids, as_strings(strings))
        return ids

    def tokenize_with_offsets(
        self, strings: Any, unit: str = "characters"
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Return ids, and the start and end of each token in its string.

        A span has every character that a letter of the token comes from, and
        the accents after the last one, so `string[start:end]`, normalised,
        contains the token without "##". A character that becomes several
        letters, such as a Hangul syllable, may be in several tokens. Then their
        spans share that character. The span of an "[UNK]" is the whole word.
        This method does not use tensorflow-text's operations, so it is slower
        than a call.

        Args:
            strings: as for a call.
            unit: unit of starts and ends, "characters" (of a str) or "bytes".

        Returns:
            `(ids, starts, ends)`, int32, each of the shape that a call returns.
        """
        if unit not in UNITS:
            raise InputError(
                f"unit is {unit!r}; expected one of {', '.join(UNITS)}."
            )
        return tuple(
            _map_strings(getattr(self._graphs, unit), as_strings(strings))
        )

    def detokenize(self, token_ids: Any) -> tf.Tensor:
        """Return the text of ids, with a blank between words.

        Args:
            token_ids: ragged or padded `int32 (..., T)`. `[PAD]`, `[CLS]` and
                `[SEP]` are dropped.

        Returns:
            Strings `(...)`.

        Raises:
            InputError: `token_ids` are not integers `(..., T)`, or an id is
                not in the vocabulary. A graph raises TensorFlow's
                `InvalidArgumentError` for an unknown id.
        """
        is_ragged = isinstance(token_ids, tf.RaggedTensor)
        if not is_ragged:
            token_ids = tf.convert_to_tensor(token_ids)
        if not token_ids.dtype.is_integer or token_ids.shape.rank == 0:
            raise InputError(
                f"The ids to detokenize are {token_ids.dtype.name} of shape "
                f"{token_ids.shape}. Expected whole numbers (..., T), as the "
                "tokenizer makes them."
            )
        if is_ragged and token_ids.ragged_rank > 1:
            return token_ids.with_values(self.detokenize(token_ids.values))
        if is_ragged:
            return self._join(token_ids)
        shape = tf.shape(token_ids)
        # (..., T) to (B, T)
        rows = tf.reshape(token_ids, [tf.reduce_prod(shape[:-1]), shape[-1]])
        texts = self._join(tf.RaggedTensor.from_tensor(rows))
        return tf.reshape(texts, shape[:-1])  # (B,) to (...)

    def _join(self, rows: tf.RaggedTensor) -> tf.Tensor:
        """Return strings `(B,)` of ragged ids `(B, None)`."""
        _check_range(rows.values, self.vocabulary_size)
        for token_id in (self.pad_id, self.cls_id, self.sep_id):
            rows = tf.ragged.boolean_mask(rows, rows != token_id)
        first = tf.ragged.range(rows.row_lengths()).values == 0
        bodies = [piece.removeprefix("##") for piece in self.vocabulary]
        continues = [piece.startswith("##") for piece in self.vocabulary]
        glued = tf.gather(tf.constant(continues), rows.values) & ~first
        texts = tf.where(
            glued,
            tf.gather(tf.constant(bodies), rows.values),
            tf.gather(tf.constant(self.vocabulary), rows.values),
        )
        texts = tf.strings.join([tf.where(first | glued, "", " "), texts])
        return tf.strings.reduce_join(rows.with_values(texts), axis=-1)

    def compute_output_spec(self, strings: Any) -> keras.KerasTensor:
        return keras.KerasTensor(
            (*strings.shape, None), dtype="int32", ragged=True
        )

    def get_config(self) -> dict[str, Any]:
        names = ("vocabulary", *TokenizerArguments.__annotations__)
        settings = {name: getattr(self, name) for name in names}
        settings["vocabulary"] = list(self.vocabulary)
        return {**super().get_config(), **settings}


# Keep the graphs of two tokenizers, enough to train and export a model, or to
# compare two models. A larger cache would fill the memory with vocabularies.
@functools.lru_cache(maxsize=2)
def _make_graphs(portable, *settings):
    """Return a namespace of graphs, which are functions of strings `(B,)`.

    Tokenizers with equal settings share the graphs, because tracing is slow.
    `ids` returns ids; `characters` and `bytes` also return spans in that unit.
    With `portable`, `ids` does not use tensorflow-text.
    `settings` are the arguments of `WordPiece`, with the vocabulary as a tuple.
    """
    settings = WordPiece(*settings)
    exact = functools.cache(lambda: ExactText(settings))
    graphs = {
        unit: _compile(lambda strings, unit=unit: exact().spans(strings, unit))
        for unit in UNITS
    }
    ids = _compile(lambda strings: exact().ids(strings))
    if not portable:
        try:
            from bert_keras.text.fast import FastText
        except ModuleNotFoundError as error:
            if error.name != "tensorflow_text":
                raise
            _note_slow_tokenizer()
        else:
            ids = _in_two_steps(FastText(exact, settings))
    # If this were a dict, Keras would track the graphs and export all of them.
    return types.SimpleNamespace(ids=ids, **graphs)


@functools.cache
def _note_slow_tokenizer():
    logger.warning(
        "tensorflow-text is not installed (it has no build for Windows). The "
        "exact tokenizer takes over: the same ids, but slower."
    )


def _in_two_steps(text):
    """Return a function of strings `(B,)` with the result of `text.ids`.

    `text` is a `FastText`. In a graph, the function traces `FastText` and
    `ExactText`. In eager mode, it traces `ExactText` only when a row needs it,
    because this trace is slow.
    """
    entire, plain = _compile(text.ids), _compile(text.plain_ids)
    values = tf.TensorSpec([None], tf.int32)
    row_splits = tf.TensorSpec([None], tf.int64)
    certain = tf.TensorSpec([None], tf.bool)
    others = _compile(text.with_exact, values, row_splits, certain)

    def ids(strings):
        if not tf.executing_eagerly():
            return entire(strings)
        *found, certain, all_certain = plain(strings)
        return found if all_certain else others(strings, *found, certain)

    return ids


def as_strings(value):
    """Convert a string, list, array or table column to a string tensor.

    A ragged tensor is returned as it is. Halves of surrogate pairs in Python's
    strings become U+FFFD, which the tokenizers drop.

    Raises:
        InputError: `value` contains something that is not a string, or has
            both strings and lists.
    """
    if isinstance(value, tf.RaggedTensor):
        return value
    value = read_column(value)
    try:
        return tf.convert_to_tensor(value, tf.string)
    except (ValueError, TypeError, tf.errors.OpError):
        _refuse_others(value)
    value = value.tolist() if isinstance(value, np.ndarray) else value
    try:
        return tf.convert_to_tensor(encodable(value), tf.string)
    except (ValueError, tf.errors.OpError) as error:
        raise InputError(
            "The texts are lists of different lengths. Expected one string for "
            "each row. For texts that are split into words, see align_words."
        ) from error


def _refuse_others(value):
    several = isinstance(value, list | tuple | np.ndarray)
    other = isinstance(value, np.ndarray) and value.dtype.kind not in "OUS"
    if other or not (several or isinstance(value, str | bytes)):
        dtype = getattr(value, "dtype", None)
        kind = type(value).__name__
        what = repr(value) if dtype is None else f"{kind} of {dtype}"
        raise InputError(
            f"The texts are {what}. Expected one string, or a list, an array "
            "or a tensor of strings."
        )
    for index, text in enumerate(value if several else ()):
        is_tensor = isinstance(text, tf.Tensor) and text.dtype == tf.string
        is_list = isinstance(text, list | tuple | np.ndarray)
        if is_list and text is not np.ma.masked:
            _refuse_others(text)
        elif not (is_tensor or isinstance(text, str | bytes)):
            refuse_value(index, text)
    if several and len({_is_list(text) for text in value}) > 1:
        raise InputError(
            "The texts are strings and lists of strings together. Expected one "
            "string for each row. For pairs, give a tuple (firsts, seconds)."
        )


def _is_list(text):
    return getattr(text, "ndim", isinstance(text, list | tuple)) != 0


def _map_strings(function, strings):
    """Apply a function of strings `(B,)` to strings of any shape.

    `function` returns one or more vectors of flat values, then the row splits
    that these vectors share. `_map_strings` returns one ragged tensor for each
    vector, with one axis more than `strings`. If `strings` is a single string,
    `_map_strings` returns the vectors.
    """
    if isinstance(strings, tf.RaggedTensor):
        ragged = _map_strings(function, strings.flat_values)
        return [strings.with_flat_values(values) for values in ragged]
    if strings.shape.rank is None:
        raise InputError(
            "The strings are a tensor of unknown rank. Set the rank with "
            "tf.ensure_shape."
        )
    if strings.shape.rank == 0:
        rows = _map_strings(function, strings[tf.newaxis])  # (1, None)
        return [tf.ensure_shape(row.values, [None]) for row in rows]
    if strings.shape.rank > 1:
        rank = strings.shape.rank - 1
        nested = tf.RaggedTensor.from_tensor(strings, ragged_rank=rank)
        return _map_strings(function, nested)
    *values, row_splits = function(strings)
    return [
        tf.RaggedTensor.from_row_splits(flat, row_splits, validate=False)
        for flat in values
    ]


def _compile(function, *more):
    """Compile a function of strings `(B,)` as one graph for all callers.

    The graph runs on the CPU, where strings are, even if there is a GPU. `more`
    has the `TensorSpec` of each further argument.
    """

    def on_cpu(*arguments):
        with tf.device("/CPU:0"):
            return function(*arguments)

    # TensorFlow identifies a function by its code. Without `partial`, it would
    # warn that the graphs of several tokenizers retrace one function.
    return tf.function(
        functools.partial(on_cpu),
        input_signature=[tf.TensorSpec([None], tf.string), *more],
        autograph=False,
    )


def _check_range(token_ids, size):
    wrong = tf.boolean_mask(token_ids, (token_ids < 0) | (token_ids >= size))
    message = (
        f"Some ids are not in the vocabulary; expected 0 to {size - 1}. Use "
        "the tokenizer that made the ids. Wrong ids: "
    )
    if tf.executing_eagerly():
        if tf.size(wrong) > 0:
            raise InputError(message + str(wrong.numpy()[:5].tolist()))
    else:
        tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [message, wrong])
