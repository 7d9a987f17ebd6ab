"""One mathematics for any number of devices: the loss of a global batch.

The batch that `fit` is given is cut into replicas, and each replica's rows
into micro-batches that are computed one after another. Whatever the cut, each
loss is its own mean over the global batch: sum(weight x loss) / sum(weight),
and the losses are then added. What such a mean divides by follows from the
weights alone and not from the model, so it is summed over all rows of all
replicas before the first micro-batch is computed; then each micro-batch's mean
counts by its share. So no loss needs gradients of its own, and no micro-batch
a second computation.

Nothing here is TensorFlow's or JAX's; the loops over the micro-batches are in
`step_tensorflow.py` and `step_jax.py`, the sum over the replicas and the
update in `optimizers.py`.
"""

import keras
from keras import ops, tree

from bert_keras.errors import InputError


def build(model, batch):
    """Makes what `compile` has left open until the first batch is seen."""
    if model._compile_loss is None:
        raise InputError(
            "The model was compiled without a loss. Give `compile` one."
        )
    if not (model._compile_loss.built and model.optimizer.built):
        model._symbolic_build(data_batch=batch)
    paths = [item.path for item in model._compile_loss._flat_losses]
    names = [path[0] for path in paths if path and isinstance(path[0], str)]
    # Losses by name find their labels by name.
    if names and not isinstance(batch[1], dict):
        raise InputError(
            f"The labels are a {type(batch[1]).__name__}. Expected a dict by "
            f"the names of the model's outputs: {', '.join(names)}."
        )


def compares_rows(model):
    """Whether a loss compares the rows of a batch with each other."""
    items = model._compile_loss._flat_losses
    return any(getattr(item.loss, "compares_rows", False) for item in items)


def check_cut(model):
    """Refuses micro-batches to a loss that compares rows."""
    if compares_rows(model):
        raise InputError(
            "The loss compares every row of a batch with every other one, "
            "which micro-batches would part. Take accumulate=1, and a "
            "smaller batch if the memory is short."
        )


def rows(batch):
    """Number of rows: an int where it is known, else a tensor."""
    # Inputs that were left out are None.
    first = next(v for v in tree.flatten(batch) if v is not None)
    return ops.shape(first)[0]


def normalisers(model, batch):
    """What each loss's mean divides by, float (1 + losses,).

    The number of rows comes first. A mean over rows and over their elements
    divides by the elements, of which each row has the same number.
    """
    count = rows(batch)
    values = [count]
    for item in model._compile_loss._flat_losses:
        weights = _weights_at(item.path, batch[2])
        by_weight = item.loss.reduction == "mean_with_sample_weight"
        # A loss that is a sum has a place here too, which nothing reads.
        counted = by_weight and weights is not None
        values.append(ops.sum(weights) if counted else count)
    return ops.stack([ops.cast(x, keras.config.floatx()) for x in values])


def losses(model, batch, outputs, divisors, replicas=1):
    """The total of a micro-batch, then its single losses, (1 + losses,).

    Args:
        model: a model that was compiled, and has computed `outputs`.
        batch: (inputs, labels, weights) of the micro-batch.
        outputs: of the model, for the micro-batch.
        divisors: `normalisers` of the global batch.
        replicas: by this Keras has divided each mean, under `tf.distribute`.

    Returns:
        float (1 + losses,). Summed over all micro-batches of all replicas, it
        is the total and each single loss of the global batch.
    """
    _, y, weights = batch
    # (1 + losses,), of which the micro-batch has this much; 0 of weights that
    # are all 0.
    shares = ops.divide_no_nan(normalisers(model, batch), divisors)
    total, each = 0.0, []
    for i, item in enumerate(model._compile_loss._flat_losses):
        value = item.loss(
            _at(item.path, y),
            _at(item.path, outputs),
            _weights_at(item.path, weights),
        )
        value = ops.cast(value, keras.config.floatx())
        # A mean of these rows, times their share: its part of the global mean.
        if item.loss.reduction != "sum":
            value = value * replicas * shares[i + 1]
        each.append(value)
        # After it is listed: a single loss is logged without its weight.
        if item.loss_weights is not None:
            value = value * item.loss_weights
        total = total + value
    # Penalties on the weights, the same in every micro-batch.
    for value in model.losses:
        total = total + ops.cast(ops.sum(value), total.dtype) * shares[0]
    return ops.stack([total, *each])


def track(model, values, divisors, replicas=1):
    """Adds a global batch's losses to the means that `fit` shows.

    Each replica adds its `values`; Keras divides the sum over the replicas
    by the sum of what is given as their weight.
    """
    trackers = [model._loss_tracker, *model._compile_loss.metrics]
    for i, tracker in enumerate(trackers):
        tracker.update_state(values[i] * replicas, divisors[0] / replicas)


def _at(path, values):
    for key in path:
        values = values[key]
    return values


def _weights_at(path, weights):
    """One loss's weights: its own, or those of all losses."""
    return _at(path, weights) if tree.is_nested(weights) else weights
