"""`choose`: the best of several continuations of a text."""

import tensorflow as tf

from bert_keras.serving.signature import Signature
from bert_keras.serving.windows import in_chunks

NO_CHOICE = -1e30  # a logit


def choose(model, rows):
    """The best choice for a prompt. An empty choice is no choice.

    Choices go through the model some at a time, empty ones not at all: one
    long list among short ones costs no more than it holds.

    Args:
        model: a `BertChooser` in float32.
        rows: `Rows` of its preprocessor.
    """

    def function(prompt, choices):
        # A list of fewer choices than another's is filled up with "".
        is_choice = tf.strings.length(choices) > 0  # (B, K)
        places = _at_least_one(tf.where(is_choice))  # (N, 2)
        # Of each text more than a row holds, which says that it is cut.
        most = rows.sequence_length
        asked = rows.tokenizer(prompt)[:, :most]
        offered = rows.tokenizer(tf.gather_nd(choices, places))[:, :most]

        def some(begin, end):
            prompts = tf.gather(asked, places[begin:end, 0])
            segments = prompts, offered[begin:end]
            inputs = rows.framed(*segments)
            inputs = {k: v[:, tf.newaxis] for k, v in inputs.items()}
            logits = model(inputs, training=False)[:, 0]  # (n,) of (n, 1)
            return [logits, rows.cut(*segments)]

        logits, cut = in_chunks(
            some,
            tf.shape(places, tf.int64)[0],
            [tf.TensorSpec([None], tf.float32), tf.TensorSpec([None], tf.bool)],
        )
        shape = tf.shape(choices, tf.int64)
        logits = tf.where(
            is_choice, tf.scatter_nd(places, logits, shape), NO_CHOICE
        )
        cut = tf.scatter_nd(places, tf.cast(cut, tf.int32), shape)
        return {
            "choice": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
            "truncated": tf.reduce_any(cut > 0, axis=-1),
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


def _at_least_one(places):
    """Places (N, 2), or the first one where there is none: a model takes no
    empty batch."""
    missing = tf.cast(tf.shape(places)[0] == 0, tf.int32)
    return tf.pad(places, [[0, missing], [0, 0]])
