"""Extracts features of texts with a frozen encoder and writes them to files."""

import contextlib
import io
import itertools
import zipfile
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.modeling.recipes import Recipe
from official_tasks.tasks.base import Encoded
from official_tasks.tasks.encoding import windowed_rows

CHUNK = 256  # number of texts in memory at a time, and in a part
PER = ("token", "word_first", "word_mean")
# Array of a part -> array of an npz.
_COUNTS = {"vector_counts": "row_splits", "token_counts": "token_splits"}


class TextFeatures(NamedTuple):
    """The features of one text.

    Attributes:
        vectors: `(N, F)`, a vector of F features per token or per word.
        token_ids: int32, the text's tokens without special tokens.
        words: int32, for each token the index of its word in the text.
    """

    vectors: np.ndarray
    token_ids: np.ndarray
    words: np.ndarray


class Extractor:
    """Feature extractor for any number of texts of any length.

    A text that is longer than a row is split into windows that overlap by half.
    A token's vector comes from the window with the most context around the
    token. A word without tokens is read as `[UNK]`.

    Args:
        encoder: a `BertEncoder`.
        preprocess: the encoder's `BertPreprocessor`; it sets the row length.
        recipe: `Recipe`, the layers to read.
        per: "token", a vector per token; "word_first", the vector of each
            word's first token; or "word_mean", the mean over a word's tokens.
        dtype: dtype of the vectors, "float32" or "float16".
        batch_size: rows that go through the encoder at once.

    Raises:
        InputError: the encoder lacks a layer of `recipe`, or `per` is unknown.
            A call raises it if a feature is not a finite number of `dtype`.
    """

    def __init__(
        self,
        encoder,
        preprocess,
        recipe: Recipe,
        per="token",
        dtype="float32",
        batch_size=32,
    ):
        from official_tasks.engine.scoring import Predictor

        if per not in PER:
            raise InputError(
                f"`per` is {per!r}: expected one of {', '.join(PER)}"
            )
        self.width = recipe.width(encoder.num_layers, encoder.hidden_dim)
        self.preprocess, self.per = preprocess, per
        self.dtype, self.batch_size = np.dtype(dtype), batch_size

        def vectors(inputs, training):
            encoded = encoder(inputs, training=training, hidden_states=True)
            return recipe.vectors(encoded["hidden_states"])

        pad_id = preprocess.packer.pad_id
        self._predict = Predictor(vectors, per_token=True, pad_id=pad_id)

    def __call__(self, texts, before=0):
        """Yield the `TextFeatures` of each text.

        Args:
            texts: list of texts; a text is a list of words.
            before: number of texts before them, for error messages.
        """
        for number, text in enumerate(self._extract(texts), before + 1):
            if not np.isfinite(text.vectors).all():
                raise InputError(
                    f"Text {number} has features that are NaN or infinite in "
                    f"{self.dtype}. Use other weights, or "
                    "--vectors_dtype=float32."
                )
            yield text

    def make_part(self, texts, before):
        """Return the features of texts as the bytes of an npz; see `Parts`."""
        vectors, ids, words = zip(*self(texts, before), strict=True)
        part = io.BytesIO()
        np.savez(
            part,
            features=np.concatenate(vectors),
            token_ids=np.concatenate(ids),
            words=np.concatenate(words),
            vector_counts=np.array([*map(len, vectors)], np.int64),
            token_counts=np.array([*map(len, ids)], np.int64),
        )
        return part.getvalue()

    def _extract(self, texts):
        from bert_keras.text.words import word_pieces

        ids, word, is_first = word_pieces(texts, self.preprocess.tokenizer)
        vectors = self._compute_vectors(ids)
        first = np.flatnonzero(is_first)
        if self.per == "word_first":
            vectors = vectors[first]
        elif self.per == "word_mean":
            counts = np.diff(first, append=len(word))
            vectors = np.add.reduceat(vectors, first) / counts[:, None]
        vectors = vectors.astype(self.dtype)
        words_before = np.cumsum([0, *map(len, texts)])
        tokens_before = ids.row_splits.numpy()
        before = tokens_before if self.per == "token" else words_before
        for number in range(len(texts)):
            tokens = slice(tokens_before[number], tokens_before[number + 1])
            yield TextFeatures(
                vectors[before[number] : before[number + 1]],
                ids.values[tokens].numpy().astype(np.int32),
                (word[tokens] - words_before[number]).astype(np.int32),
            )

    def _compute_vectors(self, ids):
        """Return the tokens' vectors, float32 `(tokens, F)`."""
        room = self.preprocess.packer.room(1)
        rows = windowed_rows(self.preprocess, ids, max(room // 2, 1))
        encoded = Encoded(rows.inputs)
        vectors = np.empty((len(ids.values), self.width), np.float32)
        outputs = self._predict(encoded, self.batch_size)
        counts, positions = rows.counts.to_list(), rows.indices.to_list()
        for output, counted, position in zip(
            outputs, counts, positions, strict=True
        ):
            # True for tokens that have more context here than in other rows.
            counted = np.asarray(counted, bool)
            vectors[np.asarray(position, int)[counted]] = output[1:-1][counted]
        return vectors


def split_texts(texts):
    """Yield lists of `CHUNK` texts."""
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, CHUNK)):
        yield chunk


