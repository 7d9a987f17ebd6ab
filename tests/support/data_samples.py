"""Small corpora of token ids and of words, for the tests of data."""

import hashlib
import os
import random
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from bert_keras.data.corpus import Document
from bert_keras.data.token_store import StoreWriter
from bert_keras.text.tokenizer import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"word{i}" for i in range(200)]


def vocabulary(size=1_000):
    """Return a vocabulary in which every fourth token continues a word."""
    words = [f"##{i}" if i % 4 == 3 else f"w{i}" for i in range(size)]
    return SPECIAL + words[len(SPECIAL) :]


def numbers(documents=60, seed=0, longest=40, size=1_000):
    """Return documents: lists of sentences, which are lists of token ids."""
    draw = random.Random(seed)
    return [
        [
            [draw.randrange(5, size) for _ in range(draw.randint(1, longest))]
            for _ in range(draw.randint(1, 60))
        ]
        for _ in range(documents)
    ]


def write_store(folder, documents, size=1_000):
    """Write documents of token ids to a token store; return the store."""
    pieces = vocabulary(size)
    tokenizer = SimpleNamespace(
        vocabulary=pieces,
        vocabulary_size=size,
        lowercase=True,
        strip_accents=True,
        max_word_length=200,
        keep_special_tokens=False,
    )
    with StoreWriter(str(folder), tokenizer) as writer:
        for document in documents:
            writer.add(
                np.array(sum(document, [])),
                np.array([len(sentence) for sentence in document]),
                np.array([len(document)]),
            )
        return writer.finish()


def arrays(batches):
    """Return the tensors of each batch as NumPy arrays."""
    return [
        [value.numpy() for value in tf.nest.flatten(batch)] for batch in batches
    ]


def same(one, other):
    """Return True if two results of `arrays` are equal."""
    return all(
        (a == b).all()
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    )


def toy_tokenizer():
    return WordPieceTokenizer([*SPECIAL, ".", "?", *WORDS])


def sentence(rng):
    words = rng.choice(WORDS, rng.integers(3, 12))
    return " ".join(words).capitalize() + "."


def corpus(count=60, seed=0):
    """Return `Document`s with paragraphs of random sentences."""
    rng = np.random.default_rng(seed)
    return [
        Document(
            f"document {number}",
            [
                " ".join(sentence(rng) for _ in range(rng.integers(1, 9)))
                for _ in range(rng.integers(1, 6))
            ],
        )
        for number in range(count)
    ]


def corpus_hash(documents):
    """Return the hash of all documents in order, as a manifest stores it."""
    hashes = [
        hashlib.sha256("\n".join(d.paragraphs).encode()).digest()
        + b"sentences" * d.sentences_given
        for d in documents
    ]
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def write_texts(folder, documents):
    """Write each document to a file, with one paragraph in a line."""
    os.makedirs(folder, exist_ok=True)
    for number, document in enumerate(documents):
        path = os.path.join(folder, f"{number:02d}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(document.paragraphs))


def contents(folder):
    """Return dict of relative path -> bytes, without lock files."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in set(names) - {".lock"}:
            path = os.path.join(root, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found


def in_small_parts(patch):
    """Lower the limits, so that data has many small parts and shards."""
    patch.setattr("bert_keras.data.building._PART", 2_000)
    patch.setattr("bert_keras.data.examples.CAPACITY", 40)
    patch.setattr("bert_keras.data.token_store._BLOCK", 256)
