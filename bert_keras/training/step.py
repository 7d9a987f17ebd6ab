"""The loss of a global batch, on any number of devices.

A batch is split among the replicas. Each replica splits its rows into
micro-batches and computes them one after another. The splits do not change the
loss, because each loss is reduced over the global batch.

The divisor of a mean is the number of rows, or the sum of the sample weights.
It is computed for the global batch before the first micro-batch. The mean of a
micro-batch is multiplied by the micro-batch's fraction of this divisor. The sum
of these products is the mean over the global batch. Gradients are then summed
over the replicas, and any Keras optimizer applies them.

The loops over micro-batches are in `step_tensorflow.py` and `step_jax.py`.
"""

import functools
import inspect
import types

import keras
from keras import ops, tree

from bert_keras.errors import InputError
from bert_keras.modeling import keras_adapter

# Keras losses that take probabilities and have no argument `from_logits`.
PROBABILITY_LOSSES = (
    "kl_divergence",
    "categorical_generalized_cross_entropy",
    "dice",
    "tversky",
)


def build(model, batch):
    """Build the losses of `compile`; check losses, metrics and labels."""
    if not keras_adapter.has_losses(model):
        if not model.losses:
            raise InputError(
                "The model was compiled without a loss. Pass one to `compile`."
            )
        return
    outputs, labels = model.output, batch[1]
    # If the outputs are a dict, Keras needs a dict of labels with these names.
    if isinstance(outputs, dict) and not isinstance(labels, dict):
        raise InputError(
            f"The labels are a {type(labels).__name__}. Expected a dict with "
            f"the names of the model's outputs: {', '.join(outputs)}."
        )
    if isinstance(outputs, dict):
        _check_has_outputs(model, labels, batch[2])
    keras_adapter.build_losses(model, labels)
    if labels is None:
        _refuse_missing_labels(model)
    if model.returns_logits:
        for item in keras_adapter.compiled_losses(model):
            _check_takes_logits(item.loss)
        for metric in keras_adapter.compiled_metrics(model):
            _check_metric_takes_logits(metric)
    if getattr(model, "problem", "") == "multi":
        for metric in keras_adapter.compiled_metrics(model):
            _check_metric_reads_all_labels(metric)


def _refuse_missing_labels(model):
    for item in keras_adapter.compiled_losses(model):
        # A loss that needs no labels has a `__call__` of its own.
        if type(item.loss).__call__ is keras.losses.Loss.__call__:
            raise InputError(
                f"There are no labels, but the loss {item.loss.name} needs "
                "them. Pass y, or a data set of (inputs, labels). If the "
                "elements are dicts, name the label: BertPreprocessor("
                "label_key=...)."
            )


def _check_has_outputs(model, labels, weights):
    """Raise `InputError` if an output has a loss or metric but no labels.

    If sample weights are a dict, they need the same names.
    """
    for argument, given in keras_adapter.read_compile_arguments(model).items():
        if not given or isinstance(given, list | tuple):
            continue  # Keras compares a list with the outputs
        names = model.output
        if isinstance(given, dict):
            names = [name for name in names if given.get(name) is not None]
        _check_has(names, "labels", labels, argument)
        if isinstance(weights, dict) and argument != "metrics":
            _check_has(names, "sample weights", weights, argument)


def _check_has(names, text, values, argument):
    missing = ", ".join(name for name in names if name not in values)
    if missing:
        raise InputError(
            f"The {text} are a dict of {', '.join(values)}, but `{argument}` "
            f"of `compile` also applies to {missing}. Pass {text} of "
            f"{missing}, or compile with a dict that leaves {missing} out."
        )


def check_names(losses):
    """Raise `InputError` for names of losses that take probabilities."""
    for name in keras.tree.flatten(losses):
        # For "crossentropy" Keras chooses the function by the labels' shape.
        if isinstance(name, str) and name not in ("crossentropy", "ce"):
            function = keras.losses.get(name)
            if not isinstance(function, keras.losses.Loss):
                function = types.SimpleNamespace(
                    fn=function, name=name, get_config=dict
                )
            _check_takes_logits(function)


