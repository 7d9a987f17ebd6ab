"""The layers of an encoder: dense, norm, GELU, dropout and embeddings.

Attention and the transformer layer are in attention.py. Gradients are written
out where Keras's own keep more tensors or are slower.
"""

import contextlib
import contextvars
import functools
import math

import keras
from keras import ops
from keras.src.utils.module_utils import tensorflow

from bert_keras.errors import InputError
from bert_keras.modeling.inputs import argument_names
from bert_keras.modeling.weights import KeepsLora, paged_zeros

# Initial weights, and how to leave them out before loading.

_SKIP = contextvars.ContextVar("skip_initialization", default=False)


def weights_initializer():
    """The original's: normal, deviation 0.02, truncated at two deviations."""
    if _SKIP.get():
        return Unwritten()
    return keras.initializers.TruncatedNormal(stddev=0.02)


@keras.saving.register_keras_serializable("bert_keras")
class Unwritten(keras.initializers.Zeros):
    """Zeros that, on TensorFlow, take no memory before they are replaced."""

    def __call__(self, shape, dtype=None):
        if keras.backend.backend() != "tensorflow" or dtype != "float32":
            return super().__call__(shape, dtype)
        return without_copy(paged_zeros(shape))


def without_copy(numbers):
    """NumPy's float32 numbers as TensorFlow's tensor in the same memory.

    Keras would have TensorFlow copy them twice. Do not write to `numbers`
    afterwards, nor hand in memory that a file or a caller may change: the
    variable that takes the tensor would change with it. TensorFlow itself
    writes to no memory that is not its own; a variable gets some at its first
    update. Other numbers, and those of other backends, are returned as they
    are; so are those that do not begin at a multiple of 64 bytes, which
    TensorFlow takes and then computes with as if they did: a crash.
    """
    fits = (
        numbers.dtype == "float32"
        and numbers.flags.carray
        and numbers.ctypes.data % 64 == 0
    )
    if keras.backend.backend() != "tensorflow" or not fits:
        return numbers
    return tensorflow.experimental.dlpack.from_dlpack(numbers.__dlpack__())


