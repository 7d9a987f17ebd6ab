"""Contract tests: the API of Keras 3.15 that keras_adapter.py uses."""

import gc
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import Model

from bert_keras import InputError
from bert_keras.modeling import keras_adapter
from bert_keras.modeling.layers import Projection, Table

VERSION = f"found Keras {keras.__version__}, expected 3.15"


def test_a_compiled_model_has_its_losses_and_trackers():
    x = keras.Input((2,))
    model = keras.Model(x, {"a": x + 1.0, "b": x * 2.0})
    assert not keras_adapter.has_losses(model), VERSION
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights=[1.0, 3.0])
    labels = {"a": x, "b": x}
    keras_adapter.build_losses(model, labels)
    found = keras_adapter.compiled_losses(model)
    paths = [(item.path, item.loss_weights) for item in found]
    assert paths == [(("a",), 1.0), (("b",), 3.0)], VERSION
    assert all(item.loss.reduction for item in found), VERSION
    names = [m.name for m in keras_adapter.loss_trackers(model)]
    assert names == ["loss", "a_loss", "b_loss"], VERSION


def test_weights_are_read_in_their_own_dtype_within_a_call():
    class Reads(keras.layers.Dense):
        def call(self, x):
            dtypes.append(self.kernel.value.dtype)
            dtypes.extend(x.dtype for x in keras_adapter.read_weights(self))
            return x

    dtypes = []
    Reads(2, dtype="mixed_bfloat16")(np.ones((1, 2)))
    assert dtypes == [tf.bfloat16, tf.float32, tf.float32], VERSION


def test_variables_of_a_failed_check_never_get_values():
    drawn = []

    def draw(shape, dtype=None):
        drawn.append(tuple(shape))
        return keras.ops.zeros(shape, dtype)

    with keras_adapter.delay_values():
        kept = keras.layers.Dense(3, kernel_initializer=draw)
        kept.build((None, 2))
        assert not drawn and kept.kernel.shape == (2, 3), VERSION
    assert drawn == [(2, 3)] and kept.kernel.numpy().shape == (2, 3), VERSION
    with pytest.raises(KeyError), keras_adapter.delay_values():
        keras.layers.Dense(5, kernel_initializer=draw).build((None, 2))
        raise KeyError
    with keras.StatelessScope():  # its end initializes what waits
        pass
    assert drawn == [(2, 3)], VERSION


def test_fit_tells_evaluate_that_the_validation_data_are_kept():
    told = []

    class Told(Model):
        def evaluate(self, *arguments, **named):
            told.append(named.get(keras_adapter.CACHED_EVALUATION))
            return super().evaluate(*arguments, **named)

    x = keras.Input((2,))
    model = Told(x, x + 1.0)
    model.compile("sgd", "mse", run_eagerly=True)
    rows = keras.ops.ones((2, 2))
    model.fit(rows, rows, validation_data=(rows, rows), verbose=0)
    assert told == [True], VERSION


def test_arrays_are_batched_and_split_as_fit_does():
    texts = keras.ops.convert_to_tensor(["a", "b", "c", "d", "e"], "string")
    arrays = texts, np.arange(5), None
    arrays, dev = keras_adapter.split_arrays(arrays, 0.4)
    assert dev[0].numpy().tolist() == [b"d", b"e"], VERSION
    assert dev[1].tolist() == [3, 4] and dev[2] is None, VERSION
    data = keras_adapter.batch_arrays(arrays, steps=2, class_weight={1: 5.0})
    assert data.cardinality() == 2, VERSION
    batches = data.as_numpy_iterator()
    assert [tuple(part.tolist() for part in batch) for batch in batches] == [
        ([b"a", b"b"], [0, 1], [1.0, 5.0]),
        ([b"c"], [2], [1.0]),
    ], VERSION


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam"])
def test_an_optimizer_sums_gradients_in_one_place(optimizer):
    optimizer = keras.optimizers.get(optimizer)
    update = inspect.getsource(type(optimizer)._backend_update_step)
    assert "self._all_reduce_sum_gradients(" in update, VERSION
    assert not keras_adapter.takes_summed_gradients(optimizer)
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    with keras_adapter.summed_gradients(scaled):
        assert keras_adapter.takes_summed_gradients(optimizer)
    assert not keras_adapter.takes_summed_gradients(optimizer)


def test_the_trainer_has_what_is_replaced():
    trainer = next(c for c in Model.__mro__ if "_make_function" in vars(c))
    make = trainer._make_function
    assert "reduce_per_replica" in make.__globals__, VERSION
    assert "reduce_per_replica(" in inspect.getsource(make), VERSION
    assert "_maybe_symbolic_build" in vars(trainer), VERSION
    # Nothing has replaced Keras's own methods.
    assert make.__module__.startswith("keras."), VERSION
    assert hasattr(Model, "_symbolic_build"), VERSION


def test_a_schedule_is_told_from_a_constant_rate():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    sgd = keras.optimizers.SGD
    assert keras_adapter.learning_rate_schedule(sgd(schedule)) is schedule
    assert keras_adapter.learning_rate_schedule(sgd(0.1)) is None


@pytest.mark.parametrize("error", [ValueError, InputError])
def test_only_our_own_errors_pass_through_a_call_unchanged(error):
    class Refuses(keras.layers.Layer):
        def call(self, x):
            raise error("one sentence")

    with pytest.raises(error, match="one sentence") as caught:
        Refuses()(np.zeros((2, 3)))
    is_wrapped = "Arguments received by" in str(caught.value)
    assert is_wrapped == (error is ValueError), VERSION

    def refuse(x):
        raise error("one sentence")

    data = tf.data.Dataset.range(2)
    with pytest.raises(error, match="one sentence") as caught:
        data.map(refuse)
    assert ("in user code" in str(caught.value)) == is_wrapped


@pytest.mark.parametrize("kind", [Projection, Table])
def test_int8_replaces_a_weight_without_collecting_garbage(kind, monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda *_: pytest.fail("collected"))
    layer = kind(4) if kind is Projection else kind(3, 4)
    layer.build((2, 3))
    before = layer.weights
    layer.quantize("int8", type_check=False)
    assert "int8" in [weight.dtype for weight in layer.weights], VERSION
    kept = [w.name for w in before if any(w is one for one in layer.weights)]
    assert kept == (["bias"] if kind is Projection else []), VERSION


def test_keras_on_jax_has_the_state_that_is_restored():
    """tests/devices/test_jax.py tests the restoring."""
    import jax  # noqa: F401  first: tests/support/startup hides it from Keras
    from keras.src.backend.jax import trainer

    source = inspect.getsource(trainer.JAXTrainer.jax_state_sync)
    assert "self._jax_state" in source, VERSION
    parameters = inspect.signature(trainer.JAXTrainer._get_jax_state).parameters
    # `fit` unpacks the values in this order.
    kinds = ("trainable", "non_trainable", "optimizer", "metrics")
    names = [f"{kind}_variables" for kind in kinds]
    assert [*parameters][1:] == [*names, "purge_model_variables"], VERSION
