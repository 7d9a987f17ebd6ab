"""Examples that were drawn before and lie in TFRecords."""

import os

import numpy as np
import tensorflow as tf

from bert_keras import files
from bert_keras.data import shards
from bert_keras.data.laws import Laws, generator
from bert_keras.data.records import (
    check_lengths,
    lengths_of,
    parser,
    readable,
)
from bert_keras.data.windows import Windows
from bert_keras.errors import InputError

_PIECE = 8_192  # examples of a shard that stay together when shuffled
_SHUFFLE = 4


class RecordedExamples:
    """Examples of record files, shuffled anew in each epoch.

    Args:
        source: a folder with a manifest, or a path or glob of TFRecords,
            which may be the original's; these are counted first.
        seed: int.
    """

    def __init__(self, source: str, seed: int):
        paths, counts, laws = _find(source)
        first = next(p for p, n in zip(paths, counts, strict=True) if n)
        check_lengths(first, laws)
        self._source = source
        self.laws = laws
        self.seed = seed
        self._parse = parser(laws)
        self._units = [
            (path, start, min(_PIECE, count - start))
            for path, count in zip(paths, counts, strict=True)
            for start in range(0, count, _PIECE)
        ]
        self.windows = Windows([size for _, _, size in self._units], seed)

    def load(self, epoch: int, window: int) -> np.ndarray:
        """A window's serialized examples, shuffled."""
        units = self.windows.epoch(epoch)[0][window]
        parts = [_read(*self._units[unit]) for unit in units]
        records = np.concatenate(parts)
        rng = generator(self.seed, _SHUFFLE, epoch, window)
        return records[rng.permutation(len(records))]

    def join(self, parts: list[np.ndarray], step: int) -> dict:
        """The rows of a step's parts of windows."""
        records = np.concatenate(parts)
        with readable(self._source):
            parsed = self._parse(records)
        rows = {name: value.numpy() for name, value in parsed.items()}
        for name, values in rows.items():
            # The vocabulary is the model's to know.
            limit = self.laws.sequence_length
            limit = limit if name.endswith("_positions") else np.inf
            if values.size and not 0 <= values.min() <= values.max() < limit:
                raise InputError(
                    f"The records have {name} from {values.min()} to "
                    f"{values.max()}. Expected numbers from 0, and positions "
                    f"below {self.laws.sequence_length}. Make them again."
                )
        return rows


def _find(source: str):
    """(paths, examples of each, laws) of the records at a source."""
    if shards.has_manifest(source):
        manifest = shards.read_manifest(source)
        paths = [
            os.path.join(source, shard["name"]) for shard in manifest["shards"]
        ]
        counts = [shard["examples"] for shard in manifest["shards"]]
        return paths, counts, Laws(**manifest["laws"])
    if files.is_folder(source):
        shards.read_manifest(source)  # says what is missing
    paths = files.find(source)
    if not paths:
        raise InputError(
            f"No records at {source!r}. Expected a folder that "
            "create_pretraining_data made, or a path or glob of TFRecords."
        )
    length, predictions = lengths_of(paths[0])
    laws = Laws(sequence_length=length, max_predictions=predictions)
    return paths, [_count(path) for path in paths], laws


def _count(path: str) -> int:
    batches = tf.data.TFRecordDataset(path).batch(1_024)
    sizes = batches.map(lambda batch: tf.size(batch, tf.int64))
    with readable(path):
        return int(sizes.reduce(tf.constant(0, tf.int64), tf.add))


def _read(path: str, start: int, count: int) -> np.ndarray:
    """Some serialized examples of a shard, in their order."""
    records = tf.data.TFRecordDataset(path).skip(start).take(count)
    with readable(path):
        found = next(records.batch(count).as_numpy_iterator(), np.array([]))
    if len(found) != count:
        raise InputError(
            f"{path} ends after {start + len(found)} of at least "
            f"{start + count} examples: it was cut. Make it again."
        )
    return found
