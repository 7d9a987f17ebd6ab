"""BERT base at random weights: outputs, loss and gradients of transformers.

tests/golden has the same of every head, recorded from small models.
"""

import numpy as np
import pytest

from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.weights import published_weights

tf = pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
)

POSITIONS = np.array([[1, 7, 9], [2, 3, 0], [4, 0, 0], [1, 2, 15]])
WEIGHTS = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
FOLLOWING = np.array([0, 1, 1, 0])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Folders of a model and of its gradients, inputs, labels and outputs."""
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig()).eval()
    for weight in model.parameters():  # biases and norms are not constants
        if weight.ndim == 1:
            weight.data += 0.1 * torch.randn_like(weight)
    # PyTorch leaves the vector of [PAD] as it is; BERT's code trains it.
    model.get_input_embeddings().padding_idx = None
    folder = tmp_path_factory.mktemp("base")
    model.save_pretrained(folder / "model")
    random = np.random.default_rng(1)
    mask = (np.arange(16) < np.array([[16], [11], [5], [16]])).astype("int32")
    inputs = {
        "token_ids": random.integers(0, 30522, (4, 16)),
        "segment_ids": (np.arange(16) > 4) * mask,
        "padding_mask": mask,
    }
    ids = random.integers(0, 30522, POSITIONS.shape)
    labels = np.full((4, 16), -100)
    for row, column in np.argwhere(WEIGHTS):
        labels[row, POSITIONS[row, column]] = ids[row, column]
    outputs = model(
        torch.tensor(inputs["token_ids"]),
        token_type_ids=torch.tensor(inputs["segment_ids"]),
        attention_mask=torch.tensor(mask),
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(FOLLOWING),
        output_hidden_states=True,
    )
    outputs.loss.backward()
    for weight in model.parameters():
        weight.data = weight.grad
    model.save_pretrained(folder / "gradients")
    return folder, inputs, ids, outputs


@pytest.fixture(scope="module")
def model(recorded):
    return BertPretrainer.from_preset(recorded[0] / "model")


def test_base_has_the_outputs_of_transformers(recorded, model):
    _, inputs, _, outputs = recorded
    states = model.encoder(inputs, hidden_states=True)["hidden_states"]
    is_real = inputs["padding_mask"].astype(bool)
    for state, expected in zip(states, outputs.hidden_states, strict=True):
        np.testing.assert_allclose(
            state.numpy()[is_real], expected.detach()[is_real], atol=1e-5
        )
    found = model({**inputs, "mask_positions": POSITIONS})
    logits = outputs.prediction_logits.detach().numpy()  # (B, T, V)
    masked = np.take_along_axis(logits, POSITIONS[..., None], axis=1)
    np.testing.assert_allclose(found["mlm"], masked, atol=1e-5)
    following = outputs.seq_relationship_logits.detach()
    np.testing.assert_allclose(found["nsp"], following, atol=1e-5)


def test_base_has_the_loss_and_gradients_of_transformers(recorded, model):
    folder, inputs, ids, outputs = recorded
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.GradientTape() as tape:
        logits = model({**inputs, "mask_positions": POSITIONS})
        masked = tf.reduce_sum(entropy(ids, logits["mlm"]) * WEIGHTS)
        following = tf.reduce_mean(entropy(FOLLOWING, logits["nsp"]))
        loss = masked / WEIGHTS.sum() + following
    assert float(loss) == pytest.approx(outputs.loss.item(), abs=1e-5)
    published = published_weights(model)
    variables = [weight.value for weight in published.values()]
    found = dict(zip(published, tape.gradient(loss, variables), strict=True))
    gradients = BertPretrainer.from_preset(folder / "gradients")
    expected = {
        name: weight.numpy()
        for name, weight in published_weights(gradients).items()
    }
    # The bias of a key moves all scores of a query: its gradient is noise.
    floor = 1e-4 * max(map(np.linalg.norm, expected.values()))
    for name, gradient in found.items():
        difference = np.linalg.norm(gradient.numpy() - expected[name])
        bound = 1e-4 * max(np.linalg.norm(expected[name]), floor)
        assert difference <= bound, (name, difference / bound)
