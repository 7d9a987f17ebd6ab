"""Equal weights, equal numbers: beside transformers and keras-hub.

Runs where they are installed (pip install torch transformers keras-hub), at
the size of bert-base, in float32, with weights at random.
"""

import os
import re

import numpy as np
import pytest

from bert_keras.modeling import modes
from bert_keras.modeling.encoder import BertEncoder
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.sizes import SIZES
from bert_keras.modeling.task_models import (
    BertChooser,
    BertClassifier,
    BertSpanPredictor,
    BertTagger,
)
from bert_keras.modeling.weights import published_weights

tf = pytest.importorskip("tensorflow")

# transformers' names -> ours; {} is a layer's number.
NAMES = {
    "bert.embeddings.word_embeddings.weight": (
        "encoder/embeddings/token/embeddings"
    ),
    "bert.embeddings.position_embeddings.weight": (
        "encoder/embeddings/position/embeddings"
    ),
    "bert.embeddings.token_type_embeddings.weight": (
        "encoder/embeddings/segment/embeddings"
    ),
    "bert.embeddings.LayerNorm": "encoder/embeddings/norm",
    "bert.encoder.layer.{}.attention.self.query": (
        "encoder/layer_{}/attention/query"
    ),
    "bert.encoder.layer.{}.attention.self.key": (
        "encoder/layer_{}/attention/key"
    ),
    "bert.encoder.layer.{}.attention.self.value": (
        "encoder/layer_{}/attention/value"
    ),
    "bert.encoder.layer.{}.attention.output.dense": (
        "encoder/layer_{}/attention/output"
    ),
    "bert.encoder.layer.{}.attention.output.LayerNorm": (
        "encoder/layer_{}/attention_norm"
    ),
    "bert.encoder.layer.{}.intermediate.dense": "encoder/layer_{}/intermediate",
    "bert.encoder.layer.{}.output.dense": "encoder/layer_{}/output",
    "bert.encoder.layer.{}.output.LayerNorm": "encoder/layer_{}/output_norm",
    "bert.pooler.dense": "encoder/pooler",
    "cls.predictions.transform.dense": "mlm/dense",
    "cls.predictions.transform.LayerNorm": "mlm/norm",
    "cls.predictions.bias": "mlm/bias",
    "cls.seq_relationship": "nsp",
    "qa_outputs": "span",
}
LABELS = ["a", "b", "c"]
LENGTHS = np.array([16, 11, 5, 16])


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="torch is not installed")
    return pytest.importorskip(
        "transformers", reason="transformers is not installed"
    )


def our_name(name, classifier):
    """Our path of a weight of transformers; whether it is transposed."""
    number = re.search(r"layer\.(\d+)\.", name)
    if number:
        name = name.replace(f".{number[1]}.", ".{}.", 1)
    names = {**NAMES, "classifier": classifier}
    if name in names:
        return names[name], False
    module, _, kind = name.rpartition(".")
    norm = module.endswith("LayerNorm")
    kinds = {"weight": "gamma" if norm else "kernel", "bias": "bias"}
    ours = (
        f"{names[module]}/{'beta' if norm and kind == 'bias' else kinds[kind]}"
    )
    return ours.format(
        *number.groups() if number else ()
    ), kind == "weight" and not norm


def published(model, classifier, of=lambda tensor: tensor):
    """Dict of our names -> arrays, of the weights of a torch model."""
    found = {}
    for name, tensor in model.named_parameters():
        ours, transposed = our_name(name, classifier)
        array = of(tensor)
        array = None if array is None else array.detach().numpy()
        if array is not None:
            found[ours] = array.T if transposed else array
    return found


def pair(transformers, theirs, ours, classifier="classifier", num_labels=3):
    """A model of theirs at random, and ours with its weights."""
    import torch

    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_labels=num_labels, attn_implementation="eager"
    )
    model = getattr(transformers, theirs)(config).eval()
    with torch.no_grad():  # transformers begins biases at 0, norms at 1
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    with modes.use(draw_weights=False):
        encoder = BertEncoder(
            **SIZES["uncased_L-12_H-768_A-12"], activation="gelu_exact"
        )
        copy = ours(encoder)
    arrays = published(model, classifier)
    weights = published_weights(copy)
    unused = {"encoder/pooler/kernel", "encoder/pooler/bias"}
    assert set(weights) - set(arrays) <= unused
    for name, array in arrays.items():
        weights[name].assign(array)
    return model, copy


