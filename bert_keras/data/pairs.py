"""Sentence pairs by the original BERT's law, drawn from a token store.

Only where each segment begins and how long it is are drawn here; the pieces
themselves are gathered later, batch by batch.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from bert_keras.data.laws import Laws, Pieces


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
    def nbytes(self):
        return sum(field.nbytes for field in tuple(self))

    def __getitem__(self, rows):
        return Pairs(*(field[rows] for field in tuple(self)))


def join_pairs(parts: list[Pairs]) -> Pairs:
    """All pairs of the parts, in their order."""
    return Pairs(*map(np.concatenate, zip(*parts, strict=True)))


def draw_pairs(store, first: int, last: int, laws: Laws, rng) -> Pairs:
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
    room = laws.sequence_length - 3  # [CLS], [SEP], [SEP]
    bounds = store.documents[first : last + 1].tolist()
    base = bounds[0]
    offsets = store.sentences[base : bounds[-1] + 1].tolist()
    short = rng.random(last - first) < laws.short_probability
    targets = np.where(short, rng.integers(2, room + 1, last - first), room)
    uniform = iter(rng.random(2 * (bounds[-1] - base)).tolist()).__next__
    chunks = []
    for document, target in enumerate(targets.tolist()):
        begin, end = bounds[document] - base, bounds[document + 1] - base
        _walk(offsets, begin, end, target, first + document, uniform, chunks)
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
        split = begin + 1 + int(uniform() * (count - 1))
        random = uniform() < 0.5
        chunks.append((begin, split, stop, random, document, target))
        begin = split if random else stop


def _other_documents(store, own, wanted, rng):
    """Start and length of text from a random place in another document."""
    other = rng.integers(0, store.num_documents - 1, len(own))
    other += other >= own
    first, last = store.documents[other], store.documents[other + 1]
    sentence = first + (rng.random(len(own)) * (last - first)).astype(np.int64)
    start = store.sentences[sentence]
    stop = np.searchsorted(store.sentences, start + wanted)
    stop = np.clip(stop, sentence + 1, last)
    return start, store.sentences[stop] - start


def truncate(pairs: Pairs, room: int, rng) -> Pairs:
    """Shortens pairs to `room` pieces: the longer first, of equals B.

    Each piece that goes is taken from the front or from the back with the
    same probability, so the number from the front is binomial.
    """
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
    in_b = column > a_end
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
