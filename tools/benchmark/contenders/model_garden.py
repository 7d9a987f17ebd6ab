"""Model Garden (tf-models-official) as a contender."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

from examples import SIZES, VOCABULARY, pretraining_batch


def step(settings):
    """One step of BertPretrainerV2 in one tf.function."""
    import tensorflow as tf
    import tf_keras
    from official.nlp.modeling import layers, models, networks

    tf_keras.mixed_precision.set_global_policy(settings["dtype"])
    number, width, heads = SIZES[settings["size"]]
    rate = settings["dropout"]
    encoder = networks.BertEncoderV2(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_layers=number,
        num_attention_heads=heads,
        inner_dim=4 * width,
        output_dropout=rate,
        attention_dropout=rate,
    )
    head = layers.ClassificationHead(
        inner_dim=width, num_classes=2, name="next_sentence", dropout_rate=rate
    )
    model = models.BertPretrainerV2(encoder, classification_heads=[head])
    optimizer = tf_keras.optimizers.AdamW(1e-4, global_clipnorm=1.0)
    batch = pretraining_batch(
        settings["batch"], settings["length"], settings["predictions"]
    )
    batch = tf.nest.map_structure(tf.constant, batch)
    x = {
        "input_word_ids": batch["input_ids"],
        "input_type_ids": batch["segment_ids"],
        "input_mask": batch["input_mask"],
        "masked_lm_positions": batch["masked_lm_positions"],
    }

    def loss(labels, logits):
        logits = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )

    @tf.function(jit_compile=settings.get("jit", False))
    def train():
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            total = loss(batch["masked_lm_ids"], outputs["mlm_logits"])
            total += loss(
                batch["next_sentence_labels"], outputs["next_sentence"]
            )
        gradients = tape.gradient(total, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        optimizer.apply_gradients(pairs)
        return total

    model(x)
    optimizer.build(model.trainable_variables)
    return (lambda: train().numpy()), settings["batch"]