def rows():
    random = np.random.default_rng(1)
    ids = random.integers(0, 30522, (4, 16))
    mask = (np.arange(16) < LENGTHS[:, None]).astype(int)
    segments = (np.arange(16) > 4) * mask
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": mask}


def as_torch(inputs):
    import torch

    names = {
        "token_ids": "input_ids",
        "segment_ids": "token_type_ids",
        "padding_mask": "attention_mask",
    }
    return {names[k]: torch.tensor(v) for k, v in inputs.items()}


def cross_entropy(logits, labels):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)


def check_gradients(theirs, loss, ours, our_loss, classifier="classifier"):
    """Losses to 1e-5, each weight's gradient to 1e-4 of its norm."""
    loss.backward()
    with tf.GradientTape() as tape:
        value = our_loss()
    assert float(value) == pytest.approx(loss.item(), abs=1e-5)
    weights = ours.trainable_weights
    gradients = tape.gradient(value, [weight.value for weight in weights])
    second = published(theirs, classifier, of=lambda tensor: tensor.grad)
    # A key's bias moves all scores of a query alike: no gradient but noise.
    floor = 1e-4 * max(np.linalg.norm(value) for value in second.values())
    for weight, gradient in zip(weights, gradients, strict=True):
        expected = second[weight.path]
        wrong = np.linalg.norm(gradient.numpy() - expected)
        bound = max(np.linalg.norm(expected), floor)
        assert wrong <= 1e-4 * bound, (weight.path, wrong / bound)


def test_pretraining_equals_transformers(transformers):
    import torch

    theirs, ours = pair(transformers, "BertForPreTraining", BertPretrainer)
    inputs = rows()
    positions = np.array([[1, 7, 9], [2, 3, 0], [4, 0, 0], [1, 2, 15]])
    weights = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    ids = np.random.default_rng(2).integers(0, 30522, positions.shape)
    labels = np.full((4, 16), -100)
    for row, place, own, weight in zip(
        np.arange(4).repeat(3),
        positions.flat,
        ids.flat,
        weights.flat,
        strict=True,
    ):
        if weight:
            labels[row, place] = own
    following = np.array([0, 1, 1, 0])
    out = theirs(
        **as_torch(inputs),
        labels=torch.tensor(labels),
        next_sentence_label=torch.tensor(following),
        output_hidden_states=True,
    )
    states = ours.encoder(inputs, hidden_states=True)["hidden_states"]
    real = inputs["padding_mask"].astype(bool)
    for left, right in zip(states, out.hidden_states, strict=True):
        np.testing.assert_allclose(
            left.numpy()[real], right.detach().numpy()[real], atol=1e-5
        )
    inputs["mask_positions"] = positions
    logits = ours(inputs)
    everywhere = out.prediction_logits.detach().numpy()
    second = np.take_along_axis(everywhere, positions[..., None], axis=1)
    np.testing.assert_allclose(logits["mlm"], second, atol=1e-5)
    np.testing.assert_allclose(
        logits["nsp"], out.seq_relationship_logits.detach(), atol=1e-5
    )

    def our_loss():
        logits = ours(inputs)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            ids, logits["mlm"]
        )
        masked = tf.reduce_sum(losses * weights) / weights.sum()
        return masked + cross_entropy(logits["nsp"], following)

    check_gradients(theirs, out.loss, ours, our_loss)


