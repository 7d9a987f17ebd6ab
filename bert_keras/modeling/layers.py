"""The layers of an encoder: dense, norm, dropout and embeddings.

The transformer layer is in attention.py.
"""

import keras
from keras import ops

from bert_keras.errors import InputError
from bert_keras.modeling import kernels, memory, modes
from bert_keras.modeling.dropout import add_replica, dropout
from bert_keras.modeling.inputs import list_argument_names
from bert_keras.modeling.keras_adapter import DropsWeights
from bert_keras.modeling.weights import KeepsLora


def make_initializer():
    """Return BERT's initializer: normal, std 0.02, truncated at 2 std.

    Within `modes.use(draw_weights=False)`, return an initializer of zeros.
    """
    if modes.current().draw_weights:
        return keras.initializers.TruncatedNormal(stddev=0.02)
    return UnwrittenZeros()


@keras.saving.register_keras_serializable("bert_keras")
class UnwrittenZeros(keras.initializers.Zeros):
    """Zeros. On TensorFlow, float32 zeros take no memory until replaced."""

    def __call__(self, shape, dtype=None):
        if keras.backend.backend() != "tensorflow" or dtype != "float32":
            return super().__call__(shape, dtype)
        return memory.share_memory(memory.paged_zeros(shape))


ACTIVATIONS = {
    "gelu_tanh": kernels.gelu_tanh,
    "gelu_exact": kernels.gelu_exact,
}


def name_activation(activation):
    """Return the name of an activation, or the function if it has none.

    Args:
        activation: a name in `ACTIVATIONS`, or what Keras's layers take: a
            name, a function, or its config. Keras's "gelu" is "gelu_exact".

    Raises:
        InputError: there is no such activation.
    """
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return activation
    try:
        function = keras.activations.get(activation)
    except (ValueError, TypeError):
        function = None
    if activation is None or not callable(function):
        raise InputError(
            f"activation is {activation!r}. Expected one of "
            f"{', '.join(ACTIVATIONS)}, the name of a Keras activation such as "
            '"relu", or a function.'
        )
    for name, known in ACTIVATIONS.items():
        if function is known:
            return name
    name = getattr(function, "__name__", None)
    if function is keras.activations.gelu:
        return "gelu_exact"
    is_keras = function is getattr(keras.activations, str(name), None)
    return name if is_keras else function


def get_activation(name):
    """Return the function of a result of `name_activation`."""
    is_ours = isinstance(name, str) and name in ACTIVATIONS
    return ACTIVATIONS[name] if is_ours else keras.activations.get(name)


@keras.saving.register_keras_serializable("bert_keras")
class Projection(KeepsLora, DropsWeights, keras.layers.Dense):
    """Keras's `Dense` with BERT's initializer and dropout for LoRA.

    The input is reshaped to a matrix. TensorFlow fuses the product with the
    addition of the bias only for matrices.

    With a `seed`, dropout at the rate `lora_dropout` is applied to the input of
    LoRA's matrices. Projections with the same seed need different values of
    `site`; see `dropout`.
    """

    lora_dropout = 0.0  # fraction, set in weights.py and peft.py

    def __init__(self, units, **kwargs):
        kwargs.setdefault("kernel_initializer", make_initializer())
        super().__init__(units, **kwargs)

    def call(self, inputs, training=None, seed=None, site=0):
        if training and self.lora_dropout and seed is None:
            raise InputError(
                f"LoRA's dropout is {self.lora_dropout}, but the encoder's "
                "dropout rates are 0. Set the encoder's dropout or "
                "`attention_dropout` above 0, or LoRA's dropout to 0."
            )
        # Pooled vectors (B, D) and tokens (L, D) are matrices already.
        is_matrix = len(inputs.shape) == 2
        if is_matrix:
            x = inputs
        else:
            x = ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))
        dropped = dropout(x, self.lora_dropout, seed, site)
        # `kernel` includes LoRA's matrices, so x @ kernel applies them to x. To
        # apply them to `dropped` instead, add LoRA's output for `dropped - x`.
        change = None if dropped is x else self._multiply_lora(dropped - x)
        x = ops.matmul(x, self.kernel)  # (L, units)
        if change is not None:
            x = x + change
        x = kernels.add_bias(x, ops.cast(self.bias, self.compute_dtype))
        x = self.activation(x)
        if is_matrix:
            return x
        # (B, T, units)
        return ops.reshape(x, (*ops.shape(inputs)[:-1], self.units))

    def quantized_call(self, *args, seed=None, site=0, **kwargs):
        # int8 weights are not trained, so they need no dropout.
        return super().quantized_call(*args, **kwargs)

    def _multiply_lora(self, x):
        """Return LoRA's part of the output, (alpha / rank) * x @ A @ B."""
        for matrix in (self.lora_kernel_a, self.lora_kernel_b):
            x = ops.matmul(x, ops.cast(matrix, self.compute_dtype))
        return x * (self.lora_alpha / self.lora_rank)