def write_features(output, contents, path):
    """Write the features of each text to `path`.

    An npz has the arrays
        features: (vectors, F), the vectors of all texts;
        row_splits: int64 (texts + 1,); the vectors of text i are
            features[row_splits[i]:row_splits[i + 1]];
        token_ids: int32 (tokens,);
        words: int32 (tokens,), the index of each token's word in the text;
        token_splits: int64 (texts + 1,), the row splits of token_ids and words.
    A TFRecord file has an Example for each text, with `features` (the bytes
    of its vectors), `shape`, `dtype`, `token_ids` and `words`.

    Args:
        output: name of the output; an npz if it ends in .npz, else TFRecord.
        contents: function that returns an iterator over the bytes of each
            part; see `Extractor.make_part`.
        path: file to write.

    Returns:
        shape of the vectors of all texts, (vectors, F).
    """
    write = _write_npz if str(output).endswith(".npz") else _write_records
    return write(path, lambda: map(np.load, map(io.BytesIO, contents())))


def _write_npz(path, parts):
    # Without the vectors, the parts of all texts fit into memory.
    columns = {x: [] for x in ("token_ids", "words", *_COUNTS)}
    for part in parts():
        for name, arrays in columns.items():
            arrays.append(part[name])
    columns = {x: np.concatenate(arrays) for x, arrays in columns.items()}
    for name, splits in _COUNTS.items():
        counts = columns.pop(name)
        columns[splits] = np.concatenate([[0], np.cumsum(counts)])
    first = next(parts())["features"]
    shape = columns["row_splits"][-1], first.shape[1]
    with (
        open(path, "wb") as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _open_array(archive, "features", shape, first.dtype) as file:
            for part in parts():
                file.write(part["features"].data)
        for name, values in columns.items():
            with _open_array(archive, name, values.shape, values.dtype) as file:
                file.write(values.data)
    return [int(size) for size in shape]


@contextlib.contextmanager
def _open_array(archive, name, shape, dtype):
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {
            "shape": tuple(map(int, shape)),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(dtype),
        }
        np.lib.format.write_array_header_2_0(file, header)
        yield file


def _write_records(path, parts):
    import tensorflow as tf

    def integers(numbers):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))

    def raw(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    count = 0
    with tf.io.TFRecordWriter(path) as file:
        for part in parts():
            tokens, rows = (
                np.cumsum(part[name])[:-1]
                for name in ("token_counts", "vector_counts")
            )
            for vectors, ids, words in zip(
                np.split(part["features"], rows),
                np.split(part["token_ids"], tokens),
                np.split(part["words"], tokens),
                strict=True,
            ):
                count += len(vectors)
                columns = {
                    "features": raw(vectors.tobytes()),
                    "shape": integers(vectors.shape),
                    "dtype": raw(vectors.dtype.name.encode()),
                    "token_ids": integers(ids),
                    "words": integers(words),
                }
                example = tf.train.Example(
                    features=tf.train.Features(feature=columns)
                )
                # The order of the keys is otherwise another in each process.
                file.write(example.SerializeToString(deterministic=True))
    return [count, vectors.shape[1]]