def _check_takes_logits(loss):
    """Raise `InputError` if a loss reads logits as probabilities."""
    function = getattr(loss, "fn", None) or loss.call
    name = getattr(function, "__name__", "")
    is_keras = function is getattr(keras.losses, name, None)
    if is_keras and name in PROBABILITY_LOSSES:
        raise InputError(
            f"The loss {loss.name} takes probabilities, but the model returns "
            "logits. Write a loss that first applies the softmax or sigmoid."
        )
    argument = inspect.signature(function).parameters.get("from_logits")
    if argument is None:
        return
    is_partial = isinstance(function, functools.partial)
    # Keras cannot serialize a partial function. The defaults in its signature
    # are the bound arguments.
    config = {} if is_partial else loss.get_config()
    if not config.get("from_logits", argument.default):
        function = function.func if is_partial else function
        # sparse_categorical_crossentropy -> SparseCategoricalCrossentropy
        name = getattr(function, "__name__", "").title().replace("_", "")
        advice = "Set its argument from_logits to True."
        if hasattr(keras.losses, name):
            advice = f"Use keras.losses.{name}(from_logits=True) in `compile`."
        raise InputError(
            f"The loss {loss.name} takes probabilities, but the model returns "
            f"logits. {advice}"
        )


def _check_metric_takes_logits(metric):
    """Raise `InputError` if a metric reads logits as probabilities."""
    if type(metric) is keras.metrics.MeanMetricWrapper:
        return  # the user's own function, which Keras may fail to serialize
    config = metric.get_config()
    with_threshold = keras.metrics.BinaryAccuracy, keras.metrics.BinaryIoU
    is_binary = isinstance(metric, with_threshold)
    needs_probabilities = (
        isinstance(metric, keras.metrics.KLDivergence)
        or ("num_thresholds" in config and "from_logits" not in config)
        # Logits would need the threshold 0, which `FBetaScore` refuses.
        or (
            config.get("threshold")
            and isinstance(metric, keras.metrics.FBetaScore)
        )
    )
    has_half = config.get("thresholds", ()) in (None, 0.5, [0.5])
    name = f"keras.metrics.{type(metric).__name__}"
    if config.get("from_logits") is False:
        advice = f"Use {name}(from_logits=True) in `compile`."
    elif is_binary and config["threshold"] == 0.5:
        advice = f"Use {name}(threshold=0) in `compile`."
    elif "from_logits" not in config and has_half and not config.get("top_k"):
        advice = f"Use {name}(thresholds=0) in `compile`."
    elif needs_probabilities:
        advice = (
            "Convert the logits of `predict` to probabilities, and compute "
            f"{name} from these."
        )
    else:
        return
    raise InputError(
        f"The metric {metric.name} takes probabilities, but the model returns "
        f"logits. {advice}"
    )


def _check_metric_reads_all_labels(metric):
    """Raise `InputError` if a metric compares one label per text only."""
    # For the name "accuracy", Keras chooses the first of these classes.
    if isinstance(
        metric,
        keras.metrics.CategoricalAccuracy
        | keras.metrics.SparseCategoricalAccuracy
        | keras.metrics.TopKCategoricalAccuracy,
    ):
        raise InputError(
            f"The metric {metric.name} compares only the most probable label, "
            "but a text may have several labels. Use "
            "keras.metrics.BinaryAccuracy(threshold=0) in `compile`: the "
            "fraction of correct labels."
        )


def prepare_optimizer(model, replicas=1):
    """Check the optimizer, and build it.

    As in Keras, the optimizer is built for all trainable weights, also for
    those that the step leaves out.

    Raises:
        InputError: a trainable weight is in half precision, or
            `gradient_accumulation_steps` is set with several replicas.
    """
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if replicas > 1 and inner.gradient_accumulation_steps:
        raise InputError(
            "gradient_accumulation_steps does not work on several replicas. "
            "Use adamw(accumulate=...), which splits each batch."
        )
    for variable in model.trainable_variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        # In bfloat16, most updates are too small to change a weight. Also,
        # Adam's beta_2 = 0.999 rounds to 1.
        if dtype in ("bfloat16", "float16"):
            raise InputError(
                f"The weight {variable.path} is {dtype}. Most updates are too "
                "small to change such a weight. Train with float32 weights: "
                f'use model.with_dtype("mixed_{dtype}").'
            )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)


def count_micro_batches(model):
    """Return the optimizer's attribute `accumulate`, or 1 if it has none."""
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return getattr(inner, "accumulate", 1)


