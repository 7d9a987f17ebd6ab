import functools

import keras
import numpy as np
import pytest

from bert_keras.errors import InputError
from bert_keras.modeling.weights import (
    enable_lora,
    lora_layers,
    mark_new_weights,
    published_weights,
)
from bert_keras.training.optimizers import adamw
from tests.support.model_samples import (
    fill,
    fill_weights,
    make_encoder,
    make_model,
    random_inputs,
)


def adapted(dtype="float32"):
    model = fill(make_model("classifier", dtype=dtype))
    enable_lora(model.encoder, rank=2)
    return model


@functools.cache
def trained(dtype="float32"):
    """Return a trained model, which tests share and must not change."""
    model = adapted(dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-2, 4, warmup=0), loss, run_eagerly=True)
    model.fit(random_inputs(), np.array([0, 1, 1]), epochs=2, verbose=0)
    return model


def test_sizes_may_be_integers_of_numpy():
    """The sizes are saved as JSON, which has no integers of NumPy."""
    encoder = make_encoder(num_layers=np.int64(1))
    enable_lora(encoder, rank=np.int64(2))
    rank = encoder.transformer_layers[0].attention.query.lora_rank
    assert type(rank) is type(encoder.num_layers) is int


def test_lora_trains_its_matrices_and_the_head_only():
    before = {k: v.numpy() for k, v in published_weights(adapted()).items()}
    model = trained()
    names = {weight.path for weight in model.trainable_weights}
    assert names == {
        "classifier/kernel",
        "classifier/bias",
        *(
            f"encoder/layer_0/attention/{part}/lora_kernel_{side}"
            for part in ("query", "value")
            for side in "ab"
        ),
    }
    for name, weight in published_weights(model).items():
        changed = not np.array_equal(weight.numpy(), before[name])
        moves = name.startswith("classifier") or name.endswith(
            ("query/kernel", "value/kernel")
        )
        assert changed == moves, name


def test_a_new_pooler_is_trained_whole():
    model = fill(make_model("classifier"))
    mark_new_weights(model, ["encoder/pooler/kernel"])
    enable_lora(model, rank=2)
    found = {w.path for w in model.trainable_weights if "lora" not in w.path}
    assert found == {
        *("encoder/pooler/kernel", "encoder/pooler/bias"),
        *("classifier/kernel", "classifier/bias"),
    }


@pytest.mark.parametrize(
    ("rank", "name", "alpha"),
    [(0, "query", None), (4, "pooler", None), (4, "query", 0)],
)
def test_what_no_lora_has_is_refused_and_freezes_nothing(rank, name, alpha):
    encoder = make_encoder()
    with pytest.raises(InputError, match=f"rank is {rank}, .*'{name}'"):
        enable_lora(encoder, rank, [name], alpha)
    assert all(weight.trainable for weight in encoder.weights)


def test_a_frozen_encoder_would_not_train_lora():
    model = make_model("classifier")
    model.encoder.trainable = False
    with pytest.raises(InputError, match="encoder is not trained"):
        enable_lora(model, rank=2)
    model.encoder.trainable = True
    enable_lora(model, rank=2)
    # The head has two weights; query and value have A and B each.
    assert len(model.trainable_weights) == 2 + 4


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_copies_and_published_weights_hold_the_merged_kernels(dtype):
    model = trained(dtype)
    copy = model.with_dtype("float32")
    assert not any("lora" in weight.path for weight in copy.weights)
    names = [weight.path for weight in copy.weights]
    assert sorted(published_weights(model)) == sorted(names)
    np.testing.assert_allclose(
        model(random_inputs()),
        copy(random_inputs()),
        atol=1e-5 if dtype == "float32" else 0.2,
    )


