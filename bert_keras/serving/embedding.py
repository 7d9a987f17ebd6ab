"""The signature `embed`: a vector for each text, and optionally each token."""

import dataclasses
import functools

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import heads, modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.recipes import find_recipe
from bert_keras.serving.graph import (
    SENTENCE,
    TOKENS,
    TRUNCATED,
    Rows,
    Signature,
)
from bert_keras.text.preprocessor import (
    PROMPTS,
    count_prompt,
    find_prompt,
    leave_out,
)


def embed(
    model,
    rows,
    pooling="mean",
    normalize=False,
    truncate_dim=None,
    long_text="truncate",
    features=None,
    prompt=None,
    name="embed",
):
    """Return the signature `embed`: one vector for each text.

    Args:
        model: an encoder, or a model that has an encoder.
        rows: `Rows` of the model's preprocessor.
        pooling: "mean" or "max" over the tokens, including [CLS] and [SEP];
            "cls" or "last", the vector of [CLS] or of the last token;
            "pooled", the output of the pooler. If the preprocessor leaves the
            prompt out of pooling, "mean" and "max" leave out [CLS] and the
            prompt, and "cls" takes the first token after the prompt.
        normalize: True to scale vectors to length 1.
        truncate_dim: number of values to keep of each vector, after scaling;
            None: all.
        long_text: "truncate", or "windows" for the mean vector over windows of
            the text, weighted by window length.
        features: layers that give the vector of each token, such as "last"; see
            `find_recipe`. None: no vectors of tokens. A weighted sum is
            refused, because the model has no learned weights of layers.
        prompt: text put before each text; None: the preprocessor's prompt.
        name: name of the signature.
    """
    encoder = getattr(model, "encoder", model)
    if prompt is None:
        prompt = rows.prompts.get(rows.prompt, "")
    unpooled = count_unpooled(rows, prompt) or None
    _check(encoder, pooling, long_text, features, prompt, unpooled)
    heads.check_truncate_dim(truncate_dim, encoder.hidden_dim)
    texts = _Texts(
        encoder, rows, pooling, normalize, truncate_dim, prompt, unpooled
    )
    more = ", scaled to length 1" if normalize else ""
    more += f", then cut to {truncate_dim} values" if truncate_dim else ""
    more += f", with the prompt {prompt!r}" if prompt else ""
    outputs = {"embedding": f"float32 (B, D): pooled by {pooling}{more}"}
    inputs = {"text": SENTENCE}
    if long_text == "windows":
        return Signature(name, inputs, texts.embed_windows, outputs)
    outputs |= TRUNCATED
    if not features:
        return Signature(name, inputs, texts.embed, outputs)
    token_outputs = {
        "features": "float32 (B, T, F): a vector for each token, padded with 0",
        **TOKENS,
    }
    outputs |= token_outputs | {
        "count": "int32 (B,): number of tokens of each text"
    }
    recipe = find_recipe(features).vectors
    function = functools.partial(texts.embed_tokens, recipe=recipe)
    return Signature(name, inputs, function, outputs, tuple(token_outputs))