# The original's epsilon, against division by zero. In float16 it would be 0.
NORM_EPSILON = 1e-12


@keras.saving.register_keras_serializable("bert_keras")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalisation over the last axis, at least in float32.

    A float64 policy computes in float64. The output has the compute dtype.
    """

    def call(self, inputs):
        # In half precision, the mean of D squares is not precise enough.
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        tensors = inputs, self.gamma, self.beta
        tensors = [ops.cast(tensor, dtype) for tensor in tensors]
        x = kernels.normalize(*tensors, self.epsilon)
        return ops.cast(x, self.compute_dtype)


class KeepsArguments(keras.layers.Layer):
    """A layer whose config contains its arguments, read from attributes."""

    def get_config(self):
        keras_names = list_argument_names(keras.layers.Layer)
        names = [
            n for n in list_argument_names(type(self)) if n not in keras_names
        ]
        arguments = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **arguments}


@keras.saving.register_keras_serializable("bert_keras")
class SeededLayer(KeepsArguments):
    """A layer that draws one dropout seed per call in training."""

    def build_seed(self, *rates):
        """Create the seed generator if any rate is above 0.

        Call this method in `build`, so that the generator's path begins with
        the layer's path.

        Raises:
            InputError: a rate is not in [0, 1).
        """
        for rate in rates:
            if not 0 <= rate < 1:
                raise InputError(
                    f"A dropout rate is {rate}. Expected a fraction from 0 to "
                    "less than 1."
                )
        if any(rates):
            self.seed_generator = keras.random.SeedGenerator(name="dropout")

    def draw_seed(self, training):
        """Return a seed, int (2,), or None if nothing is dropped.

        Each call advances the layer's generator, whose state is equal on all
        replicas. `add_replica` then makes the seeds differ between replicas.
        """
        if training and hasattr(self, "seed_generator"):
            return add_replica(self.seed_generator.next())
        return None


@keras.saving.register_keras_serializable("bert_keras")
class Dropout(SeededLayer):
    """Dropout in training; the kept units are scaled by 1 / (1 - rate).

    Args:
        rate: fraction of the units to drop, from 0 to less than 1.

    Call arguments:
        inputs: float, any shape.
        training: bool.
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.supports_masking = True

    def build(self, input_shape=None):
        self.build_seed(self.rate)

    def call(self, inputs, training=False):
        return dropout(inputs, self.rate, self.draw_seed(training))

    def compute_output_shape(self, input_shape):
        return input_shape


def gather_positions(sequence, positions):
    """Return vectors of `sequence` (B, T, D) at `positions` (B, M).

    Positions are not checked. The position T, which is out of range, would
    return the first vector of the next row.
    """
    batch, length, width = ops.shape(sequence)
    # (B, 1), the index of each row's first vector among all B T vectors
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * length
    flat = ops.reshape(ops.cast(positions, "int32") + rows, (-1,))  # (B M,)
    # (B T, D) to (B M, D): one gather over all rows
    picked = ops.take(ops.reshape(sequence, (-1, width)), flat, axis=0)
    # (B, M, D)
    return ops.reshape(picked, (batch, ops.shape(positions)[1], width))


