"""Loading an encoder from a Hugging Face folder, by one system or another."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

from worker import peak_megabytes, serve


def ours(folder):
    import tensorflow as tf

    import bert_keras
    import bert_keras.interop.presets  # noqa: F401

    tf.zeros(3) + 1
    bert_keras.BertEncoder  # noqa: B018
    yield
    encoder = bert_keras.BertEncoder.from_preset(folder)
    yield encoder({"token_ids": tf.constant([[1, 2]])})


def keras_hub(folder):
    import keras_hub
    import tensorflow as tf

    tf.zeros(3) + 1
    yield
    backbone = keras_hub.models.BertBackbone.from_preset(folder)
    ids = tf.constant([[1, 2]])
    zeros, ones = tf.zeros_like(ids), tf.ones_like(ids)
    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = dict(zip(names, (ids, zeros, ones), strict=True))
    yield backbone(inputs)


def transformers(folder):
    import torch
    from transformers import BertModel

    torch.zeros(3) + 1
    yield
    model = BertModel.from_pretrained(folder)
    with torch.no_grad():
        yield model(torch.tensor([[1, 2]]))


def prepare(settings):
    system = globals()[settings["system"]]
    next(system(settings["base"]))  # its imports
    before = peak_megabytes()

    def load():
        parts = system(settings["base"])
        next(parts)
        next(parts)

    return load, 1, {"megabytes_before": round(before)}


serve(prepare)
