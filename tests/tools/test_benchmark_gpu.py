"""The GPU's commands, on a CPU and at a tiny size; and their operations."""

import importlib.util
import math
import re
import shlex

import ours
import pytest
from run_script import ROOT, call_script

from bert_keras.files import read_json
from tools.benchmark import gpu

# Appended to the page's commands, so that they run on a CPU.
TINY = (
    "--sizes=tiny --lengths=32 --tokens=64 --steps=1 --turns=1 --peak=0.5 "
    "--output=r.json"
).split()
# Else every combination of the command is a case of its own.
FEW = "--rows=packed --dtypes=mixed_bfloat16 --distributions=off".split()


def commands():
    """Backend -> words of the page's command."""
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    found = re.findall(r"^    python (tools/benchmark/gpu.*)$", page, re.M)
    words = [shlex.split(line) for line in found]
    return {line[1].partition("=")[2]: line for line in words}


def run(backend, folder, smaller):
    script, *words = commands()[backend]
    # TensorFlow runs in the cases' processes alone.
    done = call_script(ROOT / script, *words, *smaller, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "MFU" in done.stdout
    results = read_json(folder / "r.json")
    for case in results["cases"]:
        assert "failed" not in case, case
        assert case["a second"] > 0 and case["device"] == "cpu"
        # Of 0.5 TFLOP/s, what a second's examples take.
        share = case["a second"] * case["flops"] / 5e11
        assert case["mfu"] == pytest.approx(share)
    return results["cases"]


@pytest.mark.long
def test_the_tensorflow_command_runs(tmp_path):
    assert len(run("tensorflow", tmp_path, TINY)) == 8


@pytest.mark.long
def test_the_jax_command_runs_without_tensorflow(tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    for case in run("jax", tmp_path, [*TINY, *FEW]):
        assert "tensorflow" not in case["versions"]


def test_a_case_that_fails_is_named_and_the_others_continue():
    found = {
        "size": "base",
        "length": 128,
        "rows": "synthetic",
        "dtype": "mixed_bfloat16",
        "distribution": "off",
    }
    figures = {
        "replicas": 1,
        "device": "H200",
        "a second": 5100.0,
        "least": 1 / 5200,
        "most": 1 / 5000,
        "mfu": 0.345,
        "peak_megabytes": 70_000,
    }
    failed = {**found, "failed": "ended:\n ResourceExhausted: memory"}
    text = gpu.as_text([{**found, **figures}, failed])
    assert re.search(r"base 128 .* 5,100.0 .* 5000 +0.345", text)
    assert "failed:  ResourceExhausted: memory" in text


@pytest.mark.parametrize("length", [128, 512])
def test_the_operations_are_those_of_the_matrix_products(length):
    case = {"size": "base", "length": length, "rows": "synthetic"}
    case |= {"predictions": 20, "batch": 4}
    products = 2 * sum(map(math.prod, ours.products(case))) / 4
    # And the pooler, which the limit leaves out.
    flops = gpu.model_flops(case, length)
    assert flops == pytest.approx(products + 6 * 768**2)
    packed = {**case, "rows": "packed"}
    # An example counts as if it stood alone: less than half for half of it.
    half = gpu.model_flops(packed, length // 2)
    assert half < gpu.model_flops(packed, length) / 2
