"""Small corpora of numbers for the tests of pre-training data."""

import random
from types import SimpleNamespace

import numpy as np

from bert_keras.data.store_writer import StoreWriter

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(size=1_000):
    """Every fourth piece goes on with a word."""
    words = [f"##{i}" if i % 4 == 3 else f"w{i}" for i in range(size)]
    return SPECIAL + words[len(SPECIAL) :]


def numbers(documents=60, seed=0, longest=40, size=1_000):
    """Documents of sentences of ids, of mixed lengths."""
    draw = random.Random(seed)
    return [
        [
            [draw.randrange(5, size) for _ in range(draw.randint(1, longest))]
            for _ in range(draw.randint(1, 60))
        ]
        for _ in range(documents)
    ]


def write_store(folder, documents, size=1_000):
    """A token store of documents of sentences of ids."""
    pieces = vocabulary(size)
    tokenizer = SimpleNamespace(
        vocabulary=pieces, vocabulary_size=size, lowercase=True
    )
    with StoreWriter(str(folder), tokenizer) as writer:
        for document in documents:
            writer.add(
                np.array(sum(document, [])),
                np.array([len(sentence) for sentence in document]),
                np.array([len(document)]),
            )
        return writer.finish()
