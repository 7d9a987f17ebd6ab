"""Features of texts on disk: one npz, or TFRecords, written as they come."""

import contextlib
import zipfile

import numpy as np

from bert_keras.errors import InputError
from bert_keras.files import written_beside

KINDS = (".npz", ".tfrecord")


def write_features(path, features, shape, dtype, num_texts, tokens):
    """Writes the features of texts to `path`; whole, or not at all.

    An npz has the arrays
        features: (vectors, F), those of all texts one after the other;
        row_splits: int64 (texts + 1), where each text's vectors begin;
        token_ids, words: int32 (tokens,), of each token its id, and the
            number of its word in its text;
        token_splits: int64 (texts + 1), where each text's tokens begin.
    A TFRecord file has an Example a text, with `features` (the bytes of its
    vectors), `shape`, `dtype`, `token_ids` and `words`.

    Args:
        path: ends in .npz or .tfrecord.
        features: iterable of `TextFeatures`.
        shape: (vectors, F), all texts together.
        dtype: of the vectors.
        num_texts, tokens: how many there are, all together.

    Raises:
        InputError: another ending; texts that changed while they were read.
    """
    writer = _writer_of(path)
    with written_beside(path) as partial:
        writer(partial, features, shape, np.dtype(dtype), num_texts, tokens)


def _writer_of(path):
    for kind, writer in zip(KINDS, (_write_npz, _write_records), strict=True):
        if str(path).endswith(kind):
            return writer
    raise InputError(
        f"{path}: expected a name that ends in {' or '.join(KINDS)}"
    )


def _write_npz(path, features, shape, dtype, num_texts, tokens):
    vectors, others = 0, []
    with (
        open(path, "wb") as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _array(archive, "features", shape, dtype) as file:
            for text in features:
                vectors += len(text.vectors)
                file.write(np.ascontiguousarray(text.vectors).data)
                others.append((len(text.vectors), text.token_ids, text.words))
        if (vectors, len(others)) != (shape[0], num_texts):
            raise InputError(
                f"The texts changed while they were read: {shape[0]} vectors "
                f"of {num_texts} texts at first, then {vectors} of "
                f"{len(others)}"
            )
        counts, ids, words = zip(*others, strict=True)
        columns = {
            "row_splits": np.cumsum([0, *counts], dtype=np.int64),
            "token_ids": np.concatenate(ids),
            "words": np.concatenate(words),
            "token_splits": np.cumsum([0, *map(len, ids)], dtype=np.int64),
        }
        for name, values in columns.items():
            with _array(archive, name, values.shape, values.dtype) as file:
                file.write(values.tobytes())


@contextlib.contextmanager
def _array(archive, name, shape, dtype):
    """Yields a file for the bytes of an array of an npz."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {
            "shape": tuple(map(int, shape)),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        }
        np.lib.format.write_array_header_2_0(file, header)
        yield file


def _write_records(path, features, shape, dtype, num_texts, tokens):
    import tensorflow as tf

    def whole(numbers):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))

    def text(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    with tf.io.TFRecordWriter(path) as file:
        for one in features:
            columns = {
                "features": text(np.ascontiguousarray(one.vectors).tobytes()),
                "shape": whole(one.vectors.shape),
                "dtype": text(dtype.name.encode()),
                "token_ids": whole(one.token_ids),
                "words": whole(one.words),
            }
            example = tf.train.Example(
                features=tf.train.Features(feature=columns)
            )
            file.write(example.SerializeToString())
