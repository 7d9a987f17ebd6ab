"""This package: one pre-training step by `train_on_batch`."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from examples import SIZES, VOCABULARY, pretraining_batch
from worker import serve


def prepare(settings):
    import tensorflow as tf

    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses

    layers, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    encoder = bert_keras.BertEncoder(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=rate,
        attention_dropout=rate,
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000, bias_correction=True),
        pretraining_losses(),
        jit_compile=settings.get("jit", False),
    )
    batch = pretraining_batch(
        settings["batch"], settings["length"], settings["predictions"]
    )
    x = {
        "token_ids": batch["input_ids"],
        "segment_ids": batch["segment_ids"],
        "padding_mask": batch["input_mask"],
        "mask_positions": batch["masked_lm_positions"],
    }
    y = {"mlm": batch["masked_lm_ids"], "nsp": batch["next_sentence_labels"]}
    x, y = tf.nest.map_structure(tf.constant, (x, y))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


serve(prepare)
