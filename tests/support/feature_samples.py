"""A toy encoder of five layers, and its hidden states of toy texts."""

import functools

import numpy as np
import tensorflow as tf

from tests.support.model_samples import random_encoder
from tests.support.toy_words import PIECES, preprocessor

TEXTS = [
    ["Ada", "Lovelace", "lived"],
    ["\u200b", "in"],
    [],
    ["Lovelace", "and", "Bern"] * 4,
]


@functools.cache
def encoder():
    sizes = {"vocabulary_size": len(PIECES), "max_sequence_length": 128}
    return random_encoder(num_layers=5, **sizes, name="encoder")


def states(words):
    """Return the states (6, T, 8) of one text without [CLS] and [SEP]."""
    rows = preprocessor(32)(tf.constant([" ".join(words)]))
    found = encoder()(rows, hidden_states=True)["hidden_states"]
    return np.stack([state[0, 1:-1] for state in found])


def save_encoder(folder):
    encoder().save_preset(folder, preprocessor(32))
    return str(folder)
