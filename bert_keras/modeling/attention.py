"""The transformer layer and its self-attention."""

import functools

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels, layers
from bert_keras.modeling.dropout import dropout
from bert_keras.modeling.gradients import rematerialize

# Bias on the scores of masked positions, as in the original. Softmax turns such
# a score into a probability of 0, and float16 can hold the value.
EXCLUDED = -10000.0

DIRECTIONS = ("bidirectional", "left_to_right", "right_to_left")


def attention_bias(length, attention, padding_mask=None, example_ids=None):
    """Return the additive attention bias: 0, or `EXCLUDED` where masked.

    Args:
        length: number of tokens in a row, T.
        attention: one of `DIRECTIONS`.
        padding_mask: int (B, T), 1 at tokens; None: no padding.
        example_ids: int (B, T), the example of each token. A token attends only
            to tokens of its own example.

    Returns:
        float32 that broadcasts to (B, 1, T, S); None if nothing is masked.
    """
    allowed = []
    if padding_mask is not None:
        # `[:, None, None]` would need an operation that LiteRT's core lacks.
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
    # Axes that no condition depends on keep the length 1.
    return ops.where(functools.reduce(ops.logical_and, allowed), 0.0, EXCLUDED)


@keras.saving.register_keras_serializable("bert_keras")
class SelfAttention(layers.KeepsArguments):
    """Multi-head scaled dot-product attention of a sequence to itself.

    Query, key and value are projections of the input. The scores, divided by
    the square root of the head's width, get the bias; softmax over S turns
    them into probabilities. After dropout, each head sums the values with these
    probabilities as weights. One projection maps all heads to the output.
    Equals `attention_layer` and the dense layer after it in the original (the
    paper, section 3).

    Args:
        num_heads: number of heads, N; divides `hidden_dim`.
        hidden_dim: width of the input and the output, D.
        dropout: fraction of the attention probabilities dropped in training.

    Call arguments:
        inputs: float (B, T, D).
        bias: float, broadcast to (B, N, T, S), added to the scores; None
            lets every token attend to every token.
        seed: int (2,), the dropout seed of this call; None: nothing is dropped.
        tokens: `RealTokens` of the rows; input and output then hold only
            the vectors of real tokens, (L, D).
        attention_probabilities: bool; True to also return the probabilities
            before dropout.
        training: bool.

    Returns:
        float (B, T, D), or a tuple with the probabilities, (B, N, T, S).

    Example:
    >>> SelfAttention(num_heads=2, hidden_dim=8)(np.ones((1, 3, 8))).shape
    (1, 3, 8)
    """

    def __init__(self, num_heads, hidden_dim, dropout=0.1, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        # Query, key and value are three layers, to keep the published names.
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
        training=False,
    ):
        # Query, key and value, (B, N, T, H) each.
        projections = self.query, self.key, self.value
        drops_lora = any(layer.lora_dropout for layer in projections)
        if training and tokens is None and not drops_lora:
            heads = self._project_at_once(inputs)
        else:
            heads = self._project(inputs, tokens, seed)
        # The fused kernel cannot drop probabilities, and does not return them.
        drops = seed is not None and self.dropout
        is_plain = drops or attention_probabilities
        if not is_plain and kernels.has_fused_attention(bias):
            context, probabilities = kernels.attend(*heads, bias), None
        else:
            context, probabilities = self._attend(*heads, bias, seed)
        if tokens is None:
            context = ops.transpose(context, (0, 2, 1, 3))  # (B, T, N, H)
            context = ops.reshape(context, ops.shape(inputs))  # (B, T, D)
        else:
            context = tokens.merge_heads(context)  # (L, D)
        outputs = self.output_projection(context, seed=seed, site=6)
        return (outputs, probabilities) if attention_probabilities else outputs

    def _attend(self, query, key, value, bias, seed):
        scores = ops.matmul(query, ops.swapaxes(key, -2, -1))  # (B, N, T, S)
        if bias is not None:
            scores = scores + ops.cast(bias, scores.dtype)
        # Softmax over S. For half precision TensorFlow uses float32 inside. An
        # explicit cast did not reduce the error, and cost 3.2 % of a step.
        probabilities = ops.softmax(scores)
        # The weights are not normalised after dropout, as in the original.
        weights = dropout(probabilities, self.dropout, seed)
        return ops.matmul(weights, value), probabilities  # (B, N, T, H)

    def _project(self, inputs, tokens, seed):
        """Compute query (scaled), key and value by three products."""
        # LoRA's dropout has sites 3 to 5; the transformer layer uses 0 to 2.
        query, key, value = (
            layer(inputs, seed=seed, site=site)
            for site, layer in enumerate((self.query, self.key, self.value), 3)
        )
        # Scale the query, not the scores, because it has fewer values.
        projected = query * self._scale(), key, value
        if tokens is not None:
            return [tokens.split_heads(x) for x in projected]
        batch, length, width = ops.shape(inputs)
        # Not -1, which is ambiguous for a batch without rows.
        heads = (batch, length, self.num_heads, width // self.num_heads)
        split = [ops.reshape(x, heads) for x in projected]  # (B, T, N, H)
        return [ops.transpose(x, (0, 2, 1, 3)) for x in split]  # (B, N, T, H)

    def _project_at_once(self, inputs):
        """Compute the result of `_project` by one product, for training.

        On a CPU, a layer's training step then takes 4 % less time at a width of
        256, and the same time at 768. Predictions use `_project`: one row of 16
        tokens takes a fifth more time at 768 if kernels are concatenated.
        """
        batch, length, width = ops.shape(inputs)
        projections = self.query, self.key, self.value
        weights = [ops.cast(x.kernel, self.compute_dtype) for x in projections]
        biases = [ops.cast(x.bias, self.compute_dtype) for x in projections]
        # Scale the query's kernel, (D, D), not the query, (B, T, D).
        weights[0] = weights[0] * self._scale()
        biases[0] = biases[0] * self._scale()
        x = ops.reshape(inputs, (-1, width))  # (B T, D)
        x = ops.matmul(x, ops.concatenate(weights, axis=1))  # (B T, 3 D)
        x = kernels.add_bias(x, ops.concatenate(biases, axis=0))  # (3 D,)
        heads = (batch, length, 3, self.num_heads, width // self.num_heads)
        x = ops.reshape(x, heads)  # (B, T, 3, N, H)
        # (3, B, N, T, H), then three of (B, N, T, H)
        return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), 3)

    def _scale(self):
        # 1 / sqrt(H): Vaswani et al. 2017, section 3.2.1
        return (self.hidden_dim // self.num_heads) ** -0.5

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape


@keras.saving.register_keras_serializable("bert_keras")
class TransformerLayer(layers.SeededLayer):
    """Self-attention and a feed-forward network, each with a norm after it.

    Attention is followed by dropout, a sum with its input and normalisation.
    The feed-forward network projects to `intermediate_dim`, applies GELU and
    projects back; dropout, a sum with its input and normalisation follow.
    Normalisation runs in float32. Equals one pass of the loop in
    `transformer_model` of the original (the paper, section 3).

    Args:
        num_heads: number of attention heads; divides `hidden_dim`.
        hidden_dim: width of input and output, D.
        intermediate_dim: width between the two feed-forward projections.
        dropout: fraction of each sub-layer's output dropped in training.
        attention_dropout: fraction of the attention probabilities dropped.
        activation: "gelu_tanh" or "gelu_exact".
        norm_epsilon: added to the variance before its square root.
        rematerialize: True to keep only the layer's input in training and
            compute the rest again for the gradient, with the same units
            dropped. A step needs less memory and a third more time.

    Call arguments:
        inputs: float (B, T, D).
        bias: float, broadcast to (B, N, T, S), added to attention scores.
        tokens: `RealTokens` of the rows; input and output then hold only
            the vectors of real tokens, (L, D).
        attention_probabilities: bool; True to also return the probabilities
            before dropout.
        training: bool.

    Returns:
        float (B, T, D), or a tuple with the probabilities, (B, N, T, S).

    Raises:
        InputError: attention probabilities in training with `rematerialize`.

    Example:
    >>> TransformerLayer(2, 8, 16)(np.ones((1, 3, 8))).shape
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
        self.activation = activation
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
        self.attention_norm = self._norm("attention_norm")
        # GELU in the dense layer, where TensorFlow can fuse its exact form.
        self.intermediate = self._dense(
            intermediate_dim, "intermediate", layers.ACTIVATIONS[activation]
        )
        self.output_projection = self._dense(hidden_dim, "output")
        self.output_norm = self._norm("output_norm")

    def _dense(self, units, name, activation=None):
        return layers.Projection(
            units, activation=activation, name=name, dtype=self.dtype_policy
        )

    def _norm(self, name):
        return layers.LayerNorm(
            epsilon=self.norm_epsilon, name=name, dtype=self.dtype_policy
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
    ):
        if attention_probabilities and training and self.rematerialize:
            raise InputError(
                "attention_probabilities is True in training with "
                "rematerialize=True, which keeps no probabilities. Call the "
                "encoder with training=False, or make it without "
                "rematerialize."
            )
        layer = functools.partial(
            self._call_layer,
            bias=bias,
            # Draw the seed once: a second computation must drop the same units.
            seed=self.draw_seed(training),
            tokens=tokens,
            attention_probabilities=attention_probabilities,
            training=training,
        )
        if self.rematerialize and training:
            return rematerialize(layer, inputs, self.weights)
        return layer(inputs)

    def _call_layer(self, inputs, seed, attention_probabilities, **arguments):
        # Tensors are (B, T, D), or (L, D) of the real tokens. Dropout of the
        # attention probabilities uses site 0 of the seed.
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
        # Section 3.3 of that paper, with GELU for ReLU (the BERT paper, A.2).
        y = self.intermediate(x, seed=seed, site=7)  # (B, T, intermediate_dim)
        y = self.output_projection(y, seed=seed, site=8)  # (B, T, D)
        y = self.output_norm(self._sum(x, y, seed, site=2))
        return (y, probabilities) if attention_probabilities else y

    def _sum(self, residual, x, seed, site):
        """Apply dropout to `x` and add the residual, in float32."""
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        x = dropout(ops.cast(x, dtype), self.dropout, seed, site)
        return ops.cast(residual, dtype) + x

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape
