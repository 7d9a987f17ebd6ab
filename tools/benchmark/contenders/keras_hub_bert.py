"""keras-hub as a contender."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

from examples import SIZES, VOCABULARY, dense_rows
from worker import peak_megabytes


def step(settings):
    """Its BERT backbone and masked-LM head, by `train_on_batch`.

    It has no next-sentence head: a dense layer stands in for it.
    """
    import keras
    import keras_hub
    import tensorflow as tf

    keras.config.set_dtype_policy(settings["dtype"])
    layers, width, heads = SIZES[settings["size"]]
    backbone = keras_hub.models.BertBackbone(
        VOCABULARY,
        layers,
        heads,
        width,
        4 * width,
        dropout=settings["dropout"],
        max_sequence_length=512,
    )
    places = keras.Input((None,), dtype="int32", name="mask_positions")
    mlm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=VOCABULARY,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )(backbone.output["sequence_output"], mask_positions=places)
    nsp = keras.layers.Dense(2, dtype="float32")
    model = keras.Model(
        {**backbone.input, "mask_positions": places},
        {"mlm": mlm, "nsp": nsp(backbone.output["pooled_output"])},
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        {"mlm": loss, "nsp": loss},
        jit_compile=settings.get("jit", False),
    )
    x, y = tf.nest.map_structure(tf.constant, dense_rows(settings))
    return (lambda: model.train_on_batch(x, y)), settings["batch"]


def load(settings):
    """A backbone from a Hugging Face folder, and one short row."""
    import keras_hub
    import tensorflow as tf

    tf.zeros(3) + 1  # starts the runtime
    keras_hub.models.BertBackbone  # noqa: B018
    before = peak_megabytes()

    def run():
        backbone = keras_hub.models.BertBackbone.from_preset(settings["base"])
        ids = tf.constant([[1, 2]])
        names = ("token_ids", "segment_ids", "padding_mask")
        values = (ids, tf.zeros_like(ids), tf.ones_like(ids))
        backbone(dict(zip(names, values, strict=True)))

    return run, 1, {"megabytes_before": round(before)}
