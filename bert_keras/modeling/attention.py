"""The transformer layer and its self-attention."""

import functools

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels, layers
from bert_keras.modeling.dropout import add_dropped, dropout
from bert_keras.modeling.gradients import rematerialize
from bert_keras.modeling.padding import AllTokens

# The original adds this value to the scores of masked positions. Softmax then
# gives them a probability of 0. float16 can represent the value.
EXCLUDED = -10000.0

DIRECTIONS = ("bidirectional", "left_to_right", "right_to_left")


def attention_bias(length, attention, padding_mask=None, example_ids=None):
    """Return the additive attention bias: 0, or `EXCLUDED` where masked.

    Args:
        length: number of tokens in a row, T.
        attention: one of `DIRECTIONS`.
        padding_mask: int (B, T), 1 at tokens; None: no padding.
        example_ids: int (B, T), the example of each token. A token attends only
            to tokens of its own example. None: each row is one example.

    Returns:
        float32 that broadcasts to (B, 1, T, S), for T queries and S = T keys;
        None for "bidirectional" without `padding_mask` and `example_ids`.
    """
    allowed = []
    if padding_mask is not None:
        # LiteRT has no built-in operation for `[:, None, None]`.
        mask = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
        allowed.append(mask)  # (B, 1, 1, S)
    if example_ids is not None:
        same = example_ids[:, :, None] == example_ids[:, None, :]  # (B, T, S)
        allowed.append(same[:, None])  # (B, 1, T, S)
    if attention != "bidirectional":
        positions = ops.arange(length)
        before = positions[:, None] >= positions[None, :]  # (T, S)
        if attention == "right_to_left":
            before = ops.transpose(before)  # (T, S)
        allowed.append(before[None, None])  # (1, 1, T, S)
    if not allowed:
        return None
    # If no condition depends on an axis, the axis keeps the length 1.
    return ops.where(functools.reduce(ops.logical_and, allowed), 0.0, EXCLUDED)


