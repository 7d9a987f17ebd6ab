"""The one check that every layer of the model passes."""

import keras
import numpy as np


def check_layer(layer, inputs, weights, folder, drops=False, dtype="bfloat16"):
    """Configuration, shapes, saving, half precision, dropout and names.

    Args:
        layer: an unbuilt layer.
        inputs: arrays, its positional arguments.
        weights: the paths of its weights, behind its own name.
        folder: a folder to save in.
        drops: whether training drops units.
        dtype: what it returns under `mixed_bfloat16`.
    """
    outputs = run(layer, inputs)
    assert [w.path.removeprefix(f"{layer.name}/") for w in layer.weights] == (
        weights
    )
    np.testing.assert_array_equal(run(layer, inputs), outputs)
    again = run(layer, inputs, training=True)
    changed = not np.array_equal(again, run(layer, inputs, training=True))
    assert changed == drops
    check_configuration(layer, inputs, outputs)
    check_saving(layer, inputs, outputs, folder)
    check_half_precision(layer, inputs, dtype)


def run(layer, inputs, training=False):
    if not training:
        return np.array(layer(*inputs), "float32")
    try:
        return np.array(layer(*inputs, training=True), "float32")
    except TypeError:  # a layer to which training is the same
        return np.array(layer(*inputs), "float32")


def check_configuration(layer, inputs, outputs):
    copy = type(layer).from_config(layer.get_config())
    copy(*inputs)
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(run(copy, inputs), outputs)
    assert copy.get_config() == layer.get_config()


def check_saving(layer, inputs, outputs, folder):
    """Through a `.keras` file, in a graph that knows no batch nor length."""
    symbols = [
        keras.Input((None, *x.shape[2:]), dtype=x.dtype.name) for x in inputs
    ]
    symbolic = layer(*symbols)
    assert len(symbolic.shape) == outputs.ndim
    for known, actual in zip(symbolic.shape, outputs.shape, strict=True):
        assert known in (None, actual)
    assert symbolic.shape[-1] == outputs.shape[-1]
    model = keras.Model(symbols, symbolic)
    model.save(folder / "layer.keras")
    loaded = keras.saving.load_model(folder / "layer.keras")
    np.testing.assert_array_equal(np.array(loaded(inputs)), outputs)


def check_half_precision(layer, inputs, dtype):
    config = {**layer.get_config(), "dtype": "mixed_bfloat16"}
    half = type(layer).from_config(config)(*inputs)
    assert keras.backend.standardize_dtype(half.dtype) == dtype
    assert np.isfinite(np.array(half, "float32")).all()
