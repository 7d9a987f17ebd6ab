"""The encoder: from token ids to one vector a token and one a row.

Also what it shares with every task model. Its parts are in layers.py and
attention.py; heads are not here.
"""

import functools
from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.files import PathLike
from bert_keras.modeling import layers, modes, weights
from bert_keras.modeling.attention import (
    DIRECTIONS,
    TransformerLayer,
    attention_bias,
)
from bert_keras.modeling.inputs import (
    INPUT_NAMES,
    EncoderArguments,
    argument_names,
    check_ids,
    named_inputs,
    refuse_text,
)
from bert_keras.modeling.padding import find_real_tokens
from bert_keras.modeling.sizes import DIMENSIONS


class Portable:
    """Loading, saving and copying, for `BertEncoder` and every task model."""

    _rebuilt: Callable[[Any], Any]  # a new model of the same settings

    @classmethod
    def from_preset(cls, preset: PathLike, **arguments: Any) -> Self:
        """A model with the weights of a preset: a folder or a name.

        `arguments` go to the constructor, over what the preset says.
        """
        # When it is called: interop builds on this room.
        from bert_keras.interop.presets import load_model

        return load_model(cls, preset, **arguments)

    def save_preset(self, folder: PathLike, preprocessor: Any = None) -> None:
        """Write configuration, weights and vocabulary to `folder`.

        It is a Hugging Face folder, which transformers opens too. The
        optimizer's state is not written.

        Args:
            folder: made.
            preprocessor: the `BertPreprocessor` that the model was trained
                with, from which comes the vocabulary.

        Raises:
            InputError: no preprocessor, or it does not fit the model.
        """
        if preprocessor is None:
            raise InputError(
                "save_preset got no preprocessor, but a preset has a "
                "vocabulary too. Give the BertPreprocessor that the model was "
                "trained with: save_preset(folder, preprocess)."
            )
        from bert_keras.interop.saving import save_model

        save_model(folder, self, preprocessor)

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> Self:
        config = dict(config)
        adapted = config.pop("adaptation", {})
        model = cls(**config)
        weights.adapt(model, **adapted)
        return model

    if not TYPE_CHECKING:  # there, Keras's own signatures

        @functools.wraps(keras.Model.fit)
        def fit(self, x=None, *args, **kwargs):
            return self._run(super().fit, x, *args, **kwargs)

        @functools.wraps(keras.Model.evaluate)
        def evaluate(self, x=None, *args, **kwargs):
            return self._run(super().evaluate, x, *args, **kwargs)

        @functools.wraps(keras.Model.predict)
        def predict(self, x, *args, **kwargs):
            return self._run(super().predict, x, *args, **kwargs)

    def _run(self, loop, x, *args, **kwargs):
        """A loop of Keras. After an error the next one is traced again.

        A trace that failed half-way has made variables of the optimizer, and
        a second call of the same function could make none.
        """
        refuse_text(x)
        try:
            return loop(x, *args, **kwargs)
        except Exception:
            # Keras makes them again at the next call.
            self.train_function = None
            self.test_function = None
            self.predict_function = None
            raise

    def export(
        self,
        filepath: PathLike,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Export the model on ids, as `keras.Model.export` does.

        By default its inputs are a dict of int32 rows of any length; rows are
        packed only if the model was made for them. `export_saved_model`
        exports texts in, labels out.
        """
        if input_signature is None:
            input_signature = [self._input_specs()]
        with modes.use(gradients=False):
            super().export(  # type: ignore[misc]
                filepath, format, verbose, input_signature, **kwargs
            )

    def _input_specs(self):
        """Return the specs of the inputs of an export, by name."""
        names = INPUT_NAMES[:3]
        return {
            name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
            for name in names
        }

    def quantize(self, mode: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses: Keras leaves the layers of this package as they are."""
        raise InputError(
            f"{type(self).__name__}.quantize({mode!r}) is not possible: Keras "
            "would leave every layer as it is. For int8 weights export the "
            "model: export_saved_model(model, preprocessor, folder, "
            'dtype="int8").'
        )

    def with_dtype(self, policy: Any) -> Self:
        """A copy with the same weights under another dtype policy.

        What LoRA added is merged into the copy's weights. What is frozen here
        is frozen there.
        """
        # Zeros cost less than random numbers, and are replaced next.
        with modes.use(draw_weights=False):
            copy = self._rebuilt(policy)
        weights.copy_weights(self, copy)
        # The copy's weights are merged, so LoRA itself is left out.
        adapted = weights.adaptation(self).get("adaptation", {"frozen": ()})
        weights.adapt(copy, adapted["frozen"])
        self.hand_on(copy)
        return copy

    def hand_on(self, copy: keras.Model) -> None:
        """Gives a copy what belongs to the weights besides their numbers."""
        ours: Any = getattr(self, "encoder", self)
        theirs: Any = getattr(copy, "encoder", copy)
        theirs.license, theirs.origin = ours.license, ours.origin
        theirs.initializer_range = ours.initializer_range
        weights.mark_untrained(copy, weights.untrained_weights(self))
        if hasattr(self, "sentence_embedding"):
            copy.sentence_embedding = dict(self.sentence_embedding)


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
        dropout: fraction dropped of embeddings and sub-layer outputs.
        attention_dropout: fraction dropped of attention probabilities.
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
    _most_outputs: tuple[Any, ...] = ()

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
        norm_epsilon: float = layers.NORM_EPSILON,
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
                activation,
                norm_epsilon,
                rematerialize,
                name=f"layer_{i}",
                dtype=policy,
            )
            for i in range(num_layers)
        ]
        self.pooler = layers.Projection(
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
        layers.check_activation(self.activation)
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
        padding_mask = inputs.get("padding_mask")
        tokens = find_real_tokens(padding_mask, self.num_heads)
        states = [self._embed(inputs, tokens, training)]  # (B, T, D) or (L, D)
        for layer in self.transformer_layers:
            states.append(
                layer(states[-1], bias, tokens=tokens, training=training)
            )
        if not hidden_states:
            states = states[-1:]
        # Padding gets the vector of the token before it: nobody reads it.
        if tokens is not None:
            states = [
                tokens.put_in_rows(state) for state in states
            ]  # (B, T, D)
        # The vectors of [CLS], C in the paper: (B, D); of packed rows (B, E, D)
        first = layers.first_tokens(states[-1], example_ids, examples_per_row)
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
                name: x if x is None else tokens.select(x)
                for name, x in parts.items()
            }
            if parts["position_ids"] is None:
                parts["position_ids"] = tokens.position_ids()
        return self.embeddings(**parts, training=training)

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().symbolic_call(*args, **kwargs)
        flat = keras.tree.flatten(outputs)
        if len(flat) > len(self._most_outputs):
            self._most_outputs = tuple(flat)
        return outputs

    @property
    def output(self) -> Any:
        """Symbolic outputs of the first call that has most of them.

        Keras's are of the first call. By their number it tests whether the
        outputs of any call are connected, and would miss `hidden_states`.
        """
        return list(self._most_outputs) or super().output

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
        return {**self.arguments(), **weights.adaptation(self)}

    def _rebuilt(self, policy):
        return type(self)(**{**self.arguments(), "dtype": policy})
