"""TFRecords of examples with the original BERT's feature names.

`tf.io.encode_proto` serializes whole batches, because one Python object for
each message is slow. `parser` also reads the original BERT's files. A folder's
manifest has the name and the number of examples of each shard. The manifest is
written last, so it is missing in an unfinished folder.
"""

import contextlib
import math
import os

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_keras import files
from bert_keras.data.examples import EpochWindows
from bert_keras.data.sampling import SamplingRules
from bert_keras.errors import InputError, cut_middle
from bert_keras.json_files import LIST, NATURAL, OBJECT, TEXT
from bert_keras.manifest import (
    check_entries,
    check_fields,
    check_files,
    check_same_settings,
)
from bert_keras.manifest import read_manifest as read_checked
from bert_keras.manifest import write_manifest as write_checked
from bert_keras.text.masking import generator

MANIFEST = "manifest.json"
# Name of a feature in this package -> its name in the original BERT.
FEATURES = {
    "token_ids": "input_ids",
    "padding_mask": "input_mask",
    "segment_ids": "segment_ids",
    "mask_positions": "masked_lm_positions",
    "mask_ids": "masked_lm_ids",
    "mask_weights": "masked_lm_weights",
    "next_sentence_labels": "next_sentence_labels",
}
# Features that only packed rows have. The original BERT has no packed rows.
_PACKED = ("example_ids", "position_ids", "example_weights")
_PER_MASK = ("mask_positions", "mask_ids", "mask_weights")


def row_shapes(rules: SamplingRules) -> dict[str, list[int]]:
    """Return a dict of name -> shape, for the features of a row."""
    shapes = dict.fromkeys(FEATURES, [rules.sequence_length])
    if rules.packed:
        shapes |= dict.fromkeys(_PACKED, [rules.sequence_length])
        shapes["example_weights"] = [rules.examples_per_row]
    shapes |= dict.fromkeys(_PER_MASK, [rules.masks_per_row])
    labels = [rules.examples_per_row] if rules.packed else []
    return {**shapes, "next_sentence_labels": labels}


def is_float(name: str) -> bool:
    """Return True if a feature is stored as floats, not as integers."""
    return name.endswith("_weights")


def serialize(rows: dict) -> list[bytes]:
    """Return a serialized `tf.train.Example` for each row.

    Args:
        rows: dict of arrays `(B, ...)` with the names of `row_shapes`.
    """
    entries = []
    for name in [*FEATURES, *(name for name in _PACKED if name in rows)]:
        values = np.reshape(rows[name], (len(rows[name]), -1))
        kind, of_kind = "int64", np.int64
        if values.dtype.kind == "f":
            kind, of_kind = "float", np.float32
        numbers = _serialize_messages(
            f"{kind.title()}List", value=values.astype(of_kind)
        )
        feature = _serialize_messages("Feature", **{f"{kind}_list": numbers})
        key = tf.fill(tf.shape(feature), FEATURES.get(name, name))
        entry = _serialize_messages(
            "Features.FeatureEntry", key=key, value=feature
        )
        entries.append(entry)
    features = _serialize_messages(
        "Features", feature=tf.concat(entries, axis=1)
    )
    return (
        _serialize_messages("Example", features=features)[:, 0].numpy().tolist()
    )


def _serialize_messages(kind: str, **fields) -> tf.Tensor:
    """Return serialized messages of type `tensorflow.{kind}`, string `(B, 1)`.

    `fields` has the values of each field of the messages, `(B, values)`.
    """
    names, values = list(fields), list(fields.values())
    sizes = [[column.shape[1] for column in values]]
    sizes = np.repeat(np.int32(sizes), len(values[0]), axis=0)
    encoded = tf.io.encode_proto(sizes, values, names, f"tensorflow.{kind}")
    return tf.expand_dims(encoded, axis=1)


def parser(rules: SamplingRules):
    """Return a function that parses serialized examples `(B,)` to rows."""
    shapes = row_shapes(rules)
    types = {
        FEATURES.get(name, name): tf.io.FixedLenFeature(
            shape or [1],  # the original BERT writes a list of one label
            tf.float32 if is_float(name) else tf.int64,
        )
        for name, shape in shapes.items()
    }

    def parse(serialized) -> dict:
        features = tf.io.parse_example(serialized, types)
        rows = {}
        for name, shape in shapes.items():
            values = features[FEATURES.get(name, name)]
            values = values if is_float(name) else tf.cast(values, tf.int32)
            rows[name] = tf.reshape(values, [-1, *shape])
        return rows

    return parse


