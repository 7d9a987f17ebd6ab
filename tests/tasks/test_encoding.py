import numpy as np
import pytest
import tensorflow as tf

from bert_keras.text.windows import windows
from official_tasks.tasks import encoding
from tests.support.toy_words import preprocessor

pytestmark = pytest.mark.fast

TEXTS = ["ada lived in bern . " * n + "and it" for n in (1, 4, 2, 5, 3)]


def test_rows_do_not_depend_on_how_many_texts_are_encoded_at_once(monkeypatch):
    preprocess = preprocessor(9)
    ids = preprocess.tokenizer(tf.constant(TEXTS))
    lead = preprocess.tokenizer(tf.constant(["who", "was he", "", "it", "ada"]))

    def everything():
        inputs, cut = encoding.encode_texts(preprocess, TEXTS)
        alone = encoding.windowed_rows(preprocess, ids, 3)
        led = encoding.windowed_rows(preprocess, ids, 3, lead)
        return tf.nest.flatten(
            [inputs, cut, alone, led], expand_composites=True
        )

    at_once = everything()
    monkeypatch.setattr(encoding, "CHUNK", 2)
    for one, other in zip(at_once, everything(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_token_counts_in_one_window_and_has_its_place():
    preprocess = preprocessor(9)
    ids = preprocess.tokenizer(tf.constant(TEXTS))
    lead = preprocess.tokenizer(tf.constant(["who was he"] * 5))
    rows = encoding.windowed_rows(preprocess, ids, 2, lead)
    places = rows.indices.values.numpy()
    counted = places[rows.counts.values.numpy()]
    assert sorted(counted) == list(range(len(ids.values)))
    assert (rows.before.numpy() == 5).all()  # [CLS] who was he [SEP]
    for row, place in enumerate(rows.indices.to_list()):
        tokens = rows.inputs["token_ids"][row].numpy()
        assert len(tokens) <= 9
        window = tf.gather(ids.values, place).numpy()
        np.testing.assert_array_equal(tokens[5:-1], window)
        first = ids.row_starts()[rows.text[row]] + rows.start[row]
        assert place[0] == first


def test_windows_lose_no_token_to_a_stride_longer_than_a_window():
    cut = windows(tf.ragged.constant([[*range(10)], [*range(4)]]), 3, 5)
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9], [0, 1, 2], [3]]
    assert cut.ids.to_list() == expected
