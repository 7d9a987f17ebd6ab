"""Which files of weights a run takes note of, and that it hears of changes."""

import os

import pytest
from task_samples import save_toy_model

from bert_keras import BertEncoder, BertPreprocessor, InputError
from bert_keras.interop.google import save_google
from bert_keras.interop.keras_hub import save_keras_hub
from bert_keras.interop.presets import open_checkpoint
from bert_keras.run_folder import RunFolder
from official_tasks.engine.models import checked_files, weights_of


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return save_toy_model(tmp_path_factory.mktemp("own") / "model")


@pytest.mark.parametrize("save", [save_google, save_keras_hub])
def test_a_run_hears_that_any_file_of_its_weights_changed(own, tmp_path, save):
    init = tmp_path / "init"
    model = BertEncoder.from_preset(own)
    save(str(init), model, BertPreprocessor.from_preset(own))
    read = {t.file for t in open_checkpoint(init).tensors.values()}
    assert read and read <= set(weights_of(init))
    for number, path in enumerate(sorted(read)):
        with RunFolder(tmp_path / str(number), {}) as run:
            run.finish("files", checked_files(weights_of(init), run))
            with open(path, "ab") as file:
                file.write(b" ")
            with pytest.raises(InputError, match=f"{path} changed since"):
                checked_files(weights_of(init), run)


@pytest.mark.parametrize(
    ("init", "names"),
    [
        ("", ["tf_model.h5", "model-00001-of-00002.safetensors"]),
        ("", ["ckpt-1.index", "ckpt-1.data-00000-of-00001", "checkpoint"]),
        ("bert_[1].ckpt", ["bert_[1].ckpt.index", "bert_[1].ckpt.data-0-of-1"]),
        ("", ["variables/variables.index", "variables/variables.data-0-of-1"]),
        ("", ["0_Transformer/model.safetensors"]),
        ("uncased.zip", ["uncased.zip"]),
    ],
)
def test_weights_of_each_format_are_noted_and_nothing_else(
    tmp_path, init, names
):
    for name in (*names, "vocab.txt", "tuned/model/model.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = weights_of(os.path.join(tmp_path, init))
    assert sorted(found) == sorted(str(tmp_path / name) for name in names)
