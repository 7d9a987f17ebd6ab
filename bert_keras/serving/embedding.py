"""`embed`: one vector a text, and on request one a token."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.heads import POOLINGS, check_pooling
from bert_keras.serving.graph import SENTENCE, TOKENS, TRUNCATED, Signature

# Vectors of tokens, of the embeddings' output and each layer's: the rows of
# the paper's table 7; the weights of its weighted sums are equal here.
RECIPES = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: tf.add_n(states[-4:]),
    "concat_last_four": lambda states: tf.concat(states[-4:], axis=-1),
    "sum_all": lambda states: tf.add_n(states[1:]),
}
LAST_FOUR = ("sum_last_four", "concat_last_four")


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
        model: an encoder, or a model with one; a `BertEmbedder` has said by
            `settle_options` how it pools.
        rows: `Rows` of its preprocessor.
        pooling: "mean" or "max" over the tokens, [CLS] and [SEP] among them;
            "cls" or "last", the vector of [CLS] or of the last token;
            "pooled", the output of the pooler.
        normalize: makes each vector's length 1.
        long_text: "truncate", or "windows": the mean over windows of the
            text, each with the weight of its length.
        features: also gives a vector a token, by one of `RECIPES`.
    """
    encoder = getattr(model, "encoder", model)
    _check(encoder, pooling, long_text, features)

    def encode(inputs, **arguments):
        """The encoder's outputs in float32."""
        encoded = encoder(inputs, training=False, **arguments)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), encoded)

    def pool(encoded, inputs):
        return POOLINGS[pooling](encoded, inputs["padding_mask"])

    def scale(embedding):
        if not normalize:
            return embedding
        return tf.math.l2_normalize(embedding, axis=-1)

    def of_cut_text(text):
        ids = rows.tokenizer(text)
        inputs = rows.pack(ids)
        embedding = scale(pool(encode(inputs), inputs))
        return {"embedding": embedding, "truncated": rows.are_cut(ids)}

    def of_windows(text):
        mean = rows.mean_over_windows(
            lambda inputs: pool(encode(inputs), inputs),
            rows.tokenizer(text),
            encoder.hidden_dim,
        )
        return {"embedding": scale(mean)}

    def of_tokens_too(text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        inputs = rows.pack(ids)
        encoded = encode(inputs, hidden_states=True)
        room = rows.sequence_length - 2
        tokens = rows.tokens(*(x[:, :room] for x in (ids, start, end)))
        vectors = RECIPES[features](encoded["hidden_states"])  # (B, T, F)
        width = tf.shape(tokens["start"])[1]
        is_token = tf.sequence_mask(tokens["count"], width)[..., tf.newaxis]
        vectors = vectors[:, 1 : width + 1]  # without [CLS], [SEP] and padding
        return {
            "embedding": scale(pool(encoded, inputs)),
            "truncated": rows.are_cut(ids),
            "features": tf.where(is_token, vectors, 0.0),
            **tokens,
        }

    length = ", of length 1" if normalize else ""
    outputs = {"embedding": f"float32 (B, D): pooled by {pooling}{length}"}
    inputs = {"text": SENTENCE}
    if long_text == "windows":
        return Signature("embed", inputs, of_windows, outputs)
    outputs |= TRUNCATED
    if not features:
        return Signature("embed", inputs, of_cut_text, outputs)
    of_token = {
        "features": "float32 (B, T, F): a vector a token, 0 padded",
        **TOKENS,
    }
    outputs |= of_token | {"count": "int32 (B,): its tokens"}
    return Signature("embed", inputs, of_tokens_too, outputs, tuple(of_token))


def _check(encoder, pooling, long_text, features):
    check_pooling(pooling)
    if features is not None and features not in RECIPES:
        raise InputError(
            f"features is {features!r}. Expected one of {', '.join(RECIPES)}."
        )
    if features and long_text == "windows":
        raise InputError(
            "Features of the tokens are not read in windows. Export them "
            'with long_text="truncate".'
        )
    if features in LAST_FOUR and encoder.num_layers < 4:
        raise InputError(
            f"features is {features!r}, and the encoder has "
            f"{encoder.num_layers} layers. Choose a recipe of fewer."
        )
