"""The encoder: from token ids to one vector a token and one a row.

Its parts are in layers.py and attention.py; heads are not here.
"""

from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling.arguments import EncoderArguments
from bert_keras.modeling.attention import (
    DIRECTIONS,
    SelfAttention,
    attention_bias,
    real_tokens,
)
from bert_keras.modeling.inputs import (
    argument_names,
    check_ids,
    named_inputs,
)
from bert_keras.modeling.layers import (
    ACTIVATIONS,
    NORM_EPSILON,
    BertEmbeddings,
    LayerNorm,
    Projection,
    SeededLayer,
    check_activation,
    dropout,
    first_tokens,
)
from bert_keras.modeling.lora import adaptation
from bert_keras.modeling.portable import Portable
from bert_keras.modeling.sizes import DIMENSIONS


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
        # The activation inside the layer: TensorFlow fuses the exact form.
        self.intermediate = self._dense(
            intermediate_dim, "intermediate", ACTIVATIONS[activation]
        )
        self.output_projection = self._dense(hidden_dim, "output")
        self.output_norm = self._norm("output_norm")

    def _dense(self, units, name, activation=None):
        return Projection(
            units, activation=activation, name=name, dtype=self.dtype_policy
        )

    def _norm(self, name):
        return LayerNorm(
            epsilon=self.norm_epsilon, name=name, dtype=self.dtype_policy
        )

    def build(self, inputs_shape):
        # B and T do not matter to the weights.
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
        # All (B, T, D), or (L, D) of real tokens alone. The attention drops
        # its probabilities at site 0 of the seed.
        x = self.attention(inputs, bias, seed, tokens=tokens, training=training)
        # Normalised after the sum, as in Vaswani et al. 2017, section 3.1.
        x = self.attention_norm(self._sum(inputs, x, seed, 1))
        # The second sub-layer: section 3.3 there, with GELU (our paper, A.2).
        y = self.intermediate(x)  # (B, T, intermediate_dim)
        y = self.output_projection(y)
        return self.output_norm(self._sum(x, y, seed, 2))

    def _sum(self, residual, x, seed, site):
        """Residual and dropped `x` in float32, in which they are normalised."""
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


