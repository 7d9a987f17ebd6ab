"""Functions that replace a backend's own, for speed, memory or precision.

Most have a hand-written gradient, because the backend's is slower, keeps more
tensors or is less precise. The values are those of the plain formulas.
"""

import functools
import math

import keras
from keras import ops

from bert_keras.modeling import modes
from bert_keras.modeling.gradients import custom_gradient, tf

# For fewer elements, the launch of XLA takes more time than XLA saves.
LARGE = 2**18


def compile_large(function):
    """Let XLA fuse a function's operations, to read memory only once.

    On TensorFlow within `modes.use(compile_large=True)`, XLA compiles the
    function if all shapes are known and a tensor has at least `LARGE` elements.
    The compilation takes 0.1 s for each new shape.
    """

    @functools.cache
    def by_xla():
        return tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def compute(*tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if (
            tf is not None
            and modes.current().compile_large
            and not any(None in shape for shape in shapes)
            and max(map(math.prod, shapes)) >= LARGE
        ):
            return by_xla()(*tensors)
        return function(*tensors)

    return compute


# BERT models use two forms of GELU, with erf(_C x) or its approximation
# tanh(x (_A + _B x x)) (Hendrycks and Gimpel 2016, section 2).
_A = 0.7978845608028654  # sqrt(2 / pi)
_B = 0.044715 * _A
_C = 0.7071067811865476  # 1 / sqrt(2)


@compile_large
@custom_gradient
def gelu_tanh(x):
    """Compute GELU by the tanh approximation, like the original since 2019.

    Automatic differentiation keeps five tensors of the shape of `x`. This
    gradient keeps only `x` and takes a quarter less time on a CPU.
    """

    def gradient(upstream):
        square = x * x
        t = ops.tanh(x * (_A + _B * square))
        # d/dx [x (1 + t) / 2], with (1 + t) / 2 factored out
        factor = 1.0 + x * (1.0 - t) * (_A + 3.0 * _B * square)
        return upstream * ((0.5 + 0.5 * t) * factor)

    return x * (0.5 + 0.5 * ops.tanh(x * (_A + _B * (x * x)))), gradient


@compile_large
@custom_gradient
def gelu_exact(x):
    """Compute GELU by the error function, as the original did at its release.

    Keras's exact GELU calls `erfc`. ONNX has no operator for `erfc`, so this
    function calls `erf`. Only `x` is kept for the gradient.
    """

    def gradient(upstream):
        below = 0.5 + 0.5 * ops.erf(x * _C)
        # Density of the standard normal distribution at x
        density = 0.5 * _A * ops.exp(-0.5 * (x * x))
        return upstream * (below + x * density)

    # x times the cumulative probability of the standard normal distribution
    return 0.5 * x * (1.0 + ops.erf(x * _C)), gradient


def add_bias(x, bias):
    """Add `bias` (D,) to `x` (rows, D) of the same dtype.

    The bias's gradient is a sum over the rows. For bfloat16 on a CPU,
    TensorFlow's sum has an error of 4 % for 1,024 rows and 7 % for 4,096. So
    for bfloat16, a float32 product with ones computes the sum, and only the
    result is rounded. A bfloat16 product would be rounded after each block of
    rows if the processor has no bfloat16 instructions.
    """
    if keras.backend.standardize_dtype(x.dtype) == "bfloat16":
        return _add_bias_in_bfloat16(x, bias)
    return ops.add(x, bias)


@custom_gradient
def _add_bias_in_bfloat16(x, bias):
    def gradient(upstream):
        rows = ops.cast(upstream, "float32")
        ones = ops.ones((1, ops.shape(rows)[0]), "float32")
        total = ops.cast(ops.matmul(ones, rows)[0], upstream.dtype)
        return upstream, total  # (rows, D), (D,)

    return ops.add(x, bias), gradient


@custom_gradient
def multiply_by_rows(x, table):
    """Return `x` (rows, D) times the transposed `table` (V, D): (rows, V).

    The table's gradient is computed as (V, D). TensorFlow would compute (D, V)
    and transpose it, which takes 4 % of a small model's step on a CPU.
    """

    def gradient(upstream):
        x_gradient = ops.matmul(upstream, table)  # (rows, D)
        table_gradient = ops.matmul(ops.transpose(upstream), x)  # (V, D)
        return x_gradient, table_gradient

    return ops.matmul(x, ops.transpose(table)), gradient  # (rows, V)


def normalize(x, gamma, beta, epsilon):
    """Normalize `x` (..., D) over the last axis; scale by gamma, add beta.

    Only one (..., D) tensor is stored for the gradient. On a CPU, the gradient
    takes a third less time than automatic differentiation.
    """

    @custom_gradient
    def compute(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)  # (..., D)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        # Three tensors are stored for the gradient: gamma (D,),
        # 1 / std (..., 1) and z = (x - mean) / std (..., D).
        inverse_std = ops.rsqrt(variance + epsilon)
        z = centred * inverse_std

        def gradient(upstream):
            tokens = tuple(range(len(z.shape) - 1))  # every axis but the last
            gamma_gradient = ops.sum(upstream * z, axis=tokens)  # (D,)
            beta_gradient = ops.sum(upstream, axis=tokens)  # (D,)
            z_gradient = upstream * gamma
            # x also affects z through its mean and its standard deviation.
            by_mean = ops.mean(z_gradient, axis=-1, keepdims=True)
            by_std = z * ops.mean(z_gradient * z, axis=-1, keepdims=True)
            x_gradient = (z_gradient - by_mean - by_std) * inverse_std
            return x_gradient, gamma_gradient, beta_gradient

        return z * gamma + beta, gradient

    return compute(x, gamma, beta)


@compile_large
def cross_entropy(labels, logits):
    """Return the cross entropy (...) of labels (...) and logits (..., C).

    The logits are the only (..., C) tensor that is stored for the gradient. For
    a label outside of 0 to C - 1, the result is NaN.
    """
    classes = ops.shape(logits)[-1]
    is_class = ops.logical_and(labels >= 0, labels < classes)
    # Labels are used as indices. Without XLA, a comparison of the labels with
    # all classes would make a (..., C) tensor.
    columns = ops.where(is_class, labels, 0)[..., None]  # (..., 1)

    @custom_gradient
    def losses(logits):
        top = ops.max(logits, axis=-1, keepdims=True)
        total = ops.sum(ops.exp(logits - top), axis=-1, keepdims=True)
        log_total = top + ops.log(total)  # (..., 1)
        label_logits = ops.take_along_axis(logits, columns, axis=-1)

        def gradient(upstream):
            probabilities = ops.exp(logits - log_total)  # (..., C)
            right = ops.take_along_axis(probabilities, columns, axis=-1)
            rows = ops.arange(ops.size(columns), dtype="int32")  # (N,)
            labelled = ops.stack([rows, ops.reshape(columns, (-1,))], axis=1)
            difference = ops.scatter_update(
                ops.reshape(probabilities, (-1, classes)),  # (N, C)
                labelled,  # (N, 2)
                ops.reshape(right, (-1,)) - 1.0,  # (N,)
            )
            difference = ops.reshape(difference, ops.shape(logits))  # (..., C)
            return upstream[..., None] * difference

        return (log_total - label_logits)[..., 0], gradient

    return ops.where(is_class, losses(logits), float("nan"))


def gather(x, indices):
    """Return the rows of `x` at `indices`: (*indices.shape, *x.shape[1:]).

    A negative index is out of range. `ops.take` would count from the end, with
    four more operations on TensorFlow.
    """
    if tf is not None:
        return tf.gather(x, indices)
    # JAX counts negative indices from the end, so move them out of range.
    indices = ops.where(indices < 0, indices - x.shape[0], indices)
    return ops.take(x, indices, axis=0)


def look_up(table, ids):
    """Return the rows of `table` (V, D) at `ids` (B, T): (B, T, D).

    The gradient of the table is a dense tensor. TensorFlow's own gradient is a
    list of rows (`IndexedSlices`), which is slow to add to the gradient of the
    tied output layer and to sum over replicas.
    """
    height, width = table.shape
    # A table of one row uses the gather: on a CPU, TensorFlow raises an error
    # for the id 1. The product below would return zeros for this id.
    if 1 < height <= 4:
        # For few rows, (B, T, V) x (V, D) is faster than a gather. The
        # comparison replaces `ops.one_hot`: ONNX's OneHot crashes ONNX Runtime
        # before 1.27 on an empty batch. With TensorFlow 2.20, `ids[..., None]`
        # becomes an operation that LiteRT lacks.
        ids = ops.expand_dims(ids, -1)  # (B, T, 1)
        one_hot = ops.equal(ids, ops.arange(height))  # (B, T, V)
        return ops.matmul(ops.cast(one_hot, table.dtype), table)

    @custom_gradient
    def compute(table):
        def gradient(upstream):
            upstream = ops.reshape(upstream, (-1, width))  # (B T, D)
            # (V, D). A row is the sum of the gradients at its id's positions.
            return ops.segment_sum(upstream, ops.reshape(ids, (-1,)), height)

        return gather(table, ids), gradient  # (B, T, D)

    return compute(table)


def has_fused_attention(bias):
    """Return True if Keras has a fast fused attention kernel for this bias.

    Keras has no such kernel on TensorFlow. On JAX, the kernel is slower than
    plain products on a CPU. On a TPU, the kernel ignores the bias.
    """
    if keras.backend.backend() != "jax":
        return False
    device = keras.distribution.list_devices()[0].split(":")[0]
    return device == "gpu" or (device == "tpu" and bias is None)


def attend(query, key, value, bias):
    """Compute attention with Keras's fused kernel.

    Query, key, value and result have the shape (B, N, T, H). The bias
    broadcasts to (B, 1, T, T), or is None.
    """
    # (B, N, T, H) to (B, T, N, H), the order of axes in Keras
    parts = [ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
    if bias is not None:
        # cuDNN's kernel needs a row of the bias for each query position.
        length = ops.shape(query)[2]
        shape = (ops.shape(bias)[0], 1, length, length)  # (B, 1, T, T)
        bias = ops.broadcast_to(ops.cast(bias, query.dtype), shape)
    # The query is scaled already.
    context = ops.dot_product_attention(*parts, bias=bias, scale=1.0)
    return ops.transpose(context, (0, 2, 1, 3))  # (B, N, T, H)
