"""Records results that no other library computes: data drawn from a store,
and the losses of 20 training steps of each objective.

    python -m tests.golden.behaviour

Writes behaviour.json. Run it only with a reason for each changed value.
"""

import hashlib
import json
import tempfile
import zlib
from pathlib import Path

import keras
import numpy as np

import bert_keras
from bert_keras.data.batches import pretraining_dataset
from bert_keras.data.sampling import SamplingRules
from bert_keras.data.token_store import TokenStore
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.modeling.task_models import span_losses
from bert_keras.modeling.weights import published_weights
from tests.support.toy_pretraining import write_data

HERE = Path(__file__).parent
STEPS, ROWS, LENGTH, VOCABULARY = 20, 8, 12, 30
RULES = {
    "pairs": {},
    "whole words": {"whole_word": True, "mask_rate": 0.3},
    "packed": {"packed": True, "sequence_length": 48},
}


def hash_arrays(arrays):
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:32]


def draw_data(folder):
    """Return hashes of a token store and of batches from it, and one batch."""
    write_data(folder)
    source = str(Path(folder) / "tokens" / "train")
    store = TokenStore(source)
    arrays = store.tokens, store.sentences, store.documents
    found = {"store": hash_arrays(arrays), "tokens": len(store.tokens)}
    for name, fields in RULES.items():
        rules = SamplingRules(
            **{"sequence_length": 16, "max_predictions": 3, **fields}
        )
        x, y, w = next(iter(pretraining_dataset(source, 4, 5, 2, rules)))
        values = keras.tree.map_structure(lambda t: t.numpy(), (x, y, w))
        if name == "pairs":
            found["batch"] = keras.tree.map_structure(
                lambda array: array.tolist(), [*values]
            )
        found[name] = hash_arrays(keras.tree.flatten(values))
    return found


def fill(model):
    """Assign random weights that depend on each weight's name alone."""
    for name, weight in published_weights(model).items():
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        mean = 1.0 if name.endswith("gamma") else 0.0
        weight.assign(draw.normal(mean, 0.2, weight.shape))
    return model


def encoder(attention="bidirectional", dropout=0.0):
    return bert_keras.BertEncoder(
        VOCABULARY,
        2,
        2,
        16,
        24,
        max_sequence_length=LENGTH,
        dropout=dropout,
        attention_dropout=dropout,
        attention=attention,
    )


def draw_batch(*more):
    """Return inputs of one batch: (B, T), or (B, K, T) with `more` = (K,)."""
    draw = np.random.default_rng(11)
    shape = (ROWS, *more, LENGTH)
    lengths = draw.integers(4, LENGTH + 1, shape[:-1])
    return {
        "token_ids": draw.integers(0, VOCABULARY, shape),
        "segment_ids": draw.integers(0, 2, shape),
        "padding_mask": (np.arange(LENGTH) < lengths[..., None]).astype(int),
    }


def objectives():
    """Return name -> function that returns the first arguments of `train`."""
    draw = np.random.default_rng(12)
    classes = draw.integers(0, 3, ROWS)
    weights = draw.uniform(0, 2, ROWS).astype("float32")
    tags = draw.integers(0, 4, (ROWS, LENGTH))
    tag_weights = draw.integers(0, 2, (ROWS, LENGTH)).astype("float32")
    masked = draw.integers(0, LENGTH, (ROWS, 3))
    words = draw.integers(0, VOCABULARY, (ROWS, 3))
    real = draw.integers(0, 2, (ROWS, 3)).astype("float32")
    many = draw.integers(0, 2, (ROWS, 3)).astype("float32")
    numbers = draw.normal(size=ROWS).astype("float32")
    ends = {name: draw.integers(0, 4, ROWS) for name in ("start", "end")}
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sigmoid = keras.losses.BinaryCrossentropy(from_logits=True)
    names = ["a", "b", "c"]
    pretraining = (
        {**draw_batch(), "mask_positions": masked},
        {"mlm": words, "nsp": classes % 2},
        {"mlm": real, "nsp": np.ones(ROWS, "float32")},
    )
    return {
        "pretraining": lambda: (
            bert_keras.BertPretrainer(encoder()),
            pretraining_losses(),
            *pretraining,
        ),
        "pretraining with dropout": lambda: (
            bert_keras.BertPretrainer(encoder(dropout=0.1)),
            pretraining_losses(),
            *pretraining,
        ),
        "left to right": lambda: (
            bert_keras.BertCausalModel(encoder("left_to_right")),
            entropy,
            draw_batch(),
            draw_batch()["token_ids"],
            tag_weights,
        ),
        "classes": lambda: (
            bert_keras.BertClassifier(encoder(), labels=names),
            entropy,
            draw_batch(),
            classes,
            weights,
        ),
        "many labels": lambda: (
            bert_keras.BertClassifier(encoder(), labels=names, problem="multi"),
            sigmoid,
            draw_batch(),
            many,
            None,
        ),
        "regression": lambda: (
            bert_keras.BertClassifier(encoder(), problem="regression"),
            keras.losses.MeanSquaredError(),
            draw_batch(),
            numbers[:, None],
            weights,
        ),
        "tags": lambda: (
            bert_keras.BertTagger(encoder(), labels=[*names, "d"]),
            entropy,
            draw_batch(),
            tags,
            tag_weights,
        ),
        "spans": lambda: (
            bert_keras.BertSpanPredictor(encoder()),
            span_losses(),
            draw_batch(),
            ends,
            None,
        ),
        "choices": lambda: (
            bert_keras.BertChooser(encoder()),
            entropy,
            draw_batch(4),
            classes,
            None,
        ),
        "vectors": lambda: (
            bert_keras.BertEmbedder(encoder()),
            bert_keras.InBatchNegatives(),
            draw_batch(2),
            np.arange(ROWS),
            None,
        ),
    }


def train(model, loss, x, y, weights, steps=STEPS, eager=False):
    """Return losses of `steps` steps on one batch; the schedule has STEPS."""
    fill(model)
    optimizer = bert_keras.adamw(3e-3, steps=STEPS)
    model.compile(optimizer, loss, run_eagerly=eager)
    losses = [model.train_on_batch(x, y, weights) for _ in range(steps)]
    return [round(float(np.ravel(found)[0]), 7) for found in losses]


def train_all():
    """Return a dict: name of the objective -> its losses."""
    found = {}
    for name, make in objectives().items():
        keras.utils.set_random_seed(4)
        found[name] = train(*make())
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        recorded = {"data": draw_data(folder), "losses": train_all()}
    text = json.dumps(recorded)
    (HERE / "behaviour.json").write_text(text + "\n", encoding="utf-8")