@pytest.mark.parametrize(
    ("name", "ours", "head", "shape", "labels"),
    [
        (
            "BertForSequenceClassification",
            lambda encoder: BertClassifier(encoder, LABELS),
            "classifier",
            (4, 16),
            np.array([0, 2, 1, 1]),
        ),
        (
            "BertForTokenClassification",
            lambda encoder: BertTagger(encoder, LABELS),
            "tagger",
            (4, 16),
            np.random.default_rng(3).integers(0, 3, (4, 16)),
        ),
        (
            "BertForMultipleChoice",
            BertChooser,
            "chooser",
            (2, 2, 16),
            np.array([1, 0]),
        ),
    ],
    ids=["classifier", "tagger", "chooser"],
)
def test_heads_equal_those_of_transformers(
    transformers, name, ours, head, shape, labels
):
    import torch

    theirs, model = pair(transformers, name, ours, head)
    inputs = {key: x.reshape(shape) for key, x in rows().items()}
    out = theirs(**as_torch(inputs), labels=torch.tensor(labels))
    np.testing.assert_allclose(model(inputs), out.logits.detach(), atol=1e-5)
    check_gradients(
        theirs,
        out.loss,
        model,
        lambda: cross_entropy(model(inputs), labels),
        head,
    )


def test_spans_equal_transformers(transformers):
    import torch

    theirs, ours = pair(
        transformers,
        "BertForQuestionAnswering",
        BertSpanPredictor,
        num_labels=2,
    )
    start, end = np.array([1, 2, 3, 4]), np.array([5, 6, 4, 15])
    out = theirs(
        **as_torch(rows()),
        start_positions=torch.tensor(start),
        end_positions=torch.tensor(end),
    )
    logits = ours(rows())
    np.testing.assert_allclose(
        logits["start"], out.start_logits.detach(), atol=1e-5
    )
    np.testing.assert_allclose(
        logits["end"], out.end_logits.detach(), atol=1e-5
    )

    def our_loss():
        logits = ours(rows())
        ends = (
            cross_entropy(logits["start"], start),
            cross_entropy(logits["end"], end),
        )
        return sum(ends) / 2

    check_gradients(theirs, out.loss, ours, our_loss)


def test_real_weights_equal_transformers(transformers):
    data = os.environ.get("BERT_KERAS_DATA")
    if not data:
        pytest.skip("BERT_KERAS_DATA is not set")
    folder = os.path.join(data, "weights", "all-MiniLM-L6-v2")
    theirs = transformers.BertModel.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    ours = BertEncoder.from_preset(folder)
    out = theirs(**as_torch(rows()))
    outputs = ours(rows())
    real = rows()["padding_mask"].astype(bool)
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[real],
        out.last_hidden_state.detach().numpy()[real],
        atol=1e-5,
    )
    np.testing.assert_allclose(
        outputs["pooled_output"], out.pooler_output.detach(), atol=1e-5
    )


def test_the_encoder_equals_keras_hub():
    keras_hub = pytest.importorskip(
        "keras_hub", reason="keras-hub is not installed"
    )
    size = SIZES["uncased_L-12_H-768_A-12"]
    theirs = keras_hub.models.BertBackbone(**size, max_sequence_length=512)
    ours = BertEncoder(**size)  # the tanh form, as keras-hub
    weights = published_weights(ours)
    for weight in theirs.weights:
        name = hub_name(weight.path)
        weights[name].assign(np.reshape(weight.numpy(), weights[name].shape))
    inputs = rows()
    out = theirs(inputs)
    outputs = ours(inputs)
    real = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[real],
        out["sequence_output"].numpy()[real],
        atol=1e-5,
    )
    np.testing.assert_allclose(
        outputs["pooled_output"], out["pooled_output"], atol=1e-5
    )


def hub_name(path):
    """Our path of a weight of keras-hub's backbone."""
    path = re.sub(r"transformer_layer_(\d+)/", r"encoder/layer_\1/", path)
    for theirs, ours in (
        ("token_embedding/", "encoder/embeddings/token/"),
        ("segment_embedding/", "encoder/embeddings/segment/"),
        ("embeddings_layer_norm/", "encoder/embeddings/norm/"),
        ("pooled_dense/", "encoder/pooler/"),
        ("self_attention_layer/attention_output", "attention/output"),
        ("self_attention_layer_norm", "attention_norm"),
        ("self_attention_layer", "attention"),
        ("feedforward_intermediate_dense", "intermediate"),
        ("feedforward_output_dense", "output"),
        ("feedforward_layer_norm", "output_norm"),
    ):
        path = path.replace(theirs, ours)
    if "position_embedding" in path:
        return "encoder/embeddings/position/embeddings"
    return path