@contextlib.contextmanager
def readable(path: str):
    """Convert TensorFlow's errors about damaged records to `InputError`.

    Other errors, such as those of a network disk, are not converted, because
    they may be temporary.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise InputError(
            f"{path} is damaged or has no TFRecords "
            f"({cut_middle(error.message, 200)}). Make the records again."
        ) from None


def count_records(path: str) -> int:
    """Return the number of records; check all their checksums.

    Raises:
        InputError: a record is damaged.
    """
    with readable(path):
        records = tf.data.TFRecordDataset(path)
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))


def check_lengths(path: str, rules: SamplingRules):
    """Raise `InputError` if the first record's lengths do not match `rules`.

    Without this check, TensorFlow's parser would first allocate arrays of the
    sizes that `rules` gives, which may be huge, and then fail.
    """
    feature = _first_features(path)
    for name, shape in row_shapes(rules).items():
        key, expected = FEATURES.get(name, name), math.prod(shape)
        kind = "float_list" if is_float(name) else "int64_list"
        # `feature` returns an empty feature for a missing key.
        count = len(getattr(feature[key], kind).value)
        if count != expected:
            raise InputError(
                f"{path} has other rows than expected: {key} has {count} "
                f"values, expected {expected}. Make the records again."
            )


def _first_features(path: str):
    with readable(path):
        for record in tf.data.TFRecordDataset(path).take(1):
            with contextlib.suppress(DecodeError):
                example = tf.train.Example.FromString(record.numpy())
                return example.features.feature
    raise InputError(
        f"{path} has no example at its start; expected TFRecords of examples. "
        "Make the records again."
    )


def write_manifest(folder: str, manifest: dict) -> dict:
    """Write the manifest of finished shards; return the manifest."""
    manifest = {
        "format": "bert_keras pre-training records",
        "version": 1,
        "examples": sum(shard["examples"] for shard in manifest["shards"]),
        **manifest,
    }
    write_checked(os.path.join(folder, MANIFEST), manifest)
    return read_manifest(folder)


def refuse_other(folder: str, settings: dict):
    """Raise `InputError` if finished records were not made with `settings`."""
    try:
        manifest = read_manifest(folder)
    except InputError:
        return  # the manifest is missing or damaged
    old = {name: manifest.get(name) for name in settings}
    check_same_settings(old, settings, folder)


def read_manifest(folder: str) -> dict:
    """Return the manifest of a folder of records.

    Raises:
        InputError: the manifest is missing, or is not a manifest of records.
    """
    path = os.path.join(folder, MANIFEST)
    return read_checked(path, "records", _check_manifest)


def read_rules(manifest: dict) -> SamplingRules:
    """Return the rules by which the examples of a manifest were drawn."""
    return SamplingRules(**manifest["rules"])


def _check_manifest(manifest: dict):
    kinds = {"side": TEXT, "vocabulary_size": NATURAL, "vocabulary_hash": TEXT}
    check_fields(manifest, kinds | {"rules": OBJECT, "shards": LIST})
    read_rules(manifest)
    for shard in manifest["shards"]:
        check_fields(shard, {"examples": NATURAL, "name": TEXT})
        check_entries({shard["name"]: shard})
    names = {shard["name"] for shard in manifest["shards"]}
    if len(names) < len(manifest["shards"]):
        raise ValueError("'shards' has a name twice")
    if not any(shard["examples"] for shard in manifest["shards"]):
        raise ValueError("'shards' must have examples")


def check_shards(folder: str) -> dict:
    """Compare every byte of the shards with the manifest; return the manifest.

    Raises:
        InputError: a shard is missing, changed or not in the manifest. The
            message names the shard.
    """
    manifest = read_manifest(folder)
    shards = {shard["name"]: shard for shard in manifest["shards"]}
    check_files(
        folder,
        shards,
        "Repeat the command that made the records. The command writes only "
        "missing and damaged shards.",
    )
    for name in files.list_folder(folder):
        if ".tfrecord" in name and name not in shards:
            raise InputError(
                f"{os.path.join(folder, name)} is not in the manifest of the "
                "folder. Remove the file, or make the records again."
            )
    return manifest


# Maximum number of examples in a unit, the part of a shard that is read at
# once.
_UNIT_SIZE = 8_192
_SHUFFLE = 4  # key of the random generator that shuffles a window


class RecordedExamples:
    """Examples of record files, shuffled again in each epoch.

    Args:
        folder: a folder of record shards with a manifest.
        seed: seed of the order, at least 0.
    """

    def __init__(self, folder: str, seed: int):
        manifest = read_manifest(folder)
        self.rules = read_rules(manifest)
        self._folder = folder
        self.seed = seed
        self._parse = parser(self.rules)
        shards = [
            (os.path.join(folder, shard["name"]), shard["examples"])
            for shard in manifest["shards"]
        ]
        check_lengths(next(p for p, count in shards if count), self.rules)
        self._units = [
            (path, start, min(_UNIT_SIZE, count - start))
            for path, count in shards
            for start in range(0, count, _UNIT_SIZE)
        ]
        self.windows = EpochWindows([size for _, _, size in self._units], seed)

    def load(self, epoch: int, window: int) -> np.ndarray:
        """Return a window's serialized examples, shuffled."""
        units = self.windows.epoch(epoch)[0][window]
        parts = [_read(*self._units[unit]) for unit in units]
        records = np.concatenate(parts)
        rng = generator(self.seed, _SHUFFLE, epoch, window)
        return records[rng.permutation(len(records))]

    def join(self, parts: list[np.ndarray], step: int) -> dict:
        """Return the rows of a step. `parts` are slices of loaded windows."""
        records = np.concatenate(parts)
        with readable(self._folder):
            parsed = self._parse(records)
        rows = {name: value.numpy() for name, value in parsed.items()}
        for name, values in rows.items():
            # Only mask positions have an upper limit here. If a token id is too
            # large, the embedding raises an error on a CPU, but not on a GPU.
            positions = name.endswith("_positions")
            limit = self.rules.sequence_length if positions else np.inf
            if values.size and not 0 <= values.min() <= values.max() < limit:
                raise InputError(
                    f"The records have {name} from {values.min()} to "
                    f"{values.max()}. Expected no negative number, and mask "
                    f"positions below {self.rules.sequence_length}. Make the "
                    "records again."
                )
        return rows


def _read(path: str, start: int, count: int) -> np.ndarray:
    records = tf.data.TFRecordDataset(path).skip(start).take(count)
    with readable(path):
        batch = next(records.batch(count).as_numpy_iterator(), np.array([]))
    if len(batch) != count:
        raise InputError(
            f"{path} has at most {start + len(batch)} examples; expected at "
            f"least {start + count}. Make the records again."
        )
    return batch
