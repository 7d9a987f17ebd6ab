import keras
import numpy as np
import pytest
from layer_check import check_layer
from model_samples import SMALL
from numpy_bert import mlm_logits

from bert_keras.modeling.heads import LogitsHead, MaskedLanguageModelHead
from bert_keras.modeling.layers import gather_positions

RANDOM = np.random.default_rng(3)
SEQUENCE = RANDOM.normal(size=(2, 5, 8)).astype("float32")
POSITIONS = np.array([[4, 0, 0], [1, 1, 2]], "int32")


def masked_head(**arguments):
    embedding = keras.layers.Embedding(30, 8, name="token")
    return MaskedLanguageModelHead(embedding, name="mlm", **arguments)


def test_the_masked_head_passes_the_layer_check(tmp_path):
    check_layer(
        masked_head(),
        [SEQUENCE, POSITIONS],
        [
            "bias",
            "token/embeddings",
            "dense/kernel",
            "dense/bias",
            "norm/gamma",
            "norm/beta",
        ],
        tmp_path,
        dtype="float32",
    )


def test_the_logits_head_passes_the_layer_check(tmp_path):
    check_layer(
        LogitsHead(3, 0.5, name="classifier"),
        [SEQUENCE],
        ["kernel", "bias"],
        tmp_path,
        drops=True,
        dtype="float32",
    )


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_exact"])
def test_masked_logits_equal_the_numpy_restatement(activation):
    head = masked_head(activation=activation)
    head(SEQUENCE, POSITIONS)
    weights = {}
    for weight in head.weights:
        weight.assign(RANDOM.normal(size=weight.shape))
        weights[weight.path] = weight.numpy()
    weights["encoder/embeddings/token/embeddings"] = (
        head.embedding.embeddings.numpy()
    )
    second = mlm_logits(
        weights, {"activation": activation}, SEQUENCE, POSITIONS
    )
    np.testing.assert_allclose(head(SEQUENCE, POSITIONS), second, atol=1e-5)
    everywhere = np.broadcast_to(np.arange(5), (2, 5))
    np.testing.assert_allclose(
        head(SEQUENCE), head(SEQUENCE, everywhere), atol=1e-5
    )


def test_positions_are_gathered_row_by_row():
    picked = np.array(gather_positions(SEQUENCE, POSITIONS))
    np.testing.assert_array_equal(
        picked, np.stack([SEQUENCE[0][[4, 0, 0]], SEQUENCE[1][[1, 1, 2]]])
    )


def test_the_tied_table_moves_the_logits():
    head = masked_head()
    before = np.array(head(SEQUENCE, POSITIONS))
    table = head.embedding.embeddings
    table.assign(table + 1.0)
    after = np.array(head(SEQUENCE, POSITIONS))
    # Every logit moves by the sum of the same normalised vector.
    moved = after - before
    np.testing.assert_allclose(moved, moved[..., :1] + 0 * moved, atol=1e-4)
    assert SMALL["vocabulary_size"] == moved.shape[-1]
