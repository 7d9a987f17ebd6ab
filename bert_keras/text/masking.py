"""Masking: choose the tokens to predict, and replace them."""

import copy
import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.errors import InputError, check_integers, refuse_arguments
from bert_keras.text.vocabulary import check_vocabulary

if TYPE_CHECKING:  # masking in NumPy does not need TensorFlow
    import tensorflow as tf

# The paper, section 3.1, task 1. MASK_RATE is the fraction of tokens to
# predict. MASK_MIX has the percentages of these tokens that become [MASK],
# become a random token, and stay unchanged.
MASK_RATE, MASK_MIX = 0.15, (80, 10, 10)
MASKED = ("token_ids", "mask_positions", "mask_ids", "mask_weights")
# Argument of keras-hub's `MaskedLMMaskGenerator` -> what to pass instead.
_KERAS_HUB_ARGUMENTS = {
    "vocabulary_size": "vocabulary, the list of word pieces",
    "mask_token_id": "vocabulary, which has [MASK]",
    "mask_selection_rate": "mask_rate",
    "mask_selection_length": "max_predictions",
    "mask_token_rate": "`mask_mix`, three percentages such as (80, 10, 10)",
    "random_token_rate": "`mask_mix`, three percentages such as (80, 10, 10)",
    "unselectable_token_ids": (
        "none: [CLS], [SEP], [PAD] and [MASK] are never selected"
    ),
}


class MaskingVocabulary:
    """Ids of a vocabulary's special tokens, and a mask of its "##" tokens.

    Args:
        vocabulary: list of str, with [PAD], [CLS], [SEP] and [MASK].
    """

    def __init__(self, vocabulary: list[str]):
        self.size = len(vocabulary)
        self.pad_id = vocabulary.index("[PAD]")
        self.cls_id = vocabulary.index("[CLS]")
        self.sep_id = vocabulary.index("[SEP]")
        self.mask_id = vocabulary.index("[MASK]")
        # (V,): True for a token that is not the first of its word.
        self.continues = np.array([piece[:2] == "##" for piece in vocabulary])


