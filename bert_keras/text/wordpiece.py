"""The reference implementation of WordPiece in plain Python: readable, slow.

The other tokenizers are tested against it, and it is tested against the rules
of the original BERT. It takes properties of characters from unicode_tables,
Unicode 14.0, so that no id depends on the version of Python.
"""

import itertools
import re

from bert_keras.errors import InputError
from bert_keras.text import unicode_tables as unicode

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNKNOWN = "[UNK]"
_ANY_SPECIAL_TOKEN = re.compile(
    "(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")"
)
LONGEST_PIECE = 256  # bytes; tensorflow-text's limit, published ones have 60


def utf8_length(piece):
    """Return the bytes of a token; half a surrogate pair counts as one."""
    return len(piece.encode(errors="replace"))


class WordPiece:
    """Text to word pieces and their ids, as the original BERT makes them.

    In order: bytes are decoded, invalid ones dropped; NUL, U+FFFD, control
    and format characters vanish; white space separates words, and each
    ideograph is a word; words are lower-cased (with final sigma) and lose their
    accents (canonical decomposition, less Mn); each punctuation character
    becomes a word. Then, from the left, the longest token in the vocabulary
    is taken, "##" before all but a word's first; a word that cannot be
    covered, or is longer than `max_word_length`, is one "[UNK]".

    Args:
        vocabulary: tokens in the order of their ids; "[UNK]" among them.
        lowercase: lower-case the text, as "uncased" vocabularies need.
        strip_accents: drop accents; None does as `lowercase` says.
        max_word_length: characters; 200 in the original, 100 in transformers.
        keep_special_tokens: take "[CLS]" and its like, where they stand in
            the text, for the token (True, as transformers) or for plain text
            (False, as the original).
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
                f"{UNKNOWN}, which stands for words that it cannot cover. "
                "Add it, as published vocabularies have it."
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
        """Return the tokens of one normalised word."""
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
    """Return the word in lower case; a capital sigma by its position."""
    for found in re.finditer(unicode.CAPITAL_SIGMA, word):
        index = found.start()
        # Final with a cased letter before it and none after it.
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
    # A run of others, all of class 0, stays as it is.
    runs = itertools.groupby(word, lambda mark: classes[ord(mark)] > 0)
    return "".join(
        character
        for _, run in runs
        for character in sorted(run, key=lambda mark: classes[ord(mark)])
    )


def _split_punctuation(word):
    """Split a word at punctuation; each mark is a part."""
    kinds = unicode.kinds()
    spaced = "".join(
        f" {c} " if kinds[ord(c)] == unicode.PUNCTUATION else c for c in word
    )
    return [part for part in spaced.split(" ") if part]


def encodable(value):
    """Return text that UTF-8 can hold: without halves of surrogate pairs.

    JSON can spell them, but neither a file nor a tensor can hold them. They
    are dropped, as the tokenizer drops bytes that are not UTF-8.

    Args:
        value: a string, or a list or tuple of such, of any depth; other
            values stay as they are.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "ignore").decode("utf-8")
    if isinstance(value, list | tuple):
        return type(value)(map(encodable, value))
    return value
