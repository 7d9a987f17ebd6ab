"""Load a SavedModel; call its signatures with lists of strings or ids."""

import contextlib
import os
import re
import reprlib
import tempfile
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras import files, versions
from bert_keras.errors import InputError, refuse_fork
from bert_keras.json_files import BOOLEAN, LIST, NATURAL, OBJECT, TEXT
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    read_manifest,
)
from bert_keras.text.wordpiece import encodable

CARD, PROTO = "signature_card.json", "saved_model.pb"
CARD_FIELDS = {
    **dict.fromkeys(("default", "fingerprint", "license_of_weights"), TEXT),
    **dict.fromkeys(("files", "options", "signatures", "versions"), OBJECT),
    "needs": LIST,
    "sequence_length": NATURAL,
}
ENTRY_FIELDS = {
    **dict.fromkeys(("inputs", "outputs", "request", "answer"), OBJECT),
    **dict.fromkeys(("input_order", "labels"), LIST),
    **dict.fromkeys(("reads_windows", "skips_padding"), BOOLEAN),
}
INPUT_FIELDS = {"dtype": TEXT, "shape": LIST}
OUTPUT_FIELDS = {
    **INPUT_FIELDS,
    **dict.fromkeys(("per_entry", "padded"), BOOLEAN),
    "text": TEXT,
}


@contextlib.contextmanager
def plain_link(folder):
    """Yield a path that leads to `folder` and that TensorFlow accepts.

    TensorFlow needs UTF-8, and reads a path with *, ?, [, { or a backslash as a
    pattern. If a local path is not UTF-8 or has such a character, a temporary
    link is yielded.
    """
    folder = os.fspath(folder)
    try:
        folder.encode()
        is_plain = not set("*?[]{}\\") & set(folder)
    except UnicodeEncodeError:
        is_plain = False
    if is_plain or files.is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bert_keras-") as parent:
        link = os.path.join(parent, "folder")
        os.symlink(os.path.abspath(folder), link)
        yield link


def load_saved_model(folder: files.PathLike) -> "ServedModel":
    """Load a SavedModel of `export_saved_model`; each signature is a method.

    First, every file is compared with its hash in the signature card. A folder
    of numbered versions, as TensorFlow Serving reads it, stands for its highest
    version.

    Returns:
        A `ServedModel`.

    Raises:
        InputError: the folder does not exist or is not an export of this
            package, or one of its files is missing or was changed, maybe while
            it was read.

    Examples:
        >>> import tempfile
        >>> from bert_keras import BertEmbedder
        >>> from bert_keras import export_saved_model, load_saved_model
        >>> model = BertEmbedder.from_preset("bert_keras_mini_en")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_saved_model(model, f"{folder}/served")
        ...     served = load_saved_model(path)
        ...     vectors = served.embed(["A goat."])["embedding"]
        >>> vectors.shape
        (1, 256)
    """
    folder = _find_version(files.absolute(folder))
    check_unchanged = versions.make_check(folder)
    card = read_card(folder)
    check_files(folder, card["files"], "Export the model again.")
    if "tensorflow_text" in card["needs"]:
        import tensorflow_text  # noqa: F401  (registers its operations)
    with plain_link(folder) as plain:
        model = ServedModel(tf.saved_model.load(plain), card, folder)
    check_unchanged()
    return model


def _find_version(folder: str) -> str:
    """Return the folder's highest numbered subfolder, or an export itself."""
    names = files.list_folder(folder) if files.is_folder(folder) else ()
    numbers = [n for n in names if n.isascii() and n.isdecimal()]
    if CARD in names or not numbers:
        return folder
    return os.path.join(folder, max(numbers, key=int))


def read_card(folder):
    """Read and check the signature card of an export; return it as a dict.

    Raises:
        InputError: the folder is no export, or its card is damaged.
    """
    folder = os.fspath(folder)
    path = os.path.join(folder, CARD)
    if not files.is_folder(folder):
        raise InputError(
            f"There is no folder {folder}. Make an export: bert-keras export."
        )
    names = set(files.list_folder(folder))
    if CARD in names:
        return _upgrade(read_manifest(path, "SavedModel", _check_card))
    if {"config.json", "model.safetensors"} <= names:
        raise InputError(
            f"{folder} holds weights, not a SavedModel. Export them with "
            f"bert-keras export --model={folder} or load them with from_preset."
        )
    raise InputError(
        f"{folder} is not an export: it has no {CARD}. Make an export with "
        "bert-keras export."
    )


