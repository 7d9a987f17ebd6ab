"""The masked-language-model rule in a graph: which tokens, and by what."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.vocabulary import check_vocabulary

# Streams of random numbers, one for each thing that is drawn of a position.
ORDER, REPLACEMENT, RANDOM_TOKEN, SPAN_LENGTH = range(4)


class TokenMasker:
    """Hides tokens for the model to predict, as the original BERT does.

    In a row of n tokens, special ones included and padding not,
    `round(n * mask_selection_rate)` are selected, at least 1 and at most
    `mask_selection_length`, never `[CLS]`, `[SEP]`, `[PAD]` or `[MASK]`. Of
    the selected, `mask_token_rate` become `[MASK]`, `random_token_rate` any
    token of the vocabulary, and the others stay.

    With `whole_words`, a word's pieces are selected together; with
    `max_ngram`, runs of up to that many neighbours are, of n with a chance
    in proportion to 1 / n. Such groups are tried in random order, and one
    that is more than what is left to select is passed over. Where none fits,
    the first is taken, cut to `mask_selection_length`.

    The rates are those of `data.sampling.SamplingRules`, by which pre-training
    draws its masks. For groups its rule differs: runs are always of words and
    may begin at any of them; one that is too long is cut at its end by words;
    single words fill up what runs leave; and where no word fits, random
    pieces are taken.

    Draws are a function of the seed, the row and the position alone.

    Args:
        vocabulary: pieces in the order of their ids.
        mask_selection_length: places for selected tokens in a row, M.
        mask_selection_rate: share of a row's tokens to select.
        mask_token_rate, random_token_rate: shares of the selected.
        whole_words: select words, not pieces.
        max_ngram: longest run of pieces (or words) selected together.

    Call arguments:
        token_ids: `int32 (B, T)`, or one row `(T,)`.
        seed: two integers for the batch, or `(B, 2)`, two for each row: give
            each row its own where workers share a batch.

    Returns:
        `token_ids` with the replacements, `(B, T)`; `mask_positions`
        ascending, `mask_ids`, both int32, and `mask_weights` (float32, 1 at
        real ones), `(B, M)`, 0 in places that are left over.

    Raises:
        InputError: for rates that are not shares of 1, lengths below 1, or a
            vocabulary that `check_vocabulary` refuses.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        mask_selection_length: int,
        mask_selection_rate: float = 0.15,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        whole_words: bool = False,
        max_ngram: int = 1,
    ) -> None:
        rates = {
            "mask_selection_rate": mask_selection_rate,
            "mask_token_rate": mask_token_rate,
            "random_token_rate": random_token_rate,
            "mask_token_rate + random_token_rate": (
                mask_token_rate + random_token_rate
            ),
        }
        for name, rate in rates.items():
            if not 0 <= rate <= 1 + 1e-9:
                raise InputError(
                    f"{name} is {rate}; expected a share from 0 to 1. "
                    "Give another rate."
                )
        for name, value in (
            ("mask_selection_length", mask_selection_length),
            ("max_ngram", max_ngram),
        ):
            if value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more.")
        vocabulary = check_vocabulary(vocabulary)
        self.vocabulary_size = len(vocabulary)
        self.mask_selection_length = mask_selection_length
        self.mask_selection_rate = mask_selection_rate
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self.whole_words = whole_words
        self.max_ngram = max_ngram
        self._pad_id = vocabulary.index("[PAD]")
        self._mask_id = vocabulary.index("[MASK]")
        self._never = [
            vocabulary.index(token)
            for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
        ]
        self._continues = [piece.startswith("##") for piece in vocabulary]

    def __call__(self, token_ids: Any, seed: Any) -> dict[str, tf.Tensor]:
        token_ids = tf.convert_to_tensor(token_ids)
        if token_ids.shape.rank == 1:
            rows = self(token_ids[tf.newaxis], seed)
            return {name: value[0] for name, value in rows.items()}
        width = tf.shape(token_ids)[1]
        # (B,)
        keys = _row_keys(seed, tf.shape(token_ids)[0])
        selected = self._select(token_ids, keys, width)
        positions, weights = self._positions(selected)
        # (B, M)
        true_ids = tf.gather(token_ids, positions, axis=1, batch_dims=1)
        return {
            "token_ids": self._replace(token_ids, selected, keys, width),
            "mask_positions": positions,
            "mask_ids": true_ids * tf.cast(weights, token_ids.dtype),
            "mask_weights": weights,
        }

    def _select(self, token_ids, keys, width):
        """Which tokens are to be predicted, `bool (B, T)`."""
        never = tf.constant(self._never, token_ids.dtype)
        is_never = token_ids[:, :, tf.newaxis] == never  # (B, T, never)
        selectable = ~tf.reduce_any(is_never, axis=2)
        starts = self._unit_starts(token_ids, selectable)
        if self.max_ngram > 1:
            lengths = self._span_lengths(keys, width)
            starts = _span_starts(starts, selectable, lengths)
        return _selected_tokens(
            starts,
            selectable,
            _uniform(keys, width, ORDER),
            self._number_to_select(token_ids),
            self.mask_selection_length,
        )

    def _unit_starts(self, token_ids, selectable):
        """Where a piece, or a word, begins that can be selected."""
        if not self.whole_words:
            return selectable
        continues = tf.gather(tf.constant(self._continues), token_ids)
        # (B, T), moved to the right: "##s" behind [CLS] begins a word.
        after_selectable = tf.pad(selectable[:, :-1], [[0, 0], [1, 0]])
        return selectable & ~(continues & after_selectable)

    def _span_lengths(self, keys, width):
        """Run lengths drawn with chances in proportion to 1 / length."""
        weights = [1 / n for n in range(1, self.max_ngram + 1)]
        total = math.fsum(weights)
        bounds = [
            math.fsum(weights[:n]) / total for n in range(1, len(weights))
        ]
        drawn = _uniform(keys, width, SPAN_LENGTH)[:, :, tf.newaxis]
        # (B, T, max_ngram - 1): how many bounds a draw has passed.
        over = drawn >= tf.constant(bounds, drawn.dtype)
        return 1 + tf.reduce_sum(tf.cast(over, tf.int32), axis=2)

    def _number_to_select(self, token_ids):
        """`int32 (B,)`; in float64, to round halves as the original does."""
        tokens = tf.reduce_sum(
            tf.cast(token_ids != self._pad_id, tf.float64), axis=1
        )
        number = tf.cast(tf.round(tokens * self.mask_selection_rate), tf.int32)
        return tf.clip_by_value(number, 1, self.mask_selection_length)

    def _positions(self, selected):
        """Selected positions ascending and their weights, both `(B, M)`."""
        width, places = tf.shape(selected)[1], self.mask_selection_length
        # (B, T): what is not selected sorts to the end.
        positions = tf.where(selected, tf.range(width), width)
        positions = tf.pad(
            tf.sort(positions, axis=1)[:, :places],
            [[0, 0], [0, tf.maximum(0, places - width)]],
            constant_values=tf.int32.max,
        )
        real = tf.ensure_shape(positions < width, [None, places])
        return tf.where(real, positions, 0), tf.cast(real, tf.float32)

    def _replace(self, token_ids, selected, keys, width):
        drawn = _uniform(keys, width, REPLACEMENT)
        share = _uniform(keys, width, RANDOM_TOKEN)
        size = tf.cast(self.vocabulary_size, share.dtype)
        random_ids = tf.cast(share * size, token_ids.dtype)
        # The paper, section 3.1, task 1: [MASK], a random piece, or as it is.
        masked = selected & (drawn < self.mask_token_rate)
        either = self.mask_token_rate + self.random_token_rate
        token_ids = tf.where(selected & (drawn < either), random_ids, token_ids)
        return tf.where(masked, self._mask_id, token_ids)


