"""A toy model folder and toy texts for the tests of tasks."""

import contextlib
import csv

import keras
import numpy as np
import tensorflow as tf

from bert_keras.modeling.encoder import BertEncoder
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer

WORDS = (
    "good bad fine awful film book a the is was very not one two three four "
    "cat dog sat ran red blue"
).split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
GOOD, BAD = ("good", "fine"), ("bad", "awful")
# Arguments of a fine-tuning run that learns toy reviews within seconds.
QUICK = {"batch_size": 8, "learning_rate": 1e-2, "sequence_length": 24}


def save_toy_model(folder, seed=0, dropout=0.0, num_layers=1, positions=128):
    """Write a toy encoder with the vocabulary `PIECES`; return the folder."""
    keras.utils.set_random_seed(seed)
    encoder = BertEncoder(
        len(PIECES),
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=positions,
        dropout=dropout,
        attention_dropout=dropout,
    )
    preprocess = BertPreprocessor(WordPieceTokenizer(PIECES), 16)
    encoder.save_preset(folder, preprocess)
    return folder


@contextlib.contextmanager
def eager_functions():
    """Run `tf.function`s eagerly: tracing takes longer than a few steps."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def sentences(count, seed=0):
    """Return `count` toy reviews as (text, 1 if good else 0)."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        word = (GOOD if number % 2 else BAD)[random.integers(2)]
        filling = random.choice(WORDS[4:16], random.integers(1, 12))
        words = [*filling, word]
        rows.append((" ".join(random.permutation(words)), number % 2))
    return rows


def write_csv(path, rows, header=("text", "label")):
    """Write a table; return its path as a str."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_reviews(path, count, seed=0):
    """Write toy reviews with the labels "bad" and "good" as CSV."""
    rows = [(text, ("bad", "good")[y]) for text, y in sentences(count, seed)]
    return write_csv(path, rows)
