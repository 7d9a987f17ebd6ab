"""Layers on top of the encoder: heads, a BiLSTM, a layer mix and pooling.

The models with these layers are in task_models.py and pretrainer.py.
"""

from collections.abc import Iterable

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels
from bert_keras.modeling.inputs import check_ids
from bert_keras.modeling.keras_adapter import find_producer
from bert_keras.modeling.layers import (
    NORM_EPSILON,
    Dropout,
    KeepsArguments,
    LayerNorm,
    Projection,
    gather_positions,
    get_activation,
    make_initializer,
    name_activation,
)
from bert_keras.modeling.recipes import find_recipe
from bert_keras.modeling.weights import KeepsLora

PROBLEMS = ("single", "multi", "regression", "ranking")
LONG_TEXTS = ("truncate", "windows")


def logits_dtype(dtype_policy):
    """Return "float64" for a float64 policy, else "float32"."""
    return keras.backend.result_type(
        keras.dtype_policies.get(dtype_policy).variable_dtype, "float32"
    )


@keras.saving.register_keras_serializable("bert_keras")
class MaskedLanguageModelHead(keras.layers.Layer):
    """Logits over the vocabulary, at the masked or at all positions.

    A dense layer, GELU and layer normalisation transform the vectors at these
    positions. The logits are the products with all token embeddings, plus a
    bias. Half-precision products are cast to float32 before the bias is added.
    The embedding table is the encoder's variable. Equals `get_masked_lm_output`
    of the original.

    Weights, by path: dense/{kernel,bias}, norm/{gamma,beta}, bias.

    Args:
        embedding: the encoder's token `Embedding` layer.
        activation: see `BertEncoder`.
        norm_epsilon: added to the variance before its square root.

    Call arguments:
        sequence_output: float (B, T, D).
        mask_positions: int32 (B, M); None for all positions.

    Returns:
        float32 (B, M, V), or (B, T, V) for all positions; float64 for a float64
        policy.
    """

    def __init__(
        self,
        embedding,
        activation="gelu_tanh",
        norm_epsilon=NORM_EPSILON,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.embedding = embedding
        # True after a call on the output of the encoder with this table.
        self.is_tied = False
        self.activation = name_activation(activation)
        self.norm_epsilon = norm_epsilon
        self.dense = Projection(
            embedding.output_dim,
            name="dense",
            dtype=self.dtype_policy,
        )
        self.norm = LayerNorm(
            epsilon=norm_epsilon, name="norm", dtype=self.dtype_policy
        )

    def __call__(self, sequence_output, *args, **kwargs):
        encoder = find_producer(sequence_output)
        if hasattr(encoder, "embeddings"):
            table = encoder.embeddings.token
            if self.is_tied and self.embedding is not table:
                # `clone_model` copies each layer alone. The head's copy gets
                # the table of the encoder's copy.
                del self.embedding
                self.embedding = table
            self.is_tied = self.embedding is table
        return super().__call__(sequence_output, *args, **kwargs)

    def build(self, sequence_output_shape, mask_positions_shape=None):
        # A head that is loaded alone has its own `Embedding`, not yet built.
        if not self.embedding.built:
            self.embedding.build()
        self.dense.build(sequence_output_shape)
        self.norm.build(sequence_output_shape)
        # Logits are float32, so autocast must not round the bias to half
        # precision.
        self.bias = self.add_weight(
            name="bias",
            shape=(self.embedding.input_dim,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, sequence_output, mask_positions=None):
        x = sequence_output
        if mask_positions is not None:
            if isinstance(x.shape[1], int):
                check_ids("mask_positions", mask_positions, x.shape[1])
            x = gather_positions(x, mask_positions)  # (B, M, D)
        x = self.norm(get_activation(self.activation)(self.dense(x)))
        *lead, width = ops.shape(x)  # (B, M, D), or (B, T, D)
        # (V, D), the table of the input embeddings, as in the original
        table = ops.cast(self.embedding.embeddings, self.compute_dtype)
        x = ops.reshape(x, (-1, width))  # (B M, D)
        logits = kernels.multiply_by_rows(x, table)  # (B M, V)
        dtype = logits_dtype(self.dtype_policy)
        # In half precision, adding the bias would round the logits once more.
        logits = ops.cast(logits, dtype) + ops.cast(self.bias, dtype)
        # (B, M, V)
        return ops.reshape(logits, (*lead, self.embedding.input_dim))

    def compute_output_spec(self, sequence_output, mask_positions=None):
        rows = sequence_output if mask_positions is None else mask_positions
        return keras.KerasTensor(
            (*rows.shape[:2], self.embedding.input_dim),
            dtype=logits_dtype(self.dtype_policy),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "embedding": keras.saving.serialize_keras_object(self.embedding),
            "is_tied": self.is_tied,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        is_tied = config.pop("is_tied", False)
        # Without weights. `build` makes them if no table replaces this one.
        embedding = {**config["embedding"], "build_config": None}
        embedding = keras.saving.deserialize_keras_object(embedding)
        head = cls(**{**config, "embedding": embedding})
        head.is_tied = is_tied
        return head


@keras.saving.register_keras_serializable("bert_keras")
class LogitsHead(KeepsLora, keras.layers.Dense):
    """Logits of a few classes: dropout, then one dense layer in float32.

    Equals the classifier of the original's `run_classifier.py`. With dropout 0,
    this layer equals the next-sentence head of the original's
    `run_pretraining.py` and the head of the original's `run_squad.py`.

    Weights, by path: kernel, bias.

    Args:
        units: number of classes, C.
        dropout: fraction of the input dropped in training.
        dtype: the encoder's policy. The layer computes in float64 for a
            float64 policy, else in float32.

    Call arguments:
        inputs: float (..., D).
        training: bool.

    Returns:
        float32 (..., C); float64 for a float64 policy.

    Examples:
        >>> print(LogitsHead(3)(np.ones((1, 8))).shape)
        (1, 3)
    """

    def __init__(self, units, dropout=0.0, dtype=None, **kwargs):
        super().__init__(
            units,
            kernel_initializer=make_initializer(),
            dtype=logits_dtype(dtype),
            **kwargs,
        )
        self.dropout = Dropout(dropout, name="before", dtype=self.dtype_policy)

    def build(self, input_shape):
        super().build(input_shape)
        self.dropout.build()

    def call(self, inputs, training=False):
        return super().call(self.dropout(inputs, training=training))

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "units": self.units,
            "dropout": self.dropout.rate,
        }


def check_labels(labels, problem="single"):
    """Return the checked labels as a list, or None for one unnamed output.

    Ranking takes only None. Regression takes None or a name for each output.
    The other problems need names.
    """
    if problem not in PROBLEMS:
        raise InputError(
            f"`problem` is {problem!r}. Expected one of {', '.join(PROBLEMS)}."
        )
    if problem == "ranking" and labels is not None:
        raise InputError(
            f"labels is {labels!r}. A model with `problem='ranking'` has no "
            "classes. Leave labels out."
        )
    if problem in ("regression", "ranking") and labels is None:
        return None
    # `list` of a string would make a class of each character.
    is_list = isinstance(labels, Iterable) and not isinstance(labels, str)
    names = list(labels) if is_list else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"labels is {labels!r}. Expected the names of the classes, for "
            'example labels=["negative", "positive"]. For classes without '
            "names, pass from_preset(..., num_classes=3), whose labels are "
            '"0", "1" and "2".'
        )
    if len(set(names)) < len(names):
        raise InputError(f"labels must contain each class once; got {names}.")
    return list(map(str, names))


def check_long_text(long_text, pair=False):
    """Raise `InputError` if `long_text` is unknown, or "windows" for pairs."""
    if long_text not in LONG_TEXTS:
        raise InputError(
            f"`long_text` is {long_text!r}. Expected one of "
            f"{', '.join(LONG_TEXTS)}."
        )
    if pair and long_text == "windows":
        raise InputError(
            '`long_text` is "windows", but a pair of texts cannot be read in '
            'windows. Set `long_text="truncate"`.'
        )


@keras.saving.register_keras_serializable("bert_keras")
class BiLSTM(KeepsArguments):
    """A bidirectional LSTM that reads the token vectors and skips padding.

    The paper adds a BiLSTM to a left-to-right encoder (section 5.1).

    Weights, by path: both/{forward,backward}_lstm/lstm_cell/
    {kernel,recurrent_kernel,bias}.

    Args:
        units: width of each direction.

    Call arguments:
        inputs: float (B, T, D).
        padding_mask: int (B, T), 1 at tokens; None: no padding.

    Returns:
        float (B, T, 2 * units).
    """

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        lstm = keras.layers.LSTM(
            units,
            kernel_initializer=make_initializer(),
            return_sequences=True,
            name="lstm",
            dtype=self.dtype_policy,
        )
        self.both = keras.layers.Bidirectional(
            lstm, name="both", dtype=self.dtype_policy
        )

    def build(self, inputs_shape, padding_mask_shape=None):
        self.both.build(inputs_shape)

    def call(self, inputs, padding_mask=None, training=False):
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
        outputs = self.both(inputs, mask=padding_mask, training=training)
        # `fit` would scale the loss by the Keras mask. The copy has no mask.
        return ops.copy(outputs)

    def compute_output_spec(self, inputs, padding_mask=None, training=False):
        # The vectors of both directions are concatenated: (B, T, 2 * units).
        shape = (*inputs.shape[:-1], 2 * self.units)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable("bert_keras")
class LayerMix(KeepsArguments):
    """Combination of a token's hidden states into one vector, by a recipe.

    In a weighted sum, layer i of the recipe's L layers has the coefficient
    scale * softmax(mix)[i], initially 1 / L. The states get no gradient.

    Weights, by path, for a weighted sum only: mix (L,) and scale ().

    Args:
        recipe: name of a recipe, such as "concat_last_four"; see `find_recipe`.
        num_layers: number of layers of the encoder.

    Call arguments:
        states: list of float (B, T, D), as `BertEncoder` returns them.

    Returns:
        float (B, T, F); F is D, or D times the number of concatenated layers.
    """

    def __init__(self, recipe, num_layers, **kwargs):
        super().__init__(**kwargs)
        self.recipe, self.num_layers = recipe, num_layers
        self.indices = find_recipe(recipe).find_layers(num_layers)
        self.how = find_recipe(recipe).how

    def build(self, states_shape):
        if self.how == "weighted_sum":
            self.mix = self.add_weight(
                (len(self.indices),), "zeros", name="mix"
            )
            self.scale = self.add_weight((), "ones", name="scale")

    def call(self, states):
        # Features are constants (the paper, section 5.3).
        states = [ops.stop_gradient(state) for state in states]
        if self.how != "weighted_sum":
            return find_recipe(self.recipe).vectors(states)
        chosen = [states[index] for index in self.indices]
        factors = ops.unstack(self.scale * ops.softmax(self.mix), axis=0)
        return sum(
            ops.cast(factor, state.dtype) * state
            for factor, state in zip(factors, chosen, strict=True)
        )

    def compute_output_spec(self, states):
        *shape, dim = states[0].shape
        width = find_recipe(self.recipe).width(self.num_layers, dim)
        return keras.KerasTensor((*shape, width), dtype=self.compute_dtype)


def _mean(encoded, padding_mask):
    vectors = encoded["sequence_output"]  # (B, T, D)
    weights = ops.cast(padding_mask, vectors.dtype)
    # `matmul` of (B, 1, T) and (B, T, D), because LiteRT has no einsum.
    total = ops.matmul(ops.expand_dims(weights, 1), vectors)
    total = ops.squeeze(total, 1)  # (B, D)
    # At least 1, so that the mean of a row without tokens is 0.
    return total / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)


