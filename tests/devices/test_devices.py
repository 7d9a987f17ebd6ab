"""Training ends with the same weights on any number of devices."""

import functools
import os
import re
import tempfile

import numpy as np
import pytest

from tests.support.device_processes import finish, start, tf_configs
from tests.support.run_script import WITHOUT_TENSORFLOW
from tests.support.train_on_devices import check

pytestmark = pytest.mark.heavy

HERE = os.path.dirname(__file__)
PROGRAM = "tests.support.train_on_devices"


def train(devices, cases, *, dtype="float32", **environment):
    """Run `train_on_devices.py`; return case -> name -> array."""
    script = ["-m", PROGRAM]
    if environment.get("KERAS_BACKEND") == "jax":
        run = f"import runpy; runpy.run_module({PROGRAM!r}, None, '__main__')"
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
    """Run two workers on this host; check that their outputs are equal."""
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


@functools.cache
def reference(optimizer, dtype="float32"):
    """Return the results of training on one device."""
    return train("1", [f"{optimizer}-1"], dtype=dtype)


SLOW = """
a_resumed_run_ends_with_the_same_bits
a_transformer_replica_without_rows_gives_the_numbers_of_one_device
an_overflow_on_either_replica_lowers_the_scale_on_both
an_unused_pooler_stays_the_same
averaged_and_frozen_weights_are_those_of_one_device
other_optimizers_and_losses_give_the_numbers_of_one_device
recomputed_layers_drop_the_same_units
""".split()
REPLICAS = os.path.join(HERE, "two_replicas.py")


def checks():
    """Yield the functions of `two_replicas.py` with the argument `folder`."""
    with open(REPLICAS, encoding="utf-8") as file:
        for name in re.findall(r"^def (\w+)\(folder\):", file.read(), re.M):
            marks = pytest.mark.long if name in SLOW else ()
            yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("check", checks())
def test_in_one_process_with_two_replicas(check, tmp_path):
    finish(start([REPLICAS], str(tmp_path), check))


# LAMB is tested on JAX below, and in two_replicas.py.
PLAIN = ["adamw-1", "adamw-4"]
ALL = [f"{case}{option}" for case in PLAIN for option in ("", "-xla", "-five")]


def test_two_workers_end_with_the_weights_of_one_device():
    check(train("worker/1", ["adamw-4"]), reference("adamw"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "dtype", "cases"),
    [
        ("1", "float32", ALL[1:]),
        *((n, "float32", ALL) for n in ("4", "worker/2")),
        ("2", "float64", PLAIN[:1]),  # two_replicas.py tests "adamw-4"
        *((n, "float64", PLAIN) for n in ("4", "worker/1", "worker/2")),
    ],
)
def test_any_number_of_replicas_ends_with_the_same_weights(
    devices, dtype, cases
):
    expected = reference("adamw", dtype)
    check(train(devices, cases, dtype=dtype), expected, dtype)


@functools.cache
def train_on_jax(devices, *cases):
    """Train on JAX in a process that cannot import TensorFlow."""
    return train(
        devices,
        cases,
        KERAS_BACKEND="jax",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",  # compiling takes most of the time
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )


@pytest.mark.long
def test_two_jax_devices_end_with_the_weights_of_tensorflow():
    check(train_on_jax("2", "lamb-4"), reference("lamb"))


@pytest.mark.long
def test_two_jax_devices_end_with_the_weights_of_one():
    one = train_on_jax("1", "adamw-1", "lamb-1")
    check(train_on_jax("2", *PLAIN), one)


@pytest.mark.long
def test_jax_ends_with_the_weights_of_tensorflow():
    expected = reference("adamw") | reference("lamb")
    check(train_on_jax("1", "adamw-1", "lamb-1"), expected)