# Groups of tokens, such as words, that are masked together or not at all.


def _span_starts(starts, selectable, lengths):
    """Of the units' starts `(B, T)`, those where a run of units begins.

    A run takes as many units as drawn for its first place, or as there are
    up to the next token that cannot be selected.
    """

    def step(state, place):
        left, _ = state
        is_start, is_selectable, length = place
        left = tf.where(is_selectable, left, 0)
        begins = is_start & (left == 0)
        left = tf.where(begins, length, left) - tf.cast(is_start, tf.int32)
        return left, begins

    places = [tf.transpose(x) for x in (starts, selectable, lengths)]  # (T, B)
    nothing = tf.zeros_like(lengths[:, 0])
    _, begins = tf.scan(step, tuple(places), (nothing, nothing > 0))
    # (B, T)
    return tf.transpose(begins)


def _selected_tokens(starts, selectable, order, number, places):
    """Tokens of the groups that are taken in random order, `bool (B, T)`.

    Args:
        starts: where a group begins, `bool (B, T)`.
        selectable: tokens that may be selected, `bool (B, T)`.
        order: random numbers, of which those at the starts count, `(B, T)`.
        number: tokens to select, `int32 (B,)`.
        places: the most that a row may select.
    """
    group = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
    group = tf.where(selectable, group, 0)  # group 0: never selected
    # (B, T + 1), the members of each group.
    sizes = _sums(tf.ones_like(group), group)
    # The groups' random numbers, by group: each stands at its first token.
    ranked = tf.argsort(tf.where(starts, order, 2.0), axis=1, stable=True)
    in_order = tf.gather(group, ranked, axis=1, batch_dims=1)
    exists = tf.gather(starts, ranked, axis=1, batch_dims=1)
    sizes = tf.where(exists, tf.gather(sizes, in_order, batch_dims=1), 0)
    taken = _take_in_order(sizes, number)
    # Back from the order of the draw to the tokens.
    # (B, T + 1), for each group 1 where it is taken.
    by_group = _sums(tf.cast(taken, tf.int32), tf.where(exists, in_order, 0))
    selected = selectable & (tf.gather(by_group, group, batch_dims=1) > 0)
    chosen = tf.cumsum(tf.cast(selected, tf.int32), axis=1)
    return selected & (chosen <= places)


