"""Toy models and inputs that the tests of weights share."""

import hashlib
import json
import os

import numpy as np

from bert_keras.modeling.encoder import BertEncoder
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from tests.support.model_samples import MODELS, SMALL, fill, make_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "##ly"]
IDS = np.array([[2, 5, 7, 3], [2, 6, 3, 0]], "int32")
INPUTS = {"token_ids": IDS, "padding_mask": (IDS > 0).astype("int32")}
NAMES = {cls.__name__: name for name, cls in MODELS.items()}
CLASSES = {cls.__name__: cls for cls in MODELS.values()}
SIZES = {**SMALL, "vocabulary_size": len(PIECES)}


def encoder(**arguments):
    return BertEncoder(**{**SIZES, **arguments})


def preprocessor(**arguments):
    tokenizer = WordPieceTokenizer(PIECES, lowercase=False, max_word_length=50)
    return BertPreprocessor(tokenizer, **{"sequence_length": 12, **arguments})


def model(name, **arguments):
    """Return a toy model of the class `name`, with random weights."""
    return fill(make_model(NAMES[name], **{**SIZES, **arguments}), seed=3)


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
