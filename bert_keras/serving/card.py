"""The signature card: what goes into an export, what comes out, from what."""

import importlib
import os
import platform

import numpy as np
import tensorflow as tf

import bert_keras
from bert_keras import files
from bert_keras.serving.loading import CARD


def write_card(
    folder, offered, functions, options, fingerprint, foreign, sequence_length
):
    """Writes the card of the SavedModel in `folder`, hashes included.

    Args:
        offered: name -> `Signature`, the default's first.
        functions: name -> the function that was saved.
        options: what the export was asked for.
        fingerprint: hash of all that decides what it answers.
        foreign: the operations that TensorFlow alone does not have.
        sequence_length: tokens of a row at most.
    """
    needs = ["tensorflow", *(["tensorflow_text"] if foreign else [])]
    card = _card(offered, functions, options, fingerprint, needs)
    card["operations_outside_core"] = foreign
    card["sequence_length"] = sequence_length
    card["sha256"] = _hashes(folder)
    files.write_json(card, os.path.join(folder, CARD))


def _card(offered, functions, options, fingerprint, needs):
    entries = {}
    for name, signature in offered.items():
        request = {key: [row] for key, row in signature.inputs.items()}
        answer = functions[name](*map(tf.constant, request.values()))
        entries[name] = {
            "inputs": {s.name: _shown(s) for s in signature.specs()},
            "input_order": list(signature.inputs),
            "outputs": signature.outputs,
            "padded": list(signature.padded),
            "labels": list(signature.labels),
            "request": request,
            "answer": {key: _plain(value) for key, value in answer.items()},
        }
    return {
        "format": "bert_keras SavedModel",
        "format_version": 1,
        "default": next(iter(offered)),
        "signatures": entries,
        "needs": needs,
        "license_of_weights": options["license"] or "not stated",
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ["keras", *needs]},
            "bert_keras": bert_keras.__version__,
        },
        "options": options,
        "fingerprint": fingerprint,
    }


def _version(name):
    """As the package itself has it: tensorflow may be of tensorflow-cpu."""
    return importlib.import_module(name).__version__


def _shown(spec):
    axes = {1: "(B,)", 2: "(B, N)", 3: "(B, K, N)"}[spec.shape.rank]
    return f"{spec.dtype.name} {axes}"


def _plain(tensor):
    """A tensor as the card shows it: decoded; at most eight of an axis."""
    values = tensor.numpy()
    shown = values[tuple(slice(8) for _ in values.shape)]
    if values.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(shown).tolist()
    if values.dtype.kind == "f":
        shown = np.round(shown.astype("float64"), 6)
    return shown.tolist()


def _hashes(folder):
    paths = [
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    return {os.path.relpath(p, folder): files.sha256(p) for p in sorted(paths)}
