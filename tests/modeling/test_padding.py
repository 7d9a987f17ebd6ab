"""A model that skips padding, against the same model on padded rows."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.modeling import modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.serving.signatures import ExportOptions
from tests.support.model_samples import fill
from tests.support.served_samples import (
    own_signatures,
    preprocessor,
    task_models,
)

LENGTHS = {
    "mixed": [7, 2, 11, 5],
    "alone": [6],
    "equal": [4, 4, 4],
    "one long": [2, 2, 2, 12],
    "no rows": [],
}
SIZES = (50, 2, 2, 8, 16, 16)


def rows(lengths, seed=0):
    """Return the encoder's inputs for rows of these lengths, padded with 0."""
    draw = np.random.default_rng(seed)
    length = max(lengths, default=1)
    mask = np.arange(length) < np.reshape(lengths, (-1, 1))
    ids = draw.integers(1, SIZES[0], mask.shape) * mask
    values = {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": mask}
    return {k: tf.constant(v.astype("int32")) for k, v in values.items()}


def both(model, inputs, **arguments):
    padded = model(inputs, **arguments)
    with modes.use(skip_padding=True):
        return padded, model(inputs, **arguments)


@pytest.mark.parametrize(
    ("lengths", "attention"),
    [
        *((lengths, "bidirectional") for lengths in LENGTHS.values()),
        (LENGTHS["mixed"], "left_to_right"),
        (LENGTHS["mixed"], "right_to_left"),
    ],
)
def test_real_tokens_get_the_same_vectors(lengths, attention):
    encoder = fill(BertEncoder(*SIZES, attention=attention))
    inputs = rows(lengths)
    padded, unpadded = both(
        encoder, inputs, hidden_states=True, attention_probabilities=True
    )
    real = np.array(inputs["padding_mask"], bool)
    pairs = [
        *zip(padded["hidden_states"], unpadded["hidden_states"], strict=True)
    ]
    pairs.append((padded["sequence_output"], unpadded["sequence_output"]))
    for left, right in pairs:
        assert left.shape == right.shape
        left, right = np.array(left)[real], np.array(right)[real]
        np.testing.assert_allclose(left, right, atol=1e-5)
    np.testing.assert_allclose(
        padded["pooled_output"], unpadded["pooled_output"], atol=1e-5
    )
    probabilities = (
        np.stack(x["attention_probabilities"], 2)  # (B, N, layers, T, S)
        for x in (padded, unpadded)
    )
    left, right = (np.moveaxis(x, 3, 1)[real] for x in probabilities)
    np.testing.assert_allclose(left, right, atol=1e-5)


def test_a_mask_may_have_holes_and_leave_out_the_first_token():
    encoder = fill(BertEncoder(*SIZES))
    mask = np.array([[0, 1, 0, 1, 1], [1, 0, 0, 1, 0], [1, 1, 1, 1, 1]])
    inputs = {**rows([5, 5, 5]), "padding_mask": tf.constant(mask)}
    padded, unpadded = both(encoder, inputs)
    for name in padded:
        real = mask.astype(bool) if name == "sequence_output" else ...
        left, right = np.array(padded[name])[real], np.array(unpadded[name])
        np.testing.assert_allclose(left, right[real], atol=1e-5)


def test_packed_rows_are_unpadded_too():
    encoder = fill(BertEncoder(*SIZES))
    inputs = rows([7, 4])
    numbers = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 0, 0, 0]], "int32")
    positions = np.array(
        [[0, 1, 2, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0, 0]], "int32"
    )
    inputs |= {"example_ids": numbers, "position_ids": positions}
    padded, unpadded = both(encoder, inputs, examples_per_row=3)
    left, right = padded["pooled_output"], unpadded["pooled_output"]
    np.testing.assert_allclose(left[0], right[0], atol=1e-5)
    np.testing.assert_allclose(left[1, :2], right[1, :2], atol=1e-5)


def test_one_graph_serves_every_mix_of_lengths():
    encoder = fill(BertEncoder(*SIZES))
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in rows([1])}

    @tf.function(input_signature=[spec])
    def pooled(inputs):
        return encoder(inputs)["pooled_output"]

    with modes.use(skip_padding=True):
        pooled.get_concrete_function()
    for lengths in LENGTHS.values():
        inputs = rows(lengths)
        expected = encoder(inputs)["pooled_output"]
        np.testing.assert_allclose(pooled(inputs), expected, atol=1e-5)


def test_a_row_without_tokens_harms_no_other():
    padded, unpadded = both(fill(BertEncoder(*SIZES)), rows([0, 5, 0]))
    left, right = padded["pooled_output"], unpadded["pooled_output"]
    np.testing.assert_allclose(left[1], right[1], atol=1e-5)
    assert np.isfinite(np.array(unpadded["sequence_output"])).all()


def test_gradients_are_those_of_padded_rows():
    model = BertEncoder(*SIZES, dropout=0.0, attention_dropout=0.0)
    fill(model)
    inputs = rows(LENGTHS["mixed"])
    real = tf.cast(inputs["padding_mask"], tf.float32)[..., tf.newaxis]
    weights = model.trainable_weights

    def gradients():
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = tf.reduce_sum(tf.sin(outputs["sequence_output"]) * real)
            loss += tf.reduce_sum(tf.cos(3 * outputs["pooled_output"]))
        return tape.gradient(loss, [weight.value for weight in weights])

    padded = gradients()
    with modes.use(skip_padding=True):
        unpadded = gradients()
    for weight, left, right in zip(weights, padded, unpadded, strict=True):
        atol = 1e-5 * max(1, np.abs(left).max())
        np.testing.assert_allclose(left, right, atol=atol, err_msg=weight.path)


def test_every_signature_leaves_padding_alone():
    """The embedding of [PAD] is NaN, but all answers are finite."""
    models = task_models()
    for model in models:
        table = model.encoder.embeddings.token.embeddings
        values = np.array(table)
        values[0] = np.nan
        table.assign(values)
    options = {"pair": False, "top_k": 3, "long_text": "truncate"}
    options |= {"pooling": "mean", "normalize": True, "features": "last"}
    options = ExportOptions(**options)
    texts = ["an hour well [MASK] spent.", "bad", "", "good film, was it?"]
    for model in models:
        for signature in own_signatures(
            model, preprocessor(), options
        ).values():
            if signature.name == "fill_mask":
                continue  # it reads the embeddings of all tokens
            inputs = dict.fromkeys(signature.inputs, texts)
            if "choices" in inputs:
                inputs["choices"] = [[text, "film"] for text in texts]
            skips = signature.skips_padding
            with modes.use(skip_padding=skips, gradients=False):
                answer = signature.function(*map(tf.constant, inputs.values()))
            for name, value in answer.items():
                if value.dtype == tf.float32:
                    found = np.isfinite(value).all()
                    assert found, (signature.name, name)
