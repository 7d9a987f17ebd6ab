"""The training step of a global batch on JAX, on any number of devices.

Under `keras.distribution.DataParallel`, each sum over the batch is a sum over
all devices. So the code does not depend on the number of devices.
"""

import warnings

import jax
import keras
from jax import numpy as jnp
from keras import tree

from bert_keras.errors import InputError
from bert_keras.modeling import keras_adapter
from bert_keras.modeling.weights import split_trainable
from bert_keras.training import step


def train_step(model, state, data):
    """Take one optimizer step; return the logs and the new state."""
    trainable, _, optimizer_variables, _ = state
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    step.prepare_optimizer(model)
    divisors = step.compute_divisors(model, batch)
    values, gradients, non_trainable, metrics = _compute_gradients(
        model, state, batch, divisors
    )
    trainable, optimizer_variables = _apply(
        model, optimizer_variables, gradients, trainable
    )
    logs, metrics = _track(model, metrics, values, divisors)
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def _compute_gradients(model, state, batch, divisors):
    """Return losses, gradients, new non-trainable variables and metrics."""
    trainable, non_trainable, optimizer_variables, metrics = state

    def loss(trainable, non_trainable, metrics, micro_batch, gradient):
        values = trainable, non_trainable, metrics, optimizer_variables
        # JAX needs a function without side effects. So the values of variables
        # are arguments and results.
        with _make_stateless_scope(model, *values) as scope:
            total, each = _compute_losses(
                model, micro_batch, divisors, True, gradient
            )
            scaled = model.optimizer.scale_loss(total)
        return scaled, (each, *_read_scope(model, scope))

    differentiate = jax.value_and_grad(loss, has_aux=True)

    def add(sums, micro_batch):
        values, gradients, *variables = sums
        # Each micro-batch gets the seeds and metrics of the one before.
        (_, (each, *variables)), new = differentiate(
            trainable, *variables, *micro_batch
        )
        gradients = [a + b for a, b in zip(gradients, new, strict=True)]
        return (values + each, gradients, *variables), None

    # The sums start at 0, and the seeds and metrics at their current values.
    zeros = [jnp.zeros_like(weight) for weight in trainable]
    values, gradient = jnp.zeros_like(divisors), None
    if step.caches_gradients(model):
        values, metrics, gradient = _differentiate_outputs(
            model, (trainable, non_trainable, metrics), batch, divisors
        )
    sums = (values, zeros, non_trainable, metrics)
    accumulate = step.count_micro_batches(model)
    if accumulate == 1:
        return add(sums, (batch, gradient))[0]
    # `scan` compiles `add` once and runs one micro-batch at a time.
    micro_batches = _split_micro_batches((batch, gradient), accumulate)
    return jax.lax.scan(add, sums, micro_batches)[0]


def _differentiate_outputs(model, state, batch, divisors):
    """Do what precedes the second pass of `step.caches_gradients`.

    Returns:
        The losses to log, the metrics, and the gradient of the losses by the
        model's outputs for the batch.
    """
    x, y, weights = batch
    trainable, non_trainable, metrics = state

    def compute(non_trainable, x):
        values = trainable, non_trainable, metrics
        with _make_stateless_scope(model, *values) as scope:
            outputs = model(x, training=True)
        return _read_scope(model, scope)[0], outputs

    # (micro-batches, rows, K, D). The seeds that `scan` returns are not used,
    # so the second pass draws the same dropout masks.
    _, outputs = jax.lax.scan(
        compute,
        non_trainable,
        _split_micro_batches(x, step.count_micro_batches(model)),
    )
    # (B, K, D), in the order before `_split_micro_batches`.
    outputs = jnp.moveaxis(outputs, 1, 0)
    outputs = step.widen(jnp.reshape(outputs, (-1, *outputs.shape[2:])))

    def loss(outputs):
        with _make_stateless_scope(model, *state) as scope:
            model.compute_metrics(x, y, outputs, weights)
            total, values = step.compute_output_losses(
                model, batch, outputs, divisors
            )
        return total, (values, _read_scope(model, scope)[1])

    (_, (values, metrics)), gradient = jax.value_and_grad(loss, has_aux=True)(
        outputs
    )
    return values, metrics, gradient


