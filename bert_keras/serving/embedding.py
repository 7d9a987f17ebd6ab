"""`embed`: one vector a text, and on request one a token (`features.py`)."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.serving.features import RECIPES, TOKEN_OUTPUTS, Tokens
from bert_keras.serving.signature import SENTENCE, TRUNCATED, Signature


def _mean(encoded, padding_mask):
    vectors = encoded["sequence_output"]
    weights = tf.cast(padding_mask, vectors.dtype)
    total = tf.einsum("btd,bt->bd", vectors, weights)
    return total / tf.reduce_sum(weights, axis=1, keepdims=True)


def _max(encoded, padding_mask):
    vectors = encoded["sequence_output"]
    is_token = tf.cast(padding_mask, tf.bool)[..., tf.newaxis]
    return tf.reduce_max(tf.where(is_token, vectors, vectors.dtype.min), axis=1)


def _cls(encoded, padding_mask):
    return encoded["sequence_output"][:, 0]


def _pooled(encoded, padding_mask):
    return encoded["pooled_output"]


POOLINGS = {"mean": _mean, "max": _max, "cls": _cls, "pooled": _pooled}


def embed(
    model,
    rows,
    pooling="mean",
    normalize=False,
    long_text="truncate",
    features=None,
):
    """One vector a text.

    Args:
        model: an encoder, or a model with one, in float32.
        rows: `Rows` of its preprocessor.
        pooling: "mean" or "max" over the tokens, [CLS] and [SEP] among them;
            "cls", the vector of [CLS]; "pooled", the output of the pooler.
        normalize: makes each vector's length 1.
        long_text: "truncate", or "windows": the mean over windows of the
            text, each with the weight of its length.
        features: also gives a vector a token, by one of `features.RECIPES`.
    """
    _check(pooling, long_text, features)
    encoder = getattr(model, "encoder", model)

    def pooled(inputs, **arguments):
        encoded = encoder(inputs, training=False, **arguments)
        encoded = tf.nest.map_structure(_in_float32, encoded)
        return POOLINGS[pooling](encoded, inputs["padding_mask"]), encoded

    def scaled(embedding):
        if not normalize:
            return embedding
        return tf.math.l2_normalize(embedding, axis=-1)

    def truncated(text):
        ids = rows.tokenizer(text)
        embedding, _ = pooled(rows.framed(ids))
        return {"embedding": scaled(embedding), "truncated": rows.cut(ids)}

    def in_windows(text):
        mean = rows.mean_over_windows(
            lambda inputs: pooled(inputs)[0],
            rows.tokenizer(text),
            encoder.hidden_dim,
        )
        return {"embedding": scaled(mean)}

    def with_features(text):
        tokens = Tokens(rows, text)
        embedding, encoded = pooled(tokens.inputs, hidden_states=True)
        return {
            "embedding": scaled(embedding),
            "truncated": rows.cut(tokens.ids),
            **tokens.outputs(RECIPES[features](encoded["hidden_states"])),
        }

    length = ", of length 1" if normalize else ""
    outputs = {"embedding": f"float32 (B, D): pooled by {pooling}{length}"}
    function, padded = in_windows, ()
    if long_text == "truncate":
        function = truncated
        outputs["truncated"] = TRUNCATED
    if features:
        function, padded = with_features, tuple(TOKEN_OUTPUTS)
        outputs |= {**TOKEN_OUTPUTS, "count": "int32 (B,): its tokens"}
    return Signature("embed", {"text": SENTENCE}, function, outputs, padded)


def _in_float32(vectors):
    return tf.cast(vectors, tf.float32)


def _check(pooling, long_text, features):
    if pooling not in POOLINGS:
        raise InputError(
            f"pooling is {pooling!r}. Expected one of {', '.join(POOLINGS)}."
        )
    if features is not None and features not in RECIPES:
        raise InputError(
            f"features is {features!r}. Expected one of {', '.join(RECIPES)}."
        )
    if features and long_text == "windows":
        raise InputError(
            "Features of the tokens are not read in windows. Export them "
            'with long_text="truncate".'
        )
