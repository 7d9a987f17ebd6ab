"""TFRecords of examples under the original BERT's feature names.

Written in the wire format of `tf.train.Example` by NumPy, a batch at a time,
because building the message objects one by one costs most of the time. Read
with TensorFlow's own parser, the original's files as well as ours.
"""

import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError

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
_WEIGHTS = "mask_weights"  # the only one that is stored as floats
_PER_TOKEN = ("token_ids", "padding_mask", "segment_ids")
_PER_MASK = ("mask_positions", "mask_ids", "mask_weights")


def serialize(rows: dict) -> list[bytes]:
    """One serialized `tf.train.Example` a row.

    Args:
        rows: dict of arrays `(B, ...)` with the names of `FEATURES`.
    """
    columns = [
        _features(FEATURES[name], np.asarray(rows[name])) for name in FEATURES
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


def parser(sequence_length: int, max_predictions: int):
    """A function of serialized examples `(B,)`: the dict of their rows."""
    width = dict.fromkeys(_PER_TOKEN, [sequence_length])
    width |= dict.fromkeys(_PER_MASK, [max_predictions])
    types = {
        original: tf.io.FixedLenFeature(
            width.get(name, []),
            tf.float32 if name == _WEIGHTS else tf.int64,
        )
        for name, original in FEATURES.items()
    }
    # The original writes the label as a list of one.
    types[FEATURES["next_sentence_labels"]] = tf.io.FixedLenFeature(
        [1], tf.int64
    )

    def parse(serialized) -> dict:
        found = tf.io.parse_example(serialized, types)
        rows = {name: found[original] for name, original in FEATURES.items()}
        rows["next_sentence_labels"] = rows["next_sentence_labels"][:, 0]
        return {
            name: value if name == _WEIGHTS else tf.cast(value, tf.int32)
            for name, value in rows.items()
        }

    return parse


def lengths_of(path: str) -> tuple[int, int]:
    """(sequence_length, max_predictions) of a file's first record."""
    for record in tf.data.TFRecordDataset(path).take(1):
        example = tf.train.Example.FromString(record.numpy())
        feature = example.features.feature
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
    raise InputError(f"{path} is empty; expected TFRecords of examples.")
