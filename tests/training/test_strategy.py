"""Strategies and dtypes by name, and the XLA program of a training step."""

import fnmatch
import json
import re
import sys
import types

import keras
import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.modeling.pretrainer import pretraining_losses
from bert_keras.training import strategy as strategies
from bert_keras.training.optimizers import adamw
from bert_keras.training.strategy import make_strategy
from tests.support.model_samples import fill, make_model, pretraining_batch


@pytest.mark.parametrize("name", ["off", "auto", "mirrored"])
def test_one_cpu_is_one_replica(name, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU here")
    strategy = make_strategy(name)
    assert strategy.name == ("mirrored" if name == "mirrored" else "off")
    assert (strategy.num_replicas, strategy.is_chief) == (1, True)
    with strategy.scope():
        assert tf.distribute.has_strategy() == (name == "mirrored")
    policy = strategy.batches(tf.data.Dataset.range(3)).options()
    policy = policy.experimental_distribute.auto_shard_policy.name
    assert policy == ("DATA" if name == "mirrored" else "AUTO")


@pytest.mark.parametrize(
    ("name", "gpu", "line", "warning"),
    [
        ("off", "", "1 x CPU, no distribution, float32", None),
        ("mirrored", "", "1 x CPU, mirrored (1 replica), float32", "No GPU"),
        ("off", "nvidia0", "1 x CPU, no distribution, float32", "cannot use"),
        ("off", "dxg", "1 x CPU, no distribution, float32", "cannot use"),
    ],
)
def test_a_run_says_what_it_trains_on(name, gpu, line, warning, monkeypatch):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(
        strategies.glob, "glob", lambda x: fnmatch.filter([f"/dev/{gpu}"], x)
    )
    said, found = strategies.describe_devices(make_strategy(name), "float32")
    assert said == line
    assert (warning is None) == (found is None) and (warning or "") in (
        found or ""
    )


@pytest.mark.parametrize(
    ("backend", "package"),
    [("tensorflow", r"tensorflow\[and-cuda\]"), ("jax", r"jax\[cuda12\]")],
)
def test_an_unused_gpu_names_the_backends_package(
    backend, package, monkeypatch
):
    strategy = make_strategy("off")
    monkeypatch.setattr(strategies, "_list_device_types", lambda _: ["CPU"])
    monkeypatch.setattr(strategies.glob, "glob", lambda _: ["/dev/nvidia0"])
    monkeypatch.setattr(strategies.keras.backend, "backend", lambda: backend)
    _, warning = strategies.describe_devices(strategy, "float32")
    assert re.search(f"install {package} in .* of your {backend}", warning)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpu",), "one of off, .*got 'gpu'"),
        (("off", "mine"), "tpu='mine'.*distribution='off'"),
        (("auto", "mine"), "tpu='mine'.*distribution='auto'"),
    ],
)
def test_unknown_devices_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_strategy(*arguments)


@pytest.mark.parametrize(
    "raised", [tf.errors.NotFoundError(None, None, "none"), ValueError("none")]
)
def test_a_missing_tpu_is_named(raised, monkeypatch):
    def set_up(resolver):
        raise raised

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", set_up)
    message = r"TPU 'local' cannot be used \(none\).*tpu='local'"
    with pytest.raises(InputError, match=message):
        make_strategy("tpu")


@pytest.mark.long  # looks up a host, clears TensorFlow's caches
@pytest.mark.parametrize("tpu", ["local", "no-such-tpu.invalid"])
def test_tensorflow_misses_a_tpu(tpu):
    with pytest.raises(InputError, match=f"TPU '{tpu}' cannot .*tpu='local'"):
        make_strategy("tpu", tpu)


def test_a_tpu_is_set_up_once(monkeypatch):
    set_up = []
    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda name: name)
    monkeypatch.setattr(
        tf.tpu.experimental, "initialize_tpu_system", set_up.append
    )
    monkeypatch.setattr(
        tf.distribute, "TPUStrategy", lambda _: tf.distribute.OneDeviceStrategy
    )
    monkeypatch.setattr(
        tf.distribute.OneDeviceStrategy, "num_replicas_in_sync", 8
    )
    strategies._tpu.cache_clear()
    first, second = make_strategy("tpu"), make_strategy("tpu")
    strategies._tpu.cache_clear()
    assert first.distributed is second.distributed
    assert (first.num_replicas, set_up) == (8, ["local"])