@contextlib.contextmanager
def setting(variable, value):
    """A `ContextVar` has this value inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def skip_initialization():
    """Models built inside begin at zero: their weights are loaded next."""
    return setting(_SKIP, True)


# Long chains of arithmetic on large tensors, which XLA makes one pass each.

# Elements from which that is worth its launch, and its compiling once a shape.
LARGE = 2**18
_COMPILES = contextvars.ContextVar("compiles_arithmetic", default=False)


def compiled_arithmetic(compiles):
    """Models called within compute `arithmetic` by XLA, on TensorFlow."""
    return setting(_COMPILES, compiles)


def arithmetic(function):
    """A function of tensors that is compiled in a training step on a CPU.

    Where all shapes are known, so that each is compiled once, in a tenth of a
    second; otherwise, and for small tensors, it is computed as it is written.
    """

    @functools.cache
    def by_xla():
        return tensorflow.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def computed(*tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if (
            _COMPILES.get()
            and all(None not in shape for shape in shapes)
            and max(map(math.prod, shapes)) >= LARGE
        ):
            return by_xla()(*tensors)
        return function(*tensors)

    return computed


# Gradients that are written out.

_LEARNS = contextvars.ContextVar("learns", default=True)


def without_gradients():
    """Models called within compute their outputs and cannot learn from them."""
    return setting(_LEARNS, False)


def own_gradient(function):
    """`ops.custom_gradient`; within `without_gradients()` the value alone.

    TensorFlow warns whoever loads a SavedModel of gradients that it lacks, and
    with them it loads more slowly.
    """
    learning = ops.custom_gradient(function)

    @functools.wraps(function)
    def computed(*tensors):
        return learning(*tensors) if _LEARNS.get() else function(*tensors)[0]

    return computed


# The two forms of GELU that BERT models were trained with.

# The tanh form replaces erf(x / sqrt(2)) by tanh(x (A + B x x)) (Hendrycks and
# Gimpel 2016, section 2).
_A = 0.7978845608028654  # sqrt(2 / pi)
_B = 0.044715 * _A
_C = 0.7071067811865476  # 1 / sqrt(2)


@arithmetic
@own_gradient
def gelu_tanh(x):
    """GELU by the tanh approximation: the original's code since 2019.

    Its gradient is written out: it keeps `x` alone, not five tensors as wide
    as the widest of the model, and takes a quarter less time on a CPU.
    """

    def gradient(*args, upstream=None):
        # TensorFlow passes it as the argument, JAX by its name.
        upstream = args[0] if upstream is None else upstream
        square = x * x
        t = ops.tanh(x * (_A + _B * square))
        # d/dx [x (1 + t) / 2], with (1 + t) / 2 factored out
        factor = 1.0 + x * (1.0 - t) * (_A + 3.0 * _B * square)
        return upstream * ((0.5 + 0.5 * t) * factor)

    return x * (0.5 + 0.5 * ops.tanh(x * (_A + _B * (x * x)))), gradient


@arithmetic
@own_gradient
def gelu_exact(x):
    """GELU by the error function: the original at its release, transformers.

    Written with `erf` because Keras's own form exports to an ONNX file that
    no runtime reads. Its gradient keeps `x` alone.
    """

    def gradient(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        below = 0.5 + 0.5 * ops.erf(x * _C)
        # The normal distribution's density at x
        density = 0.5 * _A * ops.exp(-0.5 * (x * x))
        return upstream * (below + x * density)

    # x times the share of a normal distribution that lies below x
    return 0.5 * x * (1.0 + ops.erf(x * _C)), gradient


ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_exact": gelu_exact}


def check_activation(name):
    """Refuses the name of a form of GELU that is not here."""
    if name not in ACTIVATIONS:
        raise InputError(
            f"activation is {name!r}. Expected one of {', '.join(ACTIVATIONS)}."
        )


# The dense layer of every projection.


@keras.saving.register_keras_serializable("bert_keras")
class Projection(KeepsLora, keras.layers.Dense):
    """Keras's `Dense` with the original's initial weights, on a matrix.

    All leading axes are folded into one for the product: TensorFlow then adds
    the bias within the product, which it does not do for three axes.
    """

    def __init__(self, units, **kwargs):
        kwargs.setdefault("kernel_initializer", weights_initializer())
        super().__init__(units, **kwargs)

    def call(self, inputs, training=None):
        *lead, width = ops.shape(inputs)
        # A pooled vector, (B, D), or real tokens, (L, D): one axis already.
        x = inputs if len(lead) == 1 else ops.reshape(inputs, (-1, width))
        x = ops.matmul(x, self.kernel)  # (B T, units)
        if self.use_bias:
            x = add_bias(x, ops.cast(self.bias, self.compute_dtype))
        x = self.activation(x)
        return x if len(lead) == 1 else ops.reshape(x, (*lead, self.units))


def add_bias(x, bias):
    """`x` (rows, D) plus `bias` (D,), both of one dtype.

    TensorFlow on a CPU adds up the gradient's rows in bfloat16, and the bias
    of 1,024 rows gets one that is wrong by 4 %, of 4,096 rows by 7 %. A product
    with ones adds them up in float32, and takes half the time.
    """
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        return _add_bias_in_bfloat16(x, bias)
    return ops.add(x, bias)


@own_gradient
def _add_bias_in_bfloat16(x, bias):
    def gradient(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        ones = ops.ones((1, ops.shape(upstream)[0]), upstream.dtype)
        return upstream, ops.matmul(ones, upstream)[0]

    return ops.add(x, bias), gradient


# Layer normalisation as BERT has it.

# The original's; far below float32's own rounding, kept for equal numbers.
NORM_EPSILON = 1e-12


@keras.saving.register_keras_serializable("bert_keras")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's layer normalisation over the last axis, in float32 inside.

    Computes in float32 under any half-precision policy and returns the
    policy's compute dtype. Its gradient is written out, which is a third
    faster on a CPU and keeps fewer tensors.
    """

    def call(self, inputs):
        # The mean of D squares loses its digits in half precision.
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        tensors = inputs, self.gamma, self.beta
        tensors = [ops.cast(tensor, dtype) for tensor in tensors]
        return ops.cast(_normalize(*tensors, self.epsilon), self.compute_dtype)