def generator(*key: int) -> np.random.Generator:
    """Return a random generator whose numbers depend only on `key`."""
    if min(key) < 0:
        raise InputError(f"A seed must not be negative; got {min(key)}.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def check_mask_rules(rules):
    """Raise `InputError` for an invalid value of `mask_rate` or `mask_mix`."""
    if not 0 <= rules.mask_rate <= 1:
        raise InputError(
            f"`mask_rate` must be between 0 and 1; got {rules.mask_rate}."
        )
    mix = rules.mask_mix
    is_mix = len(mix) == 3 and all(
        isinstance(percent, numbers.Real) and 0 <= percent <= 100
        for percent in mix
    )
    if not is_mix or abs(sum(mix) - 100) > 1e-6:
        raise InputError(
            "`mask_mix` must be three percentages (masked, replaced, kept) "
            f"that sum to 100, such as (80, 10, 10); got {mix}."
        )


def count_predictions(length: int, rate: float) -> int:
    """Return the maximum number of masked tokens per input row, at least 1.

    At the paper's rate of 15 %, it is 20 for a row of 128 tokens, 77 for 512.
    """
    is_whole = isinstance(length, numbers.Integral)
    if not (is_whole and isinstance(rate, numbers.Real)):
        return 1  # `SamplingRules` checks the types after this call
    # Round before `ceil`, because 50 * 0.14 is 7.000000000000001.
    return max(1, min(length, math.ceil(round(length * rate, 9))))


def mask_rows(rows: dict, rules, vocabulary: MaskingVocabulary, rng) -> dict:
    """Add masks to rows by the original BERT's rule.

    In each row, single tokens or whole words are drawn (see `choose_words`).
    At most n tokens are drawn. n is `mask_rate` times the number of the row's
    tokens, [CLS] and [SEP] included, rounded half to even. n is also at least 1
    and at most `max_predictions`. A drawn token becomes [MASK], becomes a
    random token, or stays; `mask_mix` has the three percentages.

    Args:
        rows: dict with int32 token_ids and padding_mask, both `(B, T)`.
        rules: `SamplingRules`, or a `TokenMasker` with `max_predictions` set.
        vocabulary: the `MaskingVocabulary`.
        rng: NumPy generator.

    Returns:
        `rows` with new token_ids, and three arrays `(B, max_predictions)`:
        int32 mask_positions, ascending; int32 mask_ids, the true ids; float32
        mask_weights, 1 for a drawn token. If a row has fewer drawn tokens, the
        rest of the arrays is 0.
    """
    ids = rows["token_ids"]
    word = rows["padding_mask"].astype(bool)
    for special in (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id):
        word &= ids != special
    length = rows["padding_mask"].sum(1)
    # The original calls Python's `round`, which also rounds half to even.
    count = np.rint(length * rules.mask_rate).astype(np.int64)
    count = np.clip(count, 1, rules.max_predictions)
    if rules.whole_word:
        starts = word & ~vocabulary.continues[ids]
        starts[:, 0] |= word[:, 0]  # the row may lack [CLS]
        # A token after a special token starts a word, even a token with "##".
        starts[:, 1:] |= word[:, 1:] & ~word[:, :-1]
        chosen = choose_words(word, starts, count, rng)
    else:
        chosen = choose_pieces(word, count, rng)
    positions, real = _as_positions(chosen, rules.max_predictions)
    truth = np.take_along_axis(ids, positions, 1)  # (B, M)
    replaced = _replace(truth, rules, vocabulary, rng)
    masked = ids.copy()
    row, column = np.nonzero(real)
    masked[row, positions[row, column]] = replaced[row, column]
    return {
        **rows,
        "token_ids": masked,
        "mask_positions": np.where(real, positions, 0).astype(np.int32),
        "mask_ids": np.where(real, truth, 0).astype(np.int32),
        "mask_weights": real.astype(np.float32),
    }


def _as_positions(chosen, most: int):
    """Return the chosen columns and a mask, which is False at padding.

    Both are `(B, most)`. Rows with fewer columns are padded with 0.
    """
    row, column = np.nonzero(chosen)
    count = chosen.sum(1)
    # The rank of each chosen column within its row.
    rank = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    positions: Any = np.zeros((len(chosen), most), np.int64)
    positions[row, rank] = column
    return positions, np.arange(most) < count[:, None]


def _replace(truth, rules, vocabulary: MaskingVocabulary, rng):
    masked, replaced, _ = np.cumsum(rules.mask_mix) / 100
    coin = rng.random(truth.shape)
    other = rng.integers(0, vocabulary.size, truth.shape)
    return np.where(
        coin < masked,
        vocabulary.mask_id,
        np.where(coin < replaced, other, truth),
    )


def choose_pieces(word, count, rng):
    """Choose `count` random tokens of each row, or all if there are fewer.

    Args:
        word: bool `(B, T)`, True at tokens that may be chosen.
        count: int `(B,)`, at least 1.
        rng: NumPy generator.

    Returns:
        bool `(B, T)`, True at chosen tokens.
    """
    keys = rng.random(word.shape, np.float32)
    keys[~word] = 2  # above every random number, so these columns come last
    most = int(count.max(initial=1))
    # (B, most): the columns of the smallest keys. Then sort them by key.
    columns = np.argpartition(keys, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(keys, columns, 1), axis=1)
    columns = np.take_along_axis(columns, order, 1)
    count = np.minimum(count, word.sum(1))
    row, rank = np.nonzero(np.arange(most) < count[:, None])
    chosen = np.zeros_like(word)
    chosen[row, columns[row, rank]] = True
    return chosen


def choose_words(word, starts, count, rng):
    """Choose whole words of each row, at most `count` tokens.

    As in the original, words are taken in random order. A word is skipped if it
    has more tokens than may still be chosen. If every word is too long, single
    tokens are chosen.

    Args:
        word: bool `(B, T)`, True at tokens that may be chosen.
        starts: bool `(B, T)`, True at the first token of each word.
        count: int `(B,)`, at least 1.
        rng: NumPy generator.

    Returns:
        bool `(B, T)`, True at chosen tokens.
    """
    shape = len(word), int(starts.sum(1).max(initial=1))  # (B, words)
    order = np.argsort(rng.random(shape, np.float32), axis=1)
    chosen = np.zeros_like(word)
    for row in np.flatnonzero(starts.any(1)):
        number = np.cumsum(starts[row]) - 1  # (T,), the word of each token
        sizes = np.bincount(number[word[row]])  # (words,), the token counts
        is_chosen, left = np.zeros(len(sizes), bool), count[row]
        for one in order[row][order[row] < len(sizes)]:
            if sizes[one] <= left:
                is_chosen[one] = True
                left -= sizes[one]
        chosen[row] = word[row] & is_chosen[number]
    none = ~chosen.any(1)
    chosen[none] = choose_pieces(word[none], count[none], rng)
    return chosen


class TokenMasker:
    """Function that draws the masks of pre-training, eagerly or in a graph.

    A masker calls `mask_rows`, as `create_pretraining_data` and `pretrain` do.
    `[CLS]`, `[SEP]`, `[PAD]` and `[MASK]` are never selected. A masker runs
    Python, so it works in `Dataset.map`, but not in a saved graph.

    Args:
        vocabulary: word pieces in the order of their ids.
        max_predictions: M, the number of positions for masked tokens in a
            row; None for `mask_rate` times T, rounded up.
        mask_rate: fraction of a row's tokens to predict.
        mask_mix: percentages of these tokens that are replaced by `[MASK]`,
            replaced by a random token, and left as they are.
        whole_word: mask all tokens of a word or none; see `choose_words`.

    Call arguments:
        token_ids: int32 `(B, T)`, which may be ragged, or one row `(T,)`.
        seed: an integer of at least 0, or several, such as a fixed number and
            the step. The masks depend only on the seed and the batch: one seed
            in `Dataset.map` draws the same positions for each batch. None:
            TensorFlow's generator draws a seed for each call.

    Returns:
        dict of `token_ids`, int32 `(B, T)`, with the replacements, and three
        tensors `(B, M)`: int32 `mask_positions`, ascending; int32 `mask_ids`,
        the true ids; float32 `mask_weights`, 1 for a token to predict. If a
        row has fewer than M such tokens, the rest of the three tensors is 0.
        `token_ids` is ragged if the input was. For one row, the tensors have no
        axis B.

    Raises:
        InputError: an argument has an invalid value, `check_vocabulary`
            refuses the vocabulary, or an id is not in the vocabulary. A graph
            raises TensorFlow's `InvalidArgumentError` for such an id.

    Examples:
        >>> from bert_keras import TokenMasker, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer.from_preset("bert_keras_mini_en")
        >>> masker = TokenMasker(tokenizer.vocabulary, max_predictions=1)
        >>> masked = masker([[2, 45, 17, 3, 0]], seed=(0, 1))
        >>> masked["mask_positions"].numpy().tolist()
        [[1]]
    """

    def __init__(
        self,
        vocabulary: Sequence[str] = (),
        max_predictions: int | None = None,
        mask_rate: float = MASK_RATE,
        mask_mix: tuple[float, float, float] = MASK_MIX,
        whole_word: bool = False,
        **others: Any,
    ) -> None:
        refuse_arguments("TokenMasker", others, _KERAS_HUB_ARGUMENTS)
        if max_predictions is not None and max_predictions < 1:
            raise InputError(
                f"`max_predictions` is {max_predictions}; expected 1 or more."
            )
        self.max_predictions = max_predictions
        self.mask_rate = mask_rate
        self.mask_mix = tuple(mask_mix)
        self.whole_word = whole_word
        check_mask_rules(self)
        self._vocabulary = MaskingVocabulary(check_vocabulary(vocabulary))

    def __repr__(self) -> str:
        names = "max_predictions", "mask_rate", "mask_mix", "whole_word"
        shown = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"TokenMasker({self._vocabulary.size} tokens, {shown})"

    def __call__(
        self, token_ids: Any, seed: Any = None
    ) -> dict[str, "tf.Tensor"]:
        import tensorflow as tf  # `mask_rows` does not need TensorFlow

        is_ragged = isinstance(token_ids, tf.RaggedTensor)
        if not is_ragged:
            token_ids = tf.convert_to_tensor(token_ids)
        if token_ids.shape.rank not in ((2,) if is_ragged else (1, 2)):
            raise InputError(
                f"token_ids is {type(token_ids).__name__} of shape "
                f"{token_ids.shape}. Expected (B, T) or (T,): set an unknown "
                "shape with tf.ensure_shape."
            )
        if seed is None:
            seed = tf.random.uniform((2,), maxval=2**31 - 1, dtype="int32")
        if is_ragged:
            rows = self(token_ids.to_tensor(self._vocabulary.pad_id), seed)
            lengths = token_ids.row_lengths()  # (B,)
            ragged = tf.RaggedTensor.from_tensor(rows["token_ids"], lengths)
            return {**rows, "token_ids": ragged}
        if token_ids.shape.rank == 1:
            rows = self(token_ids[tf.newaxis], seed)
            return {name: value[0] for name, value in rows.items()}
        dtypes = dict.fromkeys(MASKED, tf.int32) | {"mask_weights": tf.float32}
        if tf.executing_eagerly():
            values = self._mask(token_ids.numpy(), np.asarray(seed))
        else:
            values = tf.numpy_function(
                self._mask, [token_ids, seed], list(dtypes.values())
            )
        masked = dict(zip(dtypes, values, strict=True))
        rows, length = token_ids.shape
        predicted = (rows, length and self._count(length))
        return {
            name: tf.ensure_shape(
                value, token_ids.shape if name == "token_ids" else predicted
            )
            for name, value in masked.items()
        }

    def _mask(self, token_ids, seed):
        check_integers("token_ids", token_ids, self._vocabulary.size)
        token_ids = token_ids.astype(np.int32)
        mask = (token_ids != self._vocabulary.pad_id).astype(np.int32)
        rows = {"token_ids": token_ids, "padding_mask": mask}
        rng, rules = generator(*_read_seed(seed)), copy.copy(self)
        rules.max_predictions = self._count(token_ids.shape[1])
        masked = mask_rows(rows, rules, self._vocabulary, rng)
        return [masked[name] for name in MASKED]

    def _count(self, length):
        return self.max_predictions or count_predictions(length, self.mask_rate)


def _read_seed(seed):
    """Return an array of one or more integers as a list."""
    seed = np.atleast_1d(seed)
    if seed.dtype.kind not in "iu" or seed.ndim > 1 or not seed.size:
        raise InputError(
            f"The seed is {seed.tolist()}. Expected an integer of at least 0, "
            "or several."
        )
    return seed.tolist()
