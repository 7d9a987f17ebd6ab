"""Toy models and inputs that the tests of weights share."""

import hashlib
import json
import os

import numpy as np

from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertCausalModel, BertPretrainer
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "##ly"]
IDS = np.array([[2, 5, 7, 3], [2, 6, 3, 0]], "int32")
INPUTS = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}
CLASSES = {
    cls.__name__: cls
    for cls in (
        BertEncoder,
        BertPretrainer,
        BertCausalModel,
        BertClassifier,
        BertEmbedder,
        BertSpanPredictor,
        BertTagger,
        BertChooser,
    )
}
SIZES = {
    "vocabulary_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 16,
}


def encoder(**arguments):
    return BertEncoder(**{**SIZES, **arguments})


def preprocessor(**arguments):
    tokenizer = WordPieceTokenizer(PIECES, lowercase=False, max_word_length=50)
    return BertPreprocessor(tokenizer, **{"sequence_length": 12, **arguments})


def model(name, **arguments):
    """Return a toy model of the class `name`, with random weights."""
    body = encoder(**arguments)
    made = {
        "BertEncoder": lambda: body,
        "BertPretrainer": lambda: BertPretrainer(body),
        "BertCausalModel": lambda: BertCausalModel(body),
        "BertClassifier": lambda: BertClassifier(
            body, labels=["no", "maybe", "yes"], dropout=0.2
        ),
        "BertEmbedder": lambda: BertEmbedder(body, pooling="max"),
        "BertSpanPredictor": lambda: BertSpanPredictor(body),
        "BertTagger": lambda: BertTagger(body, labels=["O", "PER"]),
        "BertChooser": lambda: BertChooser(body),
    }[name]()
    random = np.random.default_rng(3)
    for weight in made.weights:
        # Biases and scales are random too, so that tests notice a swapped pair.
        weight.assign(random.normal(0.5, 0.3, weight.shape))
    return made


def edit_config(folder, **fields):
    """Change fields of a saved folder's config.json, and update its hash.

    The prefix `block_` marks fields of the `bert_keras` block, for example
    `block_version`. The value None removes a field.
    """
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    block = config.get("bert_keras", {})
    for name, value in fields.items():
        place = block if name.startswith("block_") else config
        name = name.removeprefix("block_")
        place[name] = value
        if value is None:
            del place[name]
    if "bert_keras" in config:
        del block["sha256"]
        text = json.dumps(config, sort_keys=True)
        block["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def remove_block(folder):
    """Remove the `bert_keras` block, as if another package saved the folder."""
    edit_config(folder, bert_keras=None)


def largest_difference(first, second):
    return float(np.max(np.abs(np.asarray(first) - np.asarray(second))))
