"""Sentence pairs and masks: the sampling rules, then pairs, rows and masks."""

import dataclasses
import hashlib
import math
import numbers
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError

# Of a default's type: what else may be given, and how that is called.
_KINDS = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    tuple: ((tuple, list), "three percentages"),
}
SHORTEST = 8  # [CLS], two [SEP], and a few pieces in either segment


@dataclasses.dataclass(frozen=True)
class SamplingRules:
    """How pairs and masks are drawn; the defaults are the paper's.

    Args:
        sequence_length: pieces of an example, [CLS] and [SEP] included.
        max_predictions: masked pieces of an example, at most.
        short_probability: share of documents whose examples aim at a shorter
            length, so that a model also sees short sequences.
        mask_rate: share of an example's pieces to predict.
        mask_mix: percent of these replaced by [MASK], by any piece of the
            vocabulary, and left as they are.
        whole_word: masks all pieces of a word or none.
        max_ngram: masks runs of 1 to this many words, a run of n with a
            probability proportional to 1/n; implies `whole_word`.
        packed: puts several examples into a row of `sequence_length`, up to
            one for each 16 pieces of it, so that little is padding.
    """

    sequence_length: int = 128
    max_predictions: int = 20
    short_probability: float = 0.1
    mask_rate: float = 0.15
    mask_mix: tuple[float, float, float] = (80, 10, 10)
    whole_word: bool = False
    max_ngram: int = 1
    packed: bool = False

    @property
    def examples_per_row(self) -> int | None:
        """Most examples in a packed row; None where rows are not packed."""
        return max(2, self.sequence_length // 16) if self.packed else None

    @property
    def masks_per_row(self) -> int:
        """Masked pieces that a row has places for.

        Those of packed examples always find one: an example has at least 5
        pieces, and rounding adds half a piece to its share, or what it lacks
        to the one piece that is always masked.
        """
        if not self.packed:
            return self.max_predictions
        share = self.mask_rate * self.sequence_length
        rounding = self.examples_per_row * max(0.5, 1 - 5 * self.mask_rate)
        return min(self.sequence_length, math.ceil(share + rounding))

    def __post_init__(self):
        # Of the kind of the default, and not "128" or None.
        for field in dataclasses.fields(self):
            value, usual = getattr(self, field.name), type(field.default)
            kind, expected = _KINDS[usual]
            if isinstance(value, bool) and usual is not bool:
                kind = ()
            if not isinstance(value, kind):
                raise InputError(
                    f"{field.name} must be {expected}; got {value!r}."
                )
        object.__setattr__(self, "mask_mix", tuple(self.mask_mix))
        if self.sequence_length < SHORTEST:
            raise InputError(
                f"sequence_length must be at least {SHORTEST}, so that two "
                f"sentences fit; got {self.sequence_length}."
            )
        if not 1 <= self.max_predictions <= self.sequence_length:
            raise InputError(
                "max_predictions must be 1 to sequence_length "
                f"({self.sequence_length}); got {self.max_predictions}."
            )
        for name in ("short_probability", "mask_rate"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(
                    f"{name} must be between 0 and 1; got {value}."
                )
        mix = self.mask_mix
        shares = len(mix) == 3 and all(
            isinstance(percent, numbers.Real) and 0 <= percent <= 100
            for percent in mix
        )
        if not shares or abs(sum(mix) - 100) > 1e-6:
            raise InputError(
                "mask_mix must be three percentages (masked, replaced, kept) "
                f"that sum to 100, such as 80,10,10; got {mix}."
            )
        if self.max_ngram < 1:
            raise InputError(
                f"max_ngram must be at least 1; got {self.max_ngram}."
            )


class Pieces:
    """What the rules need to know of a vocabulary.

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


def vocabulary_hash(vocabulary: list[str]) -> str:
    """SHA-256, in hex, of the pieces in their order."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()


def generator(*key: int) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    if min(key) < 0:
        raise InputError(f"A seed must not be negative; got {min(key)}.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


# Sentence pairs by the original BERT's rule, drawn from a token store. Only
# where each segment begins and how long it is are drawn here; the pieces
# themselves are gathered later, batch by batch.


class Pairs(NamedTuple):
    """Pairs of segments of the store's `tokens`; each field int64 `(N,)`."""

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    labels: np.ndarray  # 0 = B follows A, 1 = B is from another document

    @property
    def lengths(self):
        """Pieces of each pair's example, with [CLS] and twice [SEP]."""
        return self.a_length + self.b_length + 3

    @property
    def count(self):
        """How many rows they fill: each its own."""
        return len(self.labels)

    @property
    def nbytes(self):
        return sum(field.nbytes for field in tuple(self))

    def __getitem__(self, rows):
        return Pairs(*(field[rows] for field in tuple(self)))

    @staticmethod
    def join(parts: list["Pairs"]) -> "Pairs":
        """All pairs of the parts, in their order."""
        return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


def draw_pairs(
    store, first: int, last: int, rules: SamplingRules, rng
) -> Pairs:
    """Pairs of the documents `first` to `last` (excluded), in their order.

    Equals the original's `create_instances_from_document`: sentences are
    gathered until they fill the target length; a random number of them, one
    at least, is A; B is the rest, or, half the time and where there is no
    rest, as much of another document from a random sentence on, and then the
    rest is used again. The target is drawn once a document: the full length,
    or with `short_probability` any length from 2 on. Pairs that are too long
    lose pieces at either end of the longer segment.

    Differs in one point: the other document is never the same one (there,
    with two documents, once in 1,024 pairs).

    Args:
        store: a `TokenStore` of at least two documents.
    """
    room = rules.sequence_length - 3  # [CLS], [SEP], [SEP]
    bounds = store.documents[first : last + 1].tolist()
    base = bounds[0]
    offsets = store.sentences[base : bounds[-1] + 1].tolist()
    short = rng.random(last - first) < rules.short_probability
    # (documents,): the length to fill, short ones as in the original.
    targets = np.where(short, rng.integers(2, room + 1, last - first), room)
    uniform = iter(rng.random(2 * (bounds[-1] - base)).tolist()).__next__
    chunks = []
    for document, target in enumerate(targets.tolist()):
        begin, end = bounds[document] - base, bounds[document + 1] - base
        _walk(offsets, begin, end, target, first + document, uniform, chunks)
    # (6, N)
    fields = np.array(chunks, np.int64).reshape(-1, 6).T
    start, split, end, random, document, target = fields
    token = np.asarray(offsets)
    a_length = token[split] - token[start]
    b_start, b_length = token[split], token[end] - token[split]
    other = np.flatnonzero(random)
    b_start[other], b_length[other] = _other_documents(
        store, document[other], (target - a_length)[other], rng
    )
    pairs = Pairs(token[start], a_length, b_start, b_length, random)
    return truncate(pairs, room, rng)


def _walk(offsets, begin, end, target, document, uniform, chunks):
    """Appends (start, split, end, random, document, target) of each chunk."""
    while begin < end:
        # The first sentence boundary that makes the chunk long enough.
        stop = bisect_left(offsets, offsets[begin] + target, begin + 1, end)
        count = stop - begin
        if count == 1:
            chunks.append((begin, stop, stop, 1, document, target))
            begin = stop
            continue
        # A has 1 to count - 1 sentences.
        split = begin + 1 + int(uniform() * (count - 1))
        # The paper, section 3.1: half the time B is a random text.
        random = uniform() < 0.5
        chunks.append((begin, split, stop, random, document, target))
        # After a random B, the rest of the chunk comes once more.
        begin = split if random else stop


def _other_documents(store, own, length, rng):
    """Start and length of text from a random place in another document."""
    other = rng.integers(0, store.num_documents - 1, len(own))
    # Any document but its own, all as likely.
    other += other >= own
    first, last = store.documents[other], store.documents[other + 1]
    sentence = first + (rng.random(len(own)) * (last - first)).astype(np.int64)
    start = store.sentences[sentence]
    stop = np.searchsorted(store.sentences, start + length)
    # A sentence at least, and none of the next document.
    stop = np.clip(stop, sentence + 1, last)
    return start, store.sentences[stop] - start


def truncate(pairs: Pairs, room: int, rng) -> Pairs:
    """Shortens pairs to `room` pieces: the longer first, of equals B.

    Each piece that goes is taken from the front or from the back with the
    same probability, so the number from the front is binomial.
    """
    # The longer first until both are equal: neither gets less than half of
    # the room unless it is shorter.
    a_length = np.minimum(
        pairs.a_length, np.maximum((room + 1) // 2, room - pairs.b_length)
    )
    b_length = np.minimum(pairs.b_length, room - a_length)
    a_front = rng.binomial(pairs.a_length - a_length, 0.5)
    b_front = rng.binomial(pairs.b_length - b_length, 0.5)
    return Pairs(
        pairs.a_start + a_front,
        a_length,
        pairs.b_start + b_front,
        b_length,
        pairs.labels,
    )


def gather(tokens, pairs: Pairs, length: int, pieces: Pieces) -> dict:
    """The pairs' rows of a length: [CLS] A [SEP] B [SEP] [PAD]...

    Returns:
        dict of int32: token_ids, segment_ids, padding_mask `(B, T)`,
        next_sentence_labels `(B,)`.
    """
    column = np.arange(length)  # (T,)
    a_end = pairs.a_length[:, None] + 1  # (B, 1), the column of [SEP]
    b_end = a_end + pairs.b_length[:, None] + 1
    # (B, T)
    in_b = column > a_end
    # The place among the store's tokens that each column shows.
    source = np.where(
        in_b,
        (pairs.b_start[:, None] - a_end - 1) + column,
        (pairs.a_start[:, None] - 1) + column,
    )  # (B, T)
    real = column <= b_end
    word = real & (column > 0) & (column != a_end) & (column != b_end)
    ids = np.full(source.shape, pieces.pad_id, np.int32)
    ids[word] = tokens[source[word]]
    ids[:, 0] = pieces.cls_id
    rows = np.arange(len(ids))
    ids[rows, a_end[:, 0]] = pieces.sep_id
    ids[rows, b_end[:, 0]] = pieces.sep_id
    return {
        "token_ids": ids,
        "segment_ids": (in_b & real).astype(np.int32),
        "padding_mask": real.astype(np.int32),
        "next_sentence_labels": pairs.labels.astype(np.int32),
    }


# Which pieces of a batch to predict, and what replaces them.


def mask_rows(rows: dict, rules: SamplingRules, pieces: Pieces, rng) -> dict:
    """Adds masks to rows by the original BERT's rule.

    In each row `mask_rate` of its pieces, [CLS] and [SEP] counted, rounded
    half to even, at least one and at most `max_predictions`, is drawn from
    its words: single pieces, or whole words and runs of words (see
    `choose_words`). Each drawn piece becomes [MASK], any piece of the
    vocabulary, or stays, by `mask_mix`.

    Args:
        rows: dict with int32 token_ids, padding_mask `(B, T)`.

    Returns:
        A dict with the rows' entries and int32 mask_positions and mask_ids,
        float32 mask_weights `(B, M)`: real ones first, by position.
    """
    ids = rows["token_ids"]
    word = rows["padding_mask"].astype(bool)
    word &= (ids != pieces.cls_id) & (ids != pieces.sep_id)
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
    """The columns that are true in each row `(B, M)`, and which are real."""
    row, column = np.nonzero(chosen)
    count = chosen.sum(1)
    # The rank of each true column within its row.
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    positions = np.zeros((len(chosen), most), np.int64)
    positions[row, place] = column
    return positions, np.arange(most) < count[:, None]


def _replace(truth, rules: SamplingRules, pieces: Pieces, rng):
    """What replaces each drawn piece."""
    masked, replaced, _ = np.cumsum(rules.mask_mix) / 100
    # 80, 10 and 10 % by default: the paper, section 3.1, task 1.
    coin = rng.random(truth.shape)
    other = rng.integers(0, pieces.size, truth.shape)
    return np.where(
        coin < masked, pieces.mask_id, np.where(coin < replaced, other, truth)
    )


# Random choices of pieces, of whole words, and of runs of words.


def choose_pieces(word, count, rng):
    """`count` random words of each row, or all where there are fewer.

    Args:
        word: bool `(B, T)`, what may be chosen.
        count: int `(B,)`, 1 at least.

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
    """Whole words of each row, at most `count` pieces.

    The words of a row are taken in random order, each with so many that
    follow it as to make a run of 1 to `max_ngram` (n with a probability
    proportional to 1/n, among those that its segment has room for). A run
    that would be too much is cut at its end by as many words as need be; one
    that holds a chosen word is left out. This is the original's rule of whole
    words, and ALBERT's of runs, but that no run extends from one segment to
    the other, and that single words fill up what runs leave. Where no word is
    short enough, single pieces are chosen.

    Args:
        word: bool `(B, T)`, what may be chosen.
        starts: bool `(B, T)`, the first piece of each word.
        count: int `(B,)`, 1 at least.

    Returns:
        bool `(B, T)`.
    """
    words = _Words(word, starts, count)
    order = np.argsort(rng.random(words.first.shape, np.float32), axis=1)
    if max_ngram > 1:
        words.take_in_turn(order, words.draw_runs(max_ngram, rng))
    words.take_in_turn(order)
    chosen = words.pieces()
    none = ~chosen.any(1)
    chosen[none] = choose_pieces(word[none], count[none], rng)
    return chosen


class _Words:
    """The words of some rows `(B, W)`, and which of them are taken."""

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
        self._taken = np.zeros(shape, bool)

    def _place(self, where, shape):
        """The column of each word at which `where` is true."""
        row, column = np.nonzero(where)
        table = np.zeros(shape, np.int64)
        table[row, self._number[row, column]] = column
        return table

    def draw_runs(self, max_ngram, rng):
        """How many words the run that begins at each word has `(B, W)`."""
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

    def take_in_turn(self, order, sizes=None):
        """Takes runs of words, or single ones, in a random order until there
        are enough."""
        for start in order.T:
            row = np.flatnonzero(self._used < self._count)
            if not len(row):
                return
            start = start[row]
            more = 0 if sizes is None else sizes[row, start] - 1
            self._take(row, start, start + more)

    def _take(self, row, start, stop):
        """Takes the words `start` to `stop` of each row, if that may be."""
        room = self._count[row] - self._used[row]
        size = self._last[row, stop] - self.first[row, start] + 1
        # A word less, in the rows where the run is too much.
        while ((size > room) & (stop > start)).any():
            stop = np.where(size > room, np.maximum(stop - 1, start), stop)
            size = self._last[row, stop] - self.first[row, start] + 1
        free = (self._segment[row, start] >= 0) & (size <= room)
        run = range(int((stop - start).max(initial=0)) + 1)
        for offset in run:
            free &= ~self._taken[row, np.minimum(start + offset, stop)]
        row, start, stop = row[free], start[free], stop[free]
        self._used[row] += size[free]
        for offset in run:
            self._taken[row, np.minimum(start + offset, stop)] = True

    def pieces(self):
        """The pieces of the words that are taken, bool `(B, T)`."""
        number = np.maximum(self._number, 0)
        return self._word & np.take_along_axis(self._taken, number, 1)
