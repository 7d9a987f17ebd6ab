"""The model on JAX, with TensorFlow's import blocked."""

import os
import subprocess
import sys

import pytest

from bert_keras.errors import InputError
from tests.support.device_processes import finish, start
from tests.support.run_script import ROOT, WITHOUT_TENSORFLOW

pytestmark = pytest.mark.heavy

REFUSED_STEPS = ["-m", "tests.support.refused_steps"]
FORWARD = """
import keras, numpy as np
import bert_keras
from tests.support.model_samples import (
    numpy_weights, pretraining_batch, random_encoder
)
from tests.support.numpy_bert import encode
from bert_keras.modeling.pretrainer import BertPretrainer
from bert_keras.modeling.embedder import BertEmbedder

x, y, w = pretraining_batch()
encoder = random_encoder(attention="left_to_right")
inputs = {k: v for k, v in x.items() if k != "mask_positions"}
second = encode(numpy_weights(encoder), encoder.get_config(), inputs)
ours = encoder(inputs)
np.testing.assert_allclose(
    ours["pooled_output"], second["pooled_output"], atol=1e-5
)
embedder, ids = BertEmbedder(encoder), x["token_ids"]
vectors = embedder.predict({"token_ids": np.stack([ids, ids], 1)}, verbose=0)
np.testing.assert_allclose(vectors[:, 1], embedder(ids), atol=1e-5)
for name in bert_keras.__all__:
    if name.startswith("Bert") and "Preprocessor" not in name:
        getattr(bert_keras, name)
try:
    bert_keras.export_saved_model
except ImportError as error:
    assert "needs tensorflow" in str(error)
else:
    raise AssertionError("export without TensorFlow")
assert not any(name.startswith("tensorflow") for name in sys.modules)
"""

SLOPES = """
import jax
from bert_keras.modeling.attention import TransformerLayer

half = BertPretrainer(encoder).with_dtype("mixed_bfloat16")
assert half.output["mlm"].dtype == "float32"

def slopes(rematerialize):
    keras.utils.set_random_seed(1)
    layer = TransformerLayer(2, 8, 12, 0.3, 0.3, rematerialize=rematerialize)
    layer.build((None, None, 8))
    states = [v.value for v in layer.non_trainable_variables]
    vectors = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")

    def loss(weights):
        y, _ = layer.stateless_call(weights, states, vectors, training=True)
        return (y ** 3).sum()

    weights = [v.value for v in layer.trainable_variables]
    return jax.jit(jax.grad(loss))(weights)

for left, right in zip(slopes(False), slopes(True), strict=True):
    np.testing.assert_allclose(left, right, atol=1e-5)

# The fused kernel, which a CPU does without.
from bert_keras.modeling import kernels
has_fused_attention = kernels.has_fused_attention
kernels.has_fused_attention = lambda bias: True
np.testing.assert_allclose(
    encoder(inputs)["pooled_output"], second["pooled_output"], atol=1e-5
)
kernels.has_fused_attention = has_fused_attention
"""


MODEL_PARALLEL = r"""
import re, sys
import keras, numpy as np
from bert_keras import BertClassifier, adamw
from bert_keras.interop.saving import save_model
from tests.support.model_samples import random_encoder, random_inputs

x, y = random_inputs(batch=4), np.array([0, 1, 1, 0])

def trained():
    keras.utils.set_random_seed(1)  # dropout is on
    model = BertClassifier.from_preset(sys.argv[1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-2, steps=8), loss)
    history = model.fit(x, y, batch_size=4, epochs=4, verbose=0).history["loss"]
    return model, history

model = BertClassifier(random_encoder(num_layers=1), ["no", "yes"])
save_model(sys.argv[1], model)
_, one_device = trained()
page = open(sys.argv[2], encoding="utf-8").read()
(recipe,) = re.findall(r"```python\n(import keras\n.*?)```", page, re.DOTALL)
exec(recipe)
model, two_devices = trained()
np.testing.assert_allclose(two_devices, one_device, rtol=1e-5)
assert two_devices[-1] < two_devices[0]

def held(variable):
    shards = variable.value.addressable_shards
    assert len(shards) == 2
    return shards[0].data.size / variable.value.size

weights = model.encoder.weights
cut = {w.path.partition("/")[2] for w in weights if held(w) == 0.5}
names = [
    f"attention/{name}/{kind}"
    for name in ("query", "key", "value")
    for kind in ("kernel", "bias")
]
names += ["attention/output/kernel", "intermediate/kernel"]
names += ["intermediate/bias", "output/kernel"]
layers = {f"layer_0/{name}" for name in names}
assert cut == layers | {"embeddings/token/embeddings"}, cut
moments = sum(held(v) == 0.5 for v in model.optimizer.variables)
assert moments == 2 * len(cut), moments
"""