def test_several_hosts_take_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(InputError, match="TF_CONFIG='.*it is not set"):
        make_strategy("multi_worker")
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    for wrong in (
        "worker",
        "{}",
        json.dumps({"cluster": cluster}),
        json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}),
        *(
            json.dumps(
                {"cluster": cluster, "task": {"type": "worker", "index": index}}
            )
            for index in (2, -1)
        ),
    ):
        monkeypatch.setenv("TF_CONFIG", wrong)
        for name in ("multi_worker", "auto"):
            with pytest.raises(InputError, match="must be JSON such as"):
                make_strategy(name)


def test_a_whole_step_compiles_for_xla_with_static_shapes_and_no_callback():
    model = fill(make_model("pretrainer"))
    optimizer = adamw(1e-3, 10, accumulate=2)
    model.compile(optimizer, pretraining_losses(), run_eagerly=True)
    batch = tf.nest.map_structure(tf.constant, pretraining_batch(batch=4))
    model.train_on_batch(*batch)  # creates all variables
    model.jit_compile = True
    before = model.get_weights()
    step = tf.function(model.train_step, jit_compile=True)
    program = step.experimental_get_compiler_ir(batch)(stage="hlo")
    assert "while(" in program  # micro-batches are a loop, not unrolled
    assert "rng-bit-generator" in program or "xor(" in program  # dropout
    for word in ("custom-call", "infeed", "outfeed", "send(", "recv(", "[<="):
        assert word not in program, word
    step(batch)
    after = model.get_weights()
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    ("maker", "flags", "capabilities", "expected"),
    [
        ("AMD", "fma avx2", [], "float32"),
        ("Intel", "avx2 avx512f avx512_vnni", [], "float32"),
        ("AMD", "avx512f avx512_bf16", [], "mixed_bfloat16"),
        ("Intel", "avx512f avx512_bf16", [], "float32"),  # bfloat16 is slower
        ("Intel", "avx512_bf16 amx_bf16 amx_tile", [], "mixed_bfloat16"),
        ("AMD", "avx2", [(8, 0), (9, 0)], "mixed_bfloat16"),
        ("AMD", "avx512_bf16", [(8, 0), (7, 5)], "float32"),
        ("AMD", "avx512_bf16", [None], "float32"),  # not an NVIDIA GPU
    ],
)
def test_auto_is_bfloat16_where_the_device_multiplies_it(
    maker, flags, capabilities, expected, tmp_path, monkeypatch
):
    path = tmp_path / "cpuinfo"
    maker = {"AMD": "AuthenticAMD", "Intel": "GenuineIntel"}[maker]
    core = f"vendor_id\t: {maker}\nflags\t\t: fpu {flags}\n"
    path.write_text(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}\n")
    read = strategies.instructions.__wrapped__
    monkeypatch.setattr(strategies, "instructions", lambda: read(path))
    monkeypatch.setattr(
        tf.config, "get_visible_devices", lambda kind: capabilities
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "get_device_details",
        lambda gpu: {"compute_capability": gpu} if gpu else {},
    )
    assert strategies.choose_dtype() == expected
    assert strategies.choose_dtype("auto", "tpu") == "mixed_bfloat16"
    assert strategies.choose_dtype("mixed_float16") == "mixed_float16"
    assert not read(tmp_path / "none")  # macOS has no such file


@pytest.mark.parametrize(
    ("platform", "versions", "expected"),
    [
        ("tpu", [None], "mixed_bfloat16"),
        ("gpu", ["9.0", "8.0"], "mixed_bfloat16"),
        ("gpu", ["12.0", "7.5"], "float32"),
        ("gpu", ["gfx90a"], "float32"),
        ("cpu", [None], "float32"),
    ],
)
def test_auto_asks_jax_for_its_devices(
    platform, versions, expected, monkeypatch
):
    devices = [
        types.SimpleNamespace(platform=platform, compute_capability=version)
        for version in versions
    ]
    jax = types.SimpleNamespace(devices=lambda: devices)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(strategies, "fast_bfloat16", lambda: False)
    assert strategies.choose_dtype() == expected
