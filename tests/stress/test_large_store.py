"""A token store of more than 2^31 tokens, in a sparse file."""

import numpy as np
import pytest

from bert_keras.data.examples import DrawnExamples
from bert_keras.data.sampling import SamplingRules, gather
from bert_keras.data.token_store import StoreWriter
from tests.support.data_samples import numbers, toy_tokenizer

HOLE = 2**31 + 5  # tokens of the first document, which stay unwritten


@pytest.mark.long
def test_positions_beyond_31_bits_are_drawn_and_gathered(tmp_path):
    documents = numbers(40, longest=20, size=200)
    with StoreWriter(str(tmp_path), toy_tokenizer()) as writer:
        writer.add([], [HOLE], [1])
        writer.totals["tokens"] = HOLE
        writer._files["tokens"].seek(2 * HOLE)
        for document in documents:
            lengths = [len(sentence) for sentence in document]
            writer.add(sum(document, []), lengths, [len(document)])
        store = writer.finish()
    ids = np.array([i for document in documents for i in sum(document, [])])
    assert len(store.tokens) == HOLE + len(ids) and store.num_documents == 41
    examples = DrawnExamples(store, SamplingRules(64, 9), 0)
    windows = len(examples.windows.epoch(0)[0])
    pairs = [examples.load(0, window) for window in range(windows)]
    pairs = pairs[0].join(pairs)
    pairs = pairs[(pairs.a_start >= HOLE) & (pairs.b_start >= HOLE)]
    assert len(pairs.labels) > 100
    rows = gather(store.tokens, pairs, 64, store.masking_vocabulary)[
        "token_ids"
    ]
    for row, start, length, other, rest in zip(
        rows, *(field.tolist() for field in tuple(pairs)[:4]), strict=True
    ):
        start, other = start - HOLE, other - HOLE
        first, second = ids[start : start + length], ids[other : other + rest]
        expected = [2, *first, 3, *second, 3]
        assert row.tolist() == expected + [0] * (64 - len(expected))