@keras.saving.register_keras_serializable("bert_keras")
class SelfAttention(layers.KeepsArguments):
    """Multi-head scaled dot-product attention of a sequence to itself.

    Three dense layers compute query, key and value. The scores of a head of
    width H are (query x key) / sqrt(H) + bias. Softmax over the S keys returns
    probabilities, and dropout is applied to them. The values are summed with
    these weights. One dense layer maps all heads to the output. Equals
    `attention_layer` of the original with the dense layer after it (the paper,
    section 3).

    Args:
        num_heads: number of heads, N; divides `hidden_dim`.
        hidden_dim: width of the input and the output, D.
        dropout: fraction of the attention probabilities dropped in training.

    Call arguments:
        inputs: float (B, T, D).
        bias: float, added to the scores, broadcasts to (B, 1, T, S). If None,
            every token attends to every token.
        seed: int (2,), the dropout seed of this call; None: nothing is dropped.
        tokens: `AllTokens` or `RealTokens` of the batch. If set, input and
            output are matrices of the vectors of these tokens, (L, D).
        attention_probabilities: bool; True to also return the probabilities
            before dropout.

    Returns:
        float (B, T, D), or a tuple of this tensor and the probabilities,
        (B, N, T, S).

    Examples:
        >>> attention = SelfAttention(num_heads=2, hidden_dim=8)
        >>> print(attention(np.ones((1, 3, 8))).shape)
        (1, 3, 8)
    """

    def __init__(self, num_heads, hidden_dim, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        # 1 / sqrt(H): Vaswani et al. 2017, section 3.2.1
        self._scale = (hidden_dim // num_heads) ** -0.5
        # Query, key and value are three layers, because published checkpoints
        # store their weights separately.
        self.query, self.key, self.value, self.output_projection = (
            layers.Projection(hidden_dim, name=name, dtype=self.dtype_policy)
            for name in ("query", "key", "value", "output")
        )

    def build(self, inputs_shape):
        for layer in (self.query, self.key, self.value, self.output_projection):
            layer.build((None, None, self.hidden_dim))

    def call(
        self,
        inputs,
        bias=None,
        seed=None,
        tokens=None,
        attention_probabilities=False,
    ):
        rows = None
        if tokens is None:
            tokens = rows = AllTokens(inputs, self.num_heads)
            inputs = rows.flatten(inputs)  # (L, D)
        heads = self._project(inputs, tokens, seed)  # (B, N, T, H) each
        # The fused kernel has no dropout and returns no probabilities.
        drops = seed is not None and self.dropout
        is_plain = drops or attention_probabilities
        if not is_plain and kernels.has_fused_attention(bias):
            context, probabilities = kernels.attend(*heads, bias), None
        else:
            context, probabilities = self._attend(*heads, bias, seed)
        context = tokens.merge_heads(context)  # (L, D)
        outputs = self.output_projection(context, seed=seed, site=6)
        if rows is not None:
            outputs = rows.put_in_rows(outputs)  # (B, T, D)
        return (outputs, probabilities) if attention_probabilities else outputs

    def _attend(self, query, key, value, bias, seed):
        scores = ops.matmul(query, ops.swapaxes(key, -2, -1))  # (B, N, T, S)
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        # For bfloat16 scores, a cast to float32 would take 3.2 % of a step.
        # Without it, TensorFlow's softmax on a CPU rounds intermediate values
        # to bfloat16. For random scores, the mean relative error of a
        # probability is 1.3 %. With the cast, it is 0.14 %.
        probabilities = ops.softmax(scores)
        # As in the original, the weights are not normalised after dropout.
        weights = dropout(probabilities, self.dropout, seed)
        return ops.matmul(weights, value), probabilities  # (B, N, T, H)

    def _project(self, inputs, tokens, seed):
        """Return the scaled query, the key and the value."""
        # In a transformer layer, LoRA's dropouts use the sites 3 to 8, and the
        # other dropouts use 0 to 2. See `dropout`.
        query, key, value = (
            layer(inputs, seed=seed, site=site)
            for site, layer in enumerate((self.query, self.key, self.value), 3)
        )
        # Scale the query, not the scores. If T > H, the query has fewer values.
        return map(tokens.split_heads, (query * self._scale, key, value))

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape


@keras.saving.register_keras_serializable("bert_keras")
class TransformerLayer(layers.SeededLayer):
    """Self-attention and a feed-forward network, two residual sub-layers.

    The feed-forward network projects to `intermediate_dim`, applies GELU and
    projects back. After each sub-layer, dropout is applied, the sub-layer's
    input is added, and the sum is normalised in float32. Equals one iteration
    of the loop in `transformer_model` of the original (the paper, section 3).

    Args:
        num_heads: number of attention heads, N; divides `hidden_dim`.
        hidden_dim: width of input and output, D.
        intermediate_dim: width between the two feed-forward projections.
        dropout: fraction of each sub-layer's output dropped in training.
        attention_dropout: fraction of the attention probabilities dropped.
        activation: see `BertEncoder`.
        norm_epsilon: added to the variance before its square root.
        rematerialize: True to store only the layer's input in training. The
            backward pass recomputes the layer, with the same units dropped. A
            step needs less memory and takes a third more time.

    Call arguments:
        inputs: float (B, T, D).
        bias: float, added to the scores of T queries and T keys. It broadcasts
            to (B, 1, T, T). None means 0.
        tokens: `AllTokens` or `RealTokens` of the batch. If set, input and
            output are matrices of the vectors of these tokens, (L, D).
        attention_probabilities: bool; True to also return the probabilities
            before dropout.
        training: bool.
        seed: int (2,), the dropout seed of this call. If None, the layer draws
            one in training.

    Returns:
        float (B, T, D), or a tuple of this tensor and the probabilities,
        (B, N, T, T).

    Raises:
        InputError: a dropout rate is not in [0, 1), or
            `attention_probabilities`, `training` and `rematerialize` are all
            True.

    Examples:
        >>> print(TransformerLayer(2, 8, 16)(np.ones((1, 3, 8))).shape)
        (1, 3, 8)
    """

    def __init__(
        self,
        num_heads,
        hidden_dim,
        intermediate_dim,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu_tanh",
        norm_epsilon=layers.NORM_EPSILON,
        rematerialize=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = layers.name_activation(activation)
        self.norm_epsilon = norm_epsilon
        self.rematerialize = rematerialize
        policy = self.dtype_policy
        self.attention = SelfAttention(
            num_heads,
            hidden_dim,
            attention_dropout,
            name="attention",
            dtype=policy,
        )
        self.attention_norm = layers.LayerNorm(
            epsilon=norm_epsilon, name="attention_norm", dtype=policy
        )
        # TensorFlow can fuse exact GELU with the matrix product of this
        # `Projection`, if GELU is its `activation`.
        self.intermediate = layers.Projection(
            intermediate_dim,
            activation=layers.get_activation(self.activation),
            name="intermediate",
            dtype=policy,
        )
        self.output_projection = layers.Projection(
            hidden_dim, name="output", dtype=policy
        )
        self.output_norm = layers.LayerNorm(
            epsilon=norm_epsilon, name="output_norm", dtype=policy
        )

    def build(self, inputs_shape):
        shape = (None, None, self.hidden_dim)
        self.attention.build(shape)
        self.attention_norm.build(shape)
        self.intermediate.build(shape)
        self.output_projection.build((None, None, self.intermediate_dim))
        self.output_norm.build(shape)
        self.build_seed(self.dropout, self.attention_dropout)

    def call(
        self,
        inputs,
        bias=None,
        tokens=None,
        attention_probabilities=False,
        training=False,
        seed=None,
    ):
        if attention_probabilities and training and self.rematerialize:
            raise InputError(
                "attention_probabilities is True in training with "
                "`rematerialize=True`, but then no probabilities are kept. "
                "Call the encoder with training=False, or make it without "
                "rematerialize."
            )
        rows = None
        if tokens is None:
            tokens = rows = AllTokens(inputs, self.num_heads)
            inputs = rows.flatten(inputs)  # (L, D)
        layer = functools.partial(
            self._call_layer,
            bias=bias,
            # One seed, because the recomputation must drop the same units.
            seed=self.draw_seed(training) if seed is None else seed,
            tokens=tokens,
            attention_probabilities=attention_probabilities,
        )
        if self.rematerialize and training:
            outputs = rematerialize(layer, inputs, self.weights)
        else:
            outputs = layer(inputs)
        if rows is None:
            return outputs
        if attention_probabilities:
            x, probabilities = outputs
            return rows.put_in_rows(x), probabilities
        return rows.put_in_rows(outputs)  # (B, T, D)

    def _call_layer(self, inputs, seed, attention_probabilities, **arguments):
        # Tensors are (L, D). `self.attention` uses the dropout sites 0 and 3 to
        # 6; see `dropout`.
        x = self.attention(
            inputs,
            seed=seed,
            attention_probabilities=attention_probabilities,
            **arguments,
        )
        if attention_probabilities:
            x, probabilities = x
        # The norm follows the sum, as in Vaswani et al. 2017, section 3.1.
        x = self.attention_norm(self._sum(inputs, x, seed, site=1))
        # Vaswani et al., section 3.3, but with GELU (the BERT paper, A.2).
        y = self.intermediate(x, seed=seed, site=7)  # (L, intermediate_dim)
        y = self.output_projection(y, seed=seed, site=8)  # (L, D)
        y = self.output_norm(self._sum(x, y, seed, site=2))
        return (y, probabilities) if attention_probabilities else y

    def _sum(self, residual, x, seed, site):
        """Apply dropout to `x` and add the residual, in float32."""
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        tensors = ops.cast(residual, dtype), ops.cast(x, dtype)
        return add_dropped(*tensors, self.dropout, seed, site)

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    @property
    def output(self):
        """Symbolic output, if a functional model calls this layer itself."""
        try:
            return super().output
        except AttributeError:
            raise AttributeError(
                f"{self.name} has no symbolic output, because the encoder "
                "calls its layers. Call encoder(inputs, hidden_states=True): "
                'in the list "hidden_states" of its result, item 0 is the '
                "output of the embeddings, and item i + 1 that of layer i."
            ) from None
