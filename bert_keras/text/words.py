"""Tokens and labels of texts that are split into words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError, check_integers
from bert_keras.text.wordpiece import read_column

if TYPE_CHECKING:
    from bert_keras.text.preprocessor import BertPreprocessor


def align_words(
    preprocessor: "BertPreprocessor",
    texts: Sequence[Sequence[str]],
    labels: Sequence[Sequence[int]] | None = None,
) -> tuple[dict[str, tf.Tensor], ...]:
    """Return `BertTagger`'s inputs for texts that are split into words.

    The first token of a word represents the word, as in the paper (section
    5.3). Words beyond the row's length are cut off.

    Args:
        preprocessor: the model's preprocessor.
        texts: B lists, each with the words of a text.
        labels: the class, from 0, of each word of each text; None to predict.

    Returns:
        Without labels, `(inputs, word_ids)`. `inputs` is the dict of the
        preprocessor. `word_ids`, int32 (B, T), is a word's index in its text at
        the word's first token, and -1 elsewhere. With labels, `(inputs,
        targets, weights)` for `fit`. `targets`, int32 (B, T), has the labels at
        first tokens. `weights`, float32 (B, T), is 1 there. Both are 0
        elsewhere.

    Raises:
        InputError: there are no words, a text is a string, a word is not a
            string, the words and labels differ in number, or a label is not a
            whole number.

    Examples:
        >>> from bert_keras import BertPreprocessor, align_words
        >>> preset = "bert_keras_mini_en"
        >>> preprocess = BertPreprocessor.from_preset(preset, sequence_length=8)
        >>> inputs, word_ids = align_words(preprocess, [["Well", "spent"]])
        >>> word_ids.tolist()
        [[-1, 0, 1, -1, -1, -1, -1, -1]]
    """
    texts = [read_column(words) for words in read_column(texts)]
    counts = [
        len(words)
        for words in texts
        if hasattr(words, "__len__") and not isinstance(words, str)
    ]
    if not any(counts) or len(counts) < len(texts):
        raise InputError(
            "The texts have no words, or a text is a string. Expected a list "
            "of words for each text."
        )
    if labels is not None and [len(row) for row in labels] != counts:
        raise InputError(
            "The labels do not fit the words. Expected one label for each word "
            "of each text."
        )
    pieces, word, is_first = word_pieces(texts, preprocessor.tokenizer)
    inputs = preprocessor.packer((pieces,))
    # For each token of all texts: the index of the token's word in its text.
    index = np.concatenate([np.arange(count) for count in counts])[word]
    first = pieces.with_values(np.where(is_first, index, -1).astype("int32"))
    width = int(inputs["token_ids"].shape[1])
    # The words are between [CLS] and [SEP]; long texts are cut at the end.
    first = first[:, : width - 2].to_tensor(-1, shape=(None, width - 2))
    word_ids = np.pad(first.numpy(), ((0, 0), (1, 1)), constant_values=-1)
    if labels is None:
        return inputs, word_ids
    rows, columns = np.nonzero(word_ids >= 0)
    targets = np.zeros_like(word_ids)
    offsets = np.cumsum([0, *counts[:-1]])
    flat = np.concatenate([np.asarray(row) for row in labels if len(row)])
    check_integers("labels", flat, advice="give the index of each label")
    targets[rows, columns] = flat[offsets[rows] + word_ids[rows, columns]]
    return inputs, targets, (word_ids >= 0).astype("float32")


def word_pieces(texts, tokenizer):
    """Tokenize each word of texts that are split into words.

    Args:
        texts: the words of each text.
        tokenizer: a `WordPieceTokenizer`.

    Returns:
        `(ids, words, is_first)`. `ids`, ragged (B, None), has P ids in total.
        `words`, int64 (P,), is the index of each id's word among the words of
        all texts. `is_first`, bool (P,), is True at the first id of a word. A
        word without tokens becomes `[UNK]`.
    """
    words = [word for text in texts for word in text]
    distinct = {word: i for i, word in enumerate(dict.fromkeys(words))}
    ids = tokenizer(np.array(list(distinct), object))
    is_empty = tf.cast(ids.row_lengths() == 0, tf.int64)
    unknown = tf.fill([tf.reduce_sum(is_empty)], tokenizer.unk_id)
    unknown = tf.RaggedTensor.from_row_lengths(unknown, is_empty)
    ids = tf.concat([ids, tf.cast(unknown, ids.dtype)], axis=1)
    numbers = np.array([distinct[word] for word in words], "int32")
    of_word = tf.gather(ids, numbers)
    word = of_word.value_rowids().numpy()
    pieces = tf.RaggedTensor.from_row_lengths(  # (B, words, tokens)
        of_word, [len(text) for text in texts]
    ).merge_dims(1, 2)
    return pieces, word, np.diff(word, prepend=-1) != 0
