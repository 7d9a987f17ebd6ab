"""The jobs of this package."""

import json

import numpy as np
from worker import SIZES, VOCABULARY, dense_rows


def step(settings):
    """Pre-train by `train_on_batch`, on any backend and device."""
    import keras

    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses

    layers, width, heads = SIZES[settings["size"]]
    encoder = bert_keras.BertEncoder(
        *(VOCABULARY, layers, heads, width, 4 * width),
        dropout=settings["dropout"],
        attention_dropout=settings["dropout"],
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000, bias_correction=True),
        pretraining_losses(),
    )
    batch = keras.tree.map_structure(
        keras.ops.convert_to_tensor, dense_rows(settings)
    )
    return (lambda: model.train_on_batch(*batch)), settings["batch"]


def finetune(settings):
    """Fine-tune on rows of their natural lengths."""
    import keras

    import bert_keras
    from bert_keras.modeling.task_models import span_losses
    from official_tasks.engine.batches import training_batches

    encoded, steps = read_rows(settings["file"]), settings["steps"]
    encoder = bert_keras.BertEncoder.from_preset(
        settings["init"], dtype=settings["dtype"]
    )
    if isinstance(encoded.targets, dict):
        model, loss = bert_keras.BertSpanPredictor(encoder), span_losses()
    else:
        model = bert_keras.BertClassifier(encoder, labels=["0", "1"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(bert_keras.adamw(2e-5, steps=10_000), loss)
    batches = training_batches(encoded, settings["batch"], 0, steps)

    def run():
        model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)

    return run, steps * settings["batch"]


def classify(settings):
    """Return the first text's probabilities by an exported SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers its operations)

    served = tf.saved_model.load(settings["folder"])
    signature = served.signatures["classify"]

    def run(texts, served=served):  # the signature needs a live `served`
        answer = signature(text=tf.constant(texts))
        return answer["probabilities"].numpy()[0].tolist()

    return run, 1


def read_rows(path):
    """Read the rows of ids of a file that `inputs.py` wrote."""
    import tensorflow as tf

    from official_tasks.tasks.base import Encoded

    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    ids = tf.ragged.constant(rows.pop("token_ids"), dtype="int32")
    segments = tf.ragged.constant(rows.pop("segment_ids"), dtype="int32")
    inputs = {
        "token_ids": ids,
        "segment_ids": segments,
        "padding_mask": tf.ones_like(ids),
    }
    targets = {name: np.array(values) for name, values in rows.items()}
    return Encoded(inputs, targets.get("labels", targets))
