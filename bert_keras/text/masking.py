"""The masked-language-model rule: tokens to predict, and their replacements.

In NumPy, for pre-training; `TokenMasker` wraps it for `Dataset.map`.
"""

import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text.vocabulary import check_vocabulary

if TYPE_CHECKING:  # the rule needs no TensorFlow
    import tensorflow as tf

# The paper, section 3.1, task 1: tokens to predict; percent of these that
# become [MASK], any token, and stay.
MASK_RATE, MASK_MIX = 0.15, (80, 10, 10)
MASKED = ("token_ids", "mask_positions", "mask_ids", "mask_weights")


class Pieces:
    """Special ids of a vocabulary, and which pieces continue a word.

    Args:
        vocabulary: list of str, with [PAD], [CLS], [SEP] and [MASK].
    """

    def __init__(self, vocabulary: list[str]):
        self.size = len(vocabulary)
        self.pad_id = vocabulary.index("[PAD]")
        self.cls_id = vocabulary.index("[CLS]")
        self.sep_id = vocabulary.index("[SEP]")
        self.mask_id = vocabulary.index("[MASK]")
        # Whether a piece continues a word that an earlier piece began.
        self.continues = np.array([piece[:2] == "##" for piece in vocabulary])


def generator(*key: int) -> np.random.Generator:
    """Return a generator of numbers that depend on the key alone."""
    if min(key) < 0:
        raise InputError(f"A seed must not be negative; got {min(key)}.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def check_mask_rules(rules):
    """Raise `InputError` for a rate, a mix or a run that cannot be drawn."""
    if not 0 <= rules.mask_rate <= 1:
        raise InputError(
            f"mask_rate must be between 0 and 1; got {rules.mask_rate}."
        )
    mix = rules.mask_mix
    is_mix = len(mix) == 3 and all(
        isinstance(percent, numbers.Real) and 0 <= percent <= 100
        for percent in mix
    )
    if not is_mix or abs(sum(mix) - 100) > 1e-6:
        raise InputError(
            "mask_mix must be three percentages (masked, replaced, kept) "
            f"that sum to 100, such as 80,10,10; got {mix}."
        )
    if rules.max_ngram < 1:
        raise InputError(
            f"max_ngram must be at least 1; got {rules.max_ngram}."
        )


def mask_rows(rows: dict, rules, pieces: Pieces, rng) -> dict:
    """Add masks to rows by the original BERT's rule.

    In each row `mask_rate` of its pieces, [CLS] and [SEP] counted, rounded
    half to even, at least one and at most `max_predictions`, is drawn from
    its words: single pieces, or whole words and runs of words (see
    `choose_words`). Each drawn piece becomes [MASK], any piece of the
    vocabulary, or stays, by `mask_mix`.

    Args:
        rows: dict with int32 token_ids, padding_mask `(B, T)`.
        rules: `SamplingRules`, or an object with its attributes of masks.
        pieces: `Pieces` of the vocabulary.
        rng: NumPy generator.

    Returns:
        A dict with the rows' entries and int32 mask_positions and mask_ids,
        float32 mask_weights `(B, M)`: real ones first, by position.
    """
    ids = rows["token_ids"]
    word = rows["padding_mask"].astype(bool)
    for special in (pieces.cls_id, pieces.sep_id, pieces.mask_id):
        word &= ids != special
    length = rows["padding_mask"].sum(1)
    # Half to even, as Python's round, which the original calls.
    count = np.rint(length * rules.mask_rate).astype(np.int64)
    count = np.clip(count, 1, rules.max_predictions)
    if rules.whole_word or rules.max_ngram > 1:
        starts = word & ~pieces.continues[ids]
        starts[:, 1:] |= word[:, 1:] & ~word[:, :-1]  # a segment's first
        chosen = choose_words(word, starts, count, rules.max_ngram, rng)
    else:
        chosen = choose_pieces(word, count, rng)
    positions, real = _as_positions(chosen, rules.max_predictions)
    # (B, M)
    truth = np.take_along_axis(ids, positions, 1)
    replaced = _replace(truth, rules, pieces, rng)
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
    """Return the true columns of each row `(B, M)`, and a mask of real ones."""
    row, column = np.nonzero(chosen)
    count = chosen.sum(1)
    # The rank of each true column within its row.
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    positions: Any = np.zeros((len(chosen), most), np.int64)
    positions[row, place] = column
    return positions, np.arange(most) < count[:, None]


def _replace(truth, rules, pieces: Pieces, rng):
    """Return the replacement of each drawn piece: 80/10/10 in the paper."""
    masked, replaced, _ = np.cumsum(rules.mask_mix) / 100
    coin = rng.random(truth.shape)
    other = rng.integers(0, pieces.size, truth.shape)
    return np.where(
        coin < masked, pieces.mask_id, np.where(coin < replaced, other, truth)
    )


# Random choices of pieces, of whole words, and of runs of words.


def choose_pieces(word, count, rng):
    """Choose `count` random pieces of each row, or all if there are fewer.

    Args:
        word: bool `(B, T)`, what may be chosen.
        count: int `(B,)`, 1 at least.
        rng: NumPy generator.

    Returns:
        bool `(B, T)`.
    """
    keys = rng.random(word.shape, np.float32)
    # Above every random number: chosen last, and then cut off.
    keys[~word] = 2
    most = int(count.max(initial=1))
    # (B, M): the columns of the smallest keys, smallest first.
    columns = np.argpartition(keys, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(keys, columns, 1), axis=1)
    columns = np.take_along_axis(columns, order, 1)
    count = np.minimum(count, word.sum(1))
    row, rank = np.nonzero(np.arange(most) < count[:, None])
    chosen = np.zeros_like(word)
    chosen[row, columns[row, rank]] = True
    return chosen


def choose_words(word, starts, count, max_ngram, rng):
    """Choose whole words of each row, at most `count` pieces.

    The words of a row are chosen in random order, each as the first of a run
    of 1 to `max_ngram` words (n with a probability proportional to 1/n, among
    those that fit in its segment). A run that is too long loses words at its
    end; a run that holds a chosen word is left out. This is the original's
    rule of whole words, and ALBERT's of runs, with two differences: no run
    crosses from one segment to the other, and single words use up what runs
    leave. If no word is short enough, single pieces are chosen.

    Args:
        word: bool `(B, T)`, what may be chosen.
        starts: bool `(B, T)`, the first piece of each word.
        count: int `(B,)`, 1 at least.
        max_ngram: words of a run, at most.
        rng: NumPy generator.

    Returns:
        bool `(B, T)`.
    """
    words = _Words(word, starts, count)
    order = np.argsort(rng.random(words.first.shape, np.float32), axis=1)
    if max_ngram > 1:
        words.choose_in_turn(order, words.draw_runs(max_ngram, rng))
    words.choose_in_turn(order)
    chosen = words.pieces()
    none = ~chosen.any(1)
    chosen[none] = choose_pieces(word[none], count[none], rng)
    return chosen


class _Words:
    """The words of some rows `(B, W)`, and which of them are chosen."""

    def __init__(self, word, starts, count):
        self._word = word
        self._count = count
        self._used = np.zeros(len(word), np.int64)
        # The number of the word that each column belongs to, or is after.
        self._number = np.cumsum(starts, axis=1) - 1
        goes_on = np.zeros_like(word)
        goes_on[:, :-1] = (word & ~starts)[:, 1:]
        shape = len(word), int(starts.sum(1).max(initial=1))
        self.first = self._place(starts, shape)
        self._last = self._place(word & ~goes_on, shape)
        # Counts [CLS], [SEP] and padding up to each word; -1 for no word.
        breaks = np.take_along_axis(np.cumsum(~word, axis=1), self.first, 1)
        real = np.arange(shape[1]) < starts.sum(1)[:, None]
        self._segment = np.where(real, breaks, -1)
        self._is_chosen = np.zeros(shape, bool)

    def _place(self, where, shape):
        """Return the column of each word at which `where` is true."""
        row, column = np.nonzero(where)
        table = np.zeros(shape, np.int64)
        table[row, self._number[row, column]] = column
        return table

    def draw_runs(self, max_ngram, rng):
        """Draw the number of words of the run from each word, `(B, W)`."""
        width = self.first.shape[1]
        ends = np.diff(self._segment, axis=1, append=-2) != 0
        # (B, W): the last word of each segment, by a minimum from the right.
        last = np.where(ends, np.arange(width), width)[:, ::-1]
        last = np.minimum.accumulate(last, axis=1)[:, ::-1]
        room = np.minimum(last - np.arange(width) + 1, max_ngram)
        # Sums of 1/n: ALBERT's rule (Lan et al. 2020, section 4.1).
        weights = np.cumsum(1 / np.arange(1, max_ngram + 1))
        drawn = rng.random(room.shape) * weights[room - 1]
        return np.searchsorted(weights, drawn, "right") + 1

    def choose_in_turn(self, order, sizes=None):
        """Choose runs of words, or single ones, in a random order."""
        for start in order.T:
            row = np.flatnonzero(self._used < self._count)
            if not len(row):
                return
            start = start[row]
            more = 0 if sizes is None else sizes[row, start] - 1
            self._choose(row, start, start + more)

    def _choose(self, row, start, stop):
        """Choose the words `start` to `stop` of each row that has room."""
        room = self._count[row] - self._used[row]
        size = self._last[row, stop] - self.first[row, start] + 1
        # A word less, in the rows where the run is too much.
        while ((size > room) & (stop > start)).any():
            stop = np.where(size > room, np.maximum(stop - 1, start), stop)
            size = self._last[row, stop] - self.first[row, start] + 1
        free = (self._segment[row, start] >= 0) & (size <= room)
        run = range(int((stop - start).max(initial=0)) + 1)
        for offset in run:
            free &= ~self._is_chosen[row, np.minimum(start + offset, stop)]
        row, start, stop = row[free], start[free], stop[free]
        self._used[row] += size[free]
        for offset in run:
            self._is_chosen[row, np.minimum(start + offset, stop)] = True

    def pieces(self):
        """Return the pieces of the chosen words, bool `(B, T)`."""
        number = np.maximum(self._number, 0)
        return self._word & np.take_along_axis(self._is_chosen, number, 1)


class TokenMasker:
    """The masks of pre-training, drawn within `Dataset.map` or eagerly.

    A thin layer on `mask_rows`, the rule by which `create_pretraining_data`
    and `pretrain` draw them. `[CLS]`, `[SEP]`, `[PAD]` and `[MASK]` are never
    selected. It runs Python: a saved graph cannot hold it.

    Args:
        vocabulary: word pieces in the order of their ids.
        max_predictions: positions for masked tokens in a row, M.
        mask_rate: fraction of a row's tokens to predict.
        mask_mix: percent of these replaced by `[MASK]`, by any token of the
            vocabulary, and left as they are.
        whole_word: mask all tokens of a word or none.

    Call arguments:
        token_ids: int32 `(B, T)`, or one row `(T,)`.
        seed: two integers, not negative, such as of
            `tf.data.Dataset.random` or a step; the masks depend on them and
            on the batch alone.

    Returns:
        dict of `token_ids` with the replacements, `(B, T)`; `mask_positions`
        ascending, `mask_ids`, both int32, and `mask_weights` (float32, 1 at
        real ones), `(B, M)`, 0 at positions that are left over.

    Raises:
        InputError: for a rate or a mix that cannot be drawn, or a vocabulary
            that `check_vocabulary` refuses.

    Example:

    >>> masker = TokenMasker(tokenizer.vocabulary, max_predictions=3)
    >>> masker(tf.constant([[2, 45, 17, 3, 0]]), seed=(0, 1))
    """

    max_ngram = 1

    def __init__(
        self,
        vocabulary: Sequence[str],
        max_predictions: int = 20,
        mask_rate: float = MASK_RATE,
        mask_mix: tuple[float, float, float] = MASK_MIX,
        whole_word: bool = False,
    ) -> None:
        if max_predictions < 1:
            raise InputError(
                f"max_predictions is {max_predictions}; expected 1 or more."
            )
        self.max_predictions = max_predictions
        self.mask_rate = mask_rate
        self.mask_mix = tuple(mask_mix)
        self.whole_word = whole_word
        check_mask_rules(self)
        self._pieces = Pieces(check_vocabulary(vocabulary))

    def __call__(self, token_ids: Any, seed: Any) -> dict[str, "tf.Tensor"]:
        import tensorflow as tf  # which pre-training's rule does without

        token_ids = tf.cast(token_ids, tf.int32)
        if token_ids.shape.rank == 1:
            rows = self(token_ids[tf.newaxis], seed)
            return {name: value[0] for name, value in rows.items()}
        dtypes = dict.fromkeys(MASKED, tf.int32) | {"mask_weights": tf.float32}
        values = tf.numpy_function(
            self._mask, [token_ids, seed], list(dtypes.values())
        )
        masked = dict(zip(dtypes, values, strict=True))
        predicted = (token_ids.shape[0], self.max_predictions)
        return {
            name: tf.ensure_shape(
                value, token_ids.shape if name == "token_ids" else predicted
            )
            for name, value in masked.items()
        }

    def _mask(self, token_ids, seed):
        mask = (token_ids != self._pieces.pad_id).astype(np.int32)
        rows = {"token_ids": token_ids, "padding_mask": mask}
        rng = generator(*seed.tolist())
        masked = mask_rows(rows, self, self._pieces, rng)
        return [masked[name] for name in MASKED]
