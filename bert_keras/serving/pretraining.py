"""`fill_mask` and `next_sentence`: what the pre-training heads answer."""

import tensorflow as tf

from bert_keras.serving.rows import MASK
from bert_keras.serving.signature import NEXT, SENTENCE, TRUNCATED, Signature


def fill_mask(model, rows, top_k=5):
    """The likeliest pieces at each `[MASK]` of a text."""

    def function(text):
        ids = rows.with_masks(text)
        inputs = rows.framed(ids)
        is_mask = inputs["token_ids"] == rows.tokenizer.mask_id
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=-1)
        width = tf.reduce_max(tf.concat([count, [0]], axis=0))
        # Masks first, in their order; the model wants one column at least.
        places = tf.argsort(
            tf.cast(is_mask, tf.int32),
            axis=-1,
            direction="DESCENDING",
            stable=True,
        )[:, : tf.maximum(width, 1)]
        logits = model({**inputs, "mask_positions": places}, training=False)
        # A model may have rows beyond its pieces, to round their number up.
        logits = logits["mlm"][:, :width, : rows.tokenizer.vocabulary_size]
        best = tf.math.top_k(tf.nn.softmax(logits), top_k)
        is_real = tf.sequence_mask(count, width)[..., tf.newaxis]
        return {
            "pieces": tf.where(is_real, rows.pieces(best.indices), ""),
            "piece_ids": tf.where(is_real, best.indices, -1),
            "probabilities": tf.where(is_real, best.values, -1.0),
            "count": count,
            "truncated": rows.cut(ids),
        }

    outputs = {
        "pieces": f"string (B, M, {top_k}): likeliest first, '' padded",
        "piece_ids": f"int32 (B, M, {top_k}): their ids, -1 padded",
        "probabilities": f"float32 (B, M, {top_k}): -1 padded",
        "count": f"int32 (B,): how many {MASK} a row has",
        "truncated": TRUNCATED,
    }
    inputs = {"text": f"An {MASK} well spent."}
    padded = ("pieces", "piece_ids", "probabilities")
    return Signature("fill_mask", inputs, function, outputs, padded)


def next_sentence(model, rows):
    """Whether the second text follows the first in its document."""

    def function(text, text_pair):
        inputs = rows.packed(text, text_pair)
        # The masked-word head is not asked: one position is the least.
        inputs["mask_positions"] = tf.zeros_like(inputs["token_ids"][:, :1])
        logits = model(inputs, training=False)["nsp"]
        return {"probability": tf.nn.softmax(logits)[:, 0]}

    outputs = {"probability": "float32 (B,): that text_pair follows text"}
    inputs = {"text": SENTENCE, "text_pair": NEXT}
    return Signature("next_sentence", inputs, function, outputs)
