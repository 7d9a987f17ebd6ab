"""Which tensors decide the next step, and whether they are a model's own."""

import re

import keras
import numpy as np

from bert_keras.errors import InputError


def state_variables(model):
    """Group -> name -> variable: all that the next step depends on."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.built:
        raise InputError(
            "The training state needs a compiled and built model. Call "
            "`compile`, and the model once on a batch, before `restore`."
        )
    if not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)
        if strategy is None:
            optimizer.build(model.trainable_variables)
        else:
            with strategy.scope():
                optimizer.build(model.trainable_variables)
    return {
        "model": _named(model.variables),
        "optimizer": _named(optimizer.variables),
    }


def _named(variables):
    # The place in the list makes the name unique: paths need not be.
    return {f"{i:05d}/{v.path}": v for i, v in enumerate(variables)}


def metrics_on_host(model):
    """Name -> the sums of each running mean so far, over all replicas.

    Every worker calls it: to read them is a sum over the workers.
    """
    named = _named(model.metrics_variables)
    return {name: to_host(variable) for name, variable in named.items()}


def assign_metrics(model, tensors):
    """Brings `metrics_on_host` back; leaves other metrics as they are."""
    variables = model.metrics_variables
    values = [tensor for _, tensor in sorted(tensors.items())]
    if [v.shape for v in variables] == [v.shape for v in values]:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def to_host(variable):
    """A copy of a variable that the next step does not change."""
    return np.array(keras.ops.convert_to_numpy(variable), order="C", copy=True)


def check_same_tensors(tensors, named, folder):
    """Refuses tensors that are not, one by one, those of the model."""
    saved = [
        _signature(k, t.shape, t.dtype) for k, t in sorted(tensors.items())
    ]
    wanted = [_signature(k, v.shape, v.dtype) for k, v in named.items()]
    for old, new in zip(saved, wanted, strict=False):
        if old != new:
            raise InputError(
                f"The checkpoints in {folder} are of another model or "
                f"optimizer: they hold {old}, where this one has {new}. Make "
                "it as it was, or name another folder."
            )
    if len(saved) != len(wanted):
        raise InputError(
            f"The checkpoints in {folder} are of another model or optimizer: "
            f"they hold {len(saved)} tensors, where this one has "
            f"{len(wanted)}. Make it as it was, or name another folder."
        )


def _signature(name, shape, dtype):
    # Keras numbers what it names itself (`dense_3`) by what else the process
    # has made: those numbers are no part of the comparison.
    path = re.sub(r"_\d+", "", name.split("/", 1)[1])
    dtype = keras.backend.standardize_dtype(dtype)
    return f"{path} {dtype}{list(shape)}"
