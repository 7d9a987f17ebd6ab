"""A folder that another process replaces while it is read."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_keras.errors import InputError
from bert_keras.interop import huggingface, peft, presets, tensors
from bert_keras.interop.opening import open_checkpoint
from bert_keras.interop.presets import load_model
from bert_keras.interop.saving import save_model
from bert_keras.modeling.weights import enable_lora, published_weights
from bert_keras.serving import load
from bert_keras.text.preprocessor import BertPreprocessor
from tests.support import tiny
from tests.support.foreign_formats import write_google, write_tf_checkpoint
from tests.support.tiny import CLASSES


def save(folder, value, epsilon=1e-12):
    """Save an encoder whose weights all have one value."""
    model = tiny.encoder(norm_epsilon=epsilon)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, value))
    save_model(folder, model, tiny.preprocessor())


def before(monkeypatch, owner, name, action, times=1):
    """Call `action` before each of the first calls of a function."""
    function, calls = getattr(owner, name), []

    def call(*arguments, **named):
        calls.append(name)
        if len(calls) <= times:
            action()
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def list_values(model):
    found = published_weights(model).values()
    return {value for weight in found for value in np.unique(weight.numpy())}


def test_values_come_from_the_file_that_was_opened(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    save(folder, 0.5)
    before(monkeypatch, tensors.Tensor, "load", lambda: save(folder, 0.25))
    assert list_values(load_model(CLASSES["BertEncoder"], folder)) == {0.5}
    assert list_values(load_model(CLASSES["BertEncoder"], folder)) == {0.25}


def test_settings_and_weights_come_from_one_save(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    save(folder, 0.5, epsilon=1e-5)
    before(
        monkeypatch,
        huggingface,
        "read_weights",
        lambda: save(folder, 0.25, epsilon=1e-6),
    )
    model = load_model(CLASSES["BertEncoder"], folder)
    assert (list_values(model), model.norm_epsilon) == ({0.25}, 1e-6)


def test_a_folder_that_changes_all_the_time_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    save(folder, 0.5)
    before(
        monkeypatch,
        huggingface,
        "read_weights",
        lambda: save(folder, 0.25),
        times=99,
    )
    with pytest.raises(InputError, match="replaced while"):
        load_model(CLASSES["BertEncoder"], folder)


def test_a_vocabulary_of_a_later_save_is_refused(tmp_path):
    folder = tmp_path / "model"
    save(folder, 0.5)
    checkpoint = open_checkpoint(folder)
    BertPreprocessor.from_preset(checkpoint)
    save(folder, 0.5)
    with pytest.raises(InputError, match="replaced while"):
        BertPreprocessor.from_preset(checkpoint)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_a_tensorflow_checkpoint_that_changes_is_refused(
    monkeypatch, tmp_path, name, late
):
    write_google(tmp_path)
    prefix = str(tmp_path / "bert_model.ckpt")
    reader = tf.train.load_checkpoint(prefix)
    names = reader.get_variable_to_shape_map()
    arrays = {name: reader.get_tensor(name) + 1 for name in names}
    place = (presets, "_check_unchanged") if late else (tensors.Tensor, "load")
    before(monkeypatch, *place, lambda: write_tf_checkpoint(prefix, arrays))
    message = "replaced while" if late else "Checksum does not match"
    with pytest.raises(InputError, match=message):
        load_model(CLASSES["BertEncoder"], tmp_path / name)
    assert load_model(CLASSES["BertEncoder"], tmp_path / name).built


def test_adapters_and_their_settings_come_from_one_save(monkeypatch, tmp_path):
    folder = tmp_path / "lora"

    def write(alpha):
        model = tiny.encoder()
        enable_lora(model, rank=2, alpha=alpha)
        for weight in model.weights:
            weight.assign(np.full(weight.shape, 0.5 * alpha))
        peft.save_lora(model, folder)

    write(2.0)
    before(
        monkeypatch,
        peft.tensor_files,
        "read_safetensors",
        lambda: write(4.0),
    )
    model = tiny.encoder()
    peft.load_lora(model, folder)
    stored = load_file(folder / "adapter_model.safetensors")
    assert {value for x in stored.values() for value in np.unique(x)} == {2.0}
    lora = [weight for weight in model.weights if "lora" in weight.name]
    assert {float(np.max(weight)) for weight in lora} == {2.0}
    assert model.transformer_layers[0].attention.query.lora_alpha == 4.0


def test_an_export_that_is_replaced_while_it_loads_is_refused(
    monkeypatch, classifier_export, tmp_path
):
    folder = shutil.copytree(classifier_export, tmp_path / "served")

    def replace():
        shutil.move(folder, tmp_path / "old")
        shutil.copytree(tmp_path / "old", folder)

    before(monkeypatch, load, "check_files", replace)
    with pytest.raises(InputError, match="replaced while"):
        load.load_saved_model(folder)
