"""This package: some fine-tuning steps on rows of their natural lengths."""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from worker import serve


def prepare(settings):
    import keras

    import bert_keras
    from bert_keras.modeling.span import span_losses
    from official_tasks.engine.batches import training_batches

    encoded, steps = _encoded(settings["file"]), settings["steps"]
    encoder = bert_keras.BertEncoder.from_preset(
        settings["init"], dtype=settings["dtype"]
    )
    if isinstance(encoded.targets, dict):
        model, loss = bert_keras.BertSpanPredictor(encoder), span_losses()
    else:
        model = bert_keras.BertClassifier(encoder, labels=["0", "1"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(bert_keras.adamw(2e-5, steps=10_000), loss, jit_compile=False)
    batches = training_batches(
        encoded, settings["batch"], 0, steps, length=settings.get("padded")
    )

    def fit():
        model.fit(batches, steps_per_epoch=steps, shuffle=False, verbose=0)

    return fit, steps * settings["batch"]


def _encoded(path):
    import numpy as np
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


serve(prepare)