def compares_rows(model):
    """Return True if a loss compares the rows of a batch with each other."""
    items = keras_adapter.compiled_losses(model)
    return any(getattr(item.loss, "compares_rows", False) for item in items)


def caches_gradients(model):
    """Return True if the step needs the outputs of all micro-batches together.

    The step then has two passes (GradCache, Gao et al. 2021). The first pass
    computes the outputs of all micro-batches. Then the step differentiates the
    loss by the outputs. The second pass computes each micro-batch again, and
    continues with the gradient of its outputs, by `continue_losses`. In both
    passes, dropout drops the same units. The memory is that of a micro-batch.
    """
    if count_micro_batches(model) == 1 or not compares_rows(model):
        return False
    if isinstance(model.output, dict):
        raise InputError(
            "The loss compares all rows of a batch, and the model has several "
            "outputs. Micro-batches need one output. Set accumulate=1."
        )
    return True


def widen(outputs):
    """Return outputs in at least 32 bits: small gradients are 0 in float16."""
    return ops.cast(
        outputs, keras.backend.result_type(outputs.dtype, "float32")
    )


def count_rows(batch):
    """Return the number of rows: an int if it is known, else a tensor."""
    # Skip optional inputs, which may be None.
    first = next(v for v in tree.flatten(batch) if v is not None)
    return ops.shape(first)[0]


def compute_divisors(model, batch):
    """Return divisors of means over the batch, float (1 + losses,).

    The first divisor is the number of rows. Then there is one for each loss:
    the sum of the sample weights if the reduction divides by it, else the
    number of rows. This is correct also for a mean over elements, because only
    ratios of divisors are used and all rows have equally many elements.
    If the loss has an `ignore_class`, the divisor is the number of labels of
    other classes, or the sum of their sample weights.
    """
    count = count_rows(batch)
    values = [count]
    for item in keras_adapter.compiled_losses(model):
        weights = _get_weights_at(item.path, batch[2])
        by_weight = item.loss.reduction == "mean_with_sample_weight"
        # With the reduction "sum" or None, only `track` uses this divisor.
        counted = by_weight and weights is not None
        ignored = getattr(item.loss, "ignore_class", None)
        if ignored is None:
            values.append(ops.sum(weights) if counted else count)
            continue
        labels = ops.convert_to_tensor(_get_at(item.path, batch[1]))
        kept = ops.cast(ops.not_equal(labels, ignored), keras.config.floatx())
        if counted:  # labels may be (B, 1) and weights (B,)
            if len(kept.shape) > len(weights.shape):
                kept = ops.squeeze(kept, -1)
            kept = kept * ops.cast(weights, kept.dtype)
        values.append(ops.sum(kept))
    return ops.stack([ops.cast(x, keras.config.floatx()) for x in values])


def compute_losses(model, batch, outputs, divisors, replicas=1):
    """Return the total loss of a micro-batch, and the losses to log.

    Args:
        model: the compiled model that computed `outputs`.
        batch: (inputs, labels, weights) of the micro-batch.
        outputs: the model's outputs for the micro-batch.
        divisors: `compute_divisors` of the global batch.
        replicas: number of replicas. Keras divides most mean losses by this
            number. This function undoes the division.

    Returns:
        float (), the loss to differentiate; and float (1 + losses,), the total
        and each single loss to log. Summed over all micro-batches of all
        replicas, these values are the losses of the global batch.
    """
    total, values = compute_output_losses(
        model, batch, outputs, divisors, replicas
    )
    value = _sum_model_losses(model, batch, divisors)
    return total + value, _add_to_total(values, value)


def continue_losses(model, batch, outputs, divisors, gradient):
    """Return `compute_losses` in the second pass of `caches_gradients`.

    Args:
        model: the compiled model that computed `outputs`.
        batch: (inputs, labels, weights) of the micro-batch.
        outputs: the model's outputs for the micro-batch.
        divisors: `compute_divisors` of the global batch.
        gradient: gradient of `compute_output_losses` by `outputs`.

    Returns:
        As `compute_losses`, but the loss to differentiate has only the right
        gradient, and the values to log are those of `model.losses`.
    """
    value = _sum_model_losses(model, batch, divisors)
    # Float16 is too coarse for a gradient before the optimizer scales it.
    total = ops.sum(ops.cast(outputs, gradient.dtype) * gradient)
    total = ops.cast(total, keras.config.floatx())
    return total + value, _add_to_total(ops.zeros_like(divisors), value)