def _max(encoded, padding_mask):
    vectors = encoded["sequence_output"]
    # (B, T, 1). LiteRT has no built-in operation for `[..., None]`.
    is_token = ops.cast(ops.expand_dims(padding_mask, -1), "bool")
    lowest = -float("inf")
    top = ops.max(ops.where(is_token, vectors, lowest), axis=1)  # (B, D)
    return ops.where(top == lowest, 0.0, top)  # 0 for a row without tokens


def _last(encoded, padding_mask):
    count = ops.sum(ops.cast(padding_mask, "int32"), axis=1, keepdims=True)
    positions = ops.maximum(count - 1, 0)  # (B, 1)
    return gather_positions(encoded["sequence_output"], positions)[:, 0]


def _first(encoded, pooling_mask):
    positions = ops.argmax(pooling_mask, axis=1, keepdims=True)  # (B, 1)
    return gather_positions(encoded["sequence_output"], positions)[:, 0]


# Each function maps the encoder's outputs and a mask to vectors (B, D).
POOLINGS = {
    "mean": _mean,
    "max": _max,
    "cls": lambda encoded, padding_mask: encoded["sequence_output"][:, 0],
    "last": _last,
    "pooled": lambda encoded, padding_mask: encoded["pooled_output"],
}


# The shortest length to divide by, as in PyTorch and sentence-transformers.
MIN_LENGTH = 1e-12