def _sums(values, groups):
    """The sum of each group of each row, `int32 (B, T + 1)`.

    Not `bincount`, whose size depends on the numbers, as XLA's may not.
    """
    rows, width = tf.shape(groups)[0], tf.shape(groups)[1] + 1
    # Each row's groups in a stretch of their own, (B, T).
    flat = groups + tf.range(rows)[:, tf.newaxis] * width
    summed = tf.math.unsorted_segment_sum(values, flat, rows * width)
    return tf.reshape(summed, [rows, width])


def _take_in_order(sizes, number):
    """Which groups of the given sizes, in order, are taken, `bool (B, T)`.

    Each is taken if it fits in what is left of `number`. That is done in a
    few rounds: all that fit and whose running sum does too are taken at
    once, and the next round sees only those that fit in the rest.
    """

    def some_fit(left, taken):
        return tf.reduce_any(_fits(left, taken))

    def take(left, taken):
        size = tf.where(_fits(left, taken), sizes, 0)
        now = (size > 0) & (tf.cumsum(size, axis=1) <= left[:, tf.newaxis])
        left -= tf.reduce_sum(tf.where(now, size, 0), axis=1)
        return left, taken | now

    def _fits(left, taken):
        return ~taken & (sizes > 0) & (sizes <= left[:, tf.newaxis])

    _, taken = tf.while_loop(some_fit, take, (number, sizes < 0))
    nothing = ~tf.reduce_any(taken, axis=1, keepdims=True)
    is_first = tf.range(tf.shape(sizes)[1]) == 0
    return taken | (nothing & is_first & (sizes > 0))


# Random numbers as a function of seed, row, position and stream alone.
# TensorFlow's stateless draws depend on the shape of the batch; these do not,
# so a row's numbers are the same in any batch, on any worker.

GOLDEN = 0x9E3779B97F4A7C15  # of SplitMix64 (Steele, Lea, Flood 2014)


def _row_keys(seed, rows):
    """One `uint64` key a row, `(B,)`.

    Args:
        seed: two integers for the batch, where rows count from 0, or
            `(B, 2)`, two for each row.
        rows: B.
    """
    seed = tf.cast(tf.convert_to_tensor(seed), tf.uint64)
    if seed.shape.rank == 1:
        numbers = tf.cast(tf.range(rows), tf.uint64)
        return _mix(_mix(seed[0]) + _mix(_times(seed[1] + numbers)))
    return _mix(_mix(seed[:, 0]) + _mix(_times(seed[:, 1])))


def _uniform(keys, width, stream):
    """Numbers in [0, 1), `float64 (B, width)`; streams are independent."""
    places = tf.cast(tf.range(width), tf.uint64)
    stream = _mix(tf.constant(stream + 1, tf.uint64))
    keys = _mix(keys ^ stream)[:, tf.newaxis]
    # SplitMix64 with the row's key as its start and the place as its step.
    bits = _mix(keys + _times(places + 1))
    # The 53 bits that a float64 holds.
    return tf.cast(_right(bits, 11), tf.float64) * 2.0**-53


def _mix(bits):
    """The finalizer of SplitMix64: each bit depends on every bit."""
    bits = (bits ^ _right(bits, 30)) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    bits = (bits ^ _right(bits, 27)) * tf.constant(
        0x94D049BB133111EB, tf.uint64
    )
    return bits ^ _right(bits, 31)


def _times(numbers):
    return numbers * tf.constant(GOLDEN, tf.uint64)


def _right(bits, places):
    return tf.bitwise.right_shift(bits, tf.constant(places, tf.uint64))
