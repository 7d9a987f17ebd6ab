"""The reference implementation of WordPiece in plain Python, readable but slow.

`ExactText` and `FastText` are tested against `WordPiece`. `WordPiece` is tested
against the rules of the original BERT. The ids do not depend on the version of
Python, because unicode_tables holds the character properties of Unicode 14.0.
"""

import itertools
import re

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text import unicode_tables as unicode

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNKNOWN = "[UNK]"
_ANY_SPECIAL_TOKEN = re.compile(
    "(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")"
)
MAX_TOKEN_BYTES = 256  # as in tensorflow-text; published tokens have up to 60


def utf8_length(piece):
    """Return a token's UTF-8 length; half a surrogate pair counts as 1 byte."""
    return len(piece.encode(errors="replace"))


class WordPiece:
    """Splitter of text into word pieces and their ids, as in the original BERT.

    These are the steps, in order:
    1. Bytes are decoded. Invalid bytes, NUL, U+FFFD, control and format
       characters are dropped.
    2. White space separates words, and each ideograph becomes a word.
    3. `lowercase` lower-cases words (with final sigma). `strip_accents`
       drops accents (canonical decomposition without category Mn).
    4. Each punctuation character becomes a word.
    5. Each word is split into tokens from the left. Each token is the longest
       match in the vocabulary. All but the first begin with "##". If a part
       has no match, or the word exceeds `max_word_length`, the whole word
       becomes "[UNK]".

    Args:
        vocabulary: tokens in the order of their ids; "[UNK]" among them.
        lowercase: lower-case the text, as "uncased" vocabularies need.
        strip_accents: drop accents; None means the value of `lowercase`.
        max_word_length: maximum characters of a word; 200 as in the original.
        keep_special_tokens: treat "[CLS]" and the other special tokens in
            the text as tokens (True, as in transformers) or as plain text
            (False, as in the original).
    """

    def __init__(
        self,
        vocabulary,
        lowercase=True,
        strip_accents=None,
        max_word_length=200,
        keep_special_tokens=False,
    ):
        self.vocabulary = list(vocabulary)
        self.lowercase = lowercase
        self.strip_accents = (
            lowercase if strip_accents is None else strip_accents
        )
        self.max_word_length = max_word_length
        self.keep_special_tokens = keep_special_tokens
        self._ids = {piece: i for i, piece in enumerate(self.vocabulary)}
        if UNKNOWN not in self._ids:
            raise InputError(
                f"The vocabulary of {len(self.vocabulary)} tokens has no "
                f"{UNKNOWN}, which replaces words without matching tokens. "
                f"Add {UNKNOWN}, as in published vocabularies."
            )

    def ids(self, text):
        """Return the ids of `text` (str, or bytes of UTF-8)."""
        return [self._ids[piece] for piece in self.pieces(text)]

    def pieces(self, text):
        """Return the word pieces of `text` (str, or bytes of UTF-8)."""
        return [
            piece for word in self.words(text) for piece in self.cover(word)
        ]

    def words(self, text):
        """Return the normalised words of `text`."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "ignore")
        if not self.keep_special_tokens:
            return self._plain_words(text)
        words = []
        for part in re.split(_ANY_SPECIAL_TOKEN, text):
            special = part in SPECIAL_TOKENS
            words += [part] if special else self._plain_words(part)
        return words

    def _plain_words(self, text):
        words = []
        for word in text.translate(unicode.spacing()).split(" "):
            if self.lowercase:
                word = lower(word)
            if self.strip_accents:
                word = strip_accents(word)
            words += _split_punctuation(word)
        return words

    def cover(self, word):
        """Return the tokens of a normalised word."""
        if len(word) > self.max_word_length:
            return [UNKNOWN]
        pieces, start = [], 0
        while start < len(word):
            piece, start = self._longest_piece(word, start)
            if piece is None:
                return [UNKNOWN]
            pieces.append(piece)
        return pieces

    def _longest_piece(self, word, start):
        prefix = "##" if start else ""
        for end in range(len(word), start, -1):
            if prefix + word[start:end] in self._ids:
                return prefix + word[start:end], end
        return None, start


def lower(word):
    """Lower-case the word; a capital sigma in final position becomes U+03C2."""
    for found in re.finditer(unicode.CAPITAL_SIGMA, word):
        index = found.start()
        # A sigma is final if the nearest character before it is CASED and the
        # nearest one after it is not. IGNORED characters are skipped.
        if (
            _first_role(reversed(word[:index])) == unicode.CASED
            and _first_role(word[index + 1 :]) != unicode.CASED
        ):
            word = f"{word[:index]}{unicode.FINAL_SIGMA}{word[index + 1 :]}"
    return word.translate(unicode.lower_case())


def strip_accents(word):
    """Decompose a word canonically; drop its marks of Unicode category Mn."""
    if word.isascii():
        return word
    word = _in_canonical_order(word.translate(unicode.decompositions()))
    kinds = unicode.kinds()
    return "".join(c for c in word if kinds[ord(c)] != unicode.MARK)


def _first_role(characters):
    roles = unicode.sigma_roles()
    for character in characters:
        if roles[ord(character)] != unicode.IGNORED:
            return roles[ord(character)]
    return unicode.STOPS


def _in_canonical_order(word):
    """Sort each run of marks by combining class, stably."""
    classes = unicode.combining_classes()
    # Only marks have a class above 0, so sorting moves no other character.
    runs = itertools.groupby(word, lambda mark: classes[ord(mark)] > 0)
    return "".join(
        character
        for _, run in runs
        for character in sorted(run, key=lambda mark: classes[ord(mark)])
    )


def _split_punctuation(word):
    kinds = unicode.kinds()
    spaced = "".join(
        f" {c} " if kinds[ord(c)] == unicode.PUNCTUATION else c for c in word
    )
    return [part for part in spaced.split(" ") if part]


def encodable(value):
    """Replace halves of surrogate pairs in strings by U+FFFD.

    JSON may contain such halves, but UTF-8 files and tensors cannot. The
    tokenizers drop U+FFFD, and character offsets stay as they are.

    Args:
        value: a string, or a list or tuple of strings, nested to any depth;
            other values stay as they are.
    """
    if isinstance(value, str):
        try:
            value.encode()  # faster than a search for halves
        except UnicodeEncodeError:
            return re.sub("[\ud800-\udfff]", "\ufffd", value)
        return value
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value


def read_column(value):
    """Return an array or column of another library with None for no value.

    Other values stay as they are.
    """
    if hasattr(value, "to_pylist"):  # pyarrow; its `to_numpy` refuses strings
        return value.to_pylist()
    is_column = hasattr(value, "to_numpy")  # pandas or polars
    if is_column:
        value = value.to_numpy()
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()  # else the values below the mask would be texts
    # NumPy's StringDType is of kind "T".
    is_column |= isinstance(value, np.ndarray) and value.dtype.kind == "T"
    return np.asarray(value, object) if is_column else value


def refuse_value(index, value):
    """Raise `InputError` for a value among texts that is not a string."""
    raise InputError(
        f"Text {index} is {value!r}, not a string. Leave its row out, "
        'or pass an empty text (in pandas, `.fillna("")`).'
    )
