"""Models with smaller weights for serving on a CPU: what they gain and cost."""

import math
import os
import time

import keras
import numpy as np

from bert_keras.errors import InputError
from bert_keras.modeling.layers import Projection, Table

# Models with smaller weights for serving on a CPU; what they are exact to.

# dtype -> how far the export may be from the live model in that dtype. With
# bfloat16 a sum over a row of another length rounds otherwise.
TOLERANCES = {"float32": 1e-5, "int8": 1e-5, "bfloat16": 0.05}


def narrowed(model, dtype):
    """The model as it is served; the given one stays as it is.

    Args:
        model: a `BertEncoder` or a task model.
        dtype: "float32"; "bfloat16", weights and products, half the size; or
            "int8", a quarter: the matrices and the token table, with a scale
            an output or a token. Their products run in float32: those of
            Keras's own "int8", which rounds the inputs too, took three times
            as long on a CPU as float32.
    """
    if dtype not in TOLERANCES:
        raise InputError(
            f"dtype is {dtype!r}. Expected one of {', '.join(TOLERANCES)}."
        )
    if dtype == "int8":
        return _with_int8_weights(model.with_dtype("float32"))
    is_there = model.dtype_policy.name == dtype and not _is_quantized(model)
    return model if is_there else model.with_dtype(dtype)


def _with_int8_weights(model):
    weights_only = keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    )
    for layer in _quantizable(model):
        # Keras leaves subclasses alone unless told; ours compute the same.
        layer.quantize("int8", type_check=False, config=weights_only)
    return model


def _quantizable(model):
    # The masked-word head multiplies by the token table: float32 there.
    is_tied = getattr(model, "mlm", None) is not None
    token = getattr(model, "encoder", model).embeddings.token
    for layer in model._flatten_layers():
        if isinstance(layer, Projection) or (
            isinstance(layer, Table) and layer is token and not is_tied
        ):
            yield layer


def _is_quantized(model):
    return any(layer.quantization_mode for layer in model._flatten_layers())


# What a smaller export gains and costs, on real rows: size, time, answers.

BATCH = 32
ALONE = 100  # rows that are also asked one at a time


def measure(before, after, inputs, labels=None):
    """Two exports of one model on the same rows, turn by turn.

    Args:
        before, after: `ServedModel`, usually of float32 and of another dtype.
        inputs: input name -> list of rows, of the default signature.
        labels: the true labels (strings), or scores of a regression.

    Returns:
        dict of `rows`; `milliseconds`, batch size -> the median of each
        export's time a row; `equal`, the share of rows with the same answer;
        `greatest_difference` of the numbers; and with labels `accuracy` or
        `pearson` of each.
    """
    name = before.card["default"]
    order = before.card["signatures"][name]["input_order"]
    columns = [inputs[key] for key in order]
    count = len(columns[0])
    if not count:
        raise InputError("There are no rows to measure on. Give some.")
    askers = [getattr(served, name) for served in (before, after)]
    found, batched = _ask(askers, columns, count, BATCH)
    _, alone = _ask(askers, columns, min(count, ALONE), 1)
    rows = [_rows(answers) for answers in found]
    pairs = list(zip(*rows, strict=True))
    result = {
        "rows": count,
        "milliseconds": {1: alone, BATCH: batched},
        "equal": float(np.mean([_same(*pair) for pair in pairs])),
        "greatest_difference": max(_farthest(*pair) for pair in pairs),
    }
    if labels is not None:
        result |= _score(rows, labels)
    return result


def folder_size(folder):
    """Bytes of all files in the folder."""
    return sum(
        os.path.getsize(os.path.join(parent, name))
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _ask(askers, columns, count, size):
    """Each one's answers by batch, and its median milliseconds a row."""
    answers, seconds = ([], []), ([], [])
    for asker in askers:  # traces nothing, but warms caches
        asker(*[column[:size] for column in columns])
    for first in range(0, count, size):
        batch = [column[first : first + size] for column in columns]
        for side in (0, 1) if first // size % 2 else (1, 0):
            began = time.perf_counter()
            answers[side].append(askers[side](*batch))
            spent = time.perf_counter() - began
            seconds[side].append(spent / len(batch[0]))
    return answers, [float(np.median(s)) * 1000 for s in seconds]


def _rows(answers):
    """One dict a row, of answers by batch."""
    return [
        dict(zip(batch, row, strict=True))
        for batch in answers
        for row in zip(*batch.values(), strict=True)
    ]


def _is_number(value):
    return np.asarray(value).dtype.kind == "f"


def _same(left, right):
    """Whether all but the numbers is equal; 1 where there is nothing else."""
    return all(
        _plain(value) == _plain(right[key])
        for key, value in left.items()
        if not _is_number(value)
    )


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


def _farthest(left, right):
    """The greatest difference of numbers where there are as many of them."""
    pairs = [
        (np.asarray(value), np.asarray(right[key]))
        for key, value in left.items()
        if _is_number(value)
    ]
    return max(
        (
            float(np.abs(a - b).max(initial=0.0))
            for a, b in pairs
            if a.shape == b.shape
        ),
        default=0.0,
    )


def _score(rows, labels):
    if len(labels) != len(rows[0]):
        raise InputError(
            f"There are {len(rows[0])} rows and {len(labels)} labels. Give "
            "one label a row."
        )
    first = rows[0][0]
    if np.ndim(first.get("score", [])) == 0:
        true = [_number(*numbered) for numbered in enumerate(labels, 1)]
        return {
            "pearson": [
                float(np.corrcoef([row["score"] for row in side], true)[0, 1])
                for side in rows
            ]
        }
    if not isinstance(first.get("label"), str):
        raise InputError(
            "Labels are compared with one label or one score a row; this "
            "model answers neither. Leave the labels out: the share of equal "
            "answers is told all the same."
        )
    answered = [[row["label"] for row in side] for side in rows]
    true = np.asarray(labels)
    return {"accuracy": [float(np.mean(true == side)) for side in answered]}


def _number(row, label):
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"The label of row {row} is {label!r}. Expected a number, since "
            "the model answers a score."
        )
    return number
