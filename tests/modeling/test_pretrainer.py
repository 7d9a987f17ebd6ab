import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.modeling import kernels
from bert_keras.modeling.pretrainer import (
    pretraining_losses,
    pretraining_metrics,
)
from bert_keras.training.optimizers import adamw
from bert_keras.training.step import build
from tests.support.model_samples import (
    fill,
    make_model,
    numpy_weights,
    pretraining_batch,
)
from tests.support.numpy_bert import dense, encode, mlm_logits, pretraining_loss


def random_pretrainer(**arguments):
    return fill(make_model("pretrainer", **arguments))


def compiled(model):
    model.compile(
        adamw(3e-3, 100),
        pretraining_losses(),
        weighted_metrics=pretraining_metrics(),
        run_eagerly=True,
    )
    return model


def compute_loss(model, x, y, w, training=False):
    """Return the training loss in the model's precision."""
    outputs = model(x, training=training)
    total = 0.0
    for name, logits in outputs.items():
        one_hot = tf.one_hot(y[name], logits.shape[-1], dtype=logits.dtype)
        losses = -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), -1)
        weights = tf.cast(w[name], logits.dtype)
        total += tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
    return total


def gradients(model, batch, training=False, traced=True):
    """Return the loss, gradients by path and number of matrix products."""
    products = []

    def step():
        with tf.GradientTape() as tape:
            loss = compute_loss(model, *batch, training)
        return loss, tape.gradient(loss, model.trainable_weights)

    if traced:
        step = tf.function(step)
        graph = step.get_concrete_function().graph.as_graph_def()
        nodes = [*graph.node]
        for function in graph.library.function:
            nodes += function.node_def
        products = [x for x in nodes if x.op in ("MatMul", "BatchMatMulV2")]
    loss, gradients_by_path = step()
    paths = [weight.path for weight in model.trainable_weights]
    slopes = dict(zip(paths, gradients_by_path, strict=True))
    return float(loss), slopes, len(products)


def test_logits_and_losses_equal_the_numpy_restatement():
    model = compiled(random_pretrainer(num_layers=2))
    x, y, w = pretraining_batch()
    weights, config = numpy_weights(model), model.encoder.get_config()
    encoded = encode(
        weights, config, {k: v for k, v in x.items() if k != "mask_positions"}
    )
    mlm = mlm_logits(
        weights, config, encoded["sequence_output"], x["mask_positions"]
    )
    nsp = dense(weights, "nsp", encoded["pooled_output"])
    outputs = model(x)
    np.testing.assert_allclose(outputs["mlm"], mlm, atol=1e-5)
    np.testing.assert_allclose(outputs["nsp"], nsp, atol=1e-5)
    metrics = model.evaluate(x, y, sample_weight=w, verbose=0, return_dict=True)
    second = pretraining_loss(weights, config, x, y, w)
    assert metrics["loss"] == pytest.approx(second, rel=1e-5)
    right = (mlm.argmax(-1) == y["mlm"]) * w["mlm"]
    assert metrics["mlm_accuracy"] == pytest.approx(
        right.sum() / w["mlm"].sum()
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_rematerialised_gradients_are_the_same_with_dropout_on(dtype):
    batch, traced = pretraining_batch(batch=4), dtype == "float32"
    results = []
    for rematerialize in (False, True):
        keras.utils.set_random_seed(1)
        model = random_pretrainer(
            dropout=0.3,
            attention_dropout=0.3,
            rematerialize=rematerialize,
            dtype=dtype,
        )
        results.append(gradients(model, batch, training=True, traced=traced))
    (loss, gradients_by_path, products), (again, recomputed, more) = results
    # In bfloat16 the two models may round differently.
    atol = 1e-6 if dtype == "float32" else 0.02
    assert loss == pytest.approx(again, abs=atol)
    assert abs(loss - float(compute_loss(model, *batch))) > 0.05  # dropout on
    for path, slope in gradients_by_path.items():
        np.testing.assert_allclose(
            slope, recomputed[path], atol=atol, err_msg=path
        )
    assert not traced or more > products  # layers are recomputed


def test_a_saved_pretrainer_resumes_with_its_optimizer(tmp_path):
    model = compiled(random_pretrainer())
    x, y, w = pretraining_batch()
    model.fit(x, y, sample_weight=w, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, logits in model(x).items():
        np.testing.assert_array_equal(logits, loaded(x)[name])
    assert loaded.mlm.embedding is loaded.encoder.embeddings.token
    assert int(loaded.optimizer.iterations) == 1
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for left, right in zip(
        model.optimizer.variables, loaded.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(left, right)


def test_weight_paths_do_not_depend_on_models_made_before():
    for _ in range(2):
        model = make_model("pretrainer")
        paths = {weight.path for weight in model.weights}
        heads = {path for path in paths if not path.startswith("encoder/")}
        assert heads == {
            "mlm/bias",
            "mlm/dense/kernel",
            "mlm/dense/bias",
            "mlm/norm/gamma",
            "mlm/norm/beta",
            "nsp/kernel",
            "nsp/bias",
        }
    states = [v.path for v in model.non_trainable_variables]
    assert states == [
        "encoder/embeddings/dropout/seed_generator_state",
        "encoder/layer_0/dropout/seed_generator_state",
    ]


# --dtype=auto takes bfloat16 on many processors. XLA then rounds GELU's result
# once instead of three times. test_kernels.py tests the exact GELU.
@pytest.mark.parametrize(
    "dtype",
    ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.long)],
)
def test_arithmetic_by_xla_trains_as_without(dtype, monkeypatch):
    batch = tf.nest.map_structure(tf.constant, pretraining_batch(batch=4))
    results = []
    for large in (2**40, 90):  # in elements; 2**40 turns XLA off
        monkeypatch.setattr(kernels, "LARGE", large)
        keras.utils.set_random_seed(7)  # dropout is on
        model = random_pretrainer(dtype=dtype)
        model.compile(adamw(3e-3, 100), pretraining_losses())
        build(model, batch)  # so that tf.function traces once
        step = model.train_step
        if large == 90:
            step = tf.function(step).get_concrete_function(batch)
            functions = step.graph.as_graph_def().library.function
            names = " ".join(f.signature.name for f in functions)
            for name in ("gelu_tanh", "cross_entropy", "adam_in_one_pass"):
                assert f"_{name}_" in names, name
        losses = [float(step(batch)["loss"]) for _ in range(4)]
        results.append((losses, numpy_weights(model)))
    (losses, weights), (again, by_xla) = results
    if dtype != "float32":  # rounded gradients change the weights
        np.testing.assert_allclose(losses, again, rtol=5e-3)
        return
    np.testing.assert_allclose(losses, again, rtol=1e-5)
    for path, weight in weights.items():
        if not path.endswith("key/bias"):  # its exact gradient is 0
            np.testing.assert_allclose(
                weight, by_xla[path], atol=2e-5, err_msg=path
            )
