"""The embedder: pooling, several texts per example, `encode`."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import bert_keras
from bert_keras import BertPreprocessor
from bert_keras.errors import InputError
from bert_keras.modeling.embedder import BertEmbedder
from bert_keras.modeling.heads import Pooling, normalize_vectors
from bert_keras.modeling.task_base import TaskModel, encode, symbolic_inputs
from tests.support import tiny
from tests.support.model_samples import (
    fill,
    make_model,
    pretraining_batch,
    random_encoder,
)

pytestmark = pytest.mark.heavy

GOLDEN = Path(__file__).parent.parent / "golden"
FIRST, SECOND = ["good bad", "bad", "badly good"], ["bad", "good", "badly"]


def each():
    return tiny.preprocessor().each((FIRST, SECOND))


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooled"])
def test_a_text_has_the_pooled_vector_of_its_tokens(pooling):
    encoder = tiny.encoder()
    encoded = encoder(tiny.INPUTS)
    numpy_pool = {
        "mean": lambda tokens: tokens.mean(axis=0),
        "max": lambda tokens: tokens.max(axis=0),
        "cls": lambda tokens: tokens[0],
        "pooled": lambda _: np.array(encoded["pooled_output"])[1],
    }[pooling]
    tokens = np.array(encoded["sequence_output"])[1]  # (4, D)
    expected = numpy_pool(tokens[:3])  # the fourth token is padding
    plain = BertEmbedder(encoder, pooling, normalize=False)
    np.testing.assert_allclose(plain(tiny.INPUTS)[1], expected, atol=1e-6)
    assert plain.pools == (pooling == "pooled")
    unit = BertEmbedder(encoder, pooling)(tiny.INPUTS)[1]
    length = np.linalg.norm(expected)
    np.testing.assert_allclose(unit, expected / length, atol=1e-6)
    # Without a mask every position is a token.
    whole = Pooling(pooling, False)(encoded)
    np.testing.assert_allclose(whole[1], numpy_pool(tokens), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_row_without_tokens_is_no_number_that_spoils_a_batch(pooling):
    model = BertEmbedder(tiny.encoder(), pooling)
    inputs = {"token_ids": [[2, 5], [2, 3]], "padding_mask": [[1, 1], [0, 0]]}
    assert np.array(model(inputs)[1]).tolist() == [0.0] * 8


@pytest.mark.parametrize("weights", [False, True])
def test_predict_ignores_labels_of_an_unknown_rank(weights):
    model = BertEmbedder(tiny.encoder())
    data = tf.data.Dataset.from_tensors(tiny.INPUTS["token_ids"])

    def add_labels(ids):
        label = tf.numpy_function(lambda: np.float32(1), [], tf.float32)
        return ids, label, *([label] if weights else [])

    found = model.predict(data.map(add_labels), verbose=0)
    np.testing.assert_array_equal(found, model.predict(data, verbose=0))
    unknown = data.map(lambda ids: tf.numpy_function(abs, [ids], tf.int64))
    with pytest.raises(InputError, match="unknown number of axes"):
        model.predict(unknown, verbose=0)


def test_several_texts_an_example_are_as_each_alone():
    model, preprocess = BertEmbedder(tiny.encoder()), tiny.preprocessor()
    both = each()
    assert all(x.shape == (3, 2, 12) for x in both.values())
    vectors = [np.array(model(both)), model.predict(both, verbose=0)]
    for index, texts in enumerate((FIRST, SECOND)):
        alone = preprocess(texts)
        for name, rows in alone.items():
            np.testing.assert_array_equal(both[name][:, index], rows)
        expected = model(alone)
        for found in vectors:
            np.testing.assert_allclose(found[:, index], expected, atol=1e-6)
    # The model takes inputs of rank 2 after inputs of rank 3.
    again = model.predict(alone, verbose=0)
    np.testing.assert_allclose(again, expected, atol=1e-6)
    labelled = preprocess.each((FIRST, SECOND), [1, 2, 3], [0, 1, 1])
    assert labelled[1:] == ([1, 2, 3], [0, 1, 1])
    with pytest.raises(InputError, match="3 texts and 2 texts"):
        preprocess.each((FIRST, SECOND[:2]))


SCORES = np.array([0.2, 1.0, 0.2, 0.0, 0.7, 0.5, 0.9], "float32")
NUMBERS = np.arange(21).reshape(7, 3) % 11
COMPARING = {
    "hard negatives": (bert_keras.InBatchNegatives(), NUMBERS),
    "scores": (bert_keras.CoSENT(), SCORES),
    "sizes": (bert_keras.Matryoshka(bert_keras.InBatchNegatives(), [8, 3]), 0),
}


@pytest.mark.parametrize(
    "accumulate",
    [3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 7))],
)
@pytest.mark.parametrize("name", COMPARING)
def test_micro_batches_have_the_gradients_of_one_tape(name, accumulate):
    """Dropout is on, so the two passes must draw the same masks."""
    loss, labels = COMPARING[name]
    labels = None if name == "sizes" else labels
    count = 2 if name == "scores" else 3
    ids = np.random.default_rng(0).integers(1, 30, (7, count, 6))
    model = fill(make_model("embedder", dropout=0.3, attention_dropout=0.3))
    table = model.encoder.embeddings.token.embeddings
    table.regularizer = keras.regularizers.L2(0.1)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.accumulate = accumulate
    model.compile(optimizer, loss, jit_compile=False)
    states = [v.numpy() for v in model.non_trainable_variables]
    size = -(-7 // accumulate)
    weights = [w for w in model.trainable_variables if "pooler" not in w.path]
    with tf.GradientTape() as tape:
        rows = range(0, 7, size)
        rows = [model(ids[i : i + size], training=True) for i in rows]
        expected = loss(labels, tf.concat(rows, 0)) + sum(model.losses)
    gradients = tape.gradient(expected, [w.value for w in weights])
    for variable, state in zip(
        model.non_trainable_variables, states, strict=True
    ):
        variable.assign(state)
    before = [w.numpy() for w in weights]
    found = float(np.ravel(model.train_on_batch(ids, labels))[0])
    assert found == pytest.approx(float(expected), rel=1e-5)
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    largest = max(np.abs(gradient).max() for gradient in gradients)
    for weight, old, gradient in zip(weights, before, gradients, strict=True):
        np.testing.assert_allclose(
            old - weight.numpy(),
            gradient,
            atol=1e-5 * largest,
            err_msg=weight.path,
        )


def test_micro_batches_have_the_gradients_of_sentence_transformers():
    """Recorded from its `CachedMultipleNegativesRankingLoss`."""
    recorded = json.loads((GOLDEN / "sentences.json").read_text())
    recorded = recorded["losses"]["in_batch"]
    encoder = bert_keras.BertEncoder.from_preset(
        GOLDEN / "sentences", dropout=0.0, attention_dropout=0.0
    )
    for weight in encoder.weights:  # as in record_sentences.py
        if weight.name in ("bias", "beta", "gamma"):
            weight.assign(np.full(weight.shape, weight.name == "gamma"))
    preprocess = BertPreprocessor.from_preset(GOLDEN / "sentences")
    ids = preprocess.with_prompt(None).each(tuple(recorded["columns"]))
    model = BertEmbedder(encoder)
    weights = {
        "token": encoder.embeddings.token.embeddings,
        "query": encoder.transformer_layers[0].attention.query.kernel,
    }
    before = {name: weight.numpy() for name, weight in weights.items()}
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.accumulate = 3
    model.compile(optimizer, bert_keras.InBatchNegatives(), jit_compile=False)
    loss = float(np.ravel(model.train_on_batch(ids))[0])
    assert loss == pytest.approx(recorded["loss"], rel=1e-5)
    for name, weight in weights.items():
        moved = (before[name] - weight.numpy()) / 0.01
        expected = np.reshape(recorded[name], moved.shape)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            moved / scale, expected / scale, atol=1e-5, err_msg=name
        )


class Spread(keras.losses.Loss):
    """The distance from the batch's mean; its gradient is 0 in float16."""

    compares_rows = True

    def call(self, y_true, y_pred):
        return 1e-7 * ops.sum(ops.square(y_pred - ops.mean(y_pred, 0)), -1)


