"""Add the words of a domain to a vocabulary and its model."""

import collections
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text.learning import count_words
from bert_keras.text.wordpiece import (
    MAX_TOKEN_BYTES,
    UNKNOWN,
    WordPiece,
    utf8_length,
)

UNUSED = re.compile(r"\[unused\d+\]")
# The path of a weight with a row for each token ends in one of these.
TABLES = ("embeddings/token/embeddings", "mlm/bias")

Extension = collections.namedtuple("Extension", "vocabulary replaced")
Extension.__doc__ = """A vocabulary with new tokens.

    vocabulary: all tokens in the order of their ids.
    replaced: dict of a new token's id -> ids of the old tokens it stands for.
    """


def extend_vocabulary(
    vocabulary: Sequence[str], words: Iterable[str]
) -> Extension:
    """Return the `Extension` that adds words to a vocabulary as tokens.

    The first words replace the `[unusedN]` tokens, in order; the other words
    get new ids at the end. All other old tokens keep their ids.

    Args:
        vocabulary: list of the old tokens, in the order of their ids.
        words: new words, already in the tokenizer's normalised form.

    Raises:
        InputError: a word is already a token, occurs twice, or is not exactly
            one word for `WordPiece`, for example because it has punctuation.

    Examples:
        >>> from bert_keras import extend_vocabulary
        >>> old = ["[PAD]", "[unused0]", "[UNK]", "card", "##itis"]
        >>> extend_vocabulary(old, ["carditis"])
        Extension(vocabulary=['[PAD]', 'carditis', '[UNK]', 'card', '##itis'], \
replaced={1: [3, 4]})
    """
    wordpiece = WordPiece(vocabulary, False)
    old_ids = {piece: i for i, piece in enumerate(vocabulary)}
    free = [i for i, old in enumerate(vocabulary) if UNUSED.fullmatch(old)]
    extended, replaced = list(vocabulary), {}
    for word in words:
        if word in old_ids or wordpiece.words(word) != [word]:
            raise InputError(
                f"The word {word!r} cannot be added; expected one word, "
                "without punctuation, that the vocabulary lacks. Leave the "
                "word out, or normalise it first."
            )
        index = free.pop(0) if free else len(extended)
        extended[index : index + 1] = [word]
        old_ids[word] = index
        replaced[index] = wordpiece.ids(word)
    return Extension(extended, replaced)


def domain_words(
    vocabulary, texts, number, lowercase=True, in_order=map, strip_accents=None
):
    """Return the words that would save the most tokens in the texts.

    Args:
        vocabulary: list of tokens.
        texts: iterable of strings, read once.
        number: maximum number of words to return.
        lowercase: setting of the vocabulary's tokenizer.
        strip_accents: setting of the tokenizer; by default `lowercase`.
        in_order: see `learn_vocabulary`.

    Returns:
        A list for `extend_vocabulary`, in descending order of tokens saved. A
        word that `vocabulary` splits into n tokens saves n - 1 tokens at each
        occurrence. A word that becomes "[UNK]" counts as saving one token.
        Words that save no token or exceed a token's limit, 256 bytes, are left
        out.
    """
    wordpiece = WordPiece(vocabulary, lowercase)
    costs = collections.Counter()
    counts = count_words(texts, lowercase, strip_accents, in_order)
    for word, count in counts.items():
        if utf8_length(word) > MAX_TOKEN_BYTES:
            continue
        pieces = wordpiece.cover(word)
        costs[word] = count * (1 if UNKNOWN in pieces else len(pieces) - 1)
    ranked = sorted(costs.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, pieces in ranked[:number] if pieces]


def extend_model(model: Any, extension: Extension) -> Any:
    """Return a copy of the model for the vocabulary of the extension.

    Each new word gets a row in the token embeddings and, if the model predicts
    tokens, in the output bias. It is the row of an [unusedN], a spare row or a
    new row. The old vocabulary splits each new word into tokens, and the mean
    of these tokens' rows becomes the word's row. LoRA is merged, as in
    `with_dtype`. The other weights do not change. For text without new tokens,
    the encoder's outputs are the same.

    Args:
        model: a `BertEncoder` or a model with one.
        extension: an `Extension` of the model's vocabulary.

    Returns:
        A model of the same class.

    Examples:
        >>> from bert_keras import BertEncoder, WordPieceTokenizer
        >>> from bert_keras import extend_model, extend_vocabulary
        >>> encoder = BertEncoder.from_preset("bert_keras_mini_en")
        >>> tokenizer = WordPieceTokenizer.from_preset("bert_keras_mini_en")
        >>> new = extend_vocabulary(tokenizer.vocabulary, ["myocarditis"])
        >>> larger = extend_model(encoder, new)
        >>> larger.vocabulary_size - encoder.vocabulary_size
        1
    """
    size = len(extension.vocabulary)
    model = model.with_dtype(model.dtype_policy)  # merges LoRA weights
    config = model.get_config()
    encoder = config["encoder"]["config"] if "encoder" in config else config
    encoder["vocabulary_size"] = max(size, encoder["vocabulary_size"])
    copy = type(model).from_config(config)
    values = {weight.path: weight.numpy() for weight in model.weights}
    for weight in copy.weights:
        value = values[weight.path]
        if weight.path.endswith(TABLES):
            value = _grow(value, weight.shape[0], extension.replaced)
        weight.assign(value)
    model.copy_metadata(copy)
    return copy


def _grow(table, size, replaced):
    """Return a table of `size` rows; new tokens' rows are means of old rows."""
    rows = np.zeros((size, *table.shape[1:]), table.dtype)
    rows[: len(table)] = table
    for index, ids in replaced.items():
        rows[index] = table[list(ids)].astype(np.float32).mean(axis=0)
    return rows
