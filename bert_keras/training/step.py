"""One mathematics for any number of devices: the loss of a global batch.

The batch that `fit` is given is cut into replicas, and each replica's rows
into parts that are computed one after another. Whatever the cut, each loss is
its own mean over the whole batch: sum(weight x loss) / sum(weight), and the
losses are then added. What such a mean divides by follows from the weights
alone and not from the model, so it is summed over all rows of all replicas
before the first part is computed; then each part's mean counts by its share.
So no loss needs gradients of its own, and no part a second computation.

Gradients are summed over the parts here, over the replicas by the optimizer,
which then clips and applies them. Nothing here is TensorFlow's or JAX's; the
loops over the parts are in `tensorflow_step.py` and `jax_step.py`.
"""

import importlib

import keras
from keras import ops, tree

from bert_keras.errors import InputError


class GlobalStep:
    """What an optimizer adds so that task models train by this mathematics.

    A model that knows of it (`TaskModel`) calls these in the place of its own
    steps. `accumulate` is the number of parts.
    """

    accumulate = 1

    def train_step(self, model, *arguments):
        return _backend().train_step(model, self.accumulate, *arguments)

    def test_step(self, model, *arguments):
        return _backend().test_step(model, *arguments)


def _backend():
    name = keras.backend.backend()
    return importlib.import_module(f"bert_keras.training.step_{name}")


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
    if names and not isinstance(batch[1], dict):
        raise InputError(
            f"The labels are a {type(batch[1]).__name__}. Expected a dict by "
            f"the names of the model's outputs: {', '.join(names)}."
        )


def rows(batch):
    """Number of rows: an int where it is known, else a tensor."""
    first = next(v for v in tree.flatten(batch) if v is not None)
    return ops.shape(first)[0]


def sizes(model, batch):
    """What each loss's mean divides by, float (1 + losses,).

    The number of rows comes first. A mean over rows and over their elements
    divides by the elements, of which each row has the same number.
    """
    number = rows(batch)
    all_sizes = [number]
    for item in model._compile_loss._flat_losses:
        weights = _of(item.path, batch[2])
        by_weight = item.loss.reduction == "mean_with_sample_weight"
        counted = by_weight and weights is not None
        all_sizes.append(ops.sum(weights) if counted else number)
    return ops.stack([ops.cast(x, keras.config.floatx()) for x in all_sizes])


def losses(model, batch, outputs, whole, replicas=1):
    """This part's loss, and the same before each loss, as (1 + losses,).

    Args:
        model: a model that was compiled, and has computed `outputs`.
        batch: (inputs, labels, weights) of the part.
        outputs: of the model, for the part.
        whole: `sizes` of the whole batch.
        replicas: by this Keras has divided each mean, under `tf.distribute`.

    Returns:
        float (1 + losses,). Summed over all parts of all replicas, it is the
        total and each single loss of the whole batch.
    """
    _, y, weights = batch
    shares = ops.divide_no_nan(sizes(model, batch), whole)
    total, each = 0.0, []
    for i, item in enumerate(model._compile_loss._flat_losses):
        value = item.loss(
            _at(item.path, y), _at(item.path, outputs), _of(item.path, weights)
        )
        value = ops.cast(value, keras.config.floatx())
        if item.loss.reduction != "sum":
            value = value * replicas * shares[i + 1]
        each.append(value)
        if item.loss_weights is not None:
            value = value * item.loss_weights
        total = total + value
    # Penalties on the weights, which every part computes whole.
    for value in model.losses:
        total = total + ops.cast(ops.sum(value), total.dtype) * shares[0]
    return ops.stack([total, *each])


def track(model, values, whole, replicas=1):
    """Adds a whole batch's losses to the means that `fit` shows.

    Each replica adds its `values`; Keras divides the sum over the replicas
    by the sum of what is given as their weight.
    """
    trackers = [model._loss_tracker, *model._compile_loss.metrics]
    for i, tracker in enumerate(trackers):
        tracker.update_state(values[i] * replicas, whole[0] / replicas)


def part_size(number, accumulate):
    """Rows of each part, at least 1; the last one may have fewer."""
    size = -(-number // accumulate)
    return max(size, 1) if isinstance(size, int) else ops.maximum(size, 1)


def _at(path, values):
    for key in path:
        values = values[key]
    return values


def _of(path, weights):
    """One loss's weights: its own, or those of all."""
    return _at(path, weights) if tree.is_nested(weights) else weights
