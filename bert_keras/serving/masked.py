"""`tokenize`, and `fill_mask` and `next_sentence` of the pre-training heads."""

import tensorflow as tf

from bert_keras.serving.graph import (
    MASK,
    NEXT,
    SENTENCE,
    TOKENS,
    TRUNCATED,
    Signature,
)
from bert_keras.text.windows import in_chunks

# Masks whose logits are held at once: 31 MB of a vocabulary of 30,522.
MASKS_AT_ONCE = 256


def tokenize(rows):
    """The word pieces of a text, whole and without special tokens."""

    def function(text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        return {
            "token_ids": ids.to_tensor(-1),
            **rows.tokens(ids, start, end),
        }

    of_token = {"token_ids": "int32 (B, T): -1 padded", **TOKENS}
    outputs = of_token | {"count": "int32 (B,): how many pieces a row has"}
    inputs, padded = {"text": SENTENCE}, tuple(of_token)
    return Signature("tokenize", inputs, function, outputs, padded)


def fill_mask(model, rows, top_k=5):
    """The likeliest pieces at each `[MASK]` of a text."""

    def function(text):
        ids = _ids_with_masks(rows.tokenizer, text)
        inputs = rows.pack(ids)
        vectors = model.encoder(inputs, training=False)["sequence_output"]
        is_mask = inputs["token_ids"] == rows.tokenizer.mask_id  # (B, T)
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=-1)
        best, pieces = _likeliest(
            model.mlm,
            tf.boolean_mask(vectors, is_mask),  # (masks, D)
            rows.tokenizer.vocabulary_size,
            top_k,
        )

        def by_row(values, missing):  # (masks, top_k) to (B, M, top_k)
            ragged = tf.RaggedTensor.from_row_lengths(values, count)
            return ragged.to_tensor(missing)

        return {
            "pieces": by_row(rows.pieces(pieces), ""),
            "piece_ids": by_row(pieces, -1),
            "probabilities": by_row(best, -1.0),
            "count": count,
            "truncated": rows.are_cut(ids),
        }

    of_mask = {
        "pieces": f"string (B, M, {top_k}): likeliest first, '' padded",
        "piece_ids": f"int32 (B, M, {top_k}): their ids, -1 padded",
        "probabilities": f"float32 (B, M, {top_k}): -1 padded",
    }
    outputs = of_mask | {"count": f"int32 (B,): how many {MASK} a row has"}
    inputs, padded = {"text": f"An {MASK} well spent."}, tuple(of_mask)
    return Signature("fill_mask", inputs, function, outputs | TRUNCATED, padded)


def _ids_with_masks(tokenizer, text):
    """Ragged ids of strings (B,) in which `[MASK]` is the mask token."""
    between = tf.strings.split(text, MASK)  # (B, masks + 1)
    ids = tokenizer(between.values)  # (B * (masks + 1), None)
    # A mask before each of them; then the first of each row goes again.
    masks = tf.fill([ids.nrows(), 1], tokenizer.mask_id)
    ids = tf.concat([tf.cast(masks, ids.dtype), ids], axis=1)
    rows = tf.RaggedTensor.from_row_splits(ids, between.row_splits)
    return rows.merge_dims(1, 2)[:, 1:]


def _likeliest(head, vectors, vocabulary_size, top_k):
    """Probabilities and ids of the likeliest pieces: (N, top_k) each.

    The logits of all masks at once may be 16 times as large as all else:
    they are made for a few masks at a time.

    Args:
        head: a `MaskedLanguageModelHead`.
        vectors: (N, D), the encoder's at the masks.
        vocabulary_size: the head may have rows beyond the pieces, to round
            their number up.
        top_k: how many.
    """
    # The head takes no empty batch.
    vectors = tf.pad(vectors, [[0, 1], [0, 0]])

    def of_masks(begin, end):
        # One row of n + 1 vectors, (1, n + 1, D); its logits (n, V).
        logits = head(vectors[tf.newaxis, begin : end + 1])[0, : end - begin]
        probabilities = tf.nn.softmax(logits[:, :vocabulary_size])
        return list(tf.math.top_k(probabilities, top_k))

    return in_chunks(
        of_masks,
        tf.shape(vectors, tf.int64)[0] - 1,
        [
            tf.TensorSpec([None, top_k], tf.float32),
            tf.TensorSpec([None, top_k], tf.int32),
        ],
        MASKS_AT_ONCE,
    )


def next_sentence(model, rows):
    """Whether the second text follows the first in its document."""

    def function(text, text_pair):
        inputs = rows.pack(rows.tokenizer(text), rows.tokenizer(text_pair))
        # The masked-word head is not asked: one position is the least.
        inputs["mask_positions"] = tf.zeros_like(inputs["token_ids"][:, :1])
        logits = model(inputs, training=False)["nsp"]
        return {"probability": tf.nn.softmax(logits)[:, 0]}

    outputs = {"probability": "float32 (B,): that text_pair follows text"}
    inputs = {"text": SENTENCE, "text_pair": NEXT}
    return Signature("next_sentence", inputs, function, outputs)
