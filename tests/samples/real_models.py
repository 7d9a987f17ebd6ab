"""Every task model on all-MiniLM-L6-v2 of BERT_KERAS_DATA.

The classifier has seen 1,600 sentences of SST-2; the other heads are random,
which is as good for serving them.
"""

import os
import warnings

import keras
import numpy as np

import bert_keras
from bert_keras.errors import UntrainedWarning

BATCH, STEPS = 16, 100
HOME = os.environ.get("BERT_KERAS_DATA", "")
PRESET = os.path.join(HOME, "weights", "all-MiniLM-L6-v2")


def preprocessor(length=128):
    return bert_keras.BertPreprocessor.from_preset(
        PRESET, sequence_length=length
    )


def sentiments(split, rows):
    path = os.path.join(HOME, "data", "glue", "SST-2", f"{split}.tsv")
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()[1 : rows + 1]
    texts, labels = zip(*(line.rsplit("\t", 1) for line in lines), strict=True)
    return list(texts), np.array(labels, "int32")


def classifier():
    texts, labels = sentiments("train", STEPS * BATCH)
    model = bert_keras.BertClassifier.from_preset(
        PRESET, labels=["negative", "positive"]
    )
    model.compile(
        bert_keras.adamw(1e-4, steps=STEPS),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(preprocessor(64)(texts), labels, BATCH, verbose=0)
    return model


def all_models():
    """What together answers every signature; the pre-trainer comes first."""
    kinds = ["O", *(f"{p}-{k}" for k in ("LOC", "ORG", "PER") for p in "BI")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWarning)
        return [
            bert_keras.BertPretrainer.from_preset(PRESET),
            classifier(),
            bert_keras.BertSpanPredictor.from_preset(PRESET),
            bert_keras.BertTagger.from_preset(PRESET, labels=kinds),
            bert_keras.BertChooser.from_preset(PRESET),
        ]
