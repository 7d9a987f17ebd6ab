"""Choice of the stored head's weights that a model takes."""

import inspect

import numpy as np
from keras import ops

from bert_keras.errors import InputError, cut_middle
from bert_keras.interop.head_table import LABELED_WEIGHTS
from bert_keras.interop.tensors import MAX_PART_LENGTH, WeightsError
from bert_keras.modeling.inputs import list_argument_names
from bert_keras.modeling.layers import make_initializer
from bert_keras.modeling.weights import in_encoder


def select_head(cls, checkpoint, arguments):
    """Return (tensors, arguments of the head, reason).

    The reason says why the stored head is not used. It is None if the head is
    used.
    """
    stored, new = checkpoint.head_arguments, arguments
    found = checkpoint.tensors
    encoder = {name: found[name] for name in found if in_encoder(name)}
    if checkpoint.head not in [base.__name__ for base in cls.__mro__]:
        why = f"the weights are of a {checkpoint.head}"
        return encoder, new, why
    arguments = {**stored, **new}
    if stored.get("recipe") and not arguments.get("recipe"):
        # The stored pooling belongs to the stored recipe, which is not used.
        arguments["pooling"] = new.get("pooling")
    if new.get("problem") == "ranking":  # ranking has no labels
        arguments["labels"] = None
    if stored and hasattr(cls, "encoder_class"):
        _check_stored_arguments(cls, checkpoint, arguments)
    kept_labels = _match_labels(stored, arguments)
    differs = "labels" if kept_labels is None else None
    has_one = len(stored.get("labels") or "1") == 1
    was_score = stored.get("problem") in ("regression", "ranking")
    # The stored head returns a score. If the caller passes other labels and no
    # `problem`, the model gets a new head that classifies.
    if differs and has_one and was_score:
        arguments["problem"] = new.get("problem", "single")
    input_names = ["bilstm_dim", "recipe"]  # the head's input depends on them
    input_names += ["pooling"] if arguments.get("recipe") else []
    for name in input_names:
        if stored.get(name) != arguments.get(name):
            differs = name
    kept = stored.get("thresholds")
    if kept and "thresholds" not in new:  # one threshold for each label
        problem = stored.get("problem", "single")
        fits = differs is None and arguments["problem"] == problem
        fits = fits and None not in kept_labels
        arguments["thresholds"] = (
            [kept[i] for i in kept_labels] if fits else None
        )
    if differs is not None:
        before, after = (
            cut_middle(str(values.get(differs)), MAX_PART_LENGTH)
            for values in (stored, arguments)
        )
        why = f"the weights are for {differs}={before}, not {after}"
        return encoder, arguments, why
    return found, arguments, None


def select_labels(found, stored, arguments):
    """Return the tensors for the labels of the model, and the new labels.

    The outputs of new labels are random.

    Args:
        found: dict of name -> `Tensor`.
        stored: dict of the stored head's arguments.
        arguments: dict of the model's arguments; see `_match_labels`.
    """
    order = _match_labels(stored, arguments)
    if order == list(range(len(stored.get("labels") or "1"))):
        return found, []
    is_known = np.array([index is not None for index in order])
    indices = [index for index in order if index is not None]

    def select(values):
        result = np.zeros((*values.shape[:-1], len(order)), values.dtype)
        if values.ndim > 1:  # a kernel
            result[:] = ops.convert_to_numpy(make_initializer()(result.shape))
        result[..., is_known] = values[..., indices]
        return result

    for name in filter(found.__contains__, LABELED_WEIGHTS):
        shape = *found[name].shape[:-1], len(order)
        found = {**found, name: found[name].map_values(shape, select)}
    labels = arguments["labels"] or ["LABEL_0"]
    return found, [
        label
        for label, known in zip(labels, is_known, strict=True)
        if not known
    ]


def _check_stored_arguments(cls, checkpoint, arguments):
    try:
        inspect.signature(cls.__init__).bind(None, None, **arguments)
    except TypeError as error:
        if not cls.__module__.startswith("bert_keras."):  # the file may be fine
            _refuse_class(cls, checkpoint, arguments, error)
        raise WeightsError(
            checkpoint.source,
            f"{cls.__name__} cannot be built from the settings ({error})",
            "Correct the file or fetch it again",
        ) from None


def _refuse_class(cls, checkpoint, arguments, error):
    """Raise `InputError` for a user's class without the stored arguments."""
    names = list_argument_names(cls)
    unknown = [name for name in arguments if name not in names]
    if not unknown:
        raise InputError(
            f"{cls.__name__} cannot be made: {error}. Pass the argument to "
            "from_preset, or give it a default."
        )
    raise InputError(
        f"{cls.__name__} has no argument {', '.join(unknown)}, with which the "
        f"{checkpoint.head} of {checkpoint.source} was saved. Add **kwargs to "
        f"{cls.__name__}.__init__, and pass them to super().__init__."
    )


def _match_labels(stored, arguments):
    """Return the stored index of each label of the model, None for a new label.

    Return None if a stored label is not among the model's labels: the model
    then needs a new head. If all stored labels are placeholders (LABEL_0,
    LABEL_1, ...), only their count must match.

    Args:
        stored: dict of the stored head's arguments.
        arguments: dict of the model's arguments.
    """
    known = list(stored.get("labels") or ["LABEL_0"])
    requested = list(arguments.get("labels") or known[:1])
    unnamed = [f"LABEL_{index}" for index in range(len(known))]
    if known == unnamed and len(known) == len(requested):
        return list(range(len(known)))
    if not set(known) <= set(requested):
        return None
    has_more = len(requested) > len(known)
    same_problem = stored.get("problem") == arguments.get("problem")
    if has_more and (known == unnamed or not same_problem):
        return None
    indices = {label: index for index, label in enumerate(known)}
    return [indices.get(label) for label in requested]