class Vectors(TaskModel):
    """A user's model, whose output has the dtype of its encoder."""

    def __init__(self, encoder, name="vectors"):
        inputs = symbolic_inputs()
        vectors = encode(encoder, inputs)["pooled_output"]  # (B, D)
        super().__init__(inputs, vectors, encoder, name)


def test_micro_batches_keep_gradients_too_small_for_half_precision():
    ids = np.random.default_rng(0).integers(1, 30, (6, 5))
    changes = []
    for accumulate in (1, 2):
        encoder = random_encoder(
            dtype="mixed_float16", dropout=0.0, attention_dropout=0.0
        )
        optimizer = keras.optimizers.SGD(1e6)
        optimizer.accumulate = accumulate
        model = Vectors(encoder)
        model.compile(optimizer, Spread(), jit_compile=False)
        before = encoder.pooler.kernel.numpy()
        model.train_on_batch(ids, np.zeros(6))
        changes.append(before - encoder.pooler.kernel.numpy())
    one, two = changes
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(two, one, atol=0.02 * np.abs(one).max())


def test_micro_batches_of_a_loss_that_compares_rows_need_one_output():
    x, y, _ = pretraining_batch()
    model = make_model("pretrainer")
    model.compile(
        bert_keras.adamw(1e-3, steps=2, accumulate=3),
        {"nsp": bert_keras.InBatchNegatives()},
        jit_compile=False,
    )
    with pytest.raises(InputError, match="several outputs.* accumulate=1"):
        model.train_on_batch(x, y)


