"""WordPiece in a graph: strings in, ragged ids out."""

import functools

import keras

from bert_keras.errors import InputError
from bert_keras.text.detokenization import detokenize
from bert_keras.text.exact import ExactText
from bert_keras.text.strings import as_strings, by_string, compiled
from bert_keras.text.vocabulary import checked_vocabulary

UNITS = ("characters", "bytes")


@keras.saving.register_keras_serializable(package="bert_keras")
class WordPieceTokenizer(keras.layers.Layer):
    """Strings to the ids that `WordPiece`, the law, gives them.

    Rows of plain text go through tensorflow-text's operations; the others,
    and all where it is portable or tensorflow-text is not installed, through
    TensorFlow's core operations. The ids are the same. The layer saves with
    its vocabulary inside.

    Args:
        vocabulary: pieces in the order of their ids.
        lowercase: lower-case the text, as "uncased" vocabularies need.
        strip_accents: drop accents; None does as `lowercase` says.
        max_word_length: longest word, in characters, that is not "[UNK]".
        keep_special_tokens: take "[CLS]" and its like, where they stand in
            the text, for the token rather than for plain text.
        portable: use core operations alone, for servers and platforms that
            have no tensorflow-text. Slower.

    Call arguments:
        strings: a string, or a tensor, array, list or ragged tensor of them.
            Bytes that are not UTF-8 are dropped.

    Returns:
        Ragged `int32`, with one axis more than `strings`; a tensor `(None,)`
        for one string.

    Raises:
        InputError: for a vocabulary that `checked_vocabulary` refuses.

    Example:

    >>> tokenizer = WordPieceTokenizer(read_vocabulary("vocab.txt"))
    >>> ids = tokenizer(["An hour well spent."])
    """

    def __init__(
        self,
        vocabulary,
        lowercase=True,
        strip_accents=None,
        max_word_length=200,
        keep_special_tokens=False,
        portable=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        if max_word_length < 1:
            raise InputError(
                f"max_word_length is {max_word_length}; expected 1 character "
                "or more."
            )
        self.vocabulary = checked_vocabulary(vocabulary)
        self.lowercase = lowercase
        self.strip_accents = (
            lowercase if strip_accents is None else strip_accents
        )
        self.max_word_length = max_word_length
        self.keep_special_tokens = keep_special_tokens
        self.portable = portable
        self._ids = {token: i for i, token in enumerate(self.vocabulary)}
        self._graphs = _Graphs(
            portable,
            vocabulary=self.vocabulary,
            lowercase=lowercase,
            strip_accents=self.strip_accents,
            max_word_length=max_word_length,
            keep_special_tokens=keep_special_tokens,
        )
        self.built = True

    @property
    def vocabulary_size(self):
        return len(self.vocabulary)

    @property
    def pad_id(self):
        return self._ids["[PAD]"]

    @property
    def unk_id(self):
        return self._ids["[UNK]"]

    @property
    def cls_id(self):
        return self._ids["[CLS]"]

    @property
    def sep_id(self):
        return self._ids["[SEP]"]

    @property
    def mask_id(self):
        return self._ids["[MASK]"]

    def id_to_token(self, token_id):
        """The piece with this id."""
        if not 0 <= token_id < self.vocabulary_size:
            raise InputError(
                f"There is no token with id {token_id}; the vocabulary has "
                f"ids from 0 to {self.vocabulary_size - 1}. Give one of them."
            )
        return self.vocabulary[token_id]

    def token_to_id(self, token):
        """The id of this piece."""
        if token not in self._ids:
            raise InputError(
                f"The vocabulary has no piece {token!r}; it has "
                f"{self.vocabulary_size} others. Tokenize text to get pieces."
            )
        return self._ids[token]

    def call(self, strings):
        (ids,) = by_string(self._graphs.ids, as_strings(strings))
        return ids

    def tokenize_with_offsets(self, strings, unit="characters"):
        """Ids, and where in its string each piece begins and ends.

        The slice from start to end becomes the piece when it is normalised;
        accents that follow a piece's last character belong to it. Where one
        character becomes several in two pieces, both have all of it. Takes
        the exact road for every row, which is slower than `call`.

        Args:
            strings: as `call`.
            unit: "characters", as Python counts them, or "bytes".

        Returns:
            `(ids, starts, ends)`, each as `call` returns ids, int32.
        """
        if unit not in UNITS:
            raise InputError(
                f"unit is {unit!r}; expected one of {', '.join(UNITS)}."
            )
        return tuple(by_string(self._graphs.spans[unit], as_strings(strings)))

    def detokenize(self, token_ids):
        """Strings of ids: pieces of a word together, a blank between words.

        Args:
            token_ids: ragged or padded `int32 (..., T)`. `[PAD]`, `[CLS]` and
                `[SEP]` are left out.

        Returns:
            Strings `(...)`.

        Raises:
            InputError: eagerly, for an id that the vocabulary has not; in a
                graph, TensorFlow's `InvalidArgumentError`.
        """
        left_out = (self.pad_id, self.cls_id, self.sep_id)
        return detokenize(token_ids, self.vocabulary, left_out)

    def compute_output_spec(self, strings):
        return keras.KerasTensor(
            (*strings.shape, None), dtype="int32", ragged=True
        )

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": self.vocabulary,
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "max_word_length": self.max_word_length,
            "keep_special_tokens": self.keep_special_tokens,
            "portable": self.portable,
        }


class _Graphs:
    """The graphs of a tokenizer, traced when first called.

    Beside the layer, not in it, so that an export holds those it uses only.
    """

    def __init__(self, portable, **settings):
        exact = ExactText(**settings)
        fast = None if portable else _fast_text(exact, settings)
        self.ids = compiled((fast or exact).ids)
        self.spans = {
            unit: compiled(functools.partial(exact.spans, unit=unit))
            for unit in UNITS
        }


def _fast_text(exact, settings):
    """The fast road, or None where tensorflow-text is not installed."""
    try:
        from bert_keras.text.plain import FastText
    except ModuleNotFoundError as error:
        if error.name != "tensorflow_text":
            raise
        return None
    return FastText(exact, **settings)