def normalize_vectors(vectors):
    """Divide each vector (..., D) by its length, or by `MIN_LENGTH` if shorter.

    Models, losses, exports and metrics use this function. Keras's `normalize`
    overflows in float16 and has the gradient NaN at zero vectors.
    """
    vectors = ops.convert_to_tensor(vectors)
    dtype = keras.backend.result_type(vectors.dtype, "float32")
    x = ops.cast(vectors, dtype)
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)  # (..., 1)
    x = x * ops.rsqrt(ops.maximum(squares, MIN_LENGTH**2))
    return ops.cast(x, vectors.dtype)


def check_pooling(pooling):
    """Raise `InputError` if there is no pooling of this name."""
    if pooling not in POOLINGS:
        raise InputError(
            f"`pooling` is {pooling!r}. Expected one of {', '.join(POOLINGS)}."
        )


def check_truncate_dim(truncate_dim, most):
    """Raise `InputError` unless the value is None or from 1 to `most`."""
    is_number = type(truncate_dim) is int and 0 < truncate_dim <= most
    if truncate_dim is not None and not is_number:
        raise InputError(
            f"`truncate_dim` is {truncate_dim!r}. Expected the number of "
            f"values to keep, from 1 to {most}, or None."
        )


def pool(encoded, padding_mask, pooling, pooling_mask=None):
    """Return one vector for each text, (B, D).

    Args:
        encoded: dict of the encoder's outputs.
        padding_mask: int (B, T), 1 at tokens.
        pooling: one of `POOLINGS`.
        pooling_mask: int (B, T), 1 at tokens to pool, 0 at padding and at the
            tokens of a prompt; None: all tokens are pooled. The poolings "last"
            and "pooled" do not use it.
    """
    if pooling_mask is None or pooling in ("last", "pooled"):
        return POOLINGS[pooling](encoded, padding_mask)
    # With a pooling mask, "cls" means the first token to pool, as in
    # sentence-transformers.
    function = _first if pooling == "cls" else POOLINGS[pooling]
    return function(encoded, pooling_mask)


