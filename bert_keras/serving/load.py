"""Calls a SavedModel from Python: lists of strings in, plain values out."""

import os
import reprlib
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.errors import InputError, cut_middle
from bert_keras.manifest import check_fields
from bert_keras.text.wordpiece import encodable

CARD = "signature_card.json"


def load_saved_model(folder: files.PathLike) -> "ServedModel":
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


def read_card(folder):
    """The signature card of an export.

    Raises:
        InputError: the folder is no export, or its card is damaged.
    """
    folder = os.fspath(folder)
    names = set(files.list_folder(folder) if files.is_folder(folder) else ())
    if CARD in names and "saved_model.pb" in names:
        path = os.path.join(folder, CARD)
        try:
            card = files.read_json(path)
            _check_card(card)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is no signature card, or it is damaged "
                f"({cut_middle(str(error), 300)}). Export the model again."
            ) from None
        return card
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


def _check_card(card):
    """Raises where a field that a call needs is not what it must be."""
    check_fields(card, {"needs": list, "signatures": dict, "default": str})
    for entry in card["signatures"].values():
        check_fields(
            entry, {"inputs": dict, "input_order": list, "padded": list}
        )
        if sorted(entry["input_order"]) != sorted(entry["inputs"]):
            raise ValueError("'input_order' must name the inputs")
        check_fields(entry["inputs"], dict.fromkeys(entry["inputs"], str))
    card["signatures"][card["default"]]  # is there


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

    def __init__(self, loaded: Any, card: dict[str, Any]) -> None:
        self.loaded = loaded
        self.card = card
        self.signatures = sorted(card["signatures"])

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
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
            try:
                outputs = function(**tensors)
            except tf.errors.InvalidArgumentError as error:
                raise InputError(
                    f"{name} cannot answer these rows: "
                    f"{error.message.split('unavailable>')[-1].strip()}"
                ) from None
            return _to_python(outputs, entry["padded"])

        call.__name__ = name
        return call

    def __repr__(self) -> str:
        order = [
            f"{name}({', '.join(self.card['signatures'][name]['input_order'])})"
            for name in self.signatures
        ]
        return f"<ServedModel: {', '.join(order)}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.signatures]


def _tensors(name, entry, texts, named):
    order = entry["input_order"]
    columns = dict(zip(order, texts, strict=False)) | named
    if len(texts) + len(named) != len(order) or set(columns) != set(order):
        raise InputError(
            f"{name} takes {' and '.join(order)}, one list each; got "
            f"{len(texts)} by place and {sorted(named)} by name."
        )
    columns = {
        key: _rows(name, key, _listed(value), entry["inputs"][key])
        for key, value in columns.items()
    }
    lengths = {key: len(value) for key, value in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{name} takes lists of one length; got {lengths}.")
    return {
        key: as_tensor(rows, spec_of(entry["inputs"][key]))
        for key, rows in columns.items()
    }


def _listed(value):
    """Arrays, tensors and columns as plain lists, at any depth."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        return value.tolist()
    is_text = isinstance(value, str | bytes)
    # A dict or a table would give its keys, which are no rows.
    if is_text or hasattr(value, "keys") or not isinstance(value, Iterable):
        return encodable(value)
    return [_listed(item) for item in value]


def _rows(name, key, rows, kind):
    """The rows of an input, each as the card's kind has it."""
    if not isinstance(rows, list):
        is_text = isinstance(rows, str | bytes)
        what = "one string" if is_text else reprlib.repr(rows)
        raise InputError(
            f"{name} takes a list as {key}; got {what}. Put it in a list."
        )
    dtype, axes = parse_kind(kind)
    for place, row in enumerate(rows):
        if not _fits(row, dtype, axes - 1):
            one = "strings" if dtype == "string" else "numbers of 0 and more"
            raise InputError(
                f"{name} takes {one} {kind.partition(' ')[2]} as {key}; row "
                f"{place} is {reprlib.repr(row)} ({type(row).__name__}). "
                "Correct it, or leave the row out."
            )
    return rows


def parse_kind(kind):
    """dtype and number of axes of an input's kind, such as "string (B, N)"."""
    dtype, _, axes = kind.partition(" ")
    return dtype, sum(map(str.isalpha, axes))


def _fits(value, dtype, axes):
    if axes:
        return isinstance(value, list) and all(
            _fits(item, dtype, axes - 1) for item in value
        )
    if dtype == "string":
        return isinstance(value, str | bytes)
    return isinstance(value, Integral) and 0 <= value < 1 << 31


def spec_of(kind):
    """`tf.TensorSpec` of an input's kind."""
    dtype, axes = parse_kind(kind)
    return tf.TensorSpec([None] * axes, dtype)


def as_tensor(rows, spec):
    """Strings or integers, in lists at any depth, as a tensor of the spec.

    Rows of unequal length are filled up with "" or 0.
    """
    inner = spec.shape.rank - 1
    if not inner:
        return tf.constant(rows, spec.dtype)
    return tf.ragged.constant(rows, spec.dtype, inner).to_tensor()


def _to_python(outputs, padded):
    """Tensors as Python takes them: decoded, and cut to their counts."""
    values = {key: _decode(value.numpy()) for key, value in outputs.items()}
    for key in padded:
        rows = zip(values[key], values["count"], strict=True)
        values[key] = [row[:count].tolist() for row, count in rows]
    for key, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype == object:
            values[key] = value.tolist()
    return values


def _decode(array):
    if array.dtype != object:
        return array
    decode = np.frompyfunc(lambda b: b.decode("utf-8", "replace"), 1, 1)
    return decode(array) if array.size else array
