"""Toy models and inputs for the tests of modeling and training."""

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
from bert_keras.modeling.weights import published_weights

SMALL = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 16,
}
STILL = {"dropout": 0.0, "attention_dropout": 0.0}
LABELS = ["no", "maybe", "yes"]
MODELS = {
    "encoder": BertEncoder,
    "classifier": BertClassifier,
    "tagger": BertTagger,
    "span": BertSpanPredictor,
    "chooser": BertChooser,
    "embedder": BertEmbedder,
    "pretrainer": BertPretrainer,
    "causal": BertCausalModel,
}


def make_encoder(**arguments):
    """Return an encoder with new weights, by default of one layer."""
    return BertEncoder(**{**SMALL, "num_layers": 1, **arguments})


def make_model(name, **arguments):
    """Return a new model of `MODELS`; `arguments` are those of its encoder."""
    if name == "causal":
        arguments["attention"] = "left_to_right"
    encoder = make_encoder(**arguments)
    labels = [LABELS] if name in ("classifier", "tagger") else []
    return encoder if name == "encoder" else MODELS[name](encoder, *labels)


def fill_weights(weights, seed=0, scale=0.4):
    """Set weights to random values, biases too."""
    random = np.random.default_rng(seed)
    for weight in weights:
        mean = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(random.normal(mean, scale, weight.shape))


def fill(model, seed=0, scale=0.4):
    """Set all weights to random values, biases too; return the model."""
    fill_weights(model.weights, seed, scale)
    return model


def random_encoder(seed=0, scale=0.4, **arguments):
    return fill(BertEncoder(**{**SMALL, **arguments}), seed, scale)


def numpy_weights(model):
    return {
        name: weight.numpy().astype("float64")
        for name, weight in published_weights(model).items()
    }


def random_inputs(seed=0, batch=3, length=7):
    random = np.random.default_rng(seed)
    lengths = random.integers(3, length + 1, batch)
    return {
        "token_ids": random.integers(0, 30, (batch, length)),
        "segment_ids": random.integers(0, 2, (batch, length)),
        "padding_mask": (np.arange(length) < lengths[:, None]).astype(int),
    }


def make_inputs(name):
    """Return inputs for the model `name` of `MODELS`."""
    if name == "pretrainer":
        return pretraining_batch()[0]
    if name == "chooser":
        rows = random_inputs(batch=6)  # two examples of three choices
        return {key: x.reshape(2, 3, 7) for key, x in rows.items()}
    return random_inputs()


def pretraining_batch(seed=0, batch=3, length=7, masked=4):
    """Return inputs, labels and sample weights of a pre-training batch.

    Some mask positions are padding.
    """
    random = np.random.default_rng(seed)
    x = random_inputs(seed, batch, length)
    x["mask_positions"] = random.integers(0, 3, (batch, masked))
    real = random.integers(1, masked + 1, batch)
    y = {
        "mlm": random.integers(0, 30, (batch, masked)),
        "nsp": random.integers(0, 2, (batch,)),
    }
    w = {
        "mlm": (np.arange(masked) < real[:, None]).astype("float32"),
        "nsp": np.ones(batch, "float32"),
    }
    return x, y, w


def assert_holds(model, numbers):
    """Check that the weights equal `numbers`, a dict of name -> array."""
    found = published_weights(model)
    for name, expected in numbers.items():
        assert np.array_equal(found[name].numpy(), expected), name
