"""Losses on vectors, against NumPy and sentence-transformers."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.training.similarity import (
    CoSENT,
    CosineRegression,
    InBatchNegatives,
    Matryoshka,
    Triplet,
)

pytestmark = pytest.mark.fast


@pytest.fixture
def vectors(random):
    """Function that draws float32 (rows, texts, 8)."""

    def draw(texts, rows=5):
        return random.normal(size=(rows, texts, 8)).astype("float32")

    return draw


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize("texts", [2, 4])
def test_a_text_is_to_find_its_partner_among_all_of_the_batch(vectors, texts):
    x, scale = vectors(texts), 7.0
    expected = []
    for row in range(len(x)):
        # Partners come first, so the partner of a row has the index `row`.
        others = [x[i, k] for k in range(1, texts) for i in range(len(x))]
        logits = scale * np.array([cosine(x[row, 0], y) for y in others])
        expected.append(np.log(np.exp(logits).sum()) - logits[row])
    weights = np.array([1, 0, 2, 0.5, 1], "float32")
    loss = InBatchNegatives(scale)
    assert float(loss(None, x)) == pytest.approx(np.mean(expected), 1e-5)
    # A row of weight 0 is still a negative of the other rows.
    assert float(loss(None, x, weights)) == pytest.approx(
        (weights * expected).sum() / len(x), 1e-5
    )


@pytest.mark.parametrize("texts", [2, 3])
def test_a_partner_of_the_same_text_is_no_negative(vectors, texts):
    # Rows 0 and 1 share a query, rows 0 and 2 a partner, and row 3 repeats
    # row 0. The hard negative of row 4 is the partner of other rows.
    numbers = np.array([[0, 1, 9], [0, 2, 8], [3, 1, 2], [0, 1, 9], [4, 5, 1]])
    numbers, x = numbers[:, :texts], vectors(texts)
    expected = []
    for row, (query, *_) in enumerate(numbers):
        partners = {partner for other, partner, *_ in numbers if other == query}
        logits = [
            7.0 * cosine(x[row, 0], x[i, k])
            for k in range(1, texts)
            for i in range(len(x))
            if (i, k) == (row, 1) or numbers[i, k] not in partners
        ]
        right = 7.0 * cosine(x[row, 0], x[row, 1])
        expected.append(np.log(np.exp(logits).sum()) - right)
    loss = InBatchNegatives(7.0)
    assert float(loss(numbers, x)) == pytest.approx(np.mean(expected), 1e-5)
    # Without labels there are more negatives, so the loss is greater.
    assert 0.99 * float(loss(None, x)) > np.mean(expected)
    # If all labels differ, or their shape is not (B, K), they change nothing.
    for labels in (np.arange(5 * texts).reshape(5, texts), np.zeros((5, 1))):
        assert float(loss(labels, x)) == pytest.approx(float(loss(None, x)))


@pytest.mark.parametrize("unknown", ["labels", "vectors", "both"])
def test_numbers_count_if_the_number_of_texts_is_known_only_later(
    vectors, unknown
):
    numbers, x = np.array([[0, 1], [0, 2], [3, 1]]), vectors(2, rows=3)
    loss = InBatchNegatives()
    shapes = [
        (None, None if unknown in (name, "both") else 2)
        for name in ("labels", "vectors")
    ]
    function = tf.function(
        loss,
        input_signature=[
            tf.TensorSpec(shapes[0], tf.int64),
            tf.TensorSpec((*shapes[1], 8), tf.float32),
        ],
    )
    expected = float(loss(numbers, x))
    assert float(function(numbers, x)) == pytest.approx(expected, 1e-4)
    assert expected < 0.99 * float(loss(None, x))


def test_a_text_is_no_negative_of_itself():
    # The query of row 1 is the partner of row 0. Texts 0, 1 and 2 have the
    # vector 1, and texts 3 and 4 have -1.
    numbers = np.array([[0, 1], [1, 2], [3, 4]])
    x = np.array([[[1.0], [1.0]], [[1.0], [1.0]], [[-1.0], [-1.0]]], "float32")
    loss = InBatchNegatives(reduction=None)
    found = loss(numbers, x)
    # For query 0, text 2 is a negative: no row says that they match.
    assert np.allclose(found, [np.log(2), 0, 0], atol=1e-6)


GOLDEN = Path(__file__).parent.parent / "golden" / "sentences.json"
LOSSES = {
    "in_batch": InBatchNegatives,
    "cosine": CosineRegression,
    "triplet": Triplet,
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_matryoshka_loss_is_that_of_sentence_transformers(name):
    recorded = json.loads(GOLDEN.read_text())["matryoshka"]
    x = np.array(recorded["vectors"], "float32")  # (6, 3, 8)
    x = x[:, :2] if name == "cosine" else x
    scores = np.array(recorded["scores"]) if name == "cosine" else None
    dims = recorded["dims"]
    for weights, expected in zip(
        (None, [2.0, 0.5]), recorded[name], strict=True
    ):
        loss = Matryoshka(LOSSES[name](), dims, weights)
        assert float(loss(scores, x)) == pytest.approx(expected, rel=1e-5)
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert float(again(scores, x)) == float(loss(scores, x))
    assert loss.compares_rows == (name == "in_batch")


@pytest.mark.parametrize(
    ("dims", "weights", "message"),
    [
        ([9], None, "at most 8, the size"),
        ([], None, "whole numbers"),
        ([0], None, "whole numbers"),
        ([4.0], None, "whole numbers"),
        ([4], [1.0, 2.0], "as many weights"),
    ],
)
def test_sizes_that_cannot_be_learned_are_refused(
    vectors, dims, weights, message
):
    with pytest.raises(InputError, match=message):
        Matryoshka(Triplet(), dims, weights)(None, vectors(3))


def test_a_matryoshka_loss_needs_a_loss_on_vectors():
    with pytest.raises(InputError, match="a loss on vectors"):
        Matryoshka(keras.losses.MeanSquaredError(), [4])


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_cosines_are_to_have_the_order_of_the_scores(vectors, shape):
    x, y = vectors(2), np.array([0.2, 1.0, 0.2, 0.0, 0.7])
    cosines = [cosine(*pair) for pair in x]
    total = 1.0
    for c, low in zip(cosines, y, strict=True):
        for d, high in zip(cosines, y, strict=True):
            total += np.exp(3.0 * (c - d)) if low < high else 0.0
    loss = CoSENT(3.0)
    found = float(loss(y.reshape(shape), x))
    assert found == pytest.approx(np.log(total), 1e-5)
    # Only the order of the scores counts.
    assert float(loss(y**3 * 5, x)) == pytest.approx(found, 1e-6)
    # Without an order, there is nothing to learn, and no NaN.
    same, x = np.ones(5), tf.Variable(x)
    with tf.GradientTape() as tape:
        value = loss(same, x)
    assert float(value) == 0.0
    assert not np.any(tape.gradient(value, x))


def test_cosines_in_order_have_the_loss_of_sentence_transformers():
    recorded = json.loads(GOLDEN.read_text())["losses"]["cosent"]
    x = tf.Variable(recorded["vectors"])  # (6, 2, 8)
    with tf.GradientTape() as tape:
        loss = CoSENT()(recorded["scores"], x)
    assert float(loss) == pytest.approx(recorded["loss"], rel=1e-5)
    gradient = tape.gradient(loss, x)
    np.testing.assert_allclose(gradient, recorded["gradient"], atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_the_cosine_is_to_be_the_score(vectors, random, shape):
    x, y = vectors(2), random.uniform(size=5)
    apart = [cosine(*pair) - score for pair, score in zip(x, y, strict=True)]
    found = float(CosineRegression()(y.reshape(shape), x))
    assert found == pytest.approx(np.mean(np.square(apart)), 1e-5)


def test_scores_are_needed_where_they_are_learned(vectors):
    with pytest.raises(InputError, match="no labels.*seconds.*, scores"):
        CosineRegression()(None, vectors(2))
    with pytest.raises(InputError, match="CoSENT got no labels"):
        CoSENT()(None, vectors(2))


def test_the_positive_is_to_be_nearer_than_the_negative(vectors):
    x = vectors(3, rows=20)
    apart = [cosine(a, n) - cosine(a, p) + 0.25 for a, p, n in x]
    expected = np.maximum(apart, 0)
    assert 0 < (expected == 0).sum() < 20
    assert float(Triplet(0.25)(None, x)) == pytest.approx(expected.mean(), 1e-5)


@pytest.mark.parametrize(
    ("loss", "shape", "expected"),
    [
        (InBatchNegatives(), (2, 8), "2 or more.*(firsts, seconds)"),
        (InBatchNegatives(), (2, 1, 8), "2 or more.*(firsts, seconds)"),
        (CosineRegression(), (2, 3, 8), "2.*(firsts, seconds)"),
        (CoSENT(), (2, 3, 8), "2.*(firsts, seconds)"),
        (Triplet(), (2, 2, 8), "3.*(anchors, positives, negatives)"),
        (Matryoshka(Triplet(), [4]), (2, 2, 8), "3.*(anchors, "),
    ],
)
def test_another_number_of_texts_is_refused(loss, shape, expected):
    expected = expected.replace("(", r"\(").replace(")", r"\)")
    message = rf"vectors of shape .* Expected \(B, K, D\).* is {expected}"
    with pytest.raises(InputError, match=message):
        loss(None, np.ones(shape, "float32"))


def test_the_number_of_texts_may_be_unknown_in_a_graph(vectors):
    x = vectors(3)
    spec = tf.TensorSpec((None, None, 8), tf.float32)
    loss = tf.function(lambda v: Triplet()(None, v), input_signature=[spec])
    assert float(loss(x)) == pytest.approx(float(Triplet()(None, x)))


@pytest.mark.parametrize(
    "loss",
    [InBatchNegatives(3.0), CosineRegression(), CoSENT(3.0), Triplet(0.1)],
)
def test_a_loss_is_made_again_from_its_settings(loss):
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(loss)
    )
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()