@dataclasses.dataclass
class _Texts:
    """Functions that compute embeddings of texts, and their settings.

    Pooling leaves out the first `unpooled` tokens, which are [CLS] and the
    prompt. If `unpooled` is None, all tokens are pooled.
    """

    encoder: BertEncoder
    rows: Rows
    pooling: str
    normalize: bool
    truncate_dim: int | None
    prompt: str
    unpooled: int | tf.Tensor | None

    def embed(self, text):
        """Return dict of `embedding` and `truncated`; cut a text to one row."""
        ids = self._tokenize(text)
        inputs = self.rows.pack(ids)
        embedding = self._scale(self._pool(self._encode(inputs), inputs))
        return {"embedding": embedding, "truncated": self.rows.are_cut(ids)}

    def embed_windows(self, text):
        """Return dict of `embedding`, the mean over each text's windows."""
        mean = self.rows.mean_over_windows(
            lambda inputs: self._pool(self._encode(inputs), inputs),
            self._tokenize(text),
            self.encoder.hidden_dim,
        )
        return {"embedding": self._scale(mean)}

    def embed_tokens(self, text, recipe):
        """Return the outputs of `embed` and those of each token."""
        rows = self.rows
        ids, start, end = rows.tokenizer.tokenize_with_offsets(text)
        inputs = rows.pack(ids)
        encoded = self._encode(inputs, hidden_states=True)
        room = rows.sequence_length - 2
        tokens = rows.tokens(*(x[:, :room] for x in (ids, start, end)))
        vectors = recipe(encoded["hidden_states"])  # (B, T, F)
        width = tf.shape(tokens["start"])[1]
        is_token = tf.sequence_mask(tokens["count"], width)[..., tf.newaxis]
        vectors = vectors[:, 1 : width + 1]  # without [CLS]
        return {
            "embedding": self._scale(self._pool(encoded, inputs)),
            "truncated": rows.are_cut(ids),
            # [SEP] and padding get 0.
            "features": tf.where(is_token, vectors, 0.0),
            **tokens,
        }

    def _tokenize(self, text):
        text = tf.strings.join([self.prompt, text]) if self.prompt else text
        return self.rows.tokenizer(text)

    def _encode(self, inputs, **arguments):
        encoded = self.encoder(inputs, training=False, **arguments)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), encoded)

    def _pool(self, encoded, inputs):
        mask = inputs["padding_mask"]
        pooled = None
        if self.unpooled is not None:
            pooled = leave_out(mask, self.unpooled)
        return heads.pool(encoded, mask, self.pooling, pooled)

    def _scale(self, embedding):
        if self.normalize:
            embedding = heads.normalize_vectors(embedding)
        return embedding[:, : self.truncate_dim]


def embed_with_prompts(model, rows, options):
    """Return a list of the signatures `embed_query` and `embed_document`.

    They put the prompt for queries or for documents before each text, as
    `encode_query` and `encode_document` of sentence-transformers do. Without
    such a prompt, they use the preprocessor's `prompt`. If the preprocessor has
    no prompts, the list is empty.
    """
    if not any(rows.prompts.values()):
        return []
    signatures = []
    for kind in PROMPTS:
        prompt = rows.prompts.get(find_prompt(rows.prompts, kind))
        arguments = {**options, "features": None, "prompt": prompt}
        signatures.append(embed(model, rows, **arguments, name=f"embed_{kind}"))
    return signatures


def trace_embedder(model, rows):
    """Trace and return the function that `BertEmbedder.encode` calls.

    The function takes three tensors: the texts, string (B,); one prompt for all
    texts, string (); and the number of tokens at the start that are not pooled,
    int32 (). It returns embeddings, float32 (B, D).

    Args:
        model: a `BertEmbedder`.
        rows: `Rows` of the model's preprocessor.
    """

    def embed_texts(text, prompt, unpooled):
        texts = _Texts(
            model.encoder,
            rows,
            model.pooling,
            model.normalize,
            model.truncate_dim,
            prompt="",
            unpooled=unpooled,
        )
        text = tf.strings.join([prompt, text])
        return texts.embed(text)["embedding"]

    specs = (
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([], tf.int32),
    )
    with modes.use(skip_padding=True, gradients=False):
        graph = tf.function(embed_texts, autograph=False)
        return graph.get_concrete_function(*specs)


def count_unpooled(rows, prompt):
    """Return the number of tokens at a row's beginning that are not pooled.

    Args:
        rows: `Rows` or a `BertPreprocessor`.
        prompt: text that is put before each text.
    """
    if rows.include_prompt:
        return 0
    return count_prompt(rows.tokenizer, prompt, rows.sequence_length)


def _check(encoder, pooling, long_text, features, prompt, unpooled):
    heads.check_pooling(pooling)
    if unpooled and long_text == "windows":
        raise InputError(
            f'The prompt {prompt!r} is not pooled, but long_text="windows" '
            'pools all tokens. Export the model with long_text="truncate".'
        )
    recipe = find_recipe(features) if features else None
    if features and long_text == "windows":
        raise InputError(
            f"`features` is {features!r}, but windows give no features of "
            'tokens. Set long_text="truncate", not "windows".'
        )
    if features and prompt:
        raise InputError(
            "Features of tokens are read from the text alone, but the prompt "
            f"{prompt!r} is put before each text. Pass "
            "preprocessor.with_prompt(None)."
        )
    if recipe and recipe.how == "weighted_sum":
        raise InputError(
            f"`features` is {features!r}, which needs learned weights of the "
            "layers, but this model has no such weights. Pass "
            f"{features.removeprefix('weighted_')!r}, which gives each layer "
            "the weight 1."
        )
    if recipe:
        recipe.find_layers(encoder.num_layers)  # raises if a layer is missing