def test_step(model, state, data):
    """Compute the losses of the global batch; return logs and new state."""
    trainable, non_trainable, metrics = state
    batch = keras.utils.unpack_x_y_sample_weight(data)
    step.build(model, batch)
    divisors = step.compute_divisors(model, batch)
    with _make_stateless_scope(model, *state) as scope:
        _, values = _compute_losses(model, batch, divisors, training=False)
    non_trainable, metrics = _read_scope(model, scope)
    logs, metrics = _track(model, metrics, values, divisors)
    return logs, (trainable, non_trainable, metrics)


def _apply(model, optimizer_variables, gradients, trainable):
    """Return the new weights and optimizer variables.

    Weights that the step leaves out stay the same, and so do their averages.
    """
    optimizer, left_out = model.optimizer, split_trainable(model)[1]
    ids = {id(weight) for weight in left_out}
    gradients = [
        None if id(weight) in ids else gradient
        for weight, gradient in zip(
            model.trainable_variables, gradients, strict=True
        )
    ]

    def reset_averages(values):
        mapping = [
            *zip(model.trainable_variables, trainable, strict=True),
            *zip(optimizer.variables, values, strict=True),
        ]
        with keras.StatelessScope(mapping) as scope:
            keras_adapter.reset_averages(optimizer, left_out)
        return [scope.get_current_value(v) for v in optimizer.variables]

    with (
        warnings.catch_warnings(),
        keras_adapter.summed_gradients(optimizer),
    ):
        # Keras leaves out weights without a gradient, but with a warning.
        warnings.filterwarnings("ignore", "Gradients do not exist")
        new, values = optimizer.stateless_apply(
            reset_averages(optimizer_variables), gradients, trainable
        )
    new = [
        old if gradient is None else value
        for old, gradient, value in zip(trainable, gradients, new, strict=True)
    ]
    return new, reset_averages(values)


def _compute_losses(model, batch, divisors, training, gradient=None):
    """Return the losses of a batch or a micro-batch; update the metrics.

    With `gradient`, return `step.continue_losses` instead.
    """
    x, y, weights = batch
    outputs = model(x, training=training)
    if gradient is not None:
        return step.continue_losses(model, batch, outputs, divisors, gradient)
    model.compute_metrics(x, y, outputs, weights)
    return step.compute_losses(model, batch, outputs, divisors)


def _make_stateless_scope(
    model, trainable, non_trainable, metrics, optimizer=()
):
    mapping = [
        *zip(model.trainable_variables, trainable, strict=True),
        *zip(model.non_trainable_variables, non_trainable, strict=True),
        *zip(model.metrics_variables, metrics, strict=True),
        # Evaluation passes no optimizer variables.
        *zip(model.optimizer.variables, optimizer, strict=False),
    ]
    return keras.StatelessScope(mapping, collect_losses=True)


def _read_scope(model, scope):
    """Return lists of the new values of non-trainable variables and metrics."""
    return tuple(
        [scope.get_current_value(variable) for variable in variables]
        for variables in (
            model.non_trainable_variables,
            model.metrics_variables,
        )
    )


def _track(model, metrics, values, divisors):
    mapping = list(zip(model.metrics_variables, metrics, strict=True))
    with keras.StatelessScope(mapping) as scope:
        step.track(model, values, divisors)
        logs = model.get_metrics_result()
    metrics = [scope.get_current_value(v) for v in model.metrics_variables]
    return logs, metrics


def _split_micro_batches(batch, accumulate):
    """Reshape arrays (B, ...) to (micro-batches, rows per micro-batch, ...).

    A device holds successive rows of the batch. A micro-batch takes every
    `accumulate`-th row, so it has rows of all devices.
    """
    count = step.count_rows(batch)
    if count % accumulate:
        raise InputError(
            f"A batch of {count} rows cannot be cut into {accumulate} equal "
            "parts. Use a batch size that is a multiple of accumulate, and "
            "batch with drop_remainder=True."
        )

    def cut(values):
        if values is None:
            return None
        # (B, ...) to (rows per micro-batch, micro-batches, ...)
        values = jnp.reshape(values, (-1, accumulate, *values.shape[1:]))
        # (micro-batches, rows per micro-batch, ...)
        return jnp.moveaxis(values, 1, 0)

    return tree.map_structure(cut, batch)
