"""Loaded PEFT adapters give PEFT's logits, and are saved as PEFT saved them.

record_peft.py next to this file records the logits.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_keras import BertClassifier, load_lora, save_lora

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "peft.json").read_text("utf-8"))
INPUTS = {name: np.array(rows) for name, rows in RECORDED["rows"].items()}


def load(folder, merge=False):
    model = BertClassifier.from_preset(HERE / "peft" / "base")
    load_lora(model, folder, merge)
    return model


def adapted(config):
    """Return dict: adapted kernel -> (rank, scaling of B A), by PEFT's rules.

    A name in the config means all modules whose path ends in it.
    """

    def find(kernel, values, default):
        module = f".{kernel.removesuffix('.weight')}"
        found = [x for n, x in values.items() if module.endswith(f".{n}")]
        return found[0] if found else default

    targets = dict.fromkeys(config["target_modules"], True)
    root = math.sqrt if config.get("use_rslora") else float
    scales = {}
    for kernel in load_file(HERE / "peft" / "base" / "model.safetensors"):
        if find(kernel, targets, False):
            rank = find(kernel, config["rank_pattern"], config["r"])
            alpha = find(kernel, config["alpha_pattern"], config["lora_alpha"])
            scales[kernel] = rank, round(alpha / root(rank), 6)
    return scales


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("name", RECORDED["logits"])
def test_adapters_of_peft_have_its_logits(name, merge):
    found = load(HERE / "peft" / name, merge)(INPUTS)
    expected = RECORDED["logits"][name]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RECORDED["logits"])
def test_adapters_are_written_as_peft_wrote_them(tmp_path, name):
    model = load(HERE / "peft" / name)
    save_lora(model, tmp_path / "adapter")
    file = "adapter_model.safetensors"
    found = load_file(tmp_path / "adapter" / file)
    expected = load_file(HERE / "peft" / name / file)
    assert sorted(found) == sorted(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, err_msg=key)
    settings = [
        json.loads((folder / name / "adapter_config.json").read_text("utf-8"))
        for folder, name in ((tmp_path, "adapter"), (HERE / "peft", name))
    ]
    for key in (
        *("peft_type", "task_type", "bias", "fan_in_fan_out"),
        "lora_dropout",
    ):
        assert settings[0][key] == settings[1][key]
    assert adapted(settings[0]) == adapted(settings[1]) != {}
    assert "classifier" in settings[0]["modules_to_save"]
    again = load(tmp_path / "adapter")
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