def _normalize(x, gamma, beta, epsilon):
    """`x` less its mean, over its deviation, times `gamma`, plus `beta`."""

    @own_gradient
    def normalized(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)  # (..., D)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        # One over the deviation, (..., 1), and the input in units of it: these
        # two, and gamma, are all that the gradient keeps.
        inverse = ops.rsqrt(variance + epsilon)
        unit = centred * inverse

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return _norm_gradients(upstream, unit, inverse, gamma)

        return unit * gamma + beta, gradient

    return normalized(x, gamma, beta)


def _norm_gradients(upstream, unit, inverse, gamma):
    """Of the input (..., D), of gamma and of beta (D,)."""
    tokens = tuple(range(len(unit.shape) - 1))  # every axis but the last
    of_gamma = ops.sum(upstream * unit, axis=tokens)
    of_beta = ops.sum(upstream, axis=tokens)
    of_unit = upstream * gamma
    # The mean and the deviation depend on x too: their parts are subtracted.
    mean = ops.mean(of_unit, axis=-1, keepdims=True)
    along = ops.mean(of_unit * unit, axis=-1, keepdims=True)
    return (of_unit - mean - unit * along) * inverse, of_gamma, of_beta


# Dropout whose seed is drawn once a layer and handed on as a tensor. A seed
# that is a tensor can be given again: a layer that is computed a second time
# for its gradient (rematerialisation) drops the same units.

# Each unit takes 16 random bits, so its rate is met to 1 in 131072.
# Keras's own dropout spends 32 bits, and in bfloat16 compares seven of them,
# so that it drops 13/128 where 1/10 was asked for.
_LEVELS = 65536


class DrawnSeed(keras.random.SeedGenerator):
    """A seed already drawn, in the place where Keras takes a generator."""

    def __init__(self, value):
        self.value = value

    def next(self, ordered=True):
        return self.value