@keras.saving.register_keras_serializable("bert_keras")
class Table(KeepsLora, DropsWeights, keras.layers.Embedding):
    """Keras's `Embedding` with BERT's initializer and a dense gradient."""

    def __init__(self, input_dim, output_dim, **kwargs):
        kwargs.setdefault("embeddings_initializer", make_initializer())
        super().__init__(input_dim, output_dim, **kwargs)

    def call(self, inputs):
        # The custom gradient needs a tensor; `reshape` converts the variable.
        table = ops.reshape(self.embeddings, (self.input_dim, self.output_dim))
        return kernels.look_up(table, inputs)  # (B, T) to (B, T, D)


@keras.saving.register_keras_serializable("bert_keras")
class BertEmbeddings(SeededLayer):
    """The sum of token, position and segment embeddings, normalised.

    The sum is normalised in float32, then dropout is applied. Padding also gets
    vectors; the attention layers mask them. Equals `embedding_lookup` followed
    by `embedding_postprocessor` of the original.

    Args:
        vocabulary_size: number of word pieces.
        hidden_dim: width of a vector.
        max_sequence_length: number of position embeddings.
        num_segments: number of segment embeddings.
        dropout: fraction of the output dropped in training.
        norm_epsilon: added to the variance before its square root.

    Call arguments:
        token_ids: int32 (B, T).
        segment_ids: int32 (B, T); None: all are 0.
        position_ids: int32 (B, T); None: 0, 1, 2, ...
        training: bool.

    Returns:
        float (B, T, D).

    Raises:
        InputError: `dropout` is not in [0, 1), or T is above
            `max_sequence_length` and `position_ids` is None.

    Examples:
        >>> print(BertEmbeddings(100, 8)(np.array([[2, 45, 3]])).shape)
        (1, 3, 8)
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        max_sequence_length=512,
        num_segments=2,
        dropout=0.1,
        norm_epsilon=NORM_EPSILON,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.norm_epsilon = norm_epsilon
        # Figure 2 of the paper shows these three tables. They are summed in the
        # dtype of the variables, because a sum in half precision would be
        # rounded before the norm.
        self.token, self.position, self.segment = (
            Table(rows, hidden_dim, name=name, dtype=self.variable_dtype)
            for name, rows in (
                ("token", vocabulary_size),
                ("position", max_sequence_length),
                ("segment", num_segments),
            )
        )
        self.norm = LayerNorm(
            epsilon=norm_epsilon, name="norm", dtype=self.variable_dtype
        )

    def build(self, token_ids_shape=None):
        for table in (self.token, self.position, self.segment):
            table.build()
        self.norm.build((None, None, self.hidden_dim))
        self.build_seed(self.dropout)

    def call(
        self, token_ids, segment_ids=None, position_ids=None, training=False
    ):
        if position_ids is None:
            length = ops.shape(token_ids)[1]
            # In a graph the length may be unknown. If it is too large, the
            # lookup of positions raises an error on a CPU.
            if isinstance(length, int) and length > self.max_sequence_length:
                raise InputError(
                    f"The rows are {length} tokens long, but the model has "
                    f"{self.max_sequence_length} positions. Set a smaller "
                    "`sequence_length` in the preprocessor."
                )
            position_ids = ops.arange(length, dtype="int32")  # (T,)
        if segment_ids is None:
            segment_ids = ops.zeros((1,), "int32")  # (1,), broadcasts
        x = self.token(token_ids)  # (B, T, D)
        # With default ids, segment vectors are (1, D), position vectors (T, D).
        x = x + self.segment(segment_ids) + self.position(position_ids)
        seed = self.draw_seed(training)
        x = dropout(self.norm(x), self.dropout, seed)
        return ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, token_ids_shape, *args, **kwargs):
        return (*token_ids_shape, self.hidden_dim)
