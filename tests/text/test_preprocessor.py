"""`BertPreprocessor` turns texts of any form into model inputs."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.text.preprocessor import BertPreprocessor
from bert_keras.text.tokenizer import WordPieceTokenizer
from bert_keras.text.wordpiece import SPECIAL_TOKENS

VOCABULARY = [*SPECIAL_TOKENS, "an", "hour", "##s", "well"]
FIRST, SECOND = ["An hour", "hours"], ["well", "an hour well"]
FIRST_ROWS = [[2, 5, 6, 3, 0, 0, 0, 0], [2, 6, 7, 3, 0, 0, 0, 0]]
PAIR_ROWS = [[2, 5, 6, 3, 8, 3, 0, 0], [2, 6, 7, 3, 5, 6, 8, 3]]
PAIR_SEGMENTS = [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]


TOKENIZER = WordPieceTokenizer(VOCABULARY)


@functools.cache
def preprocessor(**arguments):
    return BertPreprocessor(TOKENIZER, **{"sequence_length": 8, **arguments})


def ids(rows):
    return rows["token_ids"].numpy().tolist()


class Column:
    """An object with only the `to_numpy` of a pandas or polars column."""

    def __init__(self, texts):
        self.texts = texts

    def to_numpy(self):
        return np.array(self.texts, object)


def tensors(texts):
    return list(map(tf.constant, texts))


FORMS = [
    list,
    np.array,
    tf.constant,
    Column,
    tensors,
    lambda texts: list(map(tf.Variable, texts)),
    lambda texts: np.ma.array(texts, mask=False),
]


@pytest.mark.parametrize("form", FORMS)
def test_strings_come_as_lists_arrays_tensors_or_columns(form):
    rows = preprocessor()(form(FIRST))
    assert ids(rows) == FIRST_ROWS
    assert rows["padding_mask"].numpy().sum(1).tolist() == [4, 4]
    assert {tensor.dtype for tensor in rows.values()} == {tf.int32}
    assert TOKENIZER(form(FIRST)).to_list() == [[5, 6], [6, 7]]
    assert ids(preprocessor()((form(FIRST), form(SECOND)))) == PAIR_ROWS


def test_columns_of_pandas_pyarrow_and_numpy_2():
    import pandas as pd
    import pyarrow as pa

    forms = [
        pa.array,
        lambda texts: pa.array(texts).dictionary_encode(),
        lambda texts: pa.chunked_array([texts]),
        lambda texts: pd.Series(texts, dtype="string"),
        lambda texts: pd.Series(texts, dtype="category"),
        lambda texts: np.array(texts, np.dtypes.StringDType(na_object=None)),
    ]
    for form in forms:
        assert ids(preprocessor()(form(FIRST))) == FIRST_ROWS
        with pytest.raises(InputError, match="Text 1 is .*, not a string"):
            preprocessor()(form([*FIRST[:1], None]))


# Each function makes texts of two strings (B,). Only a tuple, or a list of
# tensors (B,) as in a restored model, is a pair.
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda a, b: tensors(FIRST), FIRST_ROWS),
        (lambda a, b: [a[0], a[1]], FIRST_ROWS),
        (lambda a, b: [a[0]], FIRST_ROWS[:1]),
        (lambda a, b: [a], FIRST_ROWS),
        (lambda a, b: [a, b], PAIR_ROWS),
        (lambda a, b: (a, b), PAIR_ROWS),
        (lambda a, b: (a[0], b[0]), PAIR_ROWS[0]),
    ],
)
def test_a_list_is_a_batch_and_a_tuple_is_a_pair(make, expected):
    preprocess = preprocessor()
    pair = tf.constant(FIRST), tf.constant(SECOND)
    assert ids(preprocess(make(*pair))) == expected
    graph = tf.function(lambda a, b: preprocess(make(a, b)))
    assert ids(graph(*pair)) == expected
    dataset = tf.data.Dataset.from_tensors(pair)
    (mapped,) = dataset.map(lambda a, b: preprocess(make(a, b)))
    assert ids(mapped) == expected


def test_a_tuple_is_a_pair():
    rows = preprocessor()((FIRST, SECOND))
    assert ids(rows) == PAIR_ROWS
    assert rows["segment_ids"].numpy().tolist() == PAIR_SEGMENTS


def test_one_string_or_one_pair_has_no_batch_axis():
    preprocess = preprocessor()
    assert ids(preprocess("An hour")) == FIRST_ROWS[0]
    assert ids(preprocess(("An hour", "well"))) == PAIR_ROWS[0]


def test_labels_and_weights_are_handed_through():
    preprocess = preprocessor()
    rows, labels = preprocess(FIRST, [0, 1])
    assert ids(rows) == FIRST_ROWS and labels == [0, 1]
    rows, labels, weights = preprocess(FIRST, [0, 1], [0.5, 2.0])
    assert weights == [0.5, 2.0]


def test_data_sets_are_mapped_as_they_are():
    examples = ((FIRST, SECOND), [0, 1], [1.0, 2.0])
    dataset = tf.data.Dataset.from_tensor_slices(examples).batch(2)
    mapped = dataset.map(preprocessor())
    assert mapped.element_spec[0]["token_ids"].shape == (None, 8)
    ((rows, labels, weights),) = mapped
    assert ids(rows) == PAIR_ROWS and labels.numpy().tolist() == [0, 1]
    assert weights.numpy().tolist() == [1.0, 2.0]


def test_serving_rows_are_as_long_as_their_longest():
    preprocess = preprocessor(pad_to_longest=True)
    assert ids(preprocess(FIRST)) == [row[:4] for row in FIRST_ROWS]
    assert preprocess(["an " * 50])["token_ids"].shape == (1, 8)


def test_a_functional_model_reads_strings(tmp_path):
    first, second = (keras.Input((), dtype="string") for _ in range(2))
    model = keras.Model([first, second], preprocessor()((first, second)))
    texts = [tf.constant(FIRST), tf.constant(SECOND)]
    assert ids(model(texts)) == PAIR_ROWS
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    again.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    assert ids(served.serve(texts)) == PAIR_ROWS


def test_the_preprocessor_survives_its_configuration():
    original = preprocessor(sequence_length=np.int64(6), pad_to_longest=True)
    config = original.get_config()
    assert type(config["sequence_length"]) is int  # JSON lacks NumPy's types
    again = BertPreprocessor.from_config(config)
    assert again.get_config() == config
    assert ids(again(FIRST)) == ids(original(FIRST))