SHARED_ENCODER = """
import warnings
import bert_keras, keras, numpy as np
from bert_keras import BertClassifier, BertTagger, adamw
from tests.support.model_samples import random_encoder, random_inputs

warnings.filterwarnings("error", "Gradients do not exist")
x, y = random_inputs(batch=4), np.array([0, 1, 1, 0])
for optimizer, dtype in (
    (lambda: adamw(1e-2, accumulate=2, ema=0.9), "float32"),
    (lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1), "float32"),
    (lambda: keras.optimizers.Adam(1e-2, use_ema=True), "mixed_float16"),
):
    encoder = random_encoder(num_layers=1, dtype=dtype)
    tagger = BertTagger(encoder, ["no", "yes"])
    classifier = BertClassifier(encoder, ["no", "yes"])
    for model in (tagger, classifier):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss)
    for model, labels in (
        (tagger, x["segment_ids"]), (classifier, y), (tagger, x["segment_ids"])
    ):
        pooler = encoder.pooler.get_weights()
        layer = encoder.transformer_layers[0].get_weights()
        model.fit(x, labels, batch_size=4, epochs=2, verbose=0)
        moved = (encoder.pooler.get_weights()[0] != pooler[0]).any()
        assert moved == (model is classifier), (dtype, model.name)
        new = encoder.transformer_layers[0].get_weights()
        assert any((a != b).any() for a, b in zip(layer, new, strict=True))
    features = BertClassifier(encoder, ["no", "yes"], recipe="last")
    features.compile(optimizer(), loss)
    before, head = encoder.get_weights(), features.layers[-1].get_weights()
    features.fit(x, np.array(["no", "yes", "yes", "no"]), verbose=0)
    for a, b in zip(before, encoder.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (head[0] != features.layers[-1].get_weights()[0]).any()
    try:
        features.fit(x, y + 1, verbose=0)
    except bert_keras.InputError as error:
        assert "labels contain 2" in str(error), error
    else:
        raise AssertionError("labels beyond the classes")
"""

# With dropout, both passes over the micro-batches draw the same masks.
CACHED_GRADIENTS = """
import bert_keras, keras, jax, numpy as np
from jax import numpy as jnp
from tests.support.model_samples import fill, make_model

ids = np.random.default_rng(0).integers(1, 30, (6, 3, 6))
numbers = np.arange(18).reshape(6, 3) % 11

def make(accumulate):
    model = fill(make_model("embedder", dropout=0.3, attention_dropout=0.3))
    for variable in model.non_trainable_variables:  # the seeds
        variable.assign(np.full(variable.shape, 3))
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.accumulate = accumulate
    model.compile(optimizer, bert_keras.InBatchNegatives())
    return model

def differentiate(accumulate):
    model, loss = make(accumulate), bert_keras.InBatchNegatives()

    def compute(trainable):
        states = [v.value for v in model.non_trainable_variables]
        outputs = [None] * 6
        for i in range(accumulate):
            found, states = model.stateless_call(
                trainable, states, ids[i::accumulate], training=True
            )
            outputs[i::accumulate] = list(found)
        return loss(numbers, jnp.stack(outputs))

    weights = [v.value for v in model.trainable_variables]
    value, gradients = jax.value_and_grad(compute)(weights)
    return value, [a - b for a, b in zip(weights, gradients, strict=True)]

distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
for accumulate in (1, 2, 3):
    value, weights = differentiate(accumulate)
    for scope in (None, distribution):
        keras.distribution.set_distribution(scope)
        model = make(accumulate)
        found = float(np.ravel(model.train_on_batch(ids, numbers))[0])
        keras.distribution.set_distribution(None)
        np.testing.assert_allclose(found, value, rtol=1e-5)
        for a, b in zip(model.trainable_variables, weights, strict=True):
            if "pooler" not in a.path:
                np.testing.assert_allclose(a, b, atol=2e-5, err_msg=a.path)
"""

# A callback of JAX fails while the compiled step runs, not while it is traced.
LOST = """
import jax, keras, numpy as np
from bert_keras import BertClassifier
from tests.support.model_samples import make_encoder

def loss(y, logits):
    shape = jax.ShapeDtypeStruct((), "float32")
    values = jax.lax.stop_gradient(logits)
    return jax.pure_callback(lambda x: 1 / 0, shape, values)

for method in ("evaluate", "fit"):
    model = BertClassifier(make_encoder(), ["no", "yes"])
    model.compile("adam", loss)
    try:
        getattr(model, method)(np.ones((2, 3), int), np.zeros(2), verbose=0)
    except Exception as error:
        assert "weights are lost" in str(error.__notes__), error.__notes__
    else:
        raise AssertionError(method)
"""


def run(*words):
    environment = {
        "KERAS_BACKEND": "jax",
        # Compilation takes most of the time.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    if words[0] != "-m":
        words = ["-c", *words]
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]