def _check_card(card):
    card = _upgrade(card)
    check_fields(card, CARD_FIELDS)
    check_entries(card["files"])
    if PROTO not in card["files"]:
        raise ValueError(f"{PROTO} is not in 'files'")
    check_fields(card["options"], {"dtype": TEXT})
    for entry in card["signatures"].values():
        check_fields(entry, ENTRY_FIELDS)
        if sorted(entry["input_order"]) != sorted(entry["inputs"]):
            raise ValueError("'input_order' must list the names in 'inputs'")
        for value in entry["inputs"].values():
            check_fields(value, INPUT_FIELDS)
        for value in entry["outputs"].values():
            check_fields(value, OUTPUT_FIELDS)
        check_fields(entry["request"], dict.fromkeys(entry["inputs"], LIST))
    card["signatures"][card["default"]]  # KeyError if missing


def _upgrade(card):
    """Return a card with the fields of format 3; format 2 has texts instead.

    There, "float32 (B, K): sigmoid of each logit" describes an output.
    """
    if card.get("format_version") != 2:
        return card
    signatures = {
        name: _upgrade_entry(name, entry)
        for name, entry in card["signatures"].items()
    }
    return {**card, "signatures": signatures}


def _upgrade_entry(name, entry):
    outputs = {}
    for key, description in entry["outputs"].items():
        spec, _, text = description.partition(": ")
        outputs[key] = {
            **_parse_spec(spec),
            "text": text,
            "per_entry": spec.endswith("(B, K)"),
            "padded": key in entry["padded"],
        }
    is_cut = "truncated" in outputs or name in ("next_sentence", "tokenize")
    return {
        **entry,
        "inputs": {k: _parse_spec(spec) for k, spec in entry["inputs"].items()},
        "outputs": outputs,
        "reads_windows": name != "ids" and not is_cut,
        "skips_padding": all(
            output["padded"] or "T" not in output["shape"]
            for output in outputs.values()
        ),
    }


def _parse_spec(spec):
    """Return dtype and axes of a text like "string (B, N)"."""
    dtype, _, axes = spec.partition(" ")
    return {"dtype": dtype, "shape": re.findall(r"\w+", axes)}


