"""The script that converts: one, a fleet, a pickle, and its mistakes."""

import pickle

import tiny
from run_script import ROOT, run_script

from bert_keras.interop.huggingface import save_huggingface
from bert_keras.interop.presets import (
    load_preprocessor,
    open_checkpoint,
    save_preset,
)

SCRIPT = ROOT / "tools" / "convert_checkpoint.py"


def test_one_source_and_its_difference(tmp_path):
    model = tiny.model("BertClassifier")
    save_preset(tmp_path / "a", model, tiny.preprocessor())
    done = run_script(
        SCRIPT, "--source=a", "--output=b", "--format=google", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "b: BertClassifier of a (bert_keras), max abs difference 0.0e+00"
    ]
    assert open_checkpoint(tmp_path / "b").format == "google"


def test_a_contradicted_case_is_settled_by_a_flag(tmp_path):
    model = tiny.model("BertEncoder")
    save_huggingface(tmp_path / "a", model, tiny.preprocessor())
    fast = (tmp_path / "a" / "tokenizer.json").read_text()
    (tmp_path / "a" / "tokenizer.json").write_text(
        fast.replace('"lowercase": false', '"lowercase": true')
    )
    command = [SCRIPT, "--source=a", "--output=b"]
    done = run_script(*command, folder=tmp_path)
    assert done.returncode == 2 and "--nolowercase" in done.stderr
    done = run_script(*command, "--nolowercase", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_preprocessor(tmp_path / "b").tokenizer.lowercase is False


def test_a_fleet_and_its_table(tmp_path):
    (tmp_path / "fleet").mkdir()
    model = tiny.model("BertClassifier")
    save_preset(tmp_path / "fleet" / "good", model, tiny.preprocessor())
    bad = tmp_path / "fleet" / "bad"
    save_preset(bad, model, tiny.preprocessor())
    (bad / "model.safetensors").write_bytes(pickle.dumps({}))
    done = run_script(SCRIPT, "--all=fleet", "--output=out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 converted, 1 refused")
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert "this is not a safetensors file" in table[2]
    assert "| no, maybe, yes | 0.0e+00 |" in table[3]


def test_help_opens_with_a_full_command(tmp_path):
    done = run_script(SCRIPT, "--help", folder=tmp_path)
    assert done.returncode == 0
    assert "python tools/convert_checkpoint.py --source=" in done.stdout
