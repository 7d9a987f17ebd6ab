"""Everything that exists for speed or for a defect of a backend.

The layers call it where the plain formula would be slower, take more memory or
come out wrong on some backend: gradients written out, arithmetic that XLA
compiles, dropout of 16 bits, sums in bfloat16, memory without copies, and
nothing computed on padding. Each function's forward pass is the plain formula.
"""

import contextlib
import contextvars
import functools
import itertools
import math
import weakref
from typing import Any, NamedTuple

import keras
from keras import ops

from bert_keras.modeling.weights import paged_zeros

tf: Any = None
record: Any = None
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf  # type: ignore[no-redef]

    # Private: the public `tf.custom_gradient` keeps every graph for ever.
    from tensorflow.python.eager import record  # type: ignore[no-redef]
    from tensorflow.python.framework.ops import gradient_registry


class Mode(NamedTuple):
    """How models that are made or called within `mode()` compute."""

    # False: weights begin at zero, because they are loaded next.
    draw_weights: bool = True
    # False: outputs alone. TensorFlow warns whoever loads a SavedModel of
    # gradients that it lacks, and with them it loads more slowly.
    gradients: bool = True
    # True: on TensorFlow, XLA compiles the functions with `compile_large`.
    compile_large: bool = False
    # True: encoders compute nothing but attention on padding. Their outputs
    # are the same at real tokens; at padding they repeat a real token of the
    # same row. It takes a backend that allows shapes that depend on values:
    # TensorFlow without XLA, or anything eager.
    skip_padding: bool = False


_DEFAULT = Mode()
_mode = contextvars.ContextVar("mode", default=_DEFAULT)


@contextlib.contextmanager
def mode(**changes):
    """Change fields of `Mode` inside the `with` block."""
    token = _mode.set(_mode.get()._replace(**changes))
    try:
        yield
    finally:
        _mode.reset(token)


def current_mode():
    """Return the `Mode` in force."""
    return _mode.get()


# Gradients that are written out.


def custom_gradient(function):
    """Wrap `function` as `ops.custom_gradient` does, for tensors alone.

    TensorFlow's own registers the gradients of a graph for the whole process,
    so that neither the graph nor the weights that it reads are ever freed.
    Here the graph keeps its gradients, and the registry loses them with it.
    """
    from_keras = ops.custom_gradient(function)

    @functools.wraps(function)
    def compute(*tensors):
        if not _mode.get().gradients:
            return function(*tensors)[0]
        if tf is None or tf.executing_eagerly():
            return from_keras(*tensors)
        return _record_in_graph(function, tensors)

    return compute


_numbers = itertools.count()


def _record_in_graph(function, tensors):
    """Compute the value, and record its gradient for every way to ask for it.

    A tape in the same graph calls what is recorded; a tape around the graph,
    a loop and a SavedModel go by the name that the operation has.
    """
    tensors = [tf.convert_to_tensor(x) for x in tensors]
    value, gradient = function(*tensors)

    def gradients(upstream, *_):
        # One for each input of the operation; none for the value itself.
        return [None, *tf.nest.flatten(gradient(upstream))]

    name = f"bert_keras_gradient_{next(_numbers)}"
    _register(name, value.graph, gradients)
    inputs = [value, *tensors]
    with value.graph.gradient_override_map({"IdentityN": name}):
        outputs = tf.identity_n(inputs)
    record.record_operation(name, outputs, inputs, gradients)
    return outputs[0]


def _register(name, graph, gradients):
    """Register gradients for as long as the graph lives."""
    setattr(graph, name, gradients)
    reference = weakref.ref(graph)
    tf.RegisterGradient(name)(
        lambda _, *upstream: getattr(reference(), name)(*upstream)
    )
    weakref.finalize(graph, gradient_registry._registry.pop, name, None)


# Weights that are loaded next, without drawing or copying them.


