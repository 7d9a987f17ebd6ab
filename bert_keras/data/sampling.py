"""Draw sentence pairs by sampling rules; convert the pairs to rows of ids."""

import dataclasses
import hashlib
import math
import numbers
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.text.masking import (
    MASK_MIX,
    MASK_RATE,
    MaskingVocabulary,
    check_mask_rules,
    count_predictions,
)

# Type of a rule's default -> (accepted types, description for messages).
_TYPES = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    tuple: ((tuple, list), "three percentages"),
}
# Minimum of `sequence_length`: [CLS], two [SEP], some tokens of each segment.
SHORTEST = 8


@dataclasses.dataclass(frozen=True)
class SamplingRules:
    """Rules for drawing pairs and masks; by default the original BERT's.

    Args:
        sequence_length: tokens of a row, including [CLS], [SEP] and [PAD].
        max_predictions: maximum number of masked tokens in an example; None
            for `mask_rate` times `sequence_length`, rounded up.
        short_probability: fraction of documents whose examples are shorter,
            so that a model also sees short sequences.
        mask_rate: fraction of an example's tokens to predict.
        mask_mix: percentages of these tokens that become [MASK], that become a
            random token, and that stay unchanged.
        whole_word: mask all tokens of a word or none.
        packed: put several examples into one row, to reduce padding. The
            maximum is one example for each 16 tokens of `sequence_length`, but
            at least 2.

    Raises:
        InputError: an argument has a wrong type or is out of range.
    """

    sequence_length: int = 128
    max_predictions: int | None = None
    short_probability: float = 0.1
    mask_rate: float = MASK_RATE
    mask_mix: tuple[float, float, float] = MASK_MIX
    whole_word: bool = False
    packed: bool = False

    @property
    def examples_per_row(self) -> int | None:
        """Maximum number of examples in a packed row; None if not packed."""
        return max(2, self.sequence_length // 16) if self.packed else None

    @property
    def masks_per_row(self) -> int:
        """Maximum number of masked tokens in a row.

        In a packed row, an example of n tokens has at most
        `max(1, round(mask_rate * n))` masked tokens. Rounding adds at most 0.5
        to `mask_rate * n`. The minimum of 1 adds at most `1 - 5 * mask_rate`,
        because n is at least 5. The result allows the larger of these two
        numbers for each example.
        """
        if not self.packed:
            return self.max_predictions
        exact = self.mask_rate * self.sequence_length
        rounding = self.examples_per_row * max(0.5, 1 - 5 * self.mask_rate)
        return min(self.sequence_length, math.ceil(exact + rounding))

    def __post_init__(self):
        if self.max_predictions is None:
            count = count_predictions(self.sequence_length, self.mask_rate)
            object.__setattr__(self, "max_predictions", count)
        # Check types, because rules from a JSON file may have "128" or null.
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), type(field.default)
            default = int if field.default is None else default
            types, expected = _TYPES[default]
            is_flag = isinstance(value, bool) and default is not bool
            if is_flag or not isinstance(value, types):
                raise InputError(
                    f"{field.name} must be {expected}; got {value!r}."
                )
            if default is int:  # JSON cannot write NumPy's integers
                object.__setattr__(self, field.name, int(value))
        object.__setattr__(self, "mask_mix", tuple(self.mask_mix))
        if self.sequence_length < SHORTEST:
            raise InputError(
                f"`sequence_length` must be at least {SHORTEST}, so that two "
                f"sentences fit; got {self.sequence_length}."
            )
        if not 1 <= self.max_predictions <= self.sequence_length:
            raise InputError(
                "`max_predictions` must be between 1 and `sequence_length` "
                f"({self.sequence_length}); got {self.max_predictions}."
            )
        if not 0 <= self.short_probability <= 1:
            raise InputError(
                "`short_probability` must be between 0 and 1; got "
                f"{self.short_probability}."
            )
        check_mask_rules(self)


def vocabulary_hash(vocabulary: list[str]) -> str:
    """Return the SHA-256 of the tokens in their order, as hex digits."""
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()


class Pairs(NamedTuple):
    """Starts and lengths of segments A and B in a store's `tokens`.

    Each field is int64 `(N,)`, with one value for each pair.
    """

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    labels: np.ndarray  # 0 = B follows A, 1 = B is from another document

    @property
    def lengths(self):
        """Number of tokens of each example, with [CLS] and two [SEP]."""
        return self.a_length + self.b_length + 3

    @property
    def count(self):
        return len(self.labels)

    def __getitem__(self, rows):
        return Pairs(*(field[rows] for field in tuple(self)))

    @staticmethod
    def join(parts: list["Pairs"]) -> "Pairs":
        return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


