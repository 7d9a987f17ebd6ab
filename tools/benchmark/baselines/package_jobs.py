"""The jobs of this package."""

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


def classify(settings):
    """Classify by an exported SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers its operations)

    served = tf.saved_model.load(settings["folder"])
    signature = served.signatures["classify"]

    def run(texts, served=served):  # the signature needs a live `served`
        answer = signature(text=tf.constant(texts))
        return answer["probabilities"].numpy()[0].tolist()

    return run, 1
