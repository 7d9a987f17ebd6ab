"""`embed`: one vector a text, and on request one a token (`features.py`)."""

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.serving.graph import SENTENCE, TRUNCATED, Signature

# One vector a token, by the paper's recipes, and where the token stands.

# The rows of the paper's table 7, of the embeddings' output and each layer's;
# the weights of its weighted sums are equal here.
RECIPES = {
    "embeddings": lambda states: states[0],
    "second_to_last": lambda states: states[-2],
    "last": lambda states: states[-1],
    "sum_last_four": lambda states: tf.add_n(states[-4:]),
    "concat_last_four": lambda states: tf.concat(states[-4:], axis=-1),
    "sum_all": lambda states: tf.add_n(states[1:]),
}
LAST_FOUR = ("sum_last_four", "concat_last_four")
TOKEN_OUTPUTS = {
    "features": "float32 (B, T, F): a vector a token, 0 padded",
    "pieces": "string (B, T): the tokens, '' padded",
    "start": "int32 (B, T): its first character, -1 padded",
    "end": "int32 (B, T): one after its last, -1 padded",
}


class Tokens:
    """The tokens of strings (B,), cut to a row, with their offsets."""

    def __init__(self, rows, text):
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        room = rows.sequence_length - 2
        self.ids = ids
        self.inputs = rows.framed(ids)
        self._count = tf.minimum(tf.cast(ids.row_lengths(), tf.int32), room)
        pieces = ids.with_values(rows.pieces(ids.values))
        self._places = {
            "pieces": pieces[:, :room].to_tensor(""),
            "start": start[:, :room].to_tensor(-1),
            "end": end[:, :room].to_tensor(-1),
            "count": self._count,
        }

    def outputs(self, vectors):
        """The signature's outputs, of vectors (B, T, F) of whole rows."""
        width = tf.shape(self._places["start"])[1]
        is_token = tf.sequence_mask(self._count, width)[..., tf.newaxis]
        own = vectors[:, 1 : width + 1]  # without [CLS], [SEP] and padding
        return {"features": tf.where(is_token, own, 0.0), **self._places}


# `embed`: one vector a text, and on request one a token (`features.py`).


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
    if features in LAST_FOUR:
        layers = getattr(model, "encoder", model).num_layers
        if layers < 4:
            raise InputError(
                f"features is {features!r}, and the encoder has {layers} "
                "layers. Choose a recipe of fewer."
            )
    vectors = _Vectors(model, pooling, normalize)
    length = ", of length 1" if normalize else ""
    outputs = {"embedding": f"float32 (B, D): pooled by {pooling}{length}"}
    padded = ()
    if features:
        function = _with_features(vectors, rows, RECIPES[features])
        outputs |= {"truncated": TRUNCATED, **TOKEN_OUTPUTS}
        outputs["count"] = "int32 (B,): its tokens"
        padded = tuple(TOKEN_OUTPUTS)
    elif long_text == "windows":
        function = _in_windows(vectors, rows)
    else:
        function = _cut(vectors, rows)
        outputs["truncated"] = TRUNCATED
    return Signature("embed", {"text": SENTENCE}, function, outputs, padded)


class _Vectors:
    """The encoder's outputs in float32 and their pooling."""

    def __init__(self, model, pooling, normalize):
        self.encoder = getattr(model, "encoder", model)
        self.pool = POOLINGS[pooling]
        self.normalize = normalize

    def encoded(self, inputs, **arguments):
        encoded = self.encoder(inputs, training=False, **arguments)
        return tf.nest.map_structure(_in_float32, encoded)

    def pooled(self, inputs):
        return self.pool(self.encoded(inputs), inputs["padding_mask"])

    def scaled(self, embedding):
        if not self.normalize:
            return embedding
        return tf.math.l2_normalize(embedding, axis=-1)


def _cut(vectors, rows):
    def function(text):
        ids = rows.tokenizer(text)
        embedding = vectors.scaled(vectors.pooled(rows.framed(ids)))
        return {"embedding": embedding, "truncated": rows.cut(ids)}

    return function


def _in_windows(vectors, rows):
    def function(text):
        ids, width = rows.tokenizer(text), vectors.encoder.hidden_dim
        mean = rows.mean_over_windows(vectors.pooled, ids, width)
        return {"embedding": vectors.scaled(mean)}

    return function


def _with_features(vectors, rows, recipe):
    def function(text):
        tokens = Tokens(rows, text)
        encoded = vectors.encoded(tokens.inputs, hidden_states=True)
        embedding = vectors.pool(encoded, tokens.inputs["padding_mask"])
        return {
            "embedding": vectors.scaled(embedding),
            "truncated": rows.cut(tokens.ids),
            **tokens.outputs(recipe(encoded["hidden_states"])),
        }

    return function


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