@keras.saving.register_keras_serializable("bert_keras")
class Unwritten(keras.initializers.Zeros):
    """Zeros that, on TensorFlow, take no memory before they are replaced."""

    def __call__(self, shape, dtype=None):
        if tf is None or dtype != "float32":
            return super().__call__(shape, dtype)
        return share_memory(paged_zeros(shape))


def share_memory(array):
    """Return NumPy's float32 array as TensorFlow's tensor in the same memory.

    Keras would have TensorFlow copy it twice. Do not write to `array`
    afterwards, nor pass memory that a file or a caller may change: the
    variable that takes the tensor would change with it. TensorFlow itself
    writes to no memory that is not its own; a variable gets some at its first
    update. Arrays of other dtypes, and on other backends, are returned
    unchanged; so are those that do not begin at a multiple of 64 bytes, which
    TensorFlow takes and then computes with as if they did: a crash.
    """
    fits = (
        array.dtype == "float32"
        and array.flags.carray
        and array.ctypes.data % 64 == 0
    )
    if tf is None or not fits:
        return array
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


# Long chains of arithmetic on large tensors, which XLA makes one pass each.

# Elements from which that is worth its launch, and its compiling once a shape.
LARGE = 2**18


def compile_large(function):
    """Compile a function of tensors in a training step on a CPU.

    Within `mode(compile_large=True)`, where all shapes are known, so that each
    is compiled once, in a tenth of a second. Otherwise, and for small tensors,
    it is computed as it is written.
    """

    @functools.cache
    def by_xla():
        return tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def compute(*tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if (
            tf is not None
            and _mode.get().compile_large
            and all(None not in shape for shape in shapes)
            and max(map(math.prod, shapes)) >= LARGE
        ):
            return by_xla()(*tensors)
        return function(*tensors)

    return compute


# The two forms of GELU that BERT models were trained with.

# The tanh form replaces erf(x / sqrt(2)) by tanh(x (A + B x x)) (Hendrycks and
# Gimpel 2016, section 2).
_A = 0.7978845608028654  # sqrt(2 / pi)
_B = 0.044715 * _A
_C = 0.7071067811865476  # 1 / sqrt(2)


@compile_large
@custom_gradient
def gelu_tanh(x):
    """Compute GELU by the tanh approximation: the original since 2019.

    The gradient keeps `x` alone, not five tensors as wide as the widest of
    the model, and takes a quarter less time on a CPU.
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


@compile_large
@custom_gradient
def gelu_exact(x):
    """Compute GELU by the error function: the original at its release.

    Written with `erf` because Keras's own form exports to an ONNX file that
    no runtime reads. The gradient keeps `x` alone.
    """

    def gradient(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        below = 0.5 + 0.5 * ops.erf(x * _C)
        # The normal distribution's density at x
        density = 0.5 * _A * ops.exp(-0.5 * (x * x))
        return upstream * (below + x * density)

    # x times the fraction of a normal distribution that lies below x
    return 0.5 * x * (1.0 + ops.erf(x * _C)), gradient


# Products and sums.


def add_bias(x, bias):
    """Add `bias` (D,) to `x` (rows, D), both of one dtype.

    TensorFlow on a CPU sums the gradient's rows in bfloat16, and the bias of
    1,024 rows gets one that is wrong by 4 %, of 4,096 rows by 7 %. A product
    with ones sums them in float32, and takes half the time.
    """
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        return _add_bias_in_bfloat16(x, bias)
    return ops.add(x, bias)


@custom_gradient
def _add_bias_in_bfloat16(x, bias):
    def gradient(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        ones = ops.ones((1, ops.shape(upstream)[0]), upstream.dtype)
        return upstream, ops.matmul(ones, upstream)[0]

    return ops.add(x, bias), gradient


@custom_gradient
def multiply_by_rows(x, table):
    """Multiply `x` (rows, D) by each row of `table` (V, D): (rows, V).

    The gradient of the table comes as (V, D): transposing a (D, V) array costs
    4 % of a small model's step on a CPU.
    """

    def gradient(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        of_x = ops.matmul(upstream, table)  # (rows, D)
        of_table = ops.matmul(ops.transpose(upstream), x)  # (V, D)
        return of_x, of_table

    return ops.matmul(x, ops.transpose(table)), gradient


def normalize(x, gamma, beta, epsilon):
    """Normalize `x` (..., D) over the last axis; scale by gamma, add beta.

    The gradient keeps one tensor as wide as `x` and takes a third less time on
    a CPU.
    """

    @custom_gradient
    def compute(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)  # (..., D)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        # One over the standard deviation, (..., 1), and the input in units of
        # it: these two, and gamma, are all that the gradient keeps.
        inverse = ops.rsqrt(variance + epsilon)
        unit = centred * inverse

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return _norm_gradients(upstream, unit, inverse, gamma)

        return unit * gamma + beta, gradient

    return compute(x, gamma, beta)


def _norm_gradients(upstream, unit, inverse, gamma):
    """Return the gradients of the input (..., D), of gamma and beta (D,)."""
    tokens = tuple(range(len(unit.shape) - 1))  # every axis but the last
    of_gamma = ops.sum(upstream * unit, axis=tokens)
    of_beta = ops.sum(upstream, axis=tokens)
    of_unit = upstream * gamma
    # The mean and the standard deviation depend on x too.
    mean = ops.mean(of_unit, axis=-1, keepdims=True)
    along = ops.mean(of_unit * unit, axis=-1, keepdims=True)
    return (of_unit - mean - unit * along) * inverse, of_gamma, of_beta


@compile_large
def cross_entropy(labels, logits):
    """Compute the cross entropy of labels (...) and logits (..., C): (...).

    The gradient keeps the logits alone. A label that no logit has gives NaN.
    """
    classes = ops.shape(logits)[-1]
    known = ops.logical_and(labels >= 0, labels < classes)
    # Looked up, not compared with every class: without XLA that is (..., C).
    columns = ops.where(known, labels, 0)[..., None]

    @custom_gradient
    def losses(logits):
        top = ops.max(logits, axis=-1, keepdims=True)
        total = ops.sum(ops.exp(logits - top), axis=-1, keepdims=True)
        log_total = top + ops.log(total)  # (..., 1)
        of_label = ops.take_along_axis(logits, columns, axis=-1)  # (..., 1)

        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            probabilities = ops.exp(logits - log_total)  # (..., C)
            of_label = ops.take_along_axis(probabilities, columns, axis=-1)
            rows = ops.arange(ops.size(columns), dtype="int32")  # (N,)
            # The probability of the label less 1, the others as they are.
            difference = ops.scatter_update(
                ops.reshape(probabilities, (-1, classes)),
                ops.stack([rows, ops.reshape(columns, (-1,))], axis=1),
                ops.reshape(of_label, (-1,)) - 1.0,
            )
            difference = ops.reshape(difference, ops.shape(logits))
            return upstream[..., None] * difference

        return (log_total - of_label)[..., 0], gradient

    return ops.where(known, losses(logits), float("nan"))


# Looking rows up.


def gather(x, indices):
    """Return the rows of `x` at `indices`: (*indices.shape, *row).

    A negative index is an error, as one beyond the last row is: Keras would
    count it from the end, which takes four operations more on TensorFlow.
    """
    if tf is not None:
        return tf.gather(x, indices)
    height = x.shape[0]
    return ops.take(
        x, ops.where(indices < 0, indices - height, indices), axis=0
    )


def look_up(table, ids):
    """Return the rows of `table` (V, D) at `ids` (B, T): (B, T, D).

    The table gets its gradient as one tensor. TensorFlow's own would be a list
    of rows, to which the gradient of the tied output layer is added row by
    row, and which replicas would exchange as such a list.
    """
    height, width = table.shape
    # Of a single row the ids are all 0, and a gather refuses a pair's 1, which
    # is a row of zeros in a product.
    if 1 < height <= 4:
        # For so few rows a product is faster than a gather, both ways:
        # (B, T, V) by (V, D)
        return ops.matmul(ops.one_hot(ids, height, dtype=table.dtype), table)

    @custom_gradient
    def compute(table):
        def gradient(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            upstream = ops.reshape(upstream, (-1, width))  # (B T, D)
            # (V, D): each row the sum over the positions of its id
            return ops.segment_sum(upstream, ops.reshape(ids, (-1,)), height)

        return gather(table, ids), gradient  # (B, T, D)

    return compute(table)


# Dropout whose seed is drawn once a layer and passed on as a tensor. A layer
# that is computed a second time for its gradient (rematerialisation) is given
# the same seed and drops the same units.

# Each unit takes 16 random bits, so its rate is met to 1 in 131072.
# Keras's own dropout spends 32 bits, and in bfloat16 compares seven of them,
# so that it drops 13/128 where 1/10 was asked for.
_LEVELS = 65536


class DrawnSeed(keras.random.SeedGenerator):
    """A seed already drawn, where Keras takes a generator."""

    def __init__(self, value):
        self.value = value

    def next(self, ordered=True):
        return self.value


def dropout(x, rate, seed, site=0):
    """Drop units of `x` at `rate`, by the mask of `seed` at this `site`.

    The units kept are scaled by 1 / (1 - rate). `site` distinguishes the calls
    of one layer that share one drawn seed; nothing is dropped without a seed.
    """
    if seed is None or not rate:
        return x
    # Of the 65536 numbers, those that drop a unit: the lowest.
    dropped = round(rate * _LEVELS)
    # Keras counts the calls in the second number of a seed, so the first is
    # free for the site.
    offset = ops.convert_to_tensor([site, 0], dtype=seed.dtype)
    bits = _random_int16(ops.shape(x), DrawnSeed(seed + offset))
    keep = ops.greater_equal(bits, dropped - _LEVELS // 2)
    # 1 / (1 - rate), of the rate that is really met
    scale = ops.convert_to_tensor(_LEVELS / (_LEVELS - dropped), x.dtype)
    return x * ops.where(keep, scale, ops.zeros((), x.dtype))


def _random_int16(shape, seed):
    """Draw every 16-bit number equally often, two from each random word."""
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


def add_replica(seed):
    """Add the replica's number to a seed, far above the sites of a layer.

    Under `tf.distribute` all replicas hold one state and would draw the same
    mask. The number is not added to the count of the calls, which Keras takes
    modulo 2**31 - 2: there, a replica would repeat what another one drew
    before. On JAX a mask is drawn for the whole batch, wherever its rows lie.
    """
    if tf is None:
        return seed
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = ops.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + ops.stack([replica * 2**20, ops.zeros_like(replica)])


# Computing a layer twice instead of keeping its tensors.


def rematerialize(function, x, variables):
    """Compute `function(x)`, and once more for the gradient.

    `keras.remat` on TensorFlow registers a gradient for each graph, which
    then is never freed (see `custom_gradient`).

    Args:
        function: of one tensor; reads no other variables.
        x: float tensor.
        variables: Keras variables that `function` reads.
    """
    # Eagerly there is no graph to keep, and TensorFlow's `custom_gradient`
    # wants the variables by name.
    if tf is None or tf.executing_eagerly():
        return keras.remat(function)(x)

    def call(x, *values):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(x)

    @custom_gradient
    def compute(*inputs):
        with record.stop_recording():  # no tape keeps what is inside
            y = call(*inputs)

        def gradient(upstream):
            again = [_after(inputs[0], upstream), *map(tf.identity, inputs[1:])]
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = call(*again)
            return tape.gradient(y, again, upstream)

        return y, gradient

    return compute(x, *(ops.convert_to_tensor(v) for v in variables))


def _after(x, upstream):
    """Return `x`, such that no compiler can compute it before `upstream`.

    It would find the second computation equal to the first and keep that.
    """
    first = tf.reduce_max(tf.reshape(upstream, (-1,))[:1])
    # Equal for every value, which no compiler knows.
    is_known = tf.cast(first, tf.bool)
    zero = tf.where(tf.equal(is_known, is_known), 0.0, float("nan"))
    return x + tf.cast(zero, x.dtype)


# Fused attention.


def has_fused_attention(bias):
    """Return True if Keras has a fused kernel that is faster and as exact.

    On TensorFlow it has none, and on JAX's CPU it is slower than plain
    products. On a TPU Keras leaves the bias out.
    """
    if keras.backend.backend() != "jax":
        return False
    device = keras.distribution.list_devices()[0].split(":")[0]
    return device == "gpu" or (device == "tpu" and bias is None)


def attend(query, key, value, bias):
    """Compute attention of scaled queries, (B, N, T, H) each, by the kernel."""
    # (B, N, T, H) to (B, T, N, H), as Keras takes them
    parts = [ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
    if bias is not None:
        # cuDNN's kernel wants every row of the bias.
        length = ops.shape(query)[2]
        shape = (ops.shape(bias)[0], 1, length, length)  # (B, 1, T, S)
        bias = ops.broadcast_to(ops.cast(bias, query.dtype), shape)
    # The query is scaled already.
    context = ops.dot_product_attention(*parts, bias=bias, scale=1.0)
    return ops.transpose(context, (0, 2, 1, 3))  # (B, N, T, H)


# Leaving padding out.


def find_real_tokens(padding_mask, num_heads):
    """Return `RealTokens` within `mode(skip_padding=True)`, else None."""
    if padding_mask is None or not _mode.get().skip_padding:
        return None
    return RealTokens(padding_mask, num_heads)


class RealTokens:
    """The positions of the real tokens of a batch, L in all.

    The first token of a row counts as real, whatever the mask says, so that
    every row has one. Computed once for all layers.

    Args:
        padding_mask: int (B, T), 1 at tokens.
        num_heads: number of attention heads, N.
    """

    def __init__(self, padding_mask, num_heads):
        shape = ops.shape(padding_mask)
        self.length = shape[1]
        is_first = ops.equal(ops.arange(self.length), 0)
        is_real = ops.logical_or(ops.cast(padding_mask, "bool"), is_first)
        flat = ops.reshape(is_real, (-1,))  # (B T,)
        (positions,) = ops.nonzero(flat)
        # For each real token its index among B T, (L,); for each position the
        # token that stands there or was the last before it, (B, T).
        self.positions = ops.cast(positions, "int32")
        tokens = ops.cumsum(ops.cast(flat, "int32")) - 1
        self.tokens = ops.reshape(tokens, shape)
        # The same of heads: for each position of each the head among L N,
        # (B, N, T), and for each token its heads among B N T, (L, N).
        self.num_heads = num_heads
        heads = ops.arange(num_heads, dtype="int32")
        self.heads = self.tokens[:, None] * num_heads + heads[:, None]
        row, column = self.positions // self.length, self.position_ids()
        first = row * num_heads * self.length + column  # (L,)
        self.head_positions = first[:, None] + heads * self.length

    def select(self, x):
        """Return the values (B, T) of the real tokens alone, (L,)."""
        return gather(ops.reshape(x, (-1,)), self.positions)

    def position_ids(self):
        """Return the position of each real token in its row, (L,)."""
        return self.positions % self.length

    def put_in_rows(self, x):
        """Put vectors (L, D) back in their rows, (B, T, D)."""
        return gather(x, self.tokens)

    def split_heads(self, x):
        """Put vectors (L, D) in rows, by heads: (B, N, T, H).

        One copy, as splitting rows would be.
        """
        x = ops.reshape(x, (-1, x.shape[-1] // self.num_heads))  # (L N, H)
        return gather(x, self.heads)

    def merge_heads(self, x):
        """Turn heads (B, N, T, H) into vectors of real tokens, (L, D)."""
        width = x.shape[-1]
        x = ops.reshape(x, (-1, width))  # (B N T, H)
        x = gather(x, self.head_positions)  # (L, N, H)
        return ops.reshape(x, (-1, self.num_heads * width))  # (L, D)