EXPORT_AND_LAST_BATCH = """
import keras, numpy as np, sys
import tensorflow as tf
from tests.support.model_samples import (
    fill, make_inputs, make_model, random_inputs
)

for name in ("chooser", "pretrainer"):
    model, x = fill(make_model(name)), make_inputs(name)
    model.export(f"{sys.argv[1]}/{name}", verbose=False)
    served = tf.saved_model.load(f"{sys.argv[1]}/{name}")
    for length in (7, 5):
        part = {
            k: v[..., :length].astype("int32")
            for k, v in x.items()
            if k != "mask_positions"
        }
        part |= {k: x[k].astype("int32") for k in x if k not in part}
        found, expected = served.serve(part), model(part)
        for a, b in zip(*map(keras.tree.flatten, (found, expected))):
            np.testing.assert_allclose(a, b, atol=1e-5)

keras.distribution.set_distribution(
    keras.distribution.DataParallel(auto_shard_dataset=False)
)
model, x = fill(make_model("classifier")), random_inputs(batch=5)
model.compile("sgd")
for call in (
    lambda: model.fit(x, np.zeros(5, int), batch_size=4, verbose=0),
    lambda: model.evaluate(x, np.zeros(5, int), batch_size=4, verbose=0),
    lambda: model.predict(x, batch_size=4, verbose=0),
):
    try:
        call()
    except ValueError as error:
        assert "1 rows" in str(error) and "drop_remainder" in str(error), error
    else:
        raise AssertionError("a batch of one row on two devices")
x = {k: v[:4] for k, v in x.items()}
model.fit(x, np.zeros(4, int), batch_size=2, verbose=0)
"""


TEXTS = """
import keras, numpy as np
import bert_keras

texts = ["An hour", "Bad", "A good one well spent", "awful"] * 3
labels = [1, 0] * 6
weights = np.linspace(0.5, 1.5, 12)
found = []
for reads_texts in (True, False):
    model = bert_keras.BertClassifier.from_preset(
        "bert_keras_mini_en", labels=["bad", "good"], sequence_length=8,
        dropout=0.0,
    )
    model.encoder.trainable = False
    for variable in model.classifier.weights:
        values = np.linspace(-1, 1, variable.value.size)
        variable.assign(values.reshape(variable.shape))
    model.compile(keras.optimizers.SGD(0.1))
    x, y = texts, labels
    if not reads_texts:
        x = {k: v.numpy() for k, v in model.preprocessor(texts).items()}
        y = np.array(labels)
    history = model.fit(
        x, y, sample_weight=weights, validation_split=0.25, batch_size=4,
        epochs=2, shuffle=False, verbose=0,
    ).history
    scores = model.evaluate(x, y, verbose=0)
    found.append(np.hstack([
        *history.values(), scores, model.predict(x, verbose=0).ravel(),
        model.train_on_batch(x, y), np.ravel(model(x)),
    ]))
np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
"""


def test_arrays_of_texts_are_trained_on_as_ids_are():
    run(TEXTS)


@pytest.mark.long
def test_an_export_has_one_length_and_an_uneven_batch_is_refused(tmp_path):
    run(EXPORT_AND_LAST_BATCH, tmp_path)


@pytest.mark.long
def test_the_model_runs_without_tensorflow_and_is_cut_across_two_devices(
    tmp_path,
):
    """test_devices.py compares training on JAX and on TensorFlow."""
    run(
        WITHOUT_TENSORFLOW + FORWARD + SLOPES + MODEL_PARALLEL,
        tmp_path / "model",
        ROOT / "docs" / "devices.md",
    )


@pytest.mark.long
def test_an_unused_pooler_of_a_shared_encoder_stays_the_same():
    run(SHARED_ENCODER)


@pytest.mark.long
def test_micro_batches_have_the_negatives_of_the_whole_batch():
    run(CACHED_GRADIENTS)


def test_a_failed_step_keeps_the_weights():
    """Each reason is checked with one method; the long test checks all."""
    finish(start(REFUSED_STEPS))


@pytest.mark.long
def test_a_failed_step_keeps_the_weights_in_all_methods_and_on_jax():
    finish(start(REFUSED_STEPS, "long"))
    run(*REFUSED_STEPS, "long")
    run(LOST)


def test_what_needs_tensorflow_says_so_before_it_begins(monkeypatch, tmp_path):
    from bert_keras.serving.export import export_saved_model
    from bert_keras.serving.onnx_litert import export_on_ids
    from official_tasks import pretrain
    from official_tasks.engine import finetuning, models

    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    output = tmp_path / "run"
    few = {"epochs": 1, "batch_size": 1, "learning_rate": 1}
    for begin in (
        lambda: export_saved_model(None, output, None),
        lambda: export_on_ids(None, None, output, "onnx"),
        lambda: pretrain.run("data", output),
        lambda: models.load_model(None, "model"),
        lambda: models.load_trained(None, "model"),
        lambda: finetuning.run(None, "m", output, sequence_length=8, **few),
    ):
        with pytest.raises(InputError, match="runs on jax.*=tensorflow"):
            begin()
    assert not output.exists()