def test_lora_reads_a_dropped_input_in_training():
    encoder = make_encoder(dropout=0.1)
    enable_lora(encoder, 8, ["query", "feed_forward"], dropout=0.25)
    layer = encoder.transformer_layers[0]
    query = layer.attention.query
    query.bias.assign(np.zeros(8))
    for matrix in (query.lora_kernel_a, query.lora_kernel_b):
        matrix.assign(np.eye(8))
    query._kernel.assign(np.zeros((8, 8)))
    inputs = np.random.default_rng(0).normal(size=(50, 40, 8)).astype("f4")
    seed = keras.ops.convert_to_tensor([1, 2], "uint32")
    found = np.array(query(inputs, seed=seed, site=3))
    is_kept = np.abs(found) > 1e-6
    assert is_kept.mean() == pytest.approx(0.75, abs=0.01)
    np.testing.assert_allclose(
        found, np.where(is_kept, inputs / 0.75, 0), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(query(inputs), inputs, atol=1e-5)
    # The layer passes its seed to the LoRA dropout, so two calls differ.
    fill_weights(layer.trainable_weights)  # LoRA matrices; B starts at 0
    layer.dropout = layer.attention.dropout = 0.0
    outputs = [np.array(layer(inputs, training=True)) for _ in range(2)]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    copy = type(encoder).from_config(encoder.get_config())
    assert copy.transformer_layers[0].intermediate.lora_dropout == 0.25
    with pytest.raises(InputError, match="encoder with dropout"):
        still = make_encoder(dropout=0, attention_dropout=0)
        enable_lora(still, 2, dropout=0.1)
    enable_lora(still, 2)  # a loaded file may set the dropout later
    still.transformer_layers[0].attention.query.lora_dropout = 0.1
    still(random_inputs())
    with pytest.raises(InputError, match="dropout rates are 0"):
        still(random_inputs(), training=True)


def test_the_pooler_drops_loras_input_too():
    """PEFT's target "dense" includes the pooler."""
    encoder = make_encoder(dropout=0.1)
    encoder.pooler.enable_lora(8)
    encoder.pooler.lora_kernel_b.assign(np.eye(8))
    encoder.pooler.lora_dropout = 0.25
    for layer in encoder.transformer_layers:
        layer.dropout = layer.attention.dropout = 0.0
    encoder.embeddings.dropout = 0.0
    outputs = [encoder(random_inputs(), training=True) for _ in range(2)]
    first, second = (np.array(x["sequence_output"]) for x in outputs)
    np.testing.assert_array_equal(first, second)
    first, second = (np.array(x["pooled_output"]) for x in outputs)
    assert np.abs(first - second).max() > 0.01


def test_assigning_a_published_weight_replaces_what_lora_learned():
    model = adapted()
    projection = model.encoder.transformer_layers[0].attention.query
    projection.lora_kernel_b.assign(np.ones((2, 8)))
    name = "encoder/layer_0/attention/query/kernel"
    published_weights(model)[name].assign(np.ones((8, 8)))
    np.testing.assert_array_equal(
        published_weights(model)[name].numpy(), np.ones((8, 8))
    )
    np.testing.assert_array_equal(projection.kernel, np.ones((8, 8)))


def test_a_saved_lora_model_loads_as_it_was(tmp_path):
    model = adapted()
    model.encoder.embeddings.token.enable_lora(2)
    model.encoder.pooler.enable_lora(3, lora_alpha=6)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-2, 4, warmup=0), loss, run_eagerly=True)
    model.fit(random_inputs(), np.array([0, 1, 1]), epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    assert_equal_weights(model, loaded, "trainable_weights")
    assert_equal_weights(model, loaded, "weights")
    assert len(loaded.trainable_weights) == 2 + 2 * 2 + 2 + 2
    states = [m.optimizer.variables for m in (model, loaded)]
    for left, right in zip(*states, strict=True):
        np.testing.assert_array_equal(left, right)


def assert_equal_weights(model, loaded, kind):
    first, second = (getattr(m, kind) for m in (model, loaded))
    assert [w.path for w in first] == [w.path for w in second]
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)


def test_weights_go_between_models_with_lora_and_without(tmp_path):
    model, plain = trained(), make_model("classifier")
    model.save_weights(tmp_path / "lora.weights.h5")
    plain.load_weights(tmp_path / "lora.weights.h5")  # merged
    expected = np.array(model(random_inputs()))
    np.testing.assert_allclose(plain(random_inputs()), expected, atol=1e-5)
    plain.save_weights(tmp_path / "plain.weights.h5")
    other = adapted()
    other.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(other(random_inputs()), expected, atol=1e-5)
    # Keras would set both matrices to 0, where all their gradients are 0.
    query = other.encoder.transformer_layers[0].attention.query
    assert np.abs(query.lora_kernel_a).max() > 0


def test_a_model_with_lora_equals_the_weights_that_it_loads(tmp_path):
    plain = fill(make_model("classifier"))
    plain.save_weights(tmp_path / "start.weights.h5")
    expected = np.array(plain(random_inputs()))
    model = adapted()
    for layer in lora_layers(model):
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    model.load_weights(tmp_path / "start.weights.h5")
    np.testing.assert_allclose(model(random_inputs()), expected, atol=1e-5)


def test_kerass_own_lora_works_on_the_embeddings():
    model = fill(make_model("classifier"))
    before = np.array(model(random_inputs()))
    token = model.encoder.embeddings.token
    token.enable_lora(2)
    np.testing.assert_allclose(model(random_inputs()), before, atol=1e-6)
    token.lora_embeddings_b.assign(np.arange(16).reshape(2, 8))
    after = np.array(model(random_inputs()))
    assert np.abs(after - before).max() > 1e-3
    copy = model.with_dtype("float32")
    np.testing.assert_allclose(copy(random_inputs()), after, atol=1e-5)
