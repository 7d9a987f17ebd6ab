"""The same weights on any number of devices, each number in its process."""

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from test_jax import WITHOUT_TENSORFLOW

HERE = os.path.dirname(__file__)
LONG = bool(os.environ.get("BERT_KERAS_LONG"))
BOUNDS = {"float32": 1e-6, "float64": 1e-9}


def start(script, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, *script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **environment,
        },
    )


def finish(*processes):
    try:
        for process in processes:
            out, errors = process.communicate(timeout=7200)
            assert process.returncode == 0, (out + errors)[-4000:]
    finally:
        for process in processes:
            process.kill()


def train(devices, cases, *, dtype="float32", **environment):
    """What `train_on_devices.py` wrote: case -> name -> array."""
    script = [os.path.join(HERE, "train_on_devices.py")]
    if environment.get("KERAS_BACKEND") == "jax":
        run = f"import runpy; runpy.run_path({script[0]!r}, None, '__main__')"
        script = ["-c", WITHOUT_TENSORFLOW + run]
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out")
        arguments = [script, devices, output, *cases]
        environment["KERAS_FLOATX"] = dtype
        if "/" not in devices:
            finish(start(*arguments, **environment))
        else:
            train_workers(arguments, environment)
        with np.load(f"{output}.npz") as arrays:
            return {
                case: {
                    name.split(":", 1)[1]: arrays[name]
                    for name in arrays.files
                    if name.startswith(f"{case}:")
                }
                for case in cases
            }


def train_workers(arguments, environment):
    """Two workers on this host; what the chief wrote stays."""
    script, devices, output, *cases = arguments
    outputs = (output, f"{output}-1")
    finish(
        *(
            start(script, devices, place, *cases, TF_CONFIG=tf, **environment)
            for place, tf in zip(outputs, tf_configs(), strict=True)
        )
    )
    first, second = (np.load(f"{place}.npz") for place in outputs)
    with first, second:
        for name in first.files:
            np.testing.assert_array_equal(first[name], second[name], name)


def tf_configs():
    """TF_CONFIG of each of two workers on this host."""
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def differences(ours, reference):
    """Norm of the difference over that of the weights; the largest one."""
    names = [name for name in reference if "/" in name]
    assert len(names) > 30
    apart = [ours[name] - reference[name] for name in names]
    norm = np.sqrt(sum((d.astype("float64") ** 2).sum() for d in apart))
    length = np.sqrt(
        sum((reference[n].astype("float64") ** 2).sum() for n in names)
    )
    return norm / length, max(abs(d).max() for d in apart)


@functools.cache
def reference(dtype="float32"):
    pytest.importorskip("tensorflow")
    # LAMB in float64 is of the long test.
    cases = ["adamw-1", "lamb-1"] if LONG or dtype == "float32" else ["adamw-1"]
    return train("1", cases, dtype=dtype)


def check(results, reference, dtype="float32"):
    bound = BOUNDS[dtype]
    for case, ours in results.items():
        expected = reference[f"{case.split('-')[0]}-1"]
        relative, largest = differences(ours, expected)
        print(f"{case}: {relative:.1e} of the norm, at most {largest:.1e}")
        assert relative <= bound, case
        assert largest <= bound, case
        assert ours["norm"] > 1.5, "clipping was not active"
        for name in ours.keys() - {"norm"}:
            if "/" not in name:
                assert ours[name] == pytest.approx(expected[name], abs=1e-5)


def test_what_two_replicas_in_one_process_do(tmp_path):
    pytest.importorskip("tensorflow")
    finish(start([os.path.join(HERE, "two_replicas.py")], str(tmp_path)))


ALL = [
    f"{optimizer}-{parts}{option}"
    for optimizer in ("adamw", "lamb")
    for parts in (1, 4)
    for option in ("", "-xla", "-five")
]
PLAIN = [case for case in ALL if case.count("-") == 1]


@pytest.mark.parametrize(
    ("devices", "dtype", "cases"),
    [
        *([("1", "float32", ALL[1:])] if LONG else []),
        ("2", "float32", ALL if LONG else ["adamw-4", "lamb-1-xla"]),
        ("4", "float32", ALL if LONG else ["lamb-4-five"]),
        ("worker/1", "float32", ALL if LONG else ["adamw-4"]),
        ("worker/2", "float32", ALL if LONG else ["lamb-1"]),
        ("2", "float64", PLAIN if LONG else ["adamw-4"]),
        *([("4", "float64", PLAIN)] if LONG else []),
        *([("worker/1", "float64", PLAIN)] if LONG else []),
        *([("worker/2", "float64", PLAIN)] if LONG else []),
    ],
)
def test_any_number_of_replicas_ends_with_the_same_weights(
    devices, dtype, cases
):
    pytest.importorskip("tensorflow")
    check(train(devices, cases, dtype=dtype), reference(dtype), dtype)


@functools.cache
def train_on_jax(devices, *cases):
    """Where TensorFlow cannot be imported."""
    pytest.importorskip("jax", reason="jax is not installed")
    return train(
        devices,
        cases,
        KERAS_BACKEND="jax",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )


def test_two_jax_devices_end_with_the_weights_of_one():
    cases = PLAIN if LONG else ["adamw-4", "lamb-1"]
    one = train_on_jax("1", "adamw-1", "lamb-1")
    check(train_on_jax("2", *cases), one)


def test_jax_ends_with_the_weights_of_tensorflow():
    check(train_on_jax("1", "adamw-1", "lamb-1"), reference())
