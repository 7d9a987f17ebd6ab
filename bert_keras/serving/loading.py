"""Calls a SavedModel from Python: lists of strings in, plain values out."""

import os
import reprlib
from numbers import Integral

import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError

CARD = "signature_card.json"


def load_saved_model(folder):
    """A SavedModel of `export_saved_model`, one method a signature.

    Returns:
        A `ServedModel`.

    Raises:
        InputError: no such folder, or not a SavedModel of this package.

    Example:

    >>> served = load_saved_model("served")
    >>> served.classify(["An hour well spent."])["label"]
    ['positive']
    """
    folder = files.absolute(folder)
    card = read_card(folder)
    if "tensorflow_text" in card["needs"]:
        import tensorflow_text  # noqa: F401  (registers its operations)
    return ServedModel(tf.saved_model.load(folder), card)


class ServedModel:
    """A loaded SavedModel; each signature is a method of its name.

    A method takes one list of strings an input, in order or by name, and
    returns a dict: strings decoded, rows of unequal length as lists, all
    else as NumPy arrays.

    Attributes:
        card: the signature card: inputs, outputs, an example, versions.
        signatures: names of the methods.
        loaded: what `tf.saved_model.load` gave.
    """

    def __init__(self, loaded, card):
        self.loaded = loaded
        self.card = card
        self.signatures = sorted(card["signatures"])

    def __getattr__(self, name):
        card = self.__dict__.get("card", {"signatures": {}})
        if name not in card["signatures"]:
            raise AttributeError(
                f"The model answers {', '.join(card['signatures'])}; got "
                f"{name!r}."
            )
        entry = card["signatures"][name]
        function = self.loaded.signatures[name]

        def call(*texts, **named):
            tensors = _tensors(name, entry, texts, named)
            return _plain(function(**tensors), entry["padded"])

        call.__name__ = name
        return call

    def __dir__(self):
        return [*super().__dir__(), *self.signatures]


def _tensors(name, entry, texts, named):
    order = entry["input_order"]
    given = dict(zip(order, texts, strict=False)) | named
    if len(texts) + len(named) != len(order) or set(given) != set(order):
        raise InputError(
            f"{name} takes {' and '.join(order)}, one list each; got "
            f"{len(texts)} by place and {sorted(named)} by name."
        )
    for key, value in given.items():
        given[key] = _rows(name, key, value, entry["inputs"][key])
    lengths = {key: len(value) for key, value in given.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{name} takes lists of one length; got {lengths}.")
    return {
        key: as_tensor(value, entry["inputs"][key])
        for key, value in given.items()
    }


def _rows(name, key, value, kind):
    """One input as a list; tensors, arrays and columns of a table too.

    Raises:
        InputError: it is none, or a row of it is no text where one is due.
    """
    if isinstance(value, str | bytes):
        raise InputError(
            f"{name} takes a list as {key}; got one string. Put it in a list."
        )
    try:
        rows = value.numpy().tolist() if tf.is_tensor(value) else list(value)
    except TypeError:
        raise InputError(
            f"{name} takes a list as {key}; got a {type(value).__name__}."
        ) from None
    if kind.startswith("string"):
        nested = not kind.endswith("(B,)")
        for place, row in enumerate(rows):
            texts = row if nested and isinstance(row, list | tuple) else [row]
            wrong = [t for t in texts if not isinstance(t, str | bytes)]
            if wrong or (nested and texts is not row) or not texts:
                raise InputError(
                    f"{name} takes {'a list of texts' if nested else 'a text'}"
                    f" in each row of {key}; row {place} is "
                    f"{reprlib.repr(row)}."
                )
    return rows


def as_tensor(rows, kind="string (B,)"):
    """A list of strings, or of lists of strings or integers, as a tensor.

    Rows of unequal length are filled up with "" or 0. Lists of lists of
    integers are three axes. No rows are of `kind`, as the card shows it.
    """
    if not rows:
        dtype, _, axes = kind.partition(" ")
        return tf.zeros([0] * sum(map(str.isalpha, axes)), dtype)
    if isinstance(rows[0], str | bytes):
        return tf.constant(rows, tf.string)
    rows = [list(row) for row in rows]
    if rows[0] and not isinstance(rows[0][0], str | bytes | Integral):
        return tf.ragged.constant(rows, tf.int32, ragged_rank=2).to_tensor()
    ragged = tf.ragged.constant(rows, ragged_rank=1)
    dtype = tf.string if ragged.dtype == tf.string else tf.int32
    return tf.cast(ragged, dtype).to_tensor()


def _plain(outputs, padded):
    """Tensors as Python takes them: decoded, and cut to their counts."""
    values = {key: _decoded(value.numpy()) for key, value in outputs.items()}
    for key in padded:
        rows = zip(values[key], values["count"], strict=True)
        values[key] = [row[:count].tolist() for row, count in rows]
    return {
        key: value.tolist() if _is_text(value) else value
        for key, value in values.items()
    }


def _is_text(value):
    return isinstance(value, np.ndarray) and value.dtype == object


def _decoded(array):
    if array.dtype != object:
        return array
    decode = np.frompyfunc(lambda b: b.decode("utf-8", "replace"), 1, 1)
    return decode(array) if array.size else array


def read_card(folder):
    folder = os.fspath(folder)
    names = set(files.list_folder(folder) if files.is_folder(folder) else ())
    if CARD in names and "saved_model.pb" in names:
        return files.read_json(os.path.join(folder, CARD))
    if {"config.json", "model.safetensors"} <= names:
        raise InputError(
            f"{folder} holds weights, not a SavedModel. Make one of it with "
            f"tools/export.py --model={folder}; or load the weights with "
            f"`from_preset`, such as BertClassifier.from_preset({folder!r})."
        )
    raise InputError(
        f"{folder} is not a folder that export_saved_model made: it lacks "
        f"{CARD} or saved_model.pb. Export the model, or name another folder."
    )