def _sum_model_losses(model, batch, divisors):
    """Return the sum of `model.losses`, such as regularization losses.

    Each micro-batch adds its fraction of the rows of the global batch.
    """
    rows = ops.cast(count_rows(batch), divisors.dtype)
    fraction = ops.divide_no_nan(rows, divisors[0])
    losses = [ops.cast(ops.sum(x), divisors.dtype) for x in model.losses]
    return sum(losses, ops.zeros_like(fraction)) * fraction


def _add_to_total(values, value):
    return ops.concatenate([values[:1] + value, values[1:]])


def compute_output_losses(model, batch, outputs, divisors, replicas=1):
    """Return `compute_losses` without `model.losses`."""
    _, y, weights = batch
    # (1 + losses,): the divisors of this micro-batch, divided by those of the
    # global batch. 0 if the divisor of the global batch is 0.
    fractions = ops.divide_no_nan(compute_divisors(model, batch), divisors)
    total, logged_total, singles = 0.0, 0.0, []
    for i, item in enumerate(keras_adapter.compiled_losses(model)):
        labels, predictions = _get_at(item.path, y), _get_at(item.path, outputs)
        item_weights = _get_weights_at(item.path, weights)
        value = item.loss(labels, predictions, item_weights)
        if value.shape == (0,):
            # In eager mode, Keras returns an empty loss for a replica without
            # rows.
            value = ops.sum(value)
        value = logged = ops.cast(value, keras.config.floatx())
        if item.loss.reduction in (None, "none"):
            # Keras differentiates the sum of an unreduced loss, but logs the
            # mean.
            value, logged = ops.sum(value), ops.mean(value) * fractions[0]
        elif item.loss.reduction != "sum":
            # Keras divides a mean by `replicas`, unless `loss.call` returns a
            # scalar and there are no sample weights. Undo the division.
            is_divided = item_weights is not None or replicas == 1
            if is_divided or _has_rows(item.loss, labels, predictions):
                value = value * replicas
            # Summed over micro-batches and replicas, this is the mean over the
            # global batch.
            value = logged = value * fractions[i + 1]
        if replicas > 1:
            # The mean of a replica without rows would be NaN.
            has_any = fractions[0] > 0
            value, logged = (
                ops.where(has_any, x, 0.0) for x in (value, logged)
            )
        singles.append(logged)
        # As in Keras, only the total loss includes the loss weights.
        if item.loss_weights is not None:
            value = value * item.loss_weights
            logged = logged * item.loss_weights
        total, logged_total = total + value, logged_total + logged
    return total, ops.stack([logged_total, *singles])


def _has_rows(loss, labels, predictions):
    """Return True if a loss computes a value for each row before the mean.

    This is assumed for a loss that overrides `__call__`.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        return True
    convert = lambda x: ops.convert_to_tensor(x, loss.dtype)  # noqa: E731
    # Only the rank of the loss is used, so TensorFlow removes this computation
    # from the graph.
    labels, predictions = tree.map_structure(convert, (labels, predictions))
    return len(loss.call(labels, predictions).shape) > 0


def track(model, values, divisors, replicas=1):
    """Add a global batch's losses to the means that `fit` shows.

    The total loss of a batch is weighted by its number of rows, as in Keras. A
    single loss is weighted by its divisor: with `mean_with_sample_weight`, the
    shown mean is sum(weight x loss) / sum(weight) over all batches. The sum of
    the single losses can differ from the total.

    Each replica adds `replicas` times its part of the loss, with the weight
    divisor / `replicas`. Keras's weighted mean over the replicas is then the
    sum of the parts.
    """
    for i, tracker in enumerate(keras_adapter.loss_trackers(model)):
        tracker.update_state(values[i] * replicas, divisors[i] / replicas)


def _get_at(path, values):
    for key in path:
        values = values[key]
    return values


def _get_weights_at(path, weights):
    """Return the sample weights at a path; a single array is for all paths."""
    return _get_at(path, weights) if tree.is_nested(weights) else weights
