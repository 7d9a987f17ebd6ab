"""TFRecords of examples under the original BERT's feature names.

Written in the wire format of `tf.train.Example` by NumPy, a batch at a time,
because building the message objects one by one costs most of the time. Read
with TensorFlow's own parser, the original's files as well as ours.
"""

import contextlib
import math

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_keras.data.laws import Laws
from bert_keras.errors import InputError, cut_middle

# The original's name of each of our names.
FEATURES = {
    "token_ids": "input_ids",
    "padding_mask": "input_mask",
    "segment_ids": "segment_ids",
    "mask_positions": "masked_lm_positions",
    "mask_ids": "masked_lm_ids",
    "mask_weights": "masked_lm_weights",
    "next_sentence_labels": "next_sentence_labels",
}
# What packed rows have besides; the original knows none.
_PACKED = ("example_ids", "position_ids", "example_weights")
_PER_MASK = ("mask_positions", "mask_ids", "mask_weights")


def row_shapes(laws: Laws) -> dict[str, list[int]]:
    """The shape of each part of a row, by name."""
    shapes = dict.fromkeys(FEATURES, [laws.sequence_length])
    if laws.packed:
        shapes |= dict.fromkeys(_PACKED, [laws.sequence_length])
        shapes["example_weights"] = [laws.examples_per_row]
    shapes |= dict.fromkeys(_PER_MASK, [laws.masks_per_row])
    labels = [laws.examples_per_row] if laws.packed else []
    return {**shapes, "next_sentence_labels": labels}


def is_float(name: str) -> bool:
    """Whether a part of a row is stored as floats; the others as integers."""
    return name.endswith("_weights")


def serialize(rows: dict) -> list[bytes]:
    """One serialized `tf.train.Example` a row.

    Args:
        rows: dict of arrays `(B, ...)` with the names of `row_shapes`.
    """
    names = [*FEATURES, *(name for name in _PACKED if name in rows)]
    columns = [
        _features(FEATURES.get(name, name), np.asarray(rows[name]))
        for name in names
    ]
    bodies = map(b"".join, zip(*columns, strict=True))
    # Example.features, field 1
    return [b"\x0a" + _varint(len(body)) + body for body in bodies]


def _features(name: str, values: np.ndarray) -> list[bytes]:
    """The map entry of one feature for each row."""
    values = values.reshape(len(values), -1)
    if values.dtype.kind == "f":
        payload = values.astype("<f4").tobytes()
        ends = np.arange(1, len(values) + 1) * (4 * values.shape[1])
        kind = b"\x12"  # Feature.float_list, field 2
    else:
        payload, ends = _varints(values)
        kind = b"\x1a"  # Feature.int64_list, field 3
    heads: dict[int, bytes] = {}
    entries = []
    start = 0
    for end in ends.tolist():
        size = end - start
        if size not in heads:
            heads[size] = _head(name, kind, size)
        entries.append(heads[size] + payload[start:end])
        start = end
    return entries


def _head(name: str, kind: bytes, size: int) -> bytes:
    """What stands before a packed list of `size` bytes in a map entry."""
    packed = b"\x0a" + _varint(size)
    feature = kind + _varint(len(packed) + size) + packed
    key = b"\x0a" + _varint(len(name)) + name.encode()
    key += b"\x12" + _varint(len(feature) + size)
    return b"\x0a" + _varint(len(key) + len(feature) + size) + key + feature


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Base-128 numbers of all values, and where each row's end."""
    flat = values.ravel().astype(np.uint32)
    size = np.ones(len(flat), np.int64)
    for bits in (7, 14, 21, 28):
        size += flat >= 1 << bits
    ends = np.cumsum(size)
    out = np.empty(ends[-1] if len(ends) else 0, np.uint8)
    starts = ends - size
    for byte in range(int(size.max(initial=1))):
        has = size > byte
        more = (size > byte + 1)[has]
        digit = (flat[has] >> (7 * byte)) & 127
        out[starts[has] + byte] = digit | np.where(more, 128, 0)
    return out.tobytes(), ends.reshape(values.shape)[:, -1]


def parser(laws: Laws):
    """A function of serialized examples `(B,)`: the dict of their rows."""
    shapes = row_shapes(laws)
    types = {
        FEATURES.get(name, name): tf.io.FixedLenFeature(
            shape or [1],  # the original writes the label as a list of one
            tf.float32 if is_float(name) else tf.int64,
        )
        for name, shape in shapes.items()
    }

    def parse(serialized) -> dict:
        found = tf.io.parse_example(serialized, types)
        rows = {}
        for name, shape in shapes.items():
            values = found[FEATURES.get(name, name)]
            values = values if is_float(name) else tf.cast(values, tf.int32)
            rows[name] = tf.reshape(values, [-1, *shape])
        return rows

    return parse


@contextlib.contextmanager
def readable(path: str):
    """Has TensorFlow's errors about a file of records be an `InputError`."""
    try:
        yield
    except tf.errors.OpError as error:
        raise InputError(
            f"{path} holds no TFRecords that can be read, or it is damaged "
            f"({cut_middle(error.message, 200)}). Make it again."
        ) from None


def lengths_of(path: str) -> tuple[int, int]:
    """(sequence_length, max_predictions) of a file's first record."""
    feature = _first_features(path)
    if "example_ids" in feature:
        raise InputError(
            f"{path} holds packed rows, whose laws only the manifest "
            "beside them tells. Name the folder instead."
        )
    missing = [name for name in FEATURES.values() if name not in feature]
    if missing:
        raise InputError(
            f"{path} holds no examples for pre-training: its records "
            f"lack {', '.join(missing)}."
        )
    return (
        len(feature["input_ids"].int64_list.value),
        len(feature["masked_lm_ids"].int64_list.value),
    )


def check_lengths(path: str, laws: Laws):
    """Refuses a file whose first record is not a row of these laws.

    TensorFlow's parser takes the memory of the laws' sizes first.
    """
    feature = _first_features(path)
    for name, shape in row_shapes(laws).items():
        theirs, expected = FEATURES.get(name, name), math.prod(shape)
        kind = "float_list" if is_float(name) else "int64_list"
        found = (
            len(getattr(feature[theirs], kind).value)
            if theirs in feature
            else 0
        )
        if found != expected:
            raise InputError(
                f"{path} has not the rows that are expected: {theirs} has "
                f"{found} numbers, expected {expected}. Make the records "
                "again."
            )


def _first_features(path: str):
    with readable(path):
        for record in tf.data.TFRecordDataset(path).take(1):
            try:
                example = tf.train.Example.FromString(record.numpy())
            except DecodeError:
                break
            return example.features.feature
    raise InputError(f"{path} is empty; expected TFRecords of examples.")