def read_signatures(folder):
    """Return dict of signature name -> `SignatureDef` as a JSON object."""
    proto = saved_model_pb2.SavedModel()
    with files.open_file(os.path.join(folder, PROTO)) as file:
        proto.ParseFromString(file.read())
    return {
        name: json_format.MessageToDict(
            signature,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for name, signature in proto.meta_graphs[0].signature_def.items()
        if not name.startswith("__")
    }


class ServedModel:
    """Loaded SavedModel. Each signature is a method of the same name.

    A method takes a list for each input, by position or by name. It returns a
    dict of output name -> value. Strings are decoded and returned in lists.
    Outputs whose number of values may differ between rows, such as the scores
    of choices, are lists without padding. All other values are NumPy arrays.

    Attributes:
        card: the signature card: inputs, outputs, an example, versions.
        signatures: names of the methods.
        loaded: result of `tf.saved_model.load`.
        folder: folder from which the model was loaded.
    """

    def __init__(self, loaded: Any, card: dict[str, Any], folder: str) -> None:
        self.loaded = loaded
        self._process = os.getpid()
        self.folder = folder
        self.card = card
        self.signatures = sorted(card["signatures"])

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        card = self.__dict__.get("card", {"signatures": {}})
        if name not in card["signatures"]:
            raise AttributeError(
                f"The model has no signature {name!r}. It has "
                f"{', '.join(card['signatures'])}."
            )
        entry = card["signatures"][name]
        function = self.loaded.signatures[name]

        def call(*texts, **named):
            refuse_fork(self._process)
            columns = _name_columns(name, entry["input_order"], texts, named)
            columns = read_columns(name, entry, columns)
            tensors = to_tensors(entry, columns)
            try:
                outputs = function(**tensors)
            except tf.errors.InvalidArgumentError as error:
                raise InputError(
                    f"{name} cannot answer these rows: "
                    f"{clean_message(error.message)}"
                ) from None
            # TensorFlow does not keep the order of outputs.
            ordered = {name: outputs[name] for name in entry["outputs"]}
            return _to_python(ordered, entry, columns)

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


def clean_message(message):
    """Return a message of TensorFlow without its stack trace and graph nodes.

    For a failed assertion, return only the assertion's message.
    """
    message = message.split("unavailable>")[-1].split("\n\t [[")[0].strip()
    return re.sub(r"assertion failed: \[(.*?)\].*", r"\1", message)


def _name_columns(name, order, texts, named):
    """Return dict of input name -> rows from the arguments of a call."""
    columns = dict(zip(order, texts, strict=False)) | named
    if len(columns) != len(texts) + len(named) or len(texts) > len(order):
        raise InputError(
            f"{name} takes {' and '.join(order)}, one list each; got "
            f"{len(texts)} by position and {sorted(named)} by name."
        )
    return columns


def read_columns(name, entry, columns):
    """Return dict of input name -> checked rows, in the signature's order.

    Args:
        name: name of the signature.
        entry: entry of the signature in the card.
        columns: dict of input name -> list, array, tensor or iterator of rows.
    """
    order = entry["input_order"]
    if set(columns) != set(order):
        raise InputError(
            f"{name} takes {' and '.join(order)}, one list each; got "
            f"{sorted(columns)}."
        )
    columns = {
        key: _check_rows(
            name, key, _to_lists(columns[key]), entry["inputs"][key]
        )
        for key in order
    }
    lengths = {key: len(value) for key, value in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{name} takes lists of equal length; got {lengths}.")
    ids = [k for k in order if entry["inputs"][k]["dtype"] == "int32"]
    for row, values in enumerate(zip(*(columns[k] for k in ids), strict=True)):
        first = _measure_lengths(values[0])
        if any(_measure_lengths(value) != first for value in values):
            raise InputError(
                f"{name} takes the same number of values in each of "
                f"{', '.join(ids)}; row {row} has the lengths "
                f"{list(map(_measure_lengths, values))}."
            )
    rows = columns[ids[0]] if ids else ()
    if rows and not any(max(_measure_lengths(row)) for row in rows):
        raise InputError(f"{name} takes token ids, but all rows are empty.")
    return columns


def _measure_lengths(row):
    """Return the lengths of the lists in `row`; [len(row)] if it has none."""
    inner = [len(item) for item in row if isinstance(item, list)]
    return inner or [len(row)]


def to_tensors(entry, columns):
    """Return checked columns as tensors; see `read_columns`."""
    return {
        key: as_tensor(rows, make_spec(entry["inputs"][key]))
        for key, rows in columns.items()
    }


def _to_lists(value):
    """Convert arrays, tensors and iterables to lists, at any depth."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        value = value.tolist()  # its items may be arrays
    is_text = isinstance(value, str | bytes)
    # Iterating over a dict or a DataFrame would yield keys, not rows.
    if is_text or hasattr(value, "keys") or not isinstance(value, Iterable):
        return encodable(value)
    return [_to_lists(item) for item in value]


def _check_rows(name, key, rows, spec):
    """Return the rows of an input; raise `InputError` for a wrong row."""
    if not isinstance(rows, list):
        is_text = isinstance(rows, str | bytes)
        what = "one string" if is_text else reprlib.repr(rows)
        raise InputError(
            f"{name} takes a list as {key}; got {what}. Put it in a list."
        )
    dtype, shape = spec["dtype"], spec["shape"]
    for index, row in enumerate(rows):
        if not _fits(row, dtype, len(shape) - 1):
            axes = "B," if len(shape) == 1 else ", ".join(shape)
            one = "strings" if dtype == "string" else "integers in [0, 2^31)"
            raise InputError(
                f"{name} takes {one} ({axes}) as {key}; row {index} is "
                f"{reprlib.repr(row)} ({type(row).__name__}). "
                "Correct the row, or leave it out."
            )
    return rows


def _fits(value, dtype, axes):
    if axes:
        return isinstance(value, list) and all(
            _fits(item, dtype, axes - 1) for item in value
        )
    if dtype == "string":
        return isinstance(value, str | bytes)
    # True is an `Integral`, but no id.
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    return is_integer and 0 <= value < 1 << 31


def make_spec(spec):
    """Return the `tf.TensorSpec` of an input in the card."""
    return tf.TensorSpec([None] * len(spec["shape"]), spec["dtype"])


def as_tensor(rows, spec):
    """Return nested lists of strings or integers as a tensor.

    Rows of unequal length are padded with "" or 0.
    """
    inner = spec.shape.rank - 1
    if not inner:
        return tf.constant(rows, spec.dtype)
    return tf.ragged.constant(rows, spec.dtype, inner).to_tensor()


def _to_python(outputs, entry, columns):
    """Return the outputs with strings decoded and padding removed.

    Args:
        outputs: dict of output name -> tensor, padded.
        entry: entry of the signature in the card.
        columns: the checked inputs; see `read_columns`.
    """
    values = {key: _decode(value.numpy()) for key, value in outputs.items()}
    *_, lists = columns.values()  # the last input: its rows may be lists
    counts = values.get("count")
    for key, output in entry["outputs"].items():
        if output["padded"] or output["per_entry"]:
            lengths = counts if output["padded"] else map(len, lists)
            rows = zip(values[key], lengths, strict=True)
            values[key] = [row[:length].tolist() for row, length in rows]
    for key, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype == object:
            values[key] = value.tolist()
    return values


def _decode(array):
    if array.dtype != object:
        return array
    decode = np.frompyfunc(lambda b: b.decode("utf-8", "replace"), 1, 1)
    return decode(array) if array.size else array