def test_pooling_is_that_of_the_source_unless_an_argument_says_so():
    encoder = tiny.encoder()
    for source, chosen, expected in (
        ({}, {}, ("mean", True, None)),
        ({"pooling": "cls", "normalize": False}, {}, ("cls", False, None)),
        ({"truncate_dim": 3}, {"pooling": "max"}, ("max", True, 3)),
        ({"normalize": False}, {"normalize": True}, ("mean", True, None)),
    ):
        encoder.sentence_embedding = source
        model = BertEmbedder(encoder, **chosen)
        assert tuple(model.arguments().values()) == expected
        assert model.sentence_embedding == model.arguments()
    for dim in (0, 9):
        with pytest.raises(
            InputError, match=f"`truncate_dim` is {dim}.* 1 to 8"
        ):
            BertEmbedder(encoder, truncate_dim=dim)
    with pytest.raises(
        InputError, match="`pooling` is 'best'. Expected one of"
    ):
        BertEmbedder(encoder, "best")


def test_a_vector_of_zeros_has_a_gradient_and_stays_so_in_float16():
    vectors = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(normalize_vectors(vectors))
    assert np.isfinite(tape.gradient(loss, vectors)).all()
    doubles = tf.constant([[1.0, 1.0, 1.0]], tf.float64)
    expected = np.full((1, 3), 3**-0.5)
    np.testing.assert_allclose(normalize_vectors(doubles), expected, 1e-15)
    halves = normalize_vectors(
        tf.constant([[3.0, 4.0], [0.0, 0.0]], tf.float16)
    )
    assert halves.dtype == tf.float16
    np.testing.assert_allclose(halves, [[0.6, 0.8], [0, 0]], atol=1e-3)


@pytest.mark.parametrize("length", [1e-8, 1e-13])
def test_short_vectors_are_scaled_as_by_pytorch_everywhere(length):
    encoder, preprocess = tiny.encoder(), tiny.preprocessor()
    norm = encoder.transformer_layers[-1].output_norm
    vector = np.linspace(1, 2, 8)
    vector *= length / np.linalg.norm(vector)
    norm.gamma.assign(np.zeros(8))
    norm.beta.assign(vector)
    expected = vector / max(length, 1e-12)  # torch.nn.functional.normalize
    model = BertEmbedder(encoder)
    for found in (
        model(preprocess(["good"])),
        model.encode(["good"], preprocess),
        normalize_vectors(vector[np.newaxis]),
    ):
        np.testing.assert_allclose(found[0], expected, rtol=1e-5)


class Short(BertPreprocessor):
    """A user's preprocessor, whose constructor takes one argument."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, 4)


def test_encode_takes_a_preprocessor_of_a_user():
    model, tokenizer = (
        BertEmbedder(tiny.encoder()),
        tiny.preprocessor().tokenizer,
    )
    texts = ["good bad good bad", "bad"]
    np.testing.assert_array_equal(
        model.encode(texts, Short(tokenizer)),
        model.encode(texts, BertPreprocessor(tokenizer, 4)),
    )


def test_encode_keeps_the_order_and_sees_new_weights(tmp_path):
    model, preprocess = BertEmbedder(tiny.encoder()), tiny.preprocessor()
    texts = ["bad", "good bad badly good", "", "badly good"]
    for _ in range(2):
        expected = model(preprocess(texts))
        found = model.encode(texts, preprocess, batch_size=3)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        table = model.encoder.embeddings.token.embeddings
        table.assign(np.array(table) * 2.0 + 0.1 * np.arange(8.0))
    assert model.encode([], preprocess).shape == (0, 8)
    tensors = list(map(tf.constant, texts))
    found = model.encode(texts, preprocess)
    np.testing.assert_array_equal(model.encode(tensors, preprocess), found)
    for wrong in ("one text", tf.constant("one text"), (["a"], ["b"])):
        with pytest.raises(InputError, match=r"encode\(\[text\]"):
            model.encode(wrong, preprocess)
    for size in (0, -1, 2.0):
        with pytest.raises(InputError, match=f"`batch_size` is {size}"):
            model.encode(texts, preprocess, size)
    with pytest.raises(InputError, match="Text 1 is nan"):
        model.encode(["good", float("nan")], preprocess)
    half = model.encode(["good\ud800"], preprocess)
    np.testing.assert_allclose(half, model.encode(["good"], preprocess))
    model.save(tmp_path / "model.keras")  # saves no graph of `encode`
