"""A toy encoder of five layers, and its hidden states of toy texts."""

import functools

import numpy as np
import tensorflow as tf

from bert_keras import BertEncoder
from tests.support.toy_words import PIECES, preprocessor

TEXTS = [
    ["Ada", "Lovelace", "lived"],
    ["\u200b", "in"],
    [],
    ["Lovelace", "and", "Bern"] * 4,
]


@functools.cache
def encoder():
    made = BertEncoder(
        len(PIECES), 5, 2, 8, 16, max_sequence_length=128, name="encoder"
    )
    random = np.random.default_rng(0)
    for weight in made.weights:
        weight.assign(random.normal(0.1, 0.3, weight.shape))
    return made


def states(words):
    """Return the states (6, T, 8) of one text without [CLS] and [SEP]."""
    rows = preprocessor(32)(tf.constant([" ".join(words)]))
    found = encoder()(rows, hidden_states=True)["hidden_states"]
    return np.stack([state[0, 1:-1] for state in found])


def save_encoder(folder):
    encoder().save_preset(folder, preprocessor(32))
    return str(folder)
