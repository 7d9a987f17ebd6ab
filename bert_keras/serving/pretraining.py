"""The signatures of a pre-trainer: `fill_mask` and `next_sentence`."""

import tensorflow as tf

from bert_keras.serving.signature import (
    MASK,
    NEXT,
    SENTENCE,
    TRUNCATED,
    Output,
    Signature,
    padded,
)
from bert_keras.serving.texts import check_top_k, find_pieces
from bert_keras.text.windows import in_chunks

# Maximum number of masks in a call of the masked-LM head. With a vocabulary of
# 30,522, the logits of one call take 31 MB.
MASKS_AT_ONCE = 256


def fill_mask(model, preprocess, top_k=5):
    """Return the signature `fill_mask`: the best tokens for each `[MASK]`."""

    tokenizer = preprocess.tokenizer
    check_top_k(top_k, tokenizer.vocabulary_size)

    def function(text):
        ids = _tokenize_with_masks(tokenizer, text)
        inputs = preprocess.packer(ids)
        vectors = model.encoder(inputs, training=False)["sequence_output"]
        is_mask = inputs["token_ids"] == tokenizer.mask_id  # (B, T)
        count = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=-1)
        best, pieces = _likeliest(
            model.mlm,
            tf.boolean_mask(vectors, is_mask),  # (masks, D)
            tokenizer.vocabulary_size,
            top_k,
        )

        def group_by_row(values, missing):  # (masks, top_k) to (B, M, top_k)
            ragged = tf.RaggedTensor.from_row_lengths(values, count)
            return ragged.to_tensor(missing)

        return {
            "pieces": group_by_row(find_pieces(tokenizer, pieces), ""),
            "piece_ids": group_by_row(pieces, -1),
            "probabilities": group_by_row(best, -1.0),
            "count": count,
            "truncated": preprocess.packer.is_cut(ids),
        }

    shape = ("B", "M", top_k)
    outputs = {
        "pieces": padded("string", shape, "likeliest first, padded with ''"),
        "piece_ids": padded("int32", shape, "ids of `pieces`, padded with -1"),
        "probabilities": padded("float32", shape, "padded with -1"),
        "count": Output(
            "int32", ("B",), f"number of {MASK} that the model reads"
        ),
        **TRUNCATED,
    }
    inputs = {"text": f"An {MASK} well spent."}
    return Signature("fill_mask", inputs, function, outputs)


def _tokenize_with_masks(tokenizer, text):
    """Return ragged ids of strings (B,), with the mask id for `[MASK]`."""
    between = tf.strings.split(text, MASK)  # (B, None): text parts
    ids = tokenizer(between.values)  # (parts, None)
    # Put a mask before each part, then remove the first mask of each row.
    masks = tf.fill([ids.nrows(), 1], tokenizer.mask_id)
    ids = tf.concat([tf.cast(masks, ids.dtype), ids], axis=1)
    rows = tf.RaggedTensor.from_row_splits(ids, between.row_splits)
    return rows.merge_dims(1, 2)[:, 1:]


def _likeliest(head, vectors, vocabulary_size, top_k):
    """Return probabilities and ids of the likeliest tokens, (N, top_k) each.

    The logits of all masks may take 16 times the memory of all other tensors,
    so they are computed for `MASKS_AT_ONCE` masks at a time.

    Args:
        head: a `MaskedLanguageModelHead`.
        vectors: (N, D), outputs of the encoder at the masks.
        vocabulary_size: number of tokens; further logits are padding.
        top_k: number of tokens for each mask.
    """
    # The head fails on an empty array, so append one vector.
    vectors = tf.pad(vectors, [[0, 1], [0, 0]])

    def predict_masks(begin, end):
        # The head takes (1, n + 1, D). The logits are (n, V).
        logits = head(vectors[tf.newaxis, begin : end + 1])[0, : end - begin]
        probabilities = tf.nn.softmax(logits[:, :vocabulary_size])
        return list(tf.math.top_k(probabilities, top_k))

    return in_chunks(
        predict_masks,
        tf.shape(vectors, tf.int64)[0] - 1,
        [
            tf.TensorSpec([None, top_k], tf.float32),
            tf.TensorSpec([None, top_k], tf.int32),
        ],
        MASKS_AT_ONCE,
    )


def next_sentence(model, preprocess):
    """Return the signature `next_sentence`: does text_pair follow text?"""

    def function(text, text_pair):
        tokenize = preprocess.tokenizer
        inputs = preprocess.packer((tokenize(text), tokenize(text_pair)))
        # The output `mlm` is not used, but it needs at least one position.
        inputs["mask_positions"] = tf.zeros_like(inputs["token_ids"][:, :1])
        logits = model(inputs, training=False)["nsp"]
        return {"probability": tf.nn.softmax(logits)[:, 0]}

    text = "probability that text_pair follows text"
    outputs = {"probability": Output("float32", ("B",), text)}
    inputs = {"text": SENTENCE, "text_pair": NEXT}
    return Signature("next_sentence", inputs, function, outputs)
