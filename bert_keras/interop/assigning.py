"""Numbers into the weights of a model, and the report on them."""

import dataclasses
import math

from bert_keras.interop.checkpoint import WeightsError
from bert_keras.modeling.initialization import weights_initializer
from bert_keras.modeling.weights import published_weights

# Numbers that are set at once: 4 MB.
SLICE = 1024 * 1024
SHOWN = 8  # names of weights that a report tells


@dataclasses.dataclass
class LoadReport:
    """What became of the weights; on every loaded model as `load_report`.

    Args:
        source: where they came from.
        loaded: the library's names of the weights that were set.
        skipped: tensors of the source that the model has no place for.
        initialised: weights of the model that begin at random.
    """

    source: str
    loaded: list
    skipped: list
    initialised: list

    def __str__(self):
        return (
            f"Loaded {len(self.loaded)} weights of {self.source}\n"
            f"Skipped {counted(self.skipped)}\n"
            f"Freshly initialised {counted(self.initialised)}"
        )


def counted(names):
    """How many names there are, and the first of them."""
    return f"{len(names)}: {listed(names)}" if names else "none"


def listed(names):
    """The first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more


def check_shape(tensor, expected):
    if tuple(tensor.shape) != tuple(expected):
        raise WeightsError(
            tensor.file,
            "the shape contradicts the settings beside it",
            "Put the settings that belong to these weights beside them",
            tensor=tensor.name,
            expected=f"the shape {tuple(expected)}",
            found=f"{tuple(tensor.shape)}",
        )


def assign(model, checkpoint, tensors):
    """Sets every weight, one tensor in memory at a time."""
    weights = published_weights(model)
    report = LoadReport(checkpoint.source, [], list(checkpoint.skipped), [])
    for name, tensor in checkpoint.tensors.items():
        if name in weights and name in tensors:
            check_shape(tensors[name], weights[name].shape)
            _set(weights[name], tensors[name])
            report.loaded.append(name)
        else:
            report.skipped.append(tensor.name)
    report.initialised = sorted(set(weights) - set(report.loaded))
    for name in report.initialised:
        if name.startswith("encoder/") and name.endswith("/kernel"):
            weight = weights[name]
            weight.assign(weights_initializer()(weight.shape))
    return report


def _set(weight, tensor):
    """Gives the weight its numbers, a few rows at a time where that is safe.

    TensorFlow keeps the memory that a whole table of words takes on its way,
    twice; in slices the way is short.
    """
    step = max(1, SLICE // math.prod(tensor.shape[1:]))
    # Not on JAX, not where a strategy keeps several copies of a variable.
    plain = type(getattr(weight, "value", None)).__name__ == "ResourceVariable"
    if tensor.rows is None or not plain or tensor.shape[0] <= step:
        weight.assign(tensor.numbers())
        return
    for first in range(0, tensor.shape[0], step):
        last = min(first + step, tensor.shape[0])
        _set_rows(weight, first, last, tensor.numbers(first, last))


def _set_rows(weight, first, last, numbers):
    import tensorflow as tf

    # Not `weight.value[first:last]`, which holds on to the whole and so has
    # TensorFlow copy it.
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=weight.value.handle,
        begin=[first],
        end=[last],
        strides=[1],
        value=numbers.astype(weight.dtype, copy=False),
    )