@keras.saving.register_keras_serializable("bert_keras")
class Pooling(KeepsArguments):
    """Pooling of token vectors to one vector per text, without weights.

    Args:
        pooling: "mean" or "max" over all tokens, including [CLS] and [SEP];
            "cls" for the vector of [CLS], "last" for the vector of the last
            token, or "pooled" for the pooler's output.
        normalize: True to scale each vector to length 1.
        truncate_dim: number of values to keep from the beginning of a vector;
            None for all. As in sentence-transformers, normalization comes
            first, so the norm of a truncated vector may be below 1.

    Call arguments:
        encoded: dict of `sequence_output`, float (B, T, D), and
            `pooled_output`, float (B, D).
        padding_mask: int (B, T), 1 at tokens; None: no padding.
        pooling_mask: int (B, T), 1 at tokens to pool; None: all tokens. With a
            mask, "cls" reads the first token to pool. "last" and "pooled" do
            not use the mask.

    Returns:
        float (B, D), or (B, truncate_dim).
    """

    def __init__(
        self, pooling="mean", normalize=True, truncate_dim=None, **kwargs
    ):
        super().__init__(**kwargs)
        check_pooling(pooling)
        self.pooling, self.normalize = pooling, normalize
        self.truncate_dim = truncate_dim

    def call(self, encoded, padding_mask=None, pooling_mask=None):
        if padding_mask is None:
            padding_mask = ops.ones_like(encoded["sequence_output"][..., 0])
        return self.scale(
            pool(encoded, padding_mask, self.pooling, pooling_mask)
        )

    def scale(self, vectors):
        """Return pooled vectors, normalized and truncated."""
        if self.normalize:
            vectors = normalize_vectors(vectors)
        return vectors[..., : self.truncate_dim]