@keras.saving.register_keras_serializable("bert_keras")
class BertEncoder(Portable, keras.Model):
    """Embeddings, `num_layers` transformer layers and the pooler.

    Padding is left out of attention by a bias on the scores; the vectors at
    padding itself mean nothing. The pooler is a dense tanh layer on the first
    token. Equals `BertModel` of the original (the paper, section 3).

    Weights, by path (behind the model's name, `encoder`):
        embeddings/{token,position,segment}/embeddings
        embeddings/norm/{gamma,beta}
        layer_{i}/attention/{query,key,value,output}/{kernel,bias}
        layer_{i}/attention_norm/{gamma,beta}
        layer_{i}/{intermediate,output}/{kernel,bias}
        layer_{i}/output_norm/{gamma,beta}
        pooler/{kernel,bias}
    Every kernel is (inputs, outputs); heads lie side by side in the columns
    of query, key and value and in the rows of attention/output.

    Args:
        vocabulary_size: number of word pieces.
        num_layers: number of transformer layers.
        num_heads: attention heads in each; divides `hidden_dim`.
        hidden_dim: width of a token's vector, D.
        intermediate_dim: width inside the feed-forward network.
        max_sequence_length: longest row, in tokens.
        num_segments: number of segments that have a vector.
        dropout: share dropped of embeddings and sub-layer outputs.
        attention_dropout: share dropped of attention probabilities.
        activation: "gelu_tanh" (the original's code today) or "gelu_exact"
            (the original's at its release, transformers).
        attention: "bidirectional", or "left_to_right" or "right_to_left":
            which tokens a token sees, itself included (the paper, section
            5.1).
        norm_epsilon: added to a variance before its root.
        rematerialize: whether training keeps each layer's input only and
            computes the rest once more for the gradient: less memory for a
            third more time.
        dtype: dtype policy or its name; Keras's global one where None.

    Call arguments:
        inputs: dict of `token_ids` and, if needed, `segment_ids` (all 0
            without), `padding_mask` (all 1 without), and for packed rows
            `example_ids` and `position_ids`, each int32 (B, T); or the token
            ids alone.
        training: bool; drops units where true.
        hidden_states: bool; adds `hidden_states` to the result.
        examples_per_row: int, for packed rows: pools the first token of the
            examples 1 to E, to `pooled_output` (B, E, D). Where a row has
            fewer, the rest mean nothing.

    Returns:
        dict of `sequence_output` (B, T, D), `pooled_output` (B, D) and, when
        asked, `hidden_states`: the embedding output and each layer's, each
        (B, T, D).

    Raises:
        InputError: an argument or an input that cannot be used.

    Example:
    >>> encoder = BertEncoder(100, 2, 2, 8, 16)
    >>> encoder(np.array([[2, 45, 3]]))["pooled_output"].shape
    (1, 8)
    """

    # Of the weights, where their home states one: `interop.tensors.License`.
    license = None
    # What the weights began as: a name on the Hub with its commit, or one of
    # `bert_keras.presets()`; or None.
    origin = None
    # What their home's settings say it drew new weights with, or None.
    initializer_range = None
    # The outputs with a token axis, (B, T, ...), which mean nothing at padding.
    token_outputs = ("sequence_output",)

    if TYPE_CHECKING:  # its arguments by name

        @classmethod
        def from_preset(
            cls, preset: PathLike, **arguments: Unpack[EncoderArguments]
        ) -> Self: ...

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation: str = "gelu_tanh",
        attention: str = "bidirectional",
        norm_epsilon: float = NORM_EPSILON,
        rematerialize: bool = False,
        dtype: Any = None,
        name: str = "encoder",
    ) -> None:
        super().__init__(dtype=dtype, name=name)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.attention = attention
        self.norm_epsilon = norm_epsilon
        self.rematerialize = rematerialize
        self._check_arguments()
        policy = self.dtype_policy
        self.embeddings = BertEmbeddings(
            vocabulary_size,
            hidden_dim,
            max_sequence_length,
            num_segments,
            dropout,
            norm_epsilon,
            name="embeddings",
            dtype=policy,
        )
        self.transformer_layers = [
            TransformerLayer(
                num_heads,
                hidden_dim,
                intermediate_dim,
                dropout,
                attention_dropout,
                activation,
                norm_epsilon,
                rematerialize,
                name=f"layer_{i}",
                dtype=policy,
            )
            for i in range(num_layers)
        ]
        self.pooler = Projection(
            hidden_dim, activation="tanh", name="pooler", dtype=policy
        )
        # Now and not at the first call: weights can be loaded at once.
        self.build()

    def _check_arguments(self):
        for name in DIMENSIONS:
            value = getattr(self, name)
            # NumPy's integers are Integral too.
            if not isinstance(value, Integral) or value < 1:
                raise InputError(
                    f"{name} is {value!r}. Expected a whole number, 1 or more."
                )
        if self.hidden_dim % self.num_heads:
            raise InputError(
                f"hidden_dim is {self.hidden_dim}, which {self.num_heads} "
                "heads cannot share equally. Choose a num_heads that divides "
                "it."
            )
        check_activation(self.activation)
        if self.attention not in DIRECTIONS:
            raise InputError(
                f"attention is {self.attention!r}. Expected one of "
                f"{', '.join(DIRECTIONS)}."
            )

    def build(self, input_shape: Any = None) -> None:
        self.embeddings.build((None, None))
        for layer in self.transformer_layers:
            layer.build((None, None, self.hidden_dim))
        self.pooler.build((None, self.hidden_dim))

    def call(
        self,
        inputs: Any,
        training: bool = False,
        hidden_states: bool = False,
        examples_per_row: int | None = None,
    ) -> dict[str, Any]:
        inputs = named_inputs(inputs)
        for name, limit in (
            ("token_ids", self.vocabulary_size),
            ("segment_ids", self.num_segments),
            ("position_ids", self.max_sequence_length),
        ):
            if inputs.get(name) is not None:
                check_ids(name, inputs[name], limit)
        # One bias for all layers: they exclude the same places.
        example_ids = inputs.get("example_ids")
        bias = attention_bias(  # broadcasts to (B, N, T, S)
            ops.shape(inputs["token_ids"])[1],
            self.attention,
            inputs.get("padding_mask"),
            example_ids,
        )
        tokens = real_tokens(inputs.get("padding_mask"))
        states = [self._embed(inputs, tokens, training)]  # (B, T, D) or (L, D)
        for layer in self.transformer_layers:
            states.append(
                layer(states[-1], bias, tokens=tokens, training=training)
            )
        # Padding gets the vector of the token before it: nobody reads it.
        if tokens is not None:
            states = [tokens.in_rows(state) for state in states]  # (B, T, D)
        # The vectors of [CLS], C in the paper: (B, D); of packed rows (B, E, D)
        first = first_tokens(states[-1], example_ids, examples_per_row)
        outputs = {
            "sequence_output": states[-1],
            "pooled_output": self.pooler(first),
        }
        if hidden_states:
            outputs["hidden_states"] = states
        return outputs

    def _embed(self, inputs, tokens, training):
        names = ("token_ids", "segment_ids", "position_ids")
        parts = {name: inputs.get(name) for name in names}  # (B, T) each
        if tokens is not None:
            parts = {  # (L,) each
                name: x if x is None else tokens.of(x)
                for name, x in parts.items()
            }
            if parts["position_ids"] is None:
                parts["position_ids"] = tokens.position_ids()
        return self.embeddings(**parts, training=training)

    def compute_output_spec(
        self,
        inputs: Any,
        training: bool = False,
        hidden_states: bool = False,
        examples_per_row: int | None = None,
    ) -> dict[str, Any]:
        # Stated, not traced: building a large task model takes no time.
        batch, length = named_inputs(inputs)["token_ids"].shape
        examples = () if examples_per_row is None else (examples_per_row,)

        def spec(*shape):
            shape = (batch, *shape, self.hidden_dim)
            return keras.KerasTensor(shape, dtype=self.compute_dtype)

        outputs = {
            "sequence_output": spec(length),
            "pooled_output": spec(*examples),
        }
        if hidden_states:
            # The embedding output, then each layer's.
            layers = range(self.num_layers + 1)
            outputs["hidden_states"] = [spec(length) for _ in layers]
        return outputs

    def arguments(self) -> dict[str, Any]:
        """What the constructor took, as plain values."""
        names = argument_names(type(self))
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        values = {name: getattr(self, name) for name in names}
        return {**values, "dtype": dtype}

    def get_config(self) -> dict[str, Any]:
        return {**self.arguments(), **adaptation(self)}

    def _rebuilt(self, policy):
        return type(self)(**{**self.arguments(), "dtype": policy})
