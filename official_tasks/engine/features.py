"""Extracts features of texts with a frozen encoder and writes them to files."""

import contextlib
import itertools
import zipfile
from typing import NamedTuple

import numpy as np

from bert_keras.errors import InputError
from bert_keras.files import atomic_output
from bert_keras.modeling.recipes import Recipe
from official_tasks.tasks.base import Encoded
from official_tasks.tasks.encoding import windowed_rows

CHUNK = 256  # number of texts in memory at a time
PER = ("token", "word_first", "word_mean")


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

    def count(self, texts) -> tuple[int, int]:
        """Return (number of vectors, number of tokens) of all texts."""
        from bert_keras.text.words import word_pieces

        vectors = tokens = 0
        for chunk in _chunks(texts):
            ids, *_ = word_pieces(chunk, self.preprocess.tokenizer)
            tokens += len(ids.values)
            vectors += sum(map(len, chunk))
        return (tokens if self.per == "token" else vectors), tokens

    def __call__(self, texts):
        """Yield the `TextFeatures` of each text; a text is a list of words."""
        chunks = itertools.chain.from_iterable(
            map(self._extract, _chunks(texts))
        )
        for number, text in enumerate(chunks, 1):
            if not np.isfinite(text.vectors).all():
                raise InputError(
                    f"Text {number} has features that are NaN or infinite in "
                    f"{self.dtype}. Use other weights, or --dtype=float32."
                )
            yield text

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


def _chunks(texts):
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, CHUNK)):
        yield chunk


def write_features(path, features, shape, dtype, num_texts):
    """Write the features of each text to `path` as soon as they are computed.

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
        path: the output; an npz if it ends in .npz, else a TFRecord file.
        features: iterable of `TextFeatures`.
        shape: shape of the vectors of all texts, (vectors, F).
        dtype: dtype of the vectors.
        num_texts: number of texts.

    Raises:
        InputError: the texts changed while they were read, so no file is
            written.
    """
    dtype = np.dtype(dtype)
    with atomic_output(path) as partial:
        if str(path).endswith(".npz"):
            _write_npz(partial, features, shape, dtype, num_texts)
        else:
            _write_records(partial, features, shape, dtype, num_texts)


def _write_npz(path, features, shape, dtype, num_texts):
    vectors, others = 0, []
    with (
        open(path, "wb") as raw,
        zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _open_array(archive, "features", shape, dtype) as file:
            for text in features:
                vectors += len(text.vectors)
                file.write(np.ascontiguousarray(text.vectors).data)
                others.append((len(text.vectors), text.token_ids, text.words))
        _check_unchanged((shape[0], num_texts), (vectors, len(others)))
        counts, ids, words = zip(*others, strict=True)
        columns = {
            "row_splits": np.cumsum([0, *counts], dtype=np.int64),
            "token_ids": np.concatenate(ids),
            "words": np.concatenate(words),
            "token_splits": np.cumsum([0, *map(len, ids)], dtype=np.int64),
        }
        for name, values in columns.items():
            with _open_array(archive, name, values.shape, values.dtype) as file:
                file.write(values.tobytes())


def _check_unchanged(counted, written):
    """Raise unless two pairs of (vectors, texts) are equal."""
    if counted != written:
        raise InputError(
            f"The texts changed while they were read, from {counted[0]} "
            f"vectors of {counted[1]} texts to {written[0]} vectors of "
            f"{written[1]} texts. Run the command again."
        )


@contextlib.contextmanager
def _open_array(archive, name, shape, dtype):
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {
            "shape": tuple(map(int, shape)),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        }
        np.lib.format.write_array_header_2_0(file, header)
        yield file


def _write_records(path, features, shape, dtype, num_texts):
    import tensorflow as tf

    def integers(numbers):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))

    def raw(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    vectors = texts = 0
    with tf.io.TFRecordWriter(path) as file:
        for one in features:
            texts += 1
            vectors += len(one.vectors)
            columns = {
                "features": raw(np.ascontiguousarray(one.vectors).tobytes()),
                "shape": integers(one.vectors.shape),
                "dtype": raw(dtype.name.encode()),
                "token_ids": integers(one.token_ids),
                "words": integers(one.words),
            }
            example = tf.train.Example(
                features=tf.train.Features(feature=columns)
            )
            file.write(example.SerializeToString())
    _check_unchanged((shape[0], num_texts), (vectors, texts))
