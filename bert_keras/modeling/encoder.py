"""The encoder maps token ids to a vector per token and a vector per row.

Its layers are in layers.py and attention.py.
"""

import os
from numbers import Integral
from typing import Any

import keras
from keras import ops

from bert_keras.errors import InputError, refuse_fork
from bert_keras.modeling import layers, modes, tracing, weights
from bert_keras.modeling.attention import (
    DIRECTIONS,
    TransformerLayer,
    attention_bias,
)
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    as_tensor,
    check_ids,
    list_argument_names,
    refuse_list,
)
from bert_keras.modeling.model_methods import ModelMethods
from bert_keras.modeling.padding import AllTokens, RealTokens
from bert_keras.modeling.sizes import DIMENSIONS, POOLER_ACTIVATIONS


@keras.saving.register_keras_serializable("bert_keras")
class BertEncoder(ModelMethods, keras.Model):
    """Embeddings, `num_layers` transformer layers and the pooler.

    A bias on the attention scores masks padding. The output vectors at padding
    have no meaning. The pooler is a dense layer on the first token, by default
    with tanh. Equals `BertModel` of the original (the paper, section 3).

    Weights, by path, without the model's name (`encoder/`) at the beginning:
        embeddings/{token,position,segment}/embeddings
        embeddings/norm/{gamma,beta}
        layer_{i}/attention/{query,key,value,output}/{kernel,bias}
        layer_{i}/attention_norm/{gamma,beta}
        layer_{i}/{intermediate,output}/{kernel,bias}
        layer_{i}/output_norm/{gamma,beta}
        pooler/{kernel,bias}
    Every kernel has the shape (inputs, outputs). An attention head is a block
    of consecutive columns in the kernels of query, key and value, and a block
    of consecutive rows in the kernel of the attention's output.

    Args:
        vocabulary_size: number of word pieces.
        num_layers: number of transformer layers.
        num_heads: number of attention heads per layer, N; divides `hidden_dim`.
        hidden_dim: width of a token's vector, D.
        intermediate_dim: width inside the feed-forward network.
        max_sequence_length: number of position embeddings. A row without
            `position_ids` has at most this many tokens.
        num_segments: number of segment embeddings.
        dropout: fraction of embeddings and sub-layer outputs dropped.
        attention_dropout: fraction of attention probabilities dropped.
        activation: "gelu_tanh" (the original code today), "gelu_exact" (the
            original code at its release, and transformers), or another
            activation of Keras: a name such as "relu", or a function.
            `save_preset` needs one that transformers has.
        attention: "bidirectional", "left_to_right" (a token attends to itself
            and the tokens before it) or "right_to_left" (the paper, section
            5.1).
        norm_epsilon: added to the variance before its square root.
        rematerialize: True to store only each layer's input in training. The
            backward pass recomputes the layers. A step needs less memory and
            takes a third more time.
        pooler_activation: "tanh", or "relu" as in DistilBERT's heads.
        dtype: dtype policy or its name; None for Keras's global policy.
        name: name of the model.

    Call arguments:
        inputs: dict of `token_ids` and, if needed, `segment_ids` (default all
            0) and `padding_mask` (1 at tokens; default all 1). Packed rows,
            which contain several examples each, also need `position_ids` and
            `example_ids` (from 1; 0 at padding). Each is int32 (B, T). An
            array is read as `token_ids`.
        training: bool; True applies dropout.
        hidden_states: bool; adds `hidden_states` to the result.
        attention_probabilities: bool; adds `attention_probabilities`.
        examples_per_row: int E, maximum number of examples in a packed row.
            `pooled_output` is then (B, E, D), one vector per example. If a row
            has fewer examples, its last vectors have no meaning.

    Returns:
        dict of `sequence_output` (B, T, D) and `pooled_output` (B, D), in the
        compute dtype. On request the dict also has `hidden_states`, a list of
        the embedding output and each layer's output, (B, T, D) each; and
        `attention_probabilities`, a list of each layer's probabilities before
        dropout, (B, N, T, T) each.

    Raises:
        InputError: an argument or an input is invalid, the model is called in
            a fork of the process that made it, or attention probabilities are
            requested in training with `rematerialize`.

    Examples:
        >>> from bert_keras import BertEncoder
        >>> encoder = BertEncoder.from_preset("bert_keras_mini_en")
        >>> print(encoder([[2, 45, 3]])["pooled_output"].shape)
        (1, 256)
    """

    # License of the source weights, an `interop.tensors.License`, or None.
    license = None
    # Source of the weights: `hf://org/name@commit`, the name of a preset inside
    # this package, or None.
    origin = None
    # `initializer_range` of the source config, or None.
    initializer_range = None
    # Outputs with a token axis, (B, T, ...). They have no meaning at padding.
    token_outputs = ("sequence_output",)
    _largest_outputs: tuple[Any, ...] = ()

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
        activation: Any = "gelu_tanh",
        attention: str = "bidirectional",
        norm_epsilon: float = layers.NORM_EPSILON,
        rematerialize: bool = False,
        pooler_activation: str = "tanh",
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
        self.activation = layers.name_activation(activation)
        self.attention = attention
        self.norm_epsilon = norm_epsilon
        self.rematerialize = rematerialize
        self.pooler_activation = pooler_activation
        self._check_arguments()
        policy = self.dtype_policy
        self.embeddings = layers.BertEmbeddings(
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
                self.activation,
                norm_epsilon,
                rematerialize,
                name=f"layer_{i}",
                dtype=policy,
            )
            for i in range(num_layers)
        ]
        self.pooler = layers.Projection(
            hidden_dim,
            activation=pooler_activation,
            name="pooler",
            dtype=policy,
        )
        self._process = os.getpid()
        # Build before the first call, so that weights can be loaded.
        self.build()

    def _check_arguments(self):
        for name in DIMENSIONS:
            value = getattr(self, name)
            # `Integral` includes the integers of NumPy.
            if not isinstance(value, Integral) or value < 1:
                raise InputError(
                    f"`{name}` is {value!r}. Expected a whole number, 1 or "
                    "more."
                )
            setattr(self, name, int(value))  # for JSON
        if self.hidden_dim % self.num_heads:
            raise InputError(
                f"`hidden_dim` is {self.hidden_dim} and `num_heads` is "
                f"{self.num_heads}. Expected `num_heads` to divide "
                "`hidden_dim`."
            )
        if self.attention not in DIRECTIONS:
            raise InputError(
                f"attention is {self.attention!r}. Expected one of "
                f"{', '.join(DIRECTIONS)}."
            )
        if self.pooler_activation not in POOLER_ACTIVATIONS:
            raise InputError(
                f"pooler_activation is {self.pooler_activation!r}. Expected "
                f"one of {', '.join(POOLER_ACTIVATIONS)}."
            )

    def build(self, input_shape: Any = None) -> None:
        self.embeddings.build((None, None))
        for layer in self.transformer_layers:
            layer.build((None, None, self.hidden_dim))
        self.pooler.build((None, self.hidden_dim))

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Before Keras converts floats to the compute dtype.
        if isinstance(inputs, dict):
            inputs = {name: as_tensor(name, x) for name, x in inputs.items()}
        else:
            refuse_list(inputs)
            inputs = as_tensor("token_ids", inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self,
        inputs: Any,
        training: bool = False,
        hidden_states: bool = False,
        attention_probabilities: bool = False,
        examples_per_row: int | None = None,
    ) -> dict[str, Any]:
        refuse_fork(self._process)
        inputs = name_inputs(inputs)
        for name, limit in (
            ("token_ids", self.vocabulary_size),
            ("segment_ids", self.num_segments),
            ("position_ids", self.max_sequence_length),
        ):
            if inputs.get(name) is not None:
                check_ids(name, inputs[name], limit)
        padding_mask = inputs.get("padding_mask")
        example_ids = inputs.get("example_ids")
        bias = attention_bias(  # broadcasts to (B, 1, T, T)
            ops.shape(inputs["token_ids"])[1],
            self.attention,
            padding_mask,
            example_ids,
        )
        if padding_mask is not None and modes.current().skip_padding:
            tokens: Any = RealTokens(padding_mask, self.num_heads)
        else:
            tokens = AllTokens(inputs["token_ids"], self.num_heads)
        x = self._call_embeddings(inputs, tokens, training)
        states, probabilities = [x], []  # each state is (L, D)

        def call(layer, x, seed):
            return layer(
                x,
                bias,
                tokens=tokens,
                attention_probabilities=attention_probabilities,
                training=training,
                seed=seed,
            )

        if not attention_probabilities:  # they depend on some weights only
            call = tracing.trace_once(self.transformer_layers, call)
        for layer in self.transformer_layers:
            x = call(layer, x, layer.draw_seed(training))
            if attention_probabilities:
                x, scores = x
                probabilities.append(scores)  # (B, N, T, T)
            states.append(x)
        if not hidden_states:
            states = states[-1:]
        states = [tokens.put_in_rows(x) for x in states]  # (B, T, D)
        # Vectors of [CLS], C in the paper: (B, D), or (B, examples_per_row, D)
        first = first_tokens(states[-1], example_ids, examples_per_row)
        seed = None
        if self.pooler.lora_dropout:  # the pooler has no seed generator
            seed = self.transformer_layers[-1].draw_seed(training)
        outputs = {
            "sequence_output": states[-1],
            "pooled_output": self.pooler(first, training=training, seed=seed),
        }
        if hidden_states:
            outputs["hidden_states"] = states
        if attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        return outputs

    def _call_embeddings(self, inputs, tokens, training):
        names = ("token_ids", "segment_ids", "position_ids")
        ids = {name: inputs.get(name) for name in names}  # (B, T) each
        if isinstance(tokens, AllTokens):
            return tokens.flatten(self.embeddings(**ids, training=training))
        ids = {  # (L,) each
            name: x if x is None else tokens.select(x)
            for name, x in ids.items()
        }
        if ids["position_ids"] is None:
            ids["position_ids"] = tokens.position_ids()
        return self.embeddings(**ids, training=training)

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().symbolic_call(*args, **kwargs)
        flat = keras.tree.flatten(outputs)
        if len(flat) > len(self._largest_outputs):
            self._largest_outputs = tuple(flat)
        return outputs

    @property
    def output(self) -> Any:
        """Symbolic outputs of the call that returned the most outputs.

        Keras reads the number of outputs from this property when it checks a
        functional model. Keras's own property returns the outputs of the first
        call, so the check would fail for a later call with `hidden_states`.
        """
        return list(self._largest_outputs) or super().output

    def compute_output_spec(
        self,
        inputs: Any,
        training: bool = False,
        hidden_states: bool = False,
        attention_probabilities: bool = False,
        examples_per_row: int | None = None,
    ) -> dict[str, Any]:
        # Without this method, Keras would trace a call to find the shapes. This
        # is slow for large models.
        batch, length = name_inputs(inputs)["token_ids"].shape
        examples = () if examples_per_row is None else (examples_per_row,)

        def spec(*shape):
            return keras.KerasTensor((batch, *shape), dtype=self.compute_dtype)

        outputs = {
            "sequence_output": spec(length, self.hidden_dim),
            "pooled_output": spec(*examples, self.hidden_dim),
        }
        if hidden_states:
            outputs["hidden_states"] = [
                spec(length, self.hidden_dim)
                for _ in range(self.num_layers + 1)
            ]
        if attention_probabilities:
            outputs["attention_probabilities"] = [
                spec(self.num_heads, length, length)
                for _ in range(self.num_layers)
            ]
        return outputs

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as a dict of plain values."""
        names = list_argument_names(type(self))
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        values = {name: getattr(self, name) for name in names}
        return {**values, "dtype": dtype}

    def own_arguments(self) -> dict[str, Any]:
        """Return the arguments that only a subclass of `BertEncoder` has."""
        known = {"name", *list_argument_names(BertEncoder)}
        return {k: v for k, v in self.arguments().items() if k not in known}

    def get_config(self) -> dict[str, Any]:
        return {**self.arguments(), **weights.get_adaptation(self)}

    def copy_structure(self, policy: Any) -> "BertEncoder":
        """Return a new encoder with the same arguments and another dtype."""
        return type(self)(**{**self.arguments(), "dtype": policy})


def name_inputs(inputs):
    """Return the checked inputs as a dict of int32 tensors (B, T) by name.

    An array becomes `token_ids`. An optional input that is None stays None.
    """
    if not isinstance(inputs, dict):
        inputs = {"token_ids": inputs}
    # Without this check, an input with a misspelled name would be ignored.
    unknown = sorted(set(inputs) - set(INPUT_NAMES))
    if unknown or inputs.get("token_ids") is None:
        raise InputError(
            f"The inputs are named {sorted(inputs)}. Expected token_ids and, "
            f"if needed, {', '.join(INPUT_NAMES[1:])}."
        )
    if inputs.get("example_ids") is not None and (
        inputs.get("position_ids") is None
    ):
        raise InputError(
            "The inputs have example_ids but no position_ids. Pass both, "
            "because positions start at 0 in each example of a packed row."
        )
    inputs = {name: as_tensor(name, x) for name, x in inputs.items()}
    for name, values in inputs.items():
        if values is not None and len(values.shape) != 2:
            raise InputError(
                f"{name} has the shape {tuple(values.shape)}. Expected (B, T): "
                "a batch of rows. BertEmbedder and BertChooser also read "
                "(B, K, T); for other models, reshape the rows to (B * K, T)."
            )
    return inputs


def first_tokens(sequence, example_ids=None, examples_per_row=None):
    """Return the vector of each row's first token, (B, D).

    With `examples_per_row`, E, return the vector of each example's first token,
    (B, E, D).
    """
    if examples_per_row is None:
        return sequence[:, 0]
    if example_ids is None:
        raise InputError(
            f"examples_per_row is {examples_per_row}, but the inputs have no "
            "example_ids. Pass the example_ids of the packed rows."
        )
    # (E, 1)
    numbers = ops.arange(1, examples_per_row + 1, dtype="int32")[:, None]
    # (B, 1, T) and (E, 1) to (B, E, T)
    is_inside = ops.cast(example_ids, "int32")[:, None, :] == numbers
    # (B, E), the first position of each example; 0 if there is no such example
    first = ops.argmax(ops.cast(is_inside, "int32"), axis=-1)
    return layers.gather_positions(sequence, first)  # (B, E, D)
