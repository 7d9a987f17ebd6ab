"""One layer of the encoder."""

import keras
from keras import ops

from bert_keras.modeling.activations import ACTIVATIONS
from bert_keras.modeling.attention import SelfAttention
from bert_keras.modeling.dropout import SeededLayer, dropout
from bert_keras.modeling.normalization import NORM_EPSILON, LayerNorm
from bert_keras.modeling.projection import Projection


@keras.saving.register_keras_serializable("bert_keras")
class TransformerLayer(SeededLayer):
    """Self-attention and a feed-forward network, each normalised after.

    Attention, dropout, sum with the input, layer normalisation; then up to
    `intermediate_dim`, GELU, down again, dropout, sum, layer normalisation.
    Normalisation runs in float32. Equals one turn of the loop in
    `transformer_model` of the original (the paper, section 3).

    Args:
        num_heads: number of attention heads; divides `hidden_dim`.
        hidden_dim: width of input and output, D.
        intermediate_dim: width between the two feed-forward projections.
        dropout: share of each sub-layer's output dropped in training.
        attention_dropout: share of the attention probabilities dropped.
        activation: "gelu_tanh" or "gelu_exact".
        norm_epsilon: added to a variance before its root.
        rematerialize: whether training keeps the layer's input only and
            computes the rest once more for the gradient, with the same units
            dropped: less memory for a third more time.

    Call arguments:
        inputs: float (B, T, D).
        bias: float, broadcast to (B, N, T, S), added to attention scores.
        tokens: `RealTokens` of the rows; input and output are then these
            alone, (L, D).
        training: bool.

    Returns:
        float (B, T, D).

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
        norm_epsilon=NORM_EPSILON,
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
        # Within the layer, where TensorFlow joins the exact form to it.
        self.intermediate = self._dense(
            intermediate_dim, "intermediate", ACTIVATIONS[activation]
        )
        self.output_projection = self._dense(hidden_dim, "output")
        self.output_norm = self._norm("output_norm")

    def _dense(self, units, name, activation=None):
        return Projection(
            units,
            activation=activation,
            name=name,
            dtype=self.dtype_policy,
        )

    def _norm(self, name):
        return LayerNorm(
            epsilon=self.norm_epsilon, name=name, dtype=self.dtype_policy
        )

    def build(self, inputs_shape):
        wide = (None, None, self.hidden_dim)
        self.attention.build(wide)
        self.attention_norm.build(wide)
        self.intermediate.build(wide)
        self.output_projection.build((None, None, self.intermediate_dim))
        self.output_norm.build(wide)
        self.build_seed(self.dropout, self.attention_dropout)

    def call(self, inputs, bias=None, tokens=None, training=False):
        # Drawn here and handed on: a second computation draws the same.
        seed = self.draw_seed(training)

        def layer(inputs):
            return self._layer(inputs, bias, seed, tokens, training)

        if self.rematerialize and training:
            return keras.remat(layer)(inputs)
        return layer(inputs)

    def _layer(self, inputs, bias, seed, tokens, training):
        x = self.attention(inputs, bias, seed, tokens=tokens, training=training)
        x = self.attention_norm(self._sum(inputs, x, seed, 1))
        y = self.output_projection(self.intermediate(x))
        return self.output_norm(self._sum(x, y, seed, 2))

    def _sum(self, residual, x, seed, site):
        """In float32, where the normalisation goes on."""
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        x = dropout(ops.cast(x, dtype), self.dropout, seed, site)
        return ops.cast(residual, dtype) + x

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "norm_epsilon": self.norm_epsilon,
            "rematerialize": self.rematerialize,
        }
