"""This package: one pre-training step of rows that hold several examples."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
from examples import SIZES, VOCABULARY, padded_batch
from worker import serve

PER_ROW = 24


def prepare(settings):
    import tensorflow as tf

    import bert_keras
    from bert_keras.modeling.pretrainer import pretraining_losses
    from bert_keras.text.row_packing import pack_examples

    layers, width, heads = SIZES[settings["size"]]
    length, rows = settings["length"], settings["batch"]
    packed = pack_examples(
        padded_batch(settings["lengths"], length),
        length,
        PER_ROW,
        masks_per_row=length * 4 // 25,
    )
    # Evenly from all rows: the first ones hold the longest examples.
    whole = len(packed["token_ids"])
    chosen = np.linspace(0, whole - 1, rows).round().astype(int)
    packed = {k: np.asarray(v)[chosen] for k, v in packed.items()}
    encoder = bert_keras.BertEncoder(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=settings["dropout"],
        attention_dropout=settings["dropout"],
        dtype=settings["dtype"],
    )
    model = bert_keras.BertPretrainer(encoder, examples_per_row=PER_ROW)
    model.compile(
        bert_keras.adamw(1e-4, steps=1_000_000, bias_correction=True),
        pretraining_losses(),
    )
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids")
    names += ("example_ids", "mask_positions")
    x = {name: packed[name] for name in names}
    y = {"mlm": packed["mask_ids"], "nsp": packed["next_sentence_labels"]}
    w = {"mlm": packed["mask_weights"], "nsp": packed["example_weights"]}
    x, y, w = tf.nest.map_structure(tf.constant, (x, y, w))
    # Of all examples in all rows, the share that these rows stand for.
    examples = len(settings["lengths"]) * rows / whole
    return (lambda: model.train_on_batch(x, y, w)), examples


serve(prepare)