def dropout(x, rate, seed, site=0):
    """Drops units of `x` at `rate`, by the mask of `seed` at this `site`.

    The units kept are scaled by 1 / (1 - rate). `site` distinguishes the places
    of one layer that share one drawn seed; nothing is dropped without a seed.
    """
    if seed is None or not rate:
        return x
    # Of the 65536 numbers, those that drop a unit: the lowest.
    dropped = round(rate * _LEVELS)
    # Keras counts the calls in the second number of a seed, so the first is
    # free for the site.
    place = ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    bits = _random_int16(ops.shape(x), DrawnSeed(seed + place))
    keep = ops.greater_equal(bits, dropped - _LEVELS // 2)
    # 1 / (1 - rate), of the rate that is really met
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    return x * ops.where(keep, scale, ops.zeros((), x.dtype))


def _random_int16(shape, seed):
    """Every 16-bit number equally often, two from each random word."""
    *lead, last = shape
    # Keras leaves the upper end out, and 2**31 is no int32: of 2**32 words one
    # never comes. The last axis is what the view cuts in two.
    words = keras.random.randint(  # (..., last / 2 rounded up, 1)
        (*lead, (last + 1) // 2, 1), -(2**31), 2**31 - 1, "int32", seed
    )
    bits = ops.view(words, "int16")  # (..., last / 2 rounded up, 2)
    bits = ops.reshape(bits, (*lead, (last + 1) // 2 * 2))
    if isinstance(last, int) and last % 2 == 0:
        return bits
    # One number more than units where `last` is odd.
    return bits[..., :last]


def _of_this_replica(seed):
    """The seed, with the replica's number far above the sites of a layer.

    It is not added to the count of the calls, which Keras takes modulo
    2**31 - 2: there, a replica would repeat what another one drew before.
    Under `tf.distribute` all replicas hold one state. On JAX a mask is drawn
    for the whole batch, wherever its rows lie.
    """
    if keras.backend.backend() != "tensorflow":
        return seed
    context = tensorflow.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = ops.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + ops.stack([replica * 2**20, ops.zeros_like(replica)])


class KeepsArguments(keras.layers.Layer):
    """A layer whose attributes have the names of its arguments: its config."""

    def get_config(self):
        of_keras = argument_names(keras.layers.Layer)
        names = [n for n in argument_names(type(self)) if n not in of_keras]
        own = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("bert_keras")
class SeededLayer(KeepsArguments):
    """A layer that draws one dropout seed a call while it trains."""

    def build_seed(self, *rates):
        """Makes the generator, if any rate needs one.

        Called in `build`, where its path is the layer's and not a number that
        counts the models of the process.

        Raises:
            InputError: a rate below 0, or not below 1.
        """
        for rate in rates:
            if not 0 <= rate < 1:
                raise InputError(
                    f"A dropout rate is {rate}; expected a share from 0 to "
                    "less than 1."
                )
        if any(rates):
            self.seed_generator = keras.random.SeedGenerator(name="dropout")

    def draw_seed(self, training):
        """int (2,), or None where nothing is dropped.

        A function of the layer's seed, of the number of the call and of the
        replica; the state that it is drawn from is the same on all replicas.
        """
        if training and hasattr(self, "seed_generator"):
            return _of_this_replica(self.seed_generator.next())
        return None


@keras.saving.register_keras_serializable("bert_keras")
class Dropout(SeededLayer):
    """Drops units at `rate` while training, scaling the rest by 1/(1 - rate).

    Args:
        rate: share of the units to drop, from 0 to less than 1.

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


# Picking rows out of a table, and single tokens out of rows.


def gather(x, indices):
    """Rows of `x` at `indices`: their shape and then that of a row.

    A negative index is an error, as one beyond the last row is: Keras would
    count it from the end, which takes four operations more on TensorFlow.
    """
    if keras.backend.backend() == "tensorflow":
        return tensorflow.gather(x, indices)
    height = x.shape[0]
    return ops.take(
        x, ops.where(indices < 0, indices - height, indices), axis=0
    )


def first_tokens(sequence, example_ids=None, examples_per_row=None):
    """The vector of each row's first token, (B, D).

    Of packed rows, of each example's: (B, E, D).
    """
    if examples_per_row is None:
        return sequence[:, 0]
    if example_ids is None:
        raise InputError(
            f"examples_per_row is {examples_per_row}, but the inputs have no "
            "example_ids. Give those that packing made."
        )
    # (E, 1)
    numbers = ops.arange(1, examples_per_row + 1, dtype="int32")[:, None]
    own = ops.cast(example_ids, "int32")[:, None, :] == numbers  # (B, E, T)
    # The first of equal ones; an example that is not there gets column 0.
    first = ops.argmax(ops.cast(own, "int32"), axis=-1)  # (B, E)
    return gather_positions(sequence, first)


def gather_positions(sequence, positions):
    """Vectors of `sequence` (B, T, D) at `positions` (B, M): (B, M, D)."""
    batch, length, width = ops.shape(sequence)
    # Where each row begins among B T vectors, (B, 1).
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * length
    flat = ops.reshape(ops.cast(positions, "int32") + rows, (-1,))  # (B M,)
    # (B T, D) to (B M, D): one gather over all rows
    picked = ops.take(ops.reshape(sequence, (-1, width)), flat, axis=0)
    return ops.reshape(picked, (batch, ops.shape(positions)[1], width))


# Token, position and segment embeddings.


@keras.saving.register_keras_serializable("bert_keras")
class Table(KeepsLora, keras.layers.Embedding):
    """Keras's `Embedding`, whose table gets its gradient as one tensor.

    TensorFlow's own gradient would be a list of rows, to which the gradient
    of the tied output layer is added row by row, and which replicas would
    exchange as such a list.
    """

    def __init__(self, input_dim, output_dim, **kwargs):
        kwargs.setdefault("embeddings_initializer", weights_initializer())
        super().__init__(input_dim, output_dim, **kwargs)

    def call(self, inputs):
        # Reshaped into its own shape: a tensor, where the custom gradient
        # does not take a variable.
        table = ops.reshape(self.embeddings, (self.input_dim, self.output_dim))
        if self.input_dim <= 4:
            # For so few rows a product is faster than a gather, both ways.
            # (B, T, input_dim) by (input_dim, D)
            one_hot = ops.one_hot(inputs, self.input_dim, dtype=table.dtype)
            return ops.matmul(one_hot, table)
        return _rows(table, inputs)


def _rows(table, ids):
    height, width = table.shape

    @own_gradient
    def rows(table):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.reshape(upstream, (-1, width))  # (B T, D)
            # (V, D): each row the sum over the places of its id
            return ops.segment_sum(upstream, ops.reshape(ids, (-1,)), height)

        return gather(table, ids), gradient  # (B, T, D)

    return rows(table)


@keras.saving.register_keras_serializable("bert_keras")
class BertEmbeddings(SeededLayer):
    """The sum of token, position and segment vectors, normalised.

    Sum, then layer normalisation in float32, then dropout. Padding gets a
    vector like any token; attention leaves it out. Equals `embedding_lookup`
    with `embedding_postprocessor` of the original.

    Args:
        vocabulary_size: number of word pieces.
        hidden_dim: width of a vector.
        max_sequence_length: number of positions that have a vector.
        num_segments: number of segments that have a vector.
        dropout: share of the output dropped in training.
        norm_epsilon: added to a variance before its root.

    Call arguments:
        token_ids: int32 (B, T).
        segment_ids: int32 (B, T); all 0 where None.
        position_ids: int32 (B, T); 0, 1, 2, ... where None.
        training: bool.

    Returns:
        float (B, T, D).

    Raises:
        InputError: T is above `max_sequence_length`.

    Example:
    >>> BertEmbeddings(100, 8)(np.array([[2, 45, 3]])).shape
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
        # The three tables of the paper's figure 2.
        self.token = self._table(vocabulary_size, "token")
        self.position = self._table(max_sequence_length, "position")
        self.segment = self._table(num_segments, "segment")
        self.norm = LayerNorm(
            epsilon=norm_epsilon, name="norm", dtype=self.variable_dtype
        )

    def _table(self, rows, name):
        # The sum and its normalisation stay in the variables' precision.
        return Table(
            rows, self.hidden_dim, name=name, dtype=self.variable_dtype
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
            position_ids = self._positions(token_ids)
        if segment_ids is None:
            segment_ids = ops.zeros((1,), "int32")  # (1,), broadcasts
        x = self.token(token_ids)  # (B, T, D)
        # (1, D) and (T, D) where the ids were left out: the same for all rows.
        x = x + self.segment(segment_ids) + self.position(position_ids)
        x = dropout(self.norm(x), self.dropout, self.draw_seed(training))
        return ops.cast(x, self.compute_dtype)

    def _positions(self, token_ids):
        length = ops.shape(token_ids)[1]
        # A graph with T unknown cannot say so; its gather does, on a CPU.
        if isinstance(length, int) and length > self.max_sequence_length:
            raise InputError(
                f"The rows are {length} tokens long, but the model has "
                f"{self.max_sequence_length} positions. Shorten the rows "
                "(`sequence_length` of the preprocessor)."
            )
        return ops.arange(length, dtype="int32")  # (T,)

    def compute_output_shape(self, token_ids_shape, *args, **kwargs):
        return (*token_ids_shape, self.hidden_dim)
