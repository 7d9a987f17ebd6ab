"""The signature `embed`: a vector for each text, and optionally each token."""

import dataclasses
import functools

import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling import heads, modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.recipes import find_recipe
from bert_keras.serving.signature import (
    SENTENCE,
    TOKENS,
    TRUNCATED,
    Output,
    Signature,
    padded,
)
from bert_keras.serving.texts import describe_tokens, mean_over_windows
from bert_keras.text.preprocessor import (
    BertPreprocessor,
    count_prompt,
    find_prompt,
    leave_out,
)


def embed(
    model,
    preprocess,
    pooling="mean",
    normalize=False,
    truncate_dim=None,
    long_text="truncate",
    features=None,
    kind=None,
):
    """Return the signature `embed`: one vector for each text.

    `embed_query` and `embed_document` put the prompt for queries or documents
    before each text, as `encode_query` and `encode_document` of
    sentence-transformers do. Without such a prompt, they use the preprocessor's
    `prompt`, as `embed` does.

    Args:
        model: an encoder, or a model that has an encoder.
        preprocess: the model's preprocessor; see `copy_for_serving`.
        pooling: see `heads.Pooling`. If the preprocessor leaves the prompt out
            of pooling, "mean" and "max" leave out [CLS] and the prompt, and
            "cls" takes the first token after the prompt.
        normalize: see `heads.Pooling`.
        truncate_dim: see `heads.Pooling`.
        long_text: "truncate", or "windows" for the mean vector over windows of
            the text, weighted by window length.
        features: layers that give the vector of each token, such as "last"; see
            `find_recipe`. None: no vectors of tokens. A weighted sum is
            refused, because the model has no learned weights of layers.
        kind: "query" or "document" for `embed_query` or `embed_document`.
    """
    encoder = getattr(model, "encoder", model)
    side = find_prompt(preprocess.prompts, kind) if kind else None
    prompt = preprocess.prompts.get(side or preprocess.prompt, "")
    unpooled = count_unpooled(preprocess, prompt) or None
    _check(encoder, long_text, features, prompt, unpooled)
    heads.check_truncate_dim(truncate_dim, encoder.hidden_dim)
    pool = heads.Pooling(pooling, normalize, truncate_dim, dtype="float32")
    texts = _Texts(encoder, preprocess, pool, prompt, unpooled)
    more = ", scaled to length 1" if normalize else ""
    more += f", then cut to {truncate_dim} values" if truncate_dim else ""
    more += f", with the prompt {prompt!r}" if prompt else ""
    vector = Output("float32", ("B", "D"), f"pooled by {pooling}{more}")
    outputs, function = {"embedding": vector}, texts.embed
    if long_text == "windows":
        function = texts.embed_windows
    else:
        outputs |= TRUNCATED
    if features:
        recipe = find_recipe(features).vectors
        function = functools.partial(texts.embed_tokens, recipe=recipe)
        text = "a vector for each token, padded with 0"
        outputs["features"] = padded("float32", ("B", "T", "F"), text)
        outputs |= TOKENS
    name, inputs = f"embed_{kind}" if kind else "embed", {"text": SENTENCE}
    in_windows = long_text == "windows"
    return Signature(name, inputs, function, outputs, reads_windows=in_windows)


@dataclasses.dataclass
class _Texts:
    """Functions that compute embeddings of texts, and their settings.

    Pooling leaves out the first `unpooled` tokens, which are [CLS] and the
    prompt. If `unpooled` is None, all tokens are pooled.
    """

    encoder: BertEncoder
    preprocess: BertPreprocessor
    pool: heads.Pooling
    prompt: str
    unpooled: int | tf.Tensor | None

    def embed(self, text):
        """Return dict of `embedding` and `truncated`; cut a text to one row."""
        ids = self._tokenize(text)
        pack = self.preprocess.packer
        inputs = pack(ids)
        embedding = self._pool(self._encode(inputs), inputs)
        return {"embedding": embedding, "truncated": pack.is_cut(ids)}

    def embed_windows(self, text):
        """Return dict of `embedding`, the mean over each text's windows."""
        mean = mean_over_windows(
            self.preprocess,
            lambda inputs: heads.pool(
                self._encode(inputs), inputs["padding_mask"], self.pool.pooling
            ),
            self._tokenize(text),
            self.encoder.hidden_dim,
        )
        return {"embedding": self.pool.scale(mean)}

    def embed_tokens(self, text, recipe):
        """Return the outputs of `embed` and those of each token."""
        tokenizer, pack = self.preprocess.tokenizer, self.preprocess.packer
        ids, start, end = tokenizer.tokenize_with_offsets(text)
        inputs = pack(ids)
        encoded = self._encode(inputs, hidden_states=True)
        kept = (x[:, : pack.room(1)] for x in (ids, start, end))
        tokens = describe_tokens(tokenizer, *kept)
        vectors = recipe(encoded["hidden_states"])  # (B, T, F)
        width = tf.shape(tokens["start"])[1]
        is_token = tf.sequence_mask(tokens["count"], width)[..., tf.newaxis]
        vectors = vectors[:, 1 : width + 1]  # without [CLS]
        return {
            "embedding": self._pool(encoded, inputs),
            "truncated": pack.is_cut(ids),
            # [SEP] and padding get 0.
            "features": tf.where(is_token, vectors, 0.0),
            **tokens,
        }

    def _tokenize(self, text):
        text = tf.strings.join([self.prompt, text]) if self.prompt else text
        return self.preprocess.tokenizer(text)

    def _encode(self, inputs, **arguments):
        encoded = self.encoder(inputs, training=False, **arguments)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), encoded)

    def _pool(self, encoded, inputs):
        mask = inputs["padding_mask"]
        pooled = None
        if self.unpooled is not None:
            pooled = leave_out(mask, self.unpooled)
        return self.pool(encoded, mask, pooled)


def trace_embedder(model, preprocess):
    """Trace and return the function that `BertEmbedder.encode` calls.

    The function takes three tensors: the texts, string (B,); one prompt for all
    texts, string (); and the number of tokens at the start that are not pooled,
    int32 (). It returns embeddings, float32 (B, D).

    Args:
        model: a `BertEmbedder`.
        preprocess: the preprocessor; see `copy_for_serving`.
    """
    pool = heads.Pooling(
        model.pooling, model.normalize, model.truncate_dim, dtype="float32"
    )

    def embed_texts(text, prompt, unpooled):
        texts = _Texts(model.encoder, preprocess, pool, "", unpooled)
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


def count_unpooled(preprocess, prompt):
    """Return the number of tokens at a row's beginning that are not pooled.

    Args:
        preprocess: a `BertPreprocessor`.
        prompt: text that is put before each text.
    """
    if preprocess.include_prompt:
        return 0
    return count_prompt(
        preprocess.tokenizer, prompt, preprocess.sequence_length
    )


def _check(encoder, long_text, features, prompt, unpooled):
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
