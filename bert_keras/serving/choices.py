"""`choose`: the best of several continuations of a text."""

import tensorflow as tf

from bert_keras.serving.signature import Signature


def choose(model, rows):
    """The best choice for a prompt. An empty choice is no choice.

    Args:
        model: a `BertChooser` in float32.
        rows: `Rows` of its preprocessor.
    """

    def function(prompt, choices):
        batch, number = tf.unstack(tf.shape(choices))
        texts = tf.repeat(prompt, number)
        segments = [
            rows.tokenizer(texts),
            rows.tokenizer(tf.reshape(choices, [-1])),
        ]
        inputs = rows.framed(*segments)  # (B K, T)
        length = tf.shape(inputs["token_ids"])[1]
        shape = [batch, number, length]
        inputs = {k: tf.reshape(v, shape) for k, v in inputs.items()}
        logits = model(inputs, training=False)
        # A list of fewer choices than another's is filled up with "".
        logits = tf.where(tf.strings.length(choices) > 0, logits, -1e30)
        truncated = tf.reshape(rows.cut(*segments), [batch, number])
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "truncated": tf.reduce_any(truncated, axis=-1),
        }

    outputs = {
        "choice": "int32 (B,): the place of the best choice",
        "probabilities": "float32 (B, K): of every choice; 0 of an empty one",
        "truncated": "bool (B,): one of the texts was cut to what a row holds",
    }
    inputs = {
        "prompt": "She opened the umbrella because",
        "choices": ["it was raining.", "it was Tuesday."],
    }
    return Signature("choose", inputs, function, outputs)
