"""`classify`: one label, several labels or a score of a text or a pair."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.serving.signature import NEXT, SENTENCE, TRUNCATED, Signature


def classify(model, rows, pair=False, long_text="truncate"):
    """Label and probabilities of a text or a pair; or its score.

    Args:
        model: a `BertClassifier` in float32.
        rows: `Rows` of its preprocessor.
        pair: it reads `text` and `text_pair`.
        long_text: "truncate", or "windows": the mean over windows of the
            text, each with the weight of its length.
    """
    if pair and long_text == "windows":
        raise InputError(
            "A pair cannot be read in windows. Export the pair model with "
            'long_text="truncate".'
        )
    activation, answer, outputs = {
        "single": _single_label,
        "multi": _several_labels,
        "regression": _regression,
    }[model.problem](model.labels)

    def scores(inputs):
        return activation(model(inputs, training=False))

    def function(*texts):
        segments = [rows.tokenizer(text) for text in texts]
        if long_text == "windows":
            width = model.output_shape[-1]
            return answer(rows.mean_over_windows(scores, segments[0], width))
        return {
            **answer(scores(rows.framed(*segments))),
            "truncated": rows.cut(*segments),
        }

    if long_text == "truncate":
        outputs["truncated"] = TRUNCATED
    inputs = {"text": SENTENCE, **({"text_pair": NEXT} if pair else {})}
    padded = ("label", "label_index") if model.problem == "multi" else ()
    labels = tuple(model.labels or ())
    return Signature("classify", inputs, function, outputs, padded, labels)


def _single_label(labels):
    names = tf.constant(labels)

    def answer(probabilities):
        index = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        return {
            "label": tf.gather(names, index),
            "label_index": index,
            "probabilities": probabilities,
        }

    outputs = {
        "label": "string (B,): the likeliest label",
        "label_index": f"int32 (B,): its place in {labels}",
        "probabilities": "float32 (B, C): of every label",
    }
    return tf.nn.softmax, answer, outputs


def _several_labels(labels):
    # The empty name and -1 stand where a row has fewer labels than another.
    names = tf.constant([*labels, ""])
    indices = tf.constant([*range(len(labels)), -1])

    def answer(probabilities):
        holds = tf.cast(probabilities >= 0.5, tf.int32)
        count = tf.reduce_sum(holds, axis=-1)
        order = tf.argsort(probabilities, axis=-1, direction="DESCENDING")
        width = tf.reduce_max(tf.concat([count, [0]], axis=0))
        is_label = tf.range(width) < count[:, tf.newaxis]
        order = tf.where(is_label, order[:, :width], len(labels))
        return {
            "label": tf.gather(names, order),
            "label_index": tf.gather(indices, order),
            "probabilities": probabilities,
            "count": count,
        }

    outputs = {
        "label": "string (B, N): labels of at least a half, likeliest first",
        "label_index": f"int32 (B, N): their places in {labels}",
        "probabilities": "float32 (B, C): of every label, each by itself",
        "count": "int32 (B,): how many labels a row has",
    }
    return tf.sigmoid, answer, outputs


def _regression(labels):
    def answer(scores):
        return {"score": scores if labels else scores[:, 0]}

    shape = f"(B, C): of each of {labels}" if labels else "(B,)"
    return tf.identity, answer, {"score": f"float32 {shape}"}