def draw_pairs(
    store, first: int, last: int, rules: SamplingRules, rng
) -> Pairs:
    """Draw pairs from the documents `first` to `last` (excluded), in order.

    Equals the original's `create_instances_from_document` (paper, section
    A.2). Consecutive sentences form a chunk that fills the target length or
    ends with the document. Segment A has a random number of the chunk's
    sentences, at least one. Segment B has the rest, with label 0. Half the
    time, and always if there is no rest, B is instead text of another document,
    with label 1. This text begins at a random sentence and fills the target
    length together with A. After such a B, the next chunk begins with the rest.
    A document's target length is `sequence_length - 3` or, with probability
    `short_probability`, a random length from 2 to `sequence_length - 3`.
    `truncate` cuts pairs that are too long.

    Unlike the original, this function never draws B from A's own document. With
    two documents, the original does so in 1 of 1,024 random pairs.

    Args:
        store: a `TokenStore` of at least two documents.
        first: index of the first document.
        last: index after the last document.
        rules: `SamplingRules`.
        rng: NumPy generator.
    """
    room = rules.sequence_length - 3  # without [CLS] and two [SEP]
    bounds = store.documents[first : last + 1].tolist()
    base = bounds[0]
    offsets = store.sentences[base : bounds[-1] + 1].tolist()
    short = rng.random(last - first) < rules.short_probability
    # (documents,): the target lengths. Some are short, as in the original.
    targets = np.where(short, rng.integers(2, room + 1, last - first), room)
    uniform = iter(rng.random(2 * (bounds[-1] - base)).tolist()).__next__
    chunks = []
    for document, target in enumerate(targets.tolist()):
        begin, end = bounds[document] - base, bounds[document + 1] - base
        _append_chunks(
            offsets, begin, end, target, first + document, uniform, chunks
        )
    # (6, N)
    fields = np.array(chunks, np.int64).reshape(-1, 6).T
    start, split, end, random, document, target = fields
    token = np.asarray(offsets)
    a_length = token[split] - token[start]
    b_start, b_length = token[split], token[end] - token[split]
    other = np.flatnonzero(random)
    b_start[other], b_length[other] = _draw_other_documents(
        store, document[other], (target - a_length)[other], rng
    )
    pairs = Pairs(token[start], a_length, b_start, b_length, random)
    return truncate(pairs, room, rng)


def _append_chunks(offsets, begin, end, target, document, uniform, chunks):
    """Append (begin, split, stop, random, document, target) of each chunk.

    A has the sentences `begin` to `split` (excluded). B has the sentences
    `split` to `stop` (excluded) or, if `random`, other text.
    """
    while begin < end:
        # The chunk ends with the first sentence that fills the target length,
        # else with the document.
        stop = bisect_left(offsets, offsets[begin] + target, begin + 1, end)
        count = stop - begin
        if count == 1:
            chunks.append((begin, stop, stop, 1, document, target))
            begin = stop
            continue
        # A has 1 to count - 1 sentences.
        split = begin + 1 + int(uniform() * (count - 1))
        # Paper, section 3.1: half the time, B is a random text.
        random = uniform() < 0.5
        chunks.append((begin, split, stop, random, document, target))
        # After a random B, the next chunk begins with the rest of this chunk.
        begin = split if random else stop


def _draw_other_documents(store, document, length, rng):
    """Return the start and length of a random text for each pair.

    `document` has the index of A's document. The text is from another document.
    """
    other = rng.integers(0, store.num_documents - 1, len(document))
    other += other >= document  # skips A's document
    first, last = store.documents[other], store.documents[other + 1]
    sentence = first + (rng.random(len(document)) * (last - first)).astype(
        np.int64
    )
    start = store.sentences[sentence]
    stop = np.searchsorted(store.sentences, start + length)
    # The text has at least one sentence, and ends within its document.
    stop = np.clip(stop, sentence + 1, last)
    return start, store.sentences[stop] - start


def truncate(pairs: Pairs, room: int, rng) -> Pairs:
    """Cut pairs to `room` tokens by removing tokens of the longer segment.

    If A and B are equally long, B loses a token. A segment loses its first or
    its last token with equal probability. So the number of tokens that it loses
    at its start is binomial.
    """
    # The longer segment loses tokens until the pair fits. So a segment keeps at
    # least half of `room` (A: rounded up), or all its tokens if they are fewer.
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


def gather(
    tokens, pairs: Pairs, length: int, vocabulary: MaskingVocabulary
) -> dict:
    """Return each pair as a row of `length` ids, [CLS] A [SEP] B [SEP] [PAD]...

    Returns:
        dict of int32: token_ids, segment_ids, padding_mask `(B, T)`,
        next_sentence_labels `(B,)`.
    """
    column = np.arange(length)  # (T,)
    a_end = pairs.a_length[:, None] + 1  # (B, 1): column of the first [SEP]
    b_end = a_end + pairs.b_length[:, None] + 1
    in_b = column > a_end  # (B, T)
    # `source` is the index of each column's token in `tokens`.
    source = np.where(
        in_b,
        (pairs.b_start[:, None] - a_end - 1) + column,
        (pairs.a_start[:, None] - 1) + column,
    )  # (B, T)
    real = column <= b_end
    word = real & (column > 0) & (column != a_end) & (column != b_end)
    ids = np.full(source.shape, vocabulary.pad_id, np.int32)
    ids[word] = tokens[source[word]]
    ids[:, 0] = vocabulary.cls_id
    rows = np.arange(len(ids))
    ids[rows, a_end[:, 0]] = vocabulary.sep_id
    ids[rows, b_end[:, 0]] = vocabulary.sep_id
    return {
        "token_ids": ids,
        "segment_ids": (in_b & real).astype(np.int32),
        "padding_mask": real.astype(np.int32),
        "next_sentence_labels": pairs.labels.astype(np.int32),
    }
